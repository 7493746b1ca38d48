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
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import normalize

from starc.errors import DatastoreError
from starc.media.encoders import TextEncoder
from starc.retrieval.captions import (
    CAPTIONS,
    TENSORS,
    CaptionList,
    Folder,
    read_facts,
    read_folder,
    read_published,
    same_text,
    write_folder,
)
from starc.retrieval.search import (
    HALF_FROM,
    PREPARED,
    SCAN_ROWS,
    EmbeddingTable,
    FloatScan,
    HalfScan,
    NearestCaptions,
    Recall,
    Scan,
    exact_search,
    fastest_scan,
)
from starc_eval.annotations import video_id

Captions = CaptionList | Iterable[str]
Exclude = str | Sequence[str | None] | None
"""A video whose captions stay hidden: one for all queries, or one (or None) per query."""
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
    recall: Recall | None = None
    """What an approximate search finds of the true top-k; None where search is exact."""
    _digest: str | None = None

    def __len__(self) -> int:
        return len(self.captions)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.facts})"

    def search(self, query_SD: Tensor, *, k: int, exclude: Exclude = None) -> NearestCaptions:
        """The `k` captions of largest cosine to each query, best first, ties by index.

        Fewer than k come back when the datastore, less what `exclude` hides, holds fewer. A query
        of zeros stays so: all captions tie.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k = }")
        if query_SD.ndim != 2:
            raise ValueError(f"queries must be [segments, width], got {tuple(query_SD.shape) = }")
        if query_SD.shape[1] != self.width:
            raise DatastoreError(
                f"datastore: of width {self.width} (text encoder {self.encoder!r}), the query has "
                f"{query_SD.shape[1]}; build it with the encoder that made the video features"
            )
        query_SD = query_SD.detach().float().contiguous()
        finite_S = query_SD.isfinite().all(1)
        if not bool(finite_S.all()):
            raise DatastoreError(
                f"datastore: query {int((~finite_S).nonzero()[0])} is not finite; "
                "are the video features damaged?"
            )
        videos = [exclude] * len(query_SD) if isinstance(exclude, str | None) else exclude
        if len(videos) != len(query_SD):
            raise ValueError(f"exclude one video per query, got {len(videos)} for {len(query_SD)}")
        return self.nearest(normalize(query_SD, dim=1), k, videos)

    @abstractmethod
    def nearest(self, query_SD: Tensor, k: int, videos: Sequence[str | None]) -> NearestCaptions:
        """`search` for unit queries, each without the captions of a video."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """`kind`, `encoder`, `width`, `captions` and what else the kind notes in datastore.json."""

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

    def save(self, folder: str | Path, *, half: bool = False) -> None:
        """Write a datastore folder; `half` stores float16: half the size, scores to 3 digits.

        `CaptionStore.load` reads the captions of any kind but Qdrant's.
        """
        write_folder(folder, self.facts, self.files(half=half))

    @abstractmethod
    def files(self, *, half: bool) -> Mapping[str, Callable[[Path], Any]]:
        """The files of its folder, and what writes each."""

    def add(self, captions: Captions, encoder: TextEncoder, on_progress: OnProgress = None) -> Self:
        """The datastore with these captions after the present ones, embedded by its encoder."""
        if encoder.name != self.encoder:
            raise DatastoreError(
                f"datastore: made with the text encoder {self.encoder!r} (found {encoder.name!r}); "
                "embeddings of different encoders do not compare"
            )
        if encoder.width != self.width:
            raise DatastoreError(
                f"datastore: of width {self.width}, but {encoder.name} gives {encoder.width}"
            )
        new = captions if isinstance(captions, CaptionList) else CaptionList.of(captions)
        if not new.captions:
            return self
        return self.extended(
            CaptionStore.build(new, encoder, mean_D=self.mean_D, on_progress=on_progress)
        )

    def remove(
        self, index: Iterable[int] = (), *, videos: Iterable[str] = (), captions: Iterable[str] = ()
    ) -> Self:
        """The datastore without some entries: by index, by video, or by text (see `same_text`)."""
        listed, gone = self.listing(), set(index)
        if outside := [n for n in gone if not 0 <= n < len(listed.captions)]:
            raise ValueError(f"index must be in [0, {len(listed.captions)}), got {outside[0]}")
        owners = [None if video is None else video_id(video) for video in listed.videos]
        names = {video_id(video) for video in videos}
        if missing := sorted(names.difference(filter(None, owners))):
            raise DatastoreError(f"datastore: no captions of video {missing[0]!r} to remove")
        gone |= {n for n, owner in enumerate(owners) if owner in names}
        if texts := {same_text(text) for text in captions}:
            gone |= {n for n, caption in enumerate(listed.captions) if same_text(caption) in texts}
        return self.without(gone)

    def extended(self, new: CaptionStore) -> Self:
        """The datastore with the captions of another after its own."""
        return self.rebuilt(joined([self.exact, new]))

    def without(self, gone: set[int]) -> Self:
        """The datastore without the captions of these indices."""
        exact = self.exact
        kept = [n for n in range(len(exact)) if n not in gone]
        captions = tuple(exact.captions[n] for n in kept)
        videos = tuple(exact.videos[n] for n in kept)
        return self.rebuilt(exact.derived(captions, videos, exact.embedding_ND[kept]))

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
        prepared: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Rows that already have unit length are kept as they are, not copied.

        `version` is the starc that made it, `digest` names the folder it was read from, if any;
        `prepared` is what search made of these very rows before.
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
        embedding_ND = embedding_ND.detach().float()
        self.embedding_ND: Tensor = embedding_ND if prepared else _unit(embedding_ND)
        self.width = embedding_ND.shape[1]
        self.encoder = encoder
        self.mean_D = mean_D
        self.version = version or version_of("starc")
        self._digest = digest
        self._prepared = prepared
        self._scan: Scan | None = None
        self._searched = False
        self._rows: dict[str, Tensor] | None = None

    @classmethod
    def build(
        cls,
        captions: Captions,
        encoder: TextEncoder,
        *,
        centre: bool = False,
        mean_D: Tensor | None = None,
        batch: int = 256,
        on_progress: OnProgress = None,
    ) -> CaptionStore:
        """Embed captions with a text encoder; blank ones are left out.

        `centre` subtracts the mean embedding, for encoders whose texts all point one way; queries
        must then be centred by their own mean. `mean_D` is subtracted instead where it is known.
        """
        listed = captions if isinstance(captions, CaptionList) else CaptionList.of(captions)
        total = len(listed.captions)
        if not total:
            raise DatastoreError(f"datastore: no captions to embed ({listed.blank} blank)")
        embedding_ND = torch.empty(total, encoder.width)
        for first in range(0, total, batch):
            texts = listed.captions[first : first + batch]
            with torch.no_grad():
                row_ND = encoder.encode(texts)
            if row_ND.shape != (len(texts), encoder.width):
                raise ValueError(
                    f"{encoder.name} must give a row per caption, "
                    f"got {tuple(row_ND.shape)} for {len(texts)}"
                )
            embedding_ND[first : first + batch] = row_ND.detach()
            if on_progress is not None:
                on_progress(first + len(texts), total)
        mean_D = embedding_ND.mean(0) if centre else mean_D
        if mean_D is not None:
            embedding_ND -= mean_D.cpu()
        return cls(
            listed.captions, embedding_ND, videos=listed.videos, encoder=encoder.name, mean_D=mean_D
        )

    @classmethod
    def from_published(
        cls,
        embeddings: str | Path,
        sentences: str | Path | None = None,
        *,
        encoder: str = "openai/clip-vit-large-patch14",
    ) -> CaptionStore:
        """A datastore in the form in which they are published: `.npy` or `.pt` arrays."""
        return cls(*read_published(embeddings, sentences), encoder=encoder)

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool | None = None) -> CaptionStore:
        """Read a datastore folder; of a hierarchical or approximate one, the captions alone."""
        return cls.of(read_folder(folder, verify=verify))

    @classmethod
    def of(cls, folder: Folder) -> CaptionStore:
        """The captions and embeddings of a folder."""
        return cls(
            folder.captions,
            folder.tensors["embedding_ND"],
            videos=folder.videos,
            encoder=folder.facts["encoder"],
            mean_D=folder.tensors.get("mean_D"),
            version=str(folder.facts.get("version", "unknown")),
            digest=folder.digest,
            prepared=folder.tensors if folder.tensors.keys() >= PREPARED else None,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scan": None}  # made again on demand

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

    def nearest(self, query_SD: Tensor, k: int, videos: Sequence[str | None]) -> NearestCaptions:
        """Exact: what a float64 search over all captions gives, on the datastore's device."""
        hidden = self.hidden(videos)
        k = min(k, len(self) - max(map(len, hidden.values()), default=0))
        scan = self._scan
        if scan is None and self._prepared is None and not self._searched:
            scan = FloatScan(self.embedding_ND)  # one search alone does not repay preparing
        elif scan is None:
            scan = self._scan = fastest_scan(self.embedding_ND, self._prepared)
        self._searched = True
        query_SD = query_SD.to(self.embedding_ND.device)
        return exact_search(self.embedding_ND, query_SD, k, scan, [*map(hidden.get, videos)])

    def prepared(self) -> Mapping[str, Tensor]:
        """What makes the first search as quick as any; stored with a large datastore."""
        return self._prepared or HalfScan.prepare(self.embedding_ND.cpu())

    def hidden(self, videos: Iterable[str | None]) -> dict[str | None, Tensor]:
        """Rows of the captions of videos. Ids meet as in annotation files: `v_x.mp4` is `x`."""
        if self._rows is None:
            rows: dict[str, list[int]] = {}
            for row, owner in enumerate(self.videos):
                if owner is not None:
                    rows.setdefault(video_id(owner), []).append(row)
            device = self.embedding_ND.device
            self._rows = {name: torch.tensor(row, device=device) for name, row in rows.items()}
        names: dict[str | None, str] = {v: video_id(v) for v in videos if v is not None}
        hidden = {video: self._rows[name] for video, name in names.items() if name in self._rows}
        if any(len(rows) == len(self) for rows in hidden.values()):
            raise DatastoreError(
                f"datastore: all {len(self)} captions belong to the video that is excluded; "
                "add captions of other videos"
            )
        return hidden

    def derived(
        self, captions: tuple[str, ...], videos: tuple[str | None, ...], embedding_ND: Tensor
    ) -> CaptionStore:
        """Other captions of the same encoder."""
        return CaptionStore(
            captions, embedding_ND, videos=videos, encoder=self.encoder, mean_D=self.mean_D
        )

    def rebuilt(self, store: CaptionStore) -> CaptionStore:
        return store

    def to(self, device: torch.device | str) -> CaptionStore:
        """The same datastore with its embeddings on another device."""
        moved = self.derived(self.captions, self.videos, self.embedding_ND.to(device))
        moved._digest = self._digest
        return moved

    def files(self, *, half: bool, **tensors: Tensor) -> dict[str, Callable[[Path], Any]]:
        """What `save` writes, with further tensors that other kinds of datastore keep."""
        tensors["embedding_ND"] = self.embedding_ND.half() if half else self.embedding_ND
        if self.mean_D is not None:
            tensors["mean_D"] = self.mean_D
        if len(self) >= HALF_FROM and not half:  # rows in half precision are rounded otherwise
            tensors |= {name: it for name, it in self.prepared().items() if name in PREPARED}
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}

        def write_captions(path: Path) -> None:
            # lone surrogates stay JSON
            with path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
                for caption, video in zip(self.captions, self.videos, strict=True):
                    record = {"caption": caption, "video": video}
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")

        return {CAPTIONS: write_captions, TENSORS: lambda path: save_file(tensors, path)}


def open_datastore(name: str | Path, *, verify: bool | None = None) -> Datastore:
    """The datastore of a name: a folder of any kind, or `qdrant:LOCATION/COLLECTION`.

    LOCATION is the URL of a server or a folder of Qdrant's own. `verify`: see `read_folder`.
    """
    from starc.retrieval.approximate import FaissStore, QdrantStore
    from starc.retrieval.hierarchy import HierarchicalStore

    if str(name).startswith("qdrant:"):
        # pathlib.Path writes the two slashes of a URL as one
        address = re.sub(r"^(https?):/+", r"\1://", str(name).removeprefix("qdrant:"))
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


def _unit(embedding_ND: Tensor) -> Tensor:
    length_N = torch.cat([part.norm(dim=1) for part in torch.split(embedding_ND, SCAN_ROWS)])
    if not bool(length_N.isfinite().all()):
        bad = int((~length_N.isfinite()).nonzero()[0])
        raise DatastoreError(
            f"datastore: the embedding of caption {bad} is not finite; embed it anew"
        )
    if bool(((length_N - 1).abs() <= 1e-6).all()):
        return embedding_ND
    return embedding_ND / length_N.clamp_min(1e-12)[:, None]
