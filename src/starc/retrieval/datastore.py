"""The datastore: captions with their text embeddings, searched for those nearest to a segment.

In: captions of any kind and a text encoder that embeds them. Out: CaptionStore, whose `search`
gives the top-p captions of each query by cosine (preliminaries, retrieval augmentation). Embeddings
are brought to unit length once, when a datastore is made. A store in memory does not change: `add`,
`remove` and `joined` give a new one. `open_datastore` opens every kind by the name a user writes.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from starc.errors import DatastoreError
from starc.files.annotations import video_id
from starc.media.encoders import TextEncoder
from starc.retrieval.captions import (
    CaptionList,
    Duplicates,
    duplicates,
    read_captions,
    read_published,
    same_text,
)
from starc.retrieval.search import (
    SCAN_ROWS,
    EmbeddingTable,
    Exclude,
    NearestCaptions,
    Recall,
    Scan,
    exact_search,
    fastest_scan,
    per_query,
    unit_queries,
)
from starc.retrieval.storage import (
    FileWriters,
    Stored,
    caption_files,
    read_facts,
    read_folder,
    write_folder,
)

__all__ = [
    "CaptionStore",
    "Datastore",
    "NearestCaptions",
    "TextEncoder",
    "joined",
    "open_datastore",
    "overlap",
]

Captions = CaptionList | Iterable[str]
OnProgress = Callable[[int, int], None] | None
"""Called with (done, all) after each batch of captions."""


class Datastore(ABC):
    """What every kind of datastore has; those with an index over a `store` inherit the rest."""

    captions: Sequence[str]
    embedding_ND: EmbeddingTable
    encoder: str
    """Name of the text encoder."""
    width: int
    mean_D: Tensor | None
    """Subtracted from the encoder's embeddings before they were brought to unit length."""
    store: CaptionStore
    _digest: str | None = None

    def __len__(self) -> int:
        return len(self.captions)

    @abstractmethod
    def search(self, query_SD: Tensor, *, k: int, exclude: Exclude = None) -> NearestCaptions:
        """The `k` captions of largest cosine to each query, less those of excluded videos."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write a datastore folder."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """`kind`, `encoder`, `width`, `captions` and what else the kind notes in datastore.json."""

    @property
    def recall(self) -> Recall | None:
        """What an approximate search finds of the true top-k; None where search is exact."""
        return None

    @property
    def exact(self) -> CaptionStore:
        """All captions as a datastore in memory, searched exactly."""
        return self.store

    @property
    def fingerprint(self) -> str | None:
        """A name for all that decides an answer: of a folder, for its datastore.json.

        None where others may change the datastore: do not cache.
        """
        if self._digest is None:
            digest = hashlib.sha256(json.dumps(self.facts).encode())
            for caption in self.captions:
                digest.update(caption.encode("utf-8", "surrogatepass") + b"\0")
            digest.update(self.exact.embedding_ND.cpu().contiguous().numpy().data)
            self._digest = digest.hexdigest()
        return f"{self.facts['kind']}:{self._digest}"

    def listing(self) -> CaptionList:
        """All captions, without summaries, and the video of each."""
        return CaptionList(self.exact.captions, self.exact.videos)

    def add(self, captions: Captions, encoder: TextEncoder, on_progress: OnProgress = None) -> Self:
        """The datastore with these captions after the present ones, embedded by its encoder."""
        return self.rebuilt(self.exact.add(captions, encoder, on_progress))

    def remove(self, *, videos: Iterable[str] = (), captions: Iterable[str] = ()) -> Self:
        """The datastore without the captions of some videos, or without these captions."""
        return self.rebuilt(self.exact.remove(videos=videos, captions=captions))

    def rebuilt(self, store: CaptionStore) -> Self:
        """The same kind of index over other captions."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027
        """Let go of a server, or of a folder that one process at a time may open."""


