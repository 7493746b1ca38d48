"""A datastore that several machines share: an adapter for Qdrant (extra `qdrant`).

In: the URL of a server, or a folder (or ":memory:") for Qdrant's embedded mode. Out: QdrantStore
with the same `search`, captions and embeddings as a local datastore; what a search returns is kept
for a while, so that reading its captions costs no second trip. `upload` fills a collection. Points
are numbered from 0 without gaps. Scores are computed here, exactly; what the server may miss is
`QdrantStore.recall`. A folder of this kind holds the address alone.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from starc.errors import DatastoreError, MissingExtra
from starc.files.annotations import video_id
from starc.retrieval.captions import CaptionList
from starc.retrieval.datastore import (
    Captions,
    CaptionStore,
    Datastore,
    OnProgress,
    TextEncoder,
    embedded_for,
    selected,
)
from starc.retrieval.search import (
    Exclude,
    NearestCaptions,
    Recall,
    measure_recall,
    per_query,
    recall_queries,
    rescore,
    unit_queries,
)
from starc.retrieval.storage import read_facts, write_folder

_KEPT = 4096
"""Captions and embeddings kept from recent searches."""
_RECALL_QUERIES = 100
_BATCH = 1024
"""Captions per request when many are sent or read."""


class QdrantStore(Datastore):
    """A collection of captions in Qdrant."""

    def __init__(self, location: Any, collection: str = "captions") -> None:
        """Open a collection; `location` is a URL, a folder, ":memory:" or a QdrantClient."""
        self.client, self.collection = _client(location), collection
        self.location = None if self.client is location else _address(location)
        with _closing_on_error(self.client, location), _calls(collection):
            info = self.client.get_collection(collection)
            self.width = int(info.config.params.vectors.size)
        metadata = info.config.metadata or {}
        self.encoder = str(metadata.get("encoder", "unknown"))
        mean = metadata.get("mean")
        self.mean_D = None if mean is None else torch.tensor(mean)
        self._size = int(info.points_count)
        self._kept: OrderedDict[int, tuple[str, Tensor]] = OrderedDict()
        self.captions: Sequence[str] = _Captions(self)
        self.embedding_ND = _Embeddings(self)

    @classmethod
    def upload(
        cls,
        store: CaptionStore,
        location: Any,
        collection: str = "captions",
        *,
        replace: bool = False,
    ) -> QdrantStore:
        """Put a datastore into a new collection and open it; `replace` discards an old one."""
        models = _qdrant().models
        mean = None if store.mean_D is None else store.mean_D.tolist()
        client = _client(location, new=True)
        with _closing_on_error(client, location), _calls(collection):
            if client.collection_exists(collection):
                if not replace:
                    raise DatastoreError(
                        f"{collection}: there is such a collection already; give another name, "
                        "or add captions to it"
                    )
                client.delete_collection(collection)
            client.create_collection(
                collection,
                vectors_config=models.VectorParams(size=store.width, distance=models.Distance.DOT),
                metadata={"encoder": store.encoder, "starc": store.version, "mean": mean},
            )
            opened = cls(client, collection)
            opened.location = None if client is location else _address(location)
            opened._append(store)
        return opened

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = True) -> QdrantStore:
        """Open the collection whose address `save` wrote; there are no checksums to verify."""
        facts = read_facts(folder)
        try:
            return cls(str(facts["location"]), str(facts["collection"]))
        except KeyError as error:
            raise DatastoreError(
                f"{folder}: no {error} of the collection; build it again"
            ) from None

    def save(self, folder: str | Path) -> None:
        """Write a folder with the address of the collection; the captions stay where they are."""
        if self.location is None or self.location == ":memory:":
            raise DatastoreError(
                f"{self.collection}: no address to write; open it by a URL or a folder"
            )
        write_folder(folder, self.facts, {})

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"QdrantStore({self.collection!r}, {len(self)} captions, encoder {self.encoder!r})"

    def close(self) -> None:
        """Let go of the server, or of the folder for another process."""
        self.client.close()

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "kind": "qdrant",
            "encoder": self.encoder,
            "width": self.width,
            "captions": len(self),
            "location": self.location,
            "collection": self.collection,
        }

    @property
    def fingerprint(self) -> None:
        """None: others may change the collection at any time."""

    @property
    def exact(self) -> CaptionStore:
        """All captions, fetched into memory."""
        points = list(self._points(vectors=True))
        return CaptionStore(
            [_caption(point) for point in points],
            torch.tensor([point.vector for point in points]),
            videos=[point.payload.get("video") for point in points],
            encoder=self.encoder,
            mean_D=self.mean_D,
        )

    def listing(self) -> CaptionList:
        """All captions and the video of each, without their embeddings."""
        points = list(self._points())
        return CaptionList(
            tuple(map(_caption, points)), tuple(point.payload.get("video") for point in points)
        )

    def add(
        self, captions: Captions, encoder: TextEncoder, on_progress: OnProgress = None
    ) -> QdrantStore:
        """Put more captions into the collection, embedded by the same encoder."""
        new = embedded_for(self, captions, encoder, on_progress)
        if new is not None:
            self._append(new)
        return self

    def remove(self, *, videos: Iterable[str] = (), captions: Iterable[str] = ()) -> QdrantStore:
        """Delete the captions of some videos, or these captions, from the collection.

        The last captions take the numbers that became free.
        """
        listed = self.listing()
        gone = selected(listed, videos=videos, texts=captions)
        total = len(listed.captions)
        left = total - len(gone)
        if not left:
            raise DatastoreError(f"{self.collection}: no captions would be left; delete it instead")
        free = sorted(n for n in gone if n < left)
        last = [n for n in range(left, total) if n not in gone]
        models = _qdrant().models
        with _calls(self.collection):
            moved = self.client.retrieve(
                self.collection, last, with_payload=True, with_vectors=True
            )
            if moved:
                points = [
                    models.PointStruct(id=n, vector=point.vector, payload=point.payload)
                    for n, point in zip(free, moved, strict=True)
                ]
                self.client.upsert(self.collection, points=points, wait=True)
            if gone:
                tail = models.PointIdsList(points=list(range(left, total)))
                self.client.delete(self.collection, tail, wait=True)
        self._size = left
        self._kept.clear()
        return self

    def search(self, query_SD: Tensor, *, k: int, exclude: Exclude = None) -> NearestCaptions:
        """About the `k` captions of largest cosine to each query, best first, ties by index.

        Fewer come back when the collection, less what `exclude` hides, holds fewer.
        """
        return self._search(query_SD, k, exclude, exact=False)

    @cached_property
    def recall(self) -> Recall:
        """Recall@10 against the server's own exact search."""
        query_SD = recall_queries(
            self.embedding_ND, len(self), self.width, queries=min(_RECALL_QUERIES, len(self))
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Local mode performs exact")
            return measure_recall(
                *(self._search(query_SD, 10, None, exact=exact) for exact in (False, True))
            )

    def _search(
        self, query_SD: Tensor, k: int, exclude: Exclude, *, exact: bool
    ) -> NearestCaptions:
        query_SD = unit_queries(query_SD, k=k, width=self.width, encoder=self.encoder).cpu()
        models = _qdrant().models
        requests = [
            models.QueryRequest(
                query=query,
                limit=k,
                filter=self._filter(video),
                params=models.SearchParams(exact=True) if exact else None,
                with_vector=True,
                with_payload=True,
            )
            for query, video in zip(
                query_SD.tolist(), per_query(exclude, len(query_SD)), strict=True
            )
        ]
        with _calls(self.collection):
            answers = self.client.query_batch_points(self.collection, requests)
        rows = [self._keep(answer.points) for answer in answers]
        left = min(map(len, rows), default=min(k, len(self)))
        if left < 1:
            raise DatastoreError(
                f"{self.collection}: nothing to retrieve; is it empty, or are all captions "
                "of the video that is excluded?"
            )
        index_SR = torch.tensor([row[:left] for row in rows]).view(len(rows), left).long()
        return rescore(self.embedding_ND, query_SD, index_SR)

    def _filter(self, video: str | None) -> Any:
        if video is None:
            return None
        models = _qdrant().models
        same = models.MatchValue(value=video_id(video))
        return models.Filter(must_not=[models.FieldCondition(key="video", match=same)])

    def _keep(self, points: Sequence[Any]) -> list[int]:
        """Remember what these points hold; returns their indices."""
        for point in points:
            self._kept[point.id] = (_caption(point), torch.tensor(point.vector))
            self._kept.move_to_end(point.id)
        while len(self._kept) > max(_KEPT, len(points)):
            self._kept.popitem(last=False)
        return [int(point.id) for point in points]

    def fetch(self, index: Sequence[int]) -> list[tuple[str, Tensor]]:
        """Caption and embedding of each index, from memory or from the server."""
        held = {n: self._kept[n] for n in index if n in self._kept}
        if missing := sorted({n for n in index if n not in held}):
            with _calls(self.collection):
                points = self.client.retrieve(
                    self.collection, missing, with_payload=True, with_vectors=True
                )
            if len(points) < len(missing):
                raise IndexError(f"{self.collection}: no caption with the index {missing[0]}")
            self._keep(points)
            held |= {n: self._kept[n] for n in missing}
        return [held[n] for n in index]

    def _points(self, *, vectors: bool = False) -> Iterator[Any]:
        """All points in order of index."""
        offset = None
        while True:
            with _calls(self.collection):
                points, offset = self.client.scroll(
                    self.collection,
                    limit=_BATCH,
                    offset=offset,
                    with_payload=True,
                    with_vectors=vectors,
                )
            yield from points
            if offset is None:
                return

    def _append(self, store: CaptionStore) -> None:
        models = _qdrant().models
        for first in range(0, len(store), _BATCH):
            part = slice(first, first + _BATCH)
            payloads = [
                {"caption": caption, "video": None if owner is None else video_id(owner)}
                for caption, owner in zip(store.captions[part], store.videos[part], strict=True)
            ]
            points = models.Batch(
                ids=list(range(self._size, self._size + len(payloads))),
                vectors=store.embedding_ND[part].tolist(),
                payloads=payloads,
            )
            with _calls(self.collection):
                self.client.upsert(self.collection, points=points, wait=True)
            self._size += len(payloads)


class _Captions(Sequence[str]):
    """The captions of a collection, fetched as they are read."""

    def __init__(self, store: QdrantStore) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store)

    def __iter__(self) -> Iterator[str]:
        return map(_caption, self._store._points())

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            rows = self._store.fetch(range(*index.indices(len(self))))
            return [caption for caption, _ in rows]
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be below {len(self)}, got {index}")
        return self._store.fetch([index % len(self)])[0][0]


