"""The datastore: captions with their text embeddings, searched for those nearest to a segment.

In: captions of any kind and a text encoder that embeds them. Out: CaptionStore, whose `search`
gives the top-p captions of each query by cosine (preliminaries, retrieval augmentation). Embeddings
are brought to unit length once, when a datastore is made. A store does not change: `add`, `remove` and
`joined` give a new one. Folders are in storage.py, caption files in captions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from starc.errors import DatastoreError
from starc.files.annotations import video_id
from starc.retrieval.captions import (
    CaptionList,
    Duplicates,
    duplicates,
    read_captions,
    read_published,
    same_text,
)
from starc.retrieval.search import (
    BLOCK,
    Exclude,
    Hits,
    Screen,
    nearest,
    per_query,
    screen_for,
    unit_queries,
)
from starc.retrieval.storage import Stored, kind_of, read_folder, write_folder

__all__ = [
    "CaptionStore",
    "Datastore",
    "Duplicates",
    "Hits",
    "TextEncoder",
    "joined",
    "open_datastore",
    "overlap",
]


class TextEncoder(Protocol):
    """Whatever turns captions into embeddings."""

    @property
    def name(self) -> str: ...

    def encode(self, texts: Sequence[str]) -> Tensor:
        """embedding_ND of the texts, of any length."""
        ...


class Rows(Protocol):
    """Embeddings by index: a tensor, or something that fetches them."""

    def __getitem__(self, index: Tensor, /) -> Tensor: ...


class Datastore(Protocol):
    """What the model needs of a datastore; every kind of ours has it."""

    @property
    def captions(self) -> Sequence[str]: ...

    @property
    def embedding_ND(self) -> Rows: ...

    def __len__(self) -> int: ...

    def search(self, query_SD: Tensor, *, k: int, exclude: Exclude = None) -> Hits: ...


class CaptionStore:
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
    ) -> None:
        """Rows that already have unit length are kept as they are, not copied."""
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
        self.embedding_ND = _unit(embedding_ND.detach())
        self.encoder = encoder
        """Name of the text encoder."""
        self.mean_D = mean_D
        """Subtracted from the encoder's embeddings before they were brought to unit length."""
        self.version = version or version_of("starc")
        """The starc that made it."""
        self._screen: Screen | None = None
        self._rows: dict[str, Tensor] | None = None

    @classmethod
    def build(
        cls,
        captions: CaptionList | Iterable[str],
        encoder: TextEncoder,
        *,
        centre: bool = False,
        batch: int = 256,
        report: Callable[[int, int], None] | None = None,
    ) -> CaptionStore:
        """Embed captions with a text encoder; blank ones are left out.

        `centre` subtracts the mean embedding, for encoders whose texts all point one way; queries
        must then be centred by their own mean. `report` is told (done, all) after each batch.
        """
        found = captions if isinstance(captions, CaptionList) else CaptionList.of(captions)
        if not found.captions:
            raise DatastoreError(f"datastore: no captions to embed ({found.blank} blank)")
        embedding_ND = _embed(found.captions, encoder, batch, report)
        mean_D = embedding_ND.mean(0) if centre else None
        if mean_D is not None:
            embedding_ND -= mean_D
        return cls(
            found.captions, embedding_ND, videos=found.videos, encoder=encoder.name, mean_D=mean_D
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

    def __len__(self) -> int:
        return len(self.captions)

    def __repr__(self) -> str:
        return f"CaptionStore({len(self)} captions, width {self.width}, encoder {self.encoder!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_screen": None}  # packed for this process; made again on demand

    @property
    def width(self) -> int:
        return self.embedding_ND.shape[1]

    def to(self, device: torch.device | str) -> CaptionStore:
        """The same datastore with its embeddings on another device."""
        return self.derived(self.captions, self.videos, self.embedding_ND.to(device))

    def search(self, query_SD: Tensor, *, k: int, exclude: Exclude = None) -> Hits:
        """The `k` captions of largest cosine to each query, best first, ties by index.

        Exact: what a float64 search over all captions gives. Fewer than k come back when the
        datastore, less what `exclude` hides, holds fewer. Hits are on the datastore's device.
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
        if self._screen is None:
            self._screen = screen_for(self.embedding_ND)
        return nearest(
            self.embedding_ND, query_SD, k=min(k, left), screen=self._screen, hidden=hidden
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
        self,
        captions: CaptionList | Iterable[str],
        encoder: TextEncoder,
        *,
        batch: int = 256,
    ) -> CaptionStore:
        """A datastore with these captions after the present ones, embedded by the same encoder."""
        if encoder.name != self.encoder:
            raise DatastoreError(
                f"datastore: made with the text encoder {self.encoder!r} (found {encoder.name!r}); "
                "embeddings of different encoders do not compare"
            )
        found = captions if isinstance(captions, CaptionList) else CaptionList.of(captions)
        if not found.captions:
            return self
        new_ND = _embed(found.captions, encoder, batch, None).to(self.embedding_ND.device)
        if new_ND.shape[1] != self.width:
            raise DatastoreError(
                f"datastore: of width {self.width}, but {encoder.name} gives {new_ND.shape[1]}"
            )
        if self.mean_D is not None:
            new_ND -= self.mean_D.to(new_ND.device)
        embedding_ND = torch.cat([self.embedding_ND, _unit(new_ND)])
        return self.derived(
            self.captions + found.captions, self.videos + found.videos, embedding_ND
        )

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
        for video in videos:
            rows = self.owned(video)
            if rows is None:
                raise DatastoreError(f"datastore: no captions of video {video!r} to remove")
            gone.update(rows.tolist())
        if texts := {same_text(caption) for caption in captions}:
            gone.update(n for n, caption in enumerate(self.captions) if same_text(caption) in texts)
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

    def stored(self, *, half: bool = False) -> Stored:
        """What `save` writes; other kinds of datastore add to it."""
        tensors = {"embedding_ND": self.embedding_ND.half() if half else self.embedding_ND}
        if self.mean_D is not None:
            tensors["mean_D"] = self.mean_D
        facts = {
            "kind": "captions",
            "encoder": self.encoder,
            "version": self.version,
            "width": self.width,
        }
        return Stored(facts, self.captions, self.videos, tensors)

    def save(self, folder: str | Path, *, half: bool = False) -> None:
        """Write a datastore folder; `half` stores float16: half the size, scores to 3 digits."""
        write_folder(folder, self.stored(half=half))

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = True) -> CaptionStore:
        """Read a datastore folder; of a hierarchical or approximate one, the captions alone."""
        return cls.of(read_folder(folder, verify=verify))

    @classmethod
    def of(cls, stored: Stored) -> CaptionStore:
        """The datastore in what `stored` gave."""
        return cls(
            stored.captions,
            stored.tensors["embedding_ND"],
            videos=stored.videos,
            encoder=str(stored.facts.get("encoder", "unknown")),
            mean_D=stored.tensors.get("mean_D"),
            version=str(stored.facts.get("version", "unknown")),
        )


def open_datastore(folder: str | Path, *, verify: bool = True) -> Datastore:
    """Read a datastore folder of any kind."""
    from starc.retrieval import faiss_store, hierarchy

    kind = kind_of(folder)
    kinds: dict[str, Callable[..., Datastore]] = {
        "captions": CaptionStore.load,
        "hierarchical": hierarchy.HierarchicalStore.load,
        "faiss": faiss_store.FaissStore.load,
    }
    if kind not in kinds:
        raise DatastoreError(f"{folder}: unknown kind of datastore {kind!r}; use a newer starc")
    return kinds[kind](folder, verify=verify)


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
    embedding_ND = embedding_ND.float()
    length_N = torch.cat([part.norm(dim=1) for part in torch.split(embedding_ND, BLOCK)])
    if not bool(length_N.isfinite().all()):
        bad = int((~length_N.isfinite()).nonzero()[0])
        raise DatastoreError(
            f"datastore: the embedding of caption {bad} is not finite; embed it anew"
        )
    if bool(((length_N - 1).abs() <= 1e-6).all()):
        return embedding_ND
    return embedding_ND / length_N.clamp_min(1e-12)[:, None]


def _embed(
    captions: Sequence[str],
    encoder: TextEncoder,
    batch: int,
    report: Callable[[int, int], None] | None,
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
        if report is not None:
            report(first + len(part), len(captions))
    assert embedding_ND is not None
    return embedding_ND