class CaptionStore(Datastore):
    """Captions, their unit embeddings, the video each came from, and who embedded them."""

    def __init__(
        self,
        captions: Sequence[str],
        embedding_ND: Tensor,
        *,
        videos: Sequence[str | None] | None = None,
        encoder: str = "unknown",
        mean_D: Tensor | None = None,
        version: str | None = None,
        digest: str | None = None,
    ) -> None:
        """Rows that already have unit length are kept as they are, not copied.

        `digest` names the folder it was read from, if any.
        """
        if embedding_ND.ndim != 2 or len(embedding_ND) != len(captions):
            raise ValueError(
                f"one row per caption, got {len(captions) = }, {tuple(embedding_ND.shape) = }"
            )
        if videos is not None and len(videos) != len(captions):
            raise ValueError(f"one video per caption, got {len(videos) = }, {len(captions) = }")
        if not captions or not embedding_ND.shape[1]:
            raise DatastoreError("datastore: no captions in it; build it from at least one")
        self.captions: tuple[str, ...] = tuple(captions)
        self.videos: tuple[str | None, ...] = tuple(videos or [None] * len(captions))
        self.embedding_ND: Tensor = _unit(embedding_ND.detach())
        self.width = embedding_ND.shape[1]
        self.encoder = encoder
        self.mean_D = mean_D
        self.version = version or version_of("starc")
        """The starc that made it."""
        self._digest = digest
        self._scan: Scan | None = None
        self._rows: dict[str, Tensor] | None = None

    @classmethod
    def build(
        cls,
        captions: Captions,
        encoder: TextEncoder,
        *,
        centre: bool = False,
        batch: int = 256,
        on_progress: OnProgress = None,
    ) -> CaptionStore:
        """Embed captions with a text encoder; blank ones are left out.

        `centre` subtracts the mean embedding, for encoders whose texts all point one way; queries
        must then be centred by their own mean.
        """
        listed = captions if isinstance(captions, CaptionList) else CaptionList.of(captions)
        if not listed.captions:
            raise DatastoreError(f"datastore: no captions to embed ({listed.blank} blank)")
        embedding_ND = _embed(listed.captions, encoder, batch, on_progress)
        mean_D = embedding_ND.mean(0) if centre else None
        if mean_D is not None:
            embedding_ND -= mean_D
        return cls(
            listed.captions, embedding_ND, videos=listed.videos, encoder=encoder.name, mean_D=mean_D
        )

    @classmethod
    def from_file(
        cls, path: str | Path, encoder: TextEncoder, *, subset: str | None = None, **options: Any
    ) -> CaptionStore:
        """Embed the captions of a text, JSON or annotation file; options as in `build`."""
        return cls.build(read_captions(path, subset=subset), encoder, **options)

    @classmethod
    def from_published(
        cls,
        embeddings: str | Path,
        sentences: str | Path | None = None,
        *,
        encoder: str = "openai/clip-vit-large-patch14",
    ) -> CaptionStore:
        """A datastore in the form in which they are published: `.npy` or `.pt` arrays."""
        captions, embedding_ND = read_published(embeddings, sentences)
        return cls(captions, embedding_ND, encoder=encoder)

    def __repr__(self) -> str:
        return f"CaptionStore({len(self)} captions, width {self.width}, encoder {self.encoder!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scan": None}  # packed for this process; made again on demand

    @property
    def exact(self) -> CaptionStore:
        return self

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "kind": "captions",
            "encoder": self.encoder,
            "version": self.version,
            "width": self.width,
            "captions": len(self),
        }

    def to(self, device: torch.device | str) -> CaptionStore:
        """The same datastore with its embeddings on another device."""
        moved = self.derived(self.captions, self.videos, self.embedding_ND.to(device))
        moved._digest = self._digest
        return moved

    def search(self, query_SD: Tensor, *, k: int, exclude: Exclude = None) -> NearestCaptions:
        """The `k` captions of largest cosine to each query, best first, ties by index.

        Exact: what a float64 search over all captions gives. Fewer than k come back when the
        datastore, less what `exclude` hides, holds fewer. The answer is on the datastore's device.
        """
        query_SD = unit_queries(query_SD, k=k, width=self.width, encoder=self.encoder)
        query_SD = query_SD.to(self.embedding_ND.device)
        hidden = [self.owned(video) for video in per_query(exclude, len(query_SD))]
        left = len(self) - max((len(rows) for rows in hidden if rows is not None), default=0)
        if left < 1:
            raise DatastoreError(
                f"datastore: all {len(self)} captions belong to the video that is excluded; "
                "add captions of other videos"
            )
        if self._scan is None:
            self._scan = fastest_scan(self.embedding_ND)
        return exact_search(
            self.embedding_ND, query_SD, k=min(k, left), scan=self._scan, hidden=hidden
        )

    def owned(self, video: str | None) -> Tensor | None:
        """Rows of a video's captions. Ids meet as in annotation files: `v_x.mp4` is `x`."""
        if self._rows is None:
            rows: dict[str, list[int]] = {}
            for row, owner in enumerate(self.videos):
                if owner is not None:
                    rows.setdefault(video_id(owner), []).append(row)
            device = self.embedding_ND.device
            self._rows = {name: torch.tensor(row, device=device) for name, row in rows.items()}
        return None if video is None else self._rows.get(video_id(video))

    def add(
        self, captions: Captions, encoder: TextEncoder, on_progress: OnProgress = None
    ) -> CaptionStore:
        """A datastore with these captions after the present ones, embedded by the same encoder."""
        new = embedded_for(self, captions, encoder, on_progress)
        return self if new is None else joined([self, new])

    def remove(
        self,
        index: Iterable[int] = (),
        *,
        videos: Iterable[str] = (),
        captions: Iterable[str] = (),
    ) -> CaptionStore:
        """A datastore without some entries: by index, by video, or by text (see `same_text`)."""
        gone = set(index)
        if outside := [n for n in gone if not 0 <= n < len(self)]:
            raise ValueError(f"index must be in [0, {len(self)}), got {outside[0]}")
        gone |= selected(self.listing(), videos=videos, texts=captions)
        kept = [n for n in range(len(self)) if n not in gone]
        return self.derived(
            tuple(self.captions[n] for n in kept),
            tuple(self.videos[n] for n in kept),
            self.embedding_ND[kept],
        )

    def derived(
        self, captions: tuple[str, ...], videos: tuple[str | None, ...], embedding_ND: Tensor
    ) -> CaptionStore:
        """Other captions of the same encoder."""
        return CaptionStore(
            captions, embedding_ND, videos=videos, encoder=self.encoder, mean_D=self.mean_D
        )

    def duplicates(self) -> Duplicates:
        """Captions that occur more than once."""
        return duplicates(self.captions)

    def files(self, *, half: bool = False, **tensors: Tensor) -> FileWriters:
        """What `save` writes, with further tensors that other kinds of datastore keep."""
        tensors["embedding_ND"] = self.embedding_ND.half() if half else self.embedding_ND
        if self.mean_D is not None:
            tensors["mean_D"] = self.mean_D
        return caption_files(self.captions, self.videos, tensors)

    def save(self, folder: str | Path, *, half: bool = False) -> None:
        """Write a datastore folder; `half` stores float16: half the size, scores to 3 digits."""
        write_folder(folder, self.facts, self.files(half=half))

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = True) -> CaptionStore:
        """Read a datastore folder; of a hierarchical or approximate one, the captions alone."""
        return cls.of(read_folder(folder, verify=verify))

    @classmethod
    def of(cls, stored: Stored) -> CaptionStore:
        """The captions and embeddings of a folder."""
        return cls(
            stored.captions,
            stored.tensors["embedding_ND"],
            videos=stored.videos,
            encoder=stored.facts["encoder"],
            mean_D=stored.tensors.get("mean_D"),
            version=str(stored.facts.get("version", "unknown")),
            digest=stored.digest,
        )