class _Embeddings:
    """The embeddings of a collection, fetched by index."""

    def __init__(self, store: QdrantStore) -> None:
        self._store = store

    def __getitem__(self, index: Tensor) -> Tensor:
        rows = [row for _, row in self._store.fetch(index.flatten().tolist())]
        rows = rows or [torch.empty(0, self._store.width)]
        return torch.stack(rows).view(*index.shape, self._store.width)


@contextmanager
def _closing_on_error(client: Any, location: Any) -> Iterator[None]:
    """Close a client that was opened here if it turns out to be of no use."""
    try:
        yield
    except BaseException:
        if client is not location:
            client.close()
        raise


@contextmanager
def _calls(collection: str) -> Iterator[None]:
    """Whatever Qdrant raises, as one line of ours."""
    from qdrant_client.http.exceptions import ApiException

    try:
        yield
    except (ApiException, OSError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise DatastoreError(
            f"{collection}: Qdrant did not answer as expected ({reason}); "
            "check the URL and that the collection exists"
        ) from None


def _caption(point: Any) -> str:
    try:
        return str(point.payload["caption"])
    except (KeyError, TypeError):
        raise DatastoreError(
            f"Qdrant: point {point.id} has no caption; was the collection made by starc?"
        ) from None


def _client(location: Any, *, new: bool = False) -> Any:
    qdrant = _qdrant()
    if isinstance(location, qdrant.QdrantClient):
        return location
    location = str(location)
    with _calls(location):
        if location == ":memory:":
            return qdrant.QdrantClient(location)
        if "://" in location:
            return qdrant.QdrantClient(url=location, check_compatibility=False)
        folder = Path(location)
        empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        if not (folder / "meta.json").is_file() and not (new and empty):
            raise DatastoreError(f"{location}: not a folder of Qdrant; check the path")
        return qdrant.QdrantClient(path=location)


def _address(location: str | Path) -> str:
    """A location that is understood from any folder."""
    text = str(location)
    return text if "://" in text or text == ":memory:" else str(Path(text).resolve())


def _qdrant() -> Any:
    try:
        import qdrant_client
    except ImportError:
        raise MissingExtra("qdrant-client", "qdrant") from None
    return qdrant_client