_QDRANT = "qdrant:"


def open_datastore(name: str | Path, *, verify: bool = True) -> Datastore:
    """The datastore of a name: a folder of any kind, or `qdrant:LOCATION/COLLECTION`.

    LOCATION is the URL of a server or a folder of Qdrant's own. `verify=False` skips checksums.
    """
    from starc.retrieval.faiss_store import FaissStore
    from starc.retrieval.hierarchy import HierarchicalStore
    from starc.retrieval.qdrant_store import QdrantStore

    if str(name).startswith(_QDRANT):
        # pathlib.Path writes the two slashes of a URL as one
        address = re.sub(r"^(https?):/+", r"\1://", str(name).removeprefix(_QDRANT))
        location, _, collection = address.rpartition("/")
        if not location or not collection or location.endswith("/"):
            raise DatastoreError(
                f"{name}: expected qdrant:LOCATION/COLLECTION, "
                "such as qdrant:http://localhost:6333/captions"
            )
        return QdrantStore(location, collection)
    kinds: dict[str, Callable[..., Datastore]] = {
        "captions": CaptionStore.load,
        "hierarchical": HierarchicalStore.load,
        "faiss": FaissStore.load,
        "qdrant": QdrantStore.load,
    }
    kind = read_facts(name)["kind"]
    if kind not in kinds:
        raise DatastoreError(f"{name}: unknown kind of datastore {kind!r}; use a newer starc")
    return kinds[kind](name, verify=verify)


def joined(stores: Sequence[CaptionStore]) -> CaptionStore:
    """Several datastores as one, in this order; they must come from one text encoder."""
    if not stores:
        raise ValueError("joined needs at least one datastore")
    first = stores[0]
    for n, store in enumerate(stores[1:], start=2):
        for what in ("width", "encoder"):
            if getattr(store, what) != getattr(first, what):
                raise DatastoreError(
                    f"datastore {n}: {what} {getattr(store, what)!r}, but the first has "
                    f"{getattr(first, what)!r}; build both with one text encoder"
                )
        means = [mean for mean in (first.mean_D, store.mean_D) if mean is not None]
        if len(means) == 1 or (means and not torch.allclose(means[0], means[1], atol=1e-6)):
            raise DatastoreError(
                f"datastore {n}: centred otherwise than the first; build both anew"
            )
    return first.derived(
        tuple(caption for store in stores for caption in store.captions),
        tuple(video for store in stores for video in store.videos),
        torch.cat([store.embedding_ND.to(first.embedding_ND.device) for store in stores]),
    )


def overlap(store: CaptionStore, captions: Iterable[str]) -> list[str]:
    """Which of these captions (of evaluation videos, say) the datastore holds: a leak.

    Compared without case, spacing and punctuation; each is named once.
    """
    held = {same_text(caption) for caption in store.captions}
    return list(dict.fromkeys(caption for caption in captions if same_text(caption) in held))


def selected(listed: CaptionList, *, videos: Iterable[str], texts: Iterable[str]) -> set[int]:
    """Indices of the captions of some videos, and of captions equal to some text (`same_text`)."""
    owners = [None if video is None else video_id(video) for video in listed.videos]
    names = {video_id(video) for video in videos}
    if missing := sorted(names.difference(filter(None, owners))):
        raise DatastoreError(f"datastore: no captions of video {missing[0]!r} to remove")
    chosen = {n for n, owner in enumerate(owners) if owner in names}
    if wanted := {same_text(text) for text in texts}:
        chosen |= {n for n, caption in enumerate(listed.captions) if same_text(caption) in wanted}
    return chosen


def embedded_for(
    store: Datastore,
    captions: Captions,
    encoder: TextEncoder,
    on_progress: OnProgress,
    *,
    batch: int = 256,
) -> CaptionStore | None:
    """New captions embedded and centred as those of `store`; None if all are blank."""
    if encoder.name != store.encoder:
        raise DatastoreError(
            f"datastore: made with the text encoder {store.encoder!r} (found {encoder.name!r}); "
            "embeddings of different encoders do not compare"
        )
    listed = captions if isinstance(captions, CaptionList) else CaptionList.of(captions)
    if not listed.captions:
        return None
    new_ND = _embed(listed.captions, encoder, batch, on_progress)
    if new_ND.shape[1] != store.width:
        raise DatastoreError(
            f"datastore: of width {store.width}, but {encoder.name} gives {new_ND.shape[1]}"
        )
    if store.mean_D is not None:
        new_ND -= store.mean_D.cpu()
    return CaptionStore(
        listed.captions, new_ND, videos=listed.videos, encoder=encoder.name, mean_D=store.mean_D
    )


def _unit(embedding_ND: Tensor) -> Tensor:
    embedding_ND = embedding_ND.float()
    length_N = torch.cat([part.norm(dim=1) for part in torch.split(embedding_ND, SCAN_ROWS)])
    if not bool(length_N.isfinite().all()):
        bad = int((~length_N.isfinite()).nonzero()[0])
        raise DatastoreError(
            f"datastore: the embedding of caption {bad} is not finite; embed it anew"
        )
    if bool(((length_N - 1).abs() <= 1e-6).all()):
        return embedding_ND
    return embedding_ND / length_N.clamp_min(1e-12)[:, None]


def _embed(
    captions: Sequence[str], encoder: TextEncoder, batch: int, on_progress: OnProgress
) -> Tensor:
    embedding_ND: Tensor | None = None
    for first in range(0, len(captions), batch):
        part = captions[first : first + batch]
        with torch.no_grad():
            rows_ND = encoder.encode(part).detach().float().cpu()
        if rows_ND.ndim != 2 or len(rows_ND) != len(part):
            raise ValueError(
                f"{encoder.name} must give a row per caption, "
                f"got {tuple(rows_ND.shape)} for {len(part)}"
            )
        if embedding_ND is None:
            embedding_ND = rows_ND.new_empty(len(captions), rows_ND.shape[1])
        embedding_ND[first : first + len(part)] = rows_ND
        if on_progress is not None:
            on_progress(first + len(part), len(captions))
    assert embedding_ND is not None
    return embedding_ND
