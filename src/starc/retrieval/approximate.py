"""Datastores whose index may miss a caption: very large ones (faiss), shared ones (Qdrant).

FaissStore (extra `faiss`) is for many millions of captions: an inverted file over a CaptionStore.
QdrantStore (extra `qdrant`) is a collection that several machines share, on a server or in a folder
(or ":memory:") of Qdrant's embedded mode; a datastore folder of this kind holds the address alone.
An index only proposes captions: scores and order are computed here, exactly. What may be missed is
measured against exact search: `recall`.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from starc.errors import DatastoreError, MissingExtra
from starc.retrieval.captions import CaptionList, read_facts, read_folder
from starc.retrieval.datastore import CaptionStore, Datastore
from starc.retrieval.search import EmbeddingTable, NearestCaptions, Recall
from starc_eval.annotations import video_id

_INDEX = "index.faiss"
_TRAINING = 128
"""Captions per list from which faiss learns its lists."""
_KEPT = 4096
"""Captions and embeddings kept from recent searches in Qdrant."""
_BATCH = 1024
"""Captions per request when many are sent to Qdrant or read from it."""


def rescore(embedding_ND: EmbeddingTable, query_SD: Tensor, index_SR: Tensor) -> NearestCaptions:
    """Exact scores and order, as of `exact_search`, of captions that an index proposed."""
    index_SR = index_SR.sort(dim=1).values
    row_SRD = embedding_ND[index_SR].double()
    score_SR = (row_SRD @ query_SD.double()[:, :, None]).squeeze(2).float()
    score_SR, order = score_SR.sort(dim=1, descending=True, stable=True)
    return NearestCaptions(index_SR.gather(1, order), score_SR)


def recall_queries(store: Datastore, queries: int) -> Tensor:
    """Queries to measure recall with: captions, each blurred by half its length."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(store), (queries,), generator=generator)
    noise_SD = normalize(torch.randn(queries, store.width, generator=generator), dim=1)
    return normalize(store.embedding_ND[chosen] + noise_SD / 2, dim=1)


def measure_recall(approximate: NearestCaptions, exact: NearestCaptions) -> Recall:
    """Share of the exact top-k that the approximate search finds too, by index."""
    pairs = zip(approximate.index_SR.tolist(), exact.index_SR.tolist(), strict=True)
    shared = sum(len(set(a) & set(b)) for a, b in pairs)
    queries, k = exact.index_SR.shape
    return Recall(shared / max(1, exact.index_SR.numel()), k, queries)


def _imported(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra(module.replace("_", "-"), extra) from None


_qdrant = partial(_imported, "qdrant_client", "qdrant")


class FaissStore(Datastore):
    """A datastore searched through an inverted file of faiss."""

    recall: Recall
    """Measured when the index was made."""

    def __init__(
        self,
        store: CaptionStore,
        *,
        lists: int | None = None,
        effort: int | None = None,
    ) -> None:
        """Index the captions and measure recall@10.

        `lists` are the inverted lists (4√N by default), `effort` how many of them a query visits
        (a sixteenth, at least 16).
        """
        self._open(store)
        lists = min(lists or max(1, int(4 * len(store) ** 0.5)), len(store))
        quantiser, kind = self.faiss.IndexFlatIP(self.width), self.faiss.METRIC_INNER_PRODUCT
        self._index = self.faiss.IndexIVFFlat(quantiser, self.width, lists, kind)
        self._index.cp.min_points_per_centroid = 1
        self._index.cp.max_points_per_centroid = _TRAINING
        self._index.train(self.embedding_ND.numpy())
        self._index.add(self.embedding_ND.numpy())
        self.effort = min(effort or max(16, lists // 16), lists)
        query_SD = recall_queries(self, 200)
        self.recall = measure_recall(self.search(query_SD, k=10), self.store.search(query_SD, k=10))

    def _open(self, store: CaptionStore) -> None:
        self.faiss = _imported("faiss", "faiss")
        self.store = store.to("cpu")
        self.captions, self.videos = store.captions, store.videos
        self.embedding_ND: Tensor = self.store.embedding_ND
        self.encoder, self.width, self.mean_D = store.encoder, store.width, store.mean_D

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool | None = None) -> FaissStore:
        """Read what `save` wrote, with the recall measured then."""
        stored = read_folder(folder, verify=verify)
        store = cls.__new__(cls)
        store._open(CaptionStore.of(stored))
        store._digest = stored.digest
        try:
            store._index = store.faiss.read_index(str(Path(folder) / _INDEX))
            if stored.facts["index"] != "ivf":
                raise ValueError(f"index {stored.facts['index']!r}; build it again")
            store.effort = int(stored.facts["effort"])
            store.recall = Recall(**stored.facts["recall"])
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            reason = str(error).split("\n")[0][:80]
            raise DatastoreError(f"{folder}: no faiss index that can be read ({reason})") from None
        return store

    @property
    def facts(self) -> dict[str, Any]:
        return {
            **self.store.facts,
            "kind": "faiss",
            "index": "ivf",
            "lists": self._index.nlist,
            "effort": self.effort,
            "recall": asdict(self.recall),
        }

    def files(self, *, half: bool) -> dict[str, Callable[[Path], Any]]:
        index = {_INDEX: lambda path: self.faiss.write_index(self._index, str(path))}
        return self.store.files(half=half) | index

    def rebuilt(self, store: CaptionStore) -> FaissStore:
        """The same kind of index over other captions, of the size that is usual for them."""
        return FaissStore(store)

    def nearest(self, query_SD: Tensor, k: int, videos: Sequence[str | None]) -> NearestCaptions:
        """About the `k` captions of largest cosine to each query: see `recall`.

        Queries for which the index finds fewer than k captions are searched exactly.
        """
        query_SD = query_SD.cpu()
        hidden = self.store.hidden(videos)
        k = min(k, len(self) - max(map(len, hidden.values()), default=0))
        index_SR = torch.empty(len(query_SD), k, dtype=torch.long)
        for video in set(videos):
            queries = torch.tensor([n for n, other in enumerate(videos) if other == video])
            index_SR[queries] = self._proposed(query_SD[queries], k, hidden.get(video))
            short = queries[(index_SR[queries] < 0).any(1)]
            if len(short):
                exact = self.store.nearest(query_SD[short], k, [video] * len(short))
                index_SR[short] = exact.index_SR
        return rescore(self.embedding_ND, query_SD, index_SR)

    def _proposed(self, query_SD: Tensor, k: int, hidden: Tensor | None) -> Tensor:
        options: dict[str, Any] = {}
        if hidden is not None:
            batch = self.faiss.IDSelectorBatch(hidden.numpy())
            options["sel"] = self.faiss.IDSelectorNot(batch)
        parameters = self.faiss.SearchParametersIVF(nprobe=self.effort, **options)
        _, index_SR = self._index.search(query_SD.numpy(), k, params=parameters)
        return torch.from_numpy(index_SR)


class QdrantStore(Datastore):
    """A collection of captions in Qdrant, its points numbered from 0 without gaps.

    What a search returns is kept for a while, so that reading its captions costs no second trip.
    """

    def __init__(self, location: Any, collection: str = "captions") -> None:
        """Open a collection; `location` is a URL, a folder, ":memory:" or a QdrantClient."""
        self.client, self.location = _connect(location)
        self.collection = collection
        with _calls(collection, opened=self.client if self.location else None):
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
        client, address = _connect(location, new=True)
        with _calls(collection, opened=client if address else None):
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
            opened.location = address
            return opened.extended(store)

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool | None = None) -> QdrantStore:
        """Open the collection whose address `save` wrote; there are no checksums to verify."""
        facts = read_facts(folder)
        try:
            return cls(str(facts["location"]), str(facts["collection"]))
        except KeyError as error:
            raise DatastoreError(
                f"{folder}: no {error} of the collection; build it again"
            ) from None

    def __len__(self) -> int:
        return self._size

    def close(self) -> None:
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

    @cached_property
    def recall(self) -> Recall:  # type: ignore[override]
        """Recall@10 against the server's own exact search."""
        query_SD = recall_queries(self, min(100, len(self)))
        shown = [None] * len(query_SD)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Local mode performs exact")
            return measure_recall(
                *(self.nearest(query_SD, 10, shown, exact=exact) for exact in (False, True))
            )

    @property
    def exact(self) -> CaptionStore:
        """All captions, fetched into memory."""
        points = list(self.points(vectors=True))
        return CaptionStore(
            [_caption(point) for point in points],
            torch.tensor([point.vector for point in points]),
            videos=[point.payload.get("video") for point in points],
            encoder=self.encoder,
            mean_D=self.mean_D,
        )

    def listing(self) -> CaptionList:
        """All captions that are there now and the video of each, without their embeddings."""
        points = list(self.points())
        self._size = len(points)
        videos = (point.payload.get("video") for point in points)
        return CaptionList(tuple(map(_caption, points)), tuple(videos))

    def files(self, *, half: bool) -> dict[str, Callable[[Path], Any]]:
        """None: the captions stay where they are, and datastore.json has the address."""
        if self.location is None or self.location == ":memory:":
            raise DatastoreError(
                f"{self.collection}: no address to write; open it by a URL or a folder"
            )
        return {}

    def extended(self, new: CaptionStore) -> QdrantStore:
        """Put more captions into the collection."""
        for first in range(0, len(new), _BATCH):
            part = slice(first, first + _BATCH)
            payloads = [
                {"caption": caption, "video": None if owner is None else video_id(owner)}
                for caption, owner in zip(new.captions[part], new.videos[part], strict=True)
            ]
            points = _qdrant().models.Batch(
                ids=list(range(self._size, self._size + len(payloads))),
                vectors=new.embedding_ND[part].tolist(),
                payloads=payloads,
            )
            with _calls(self.collection):
                self.client.upsert(self.collection, points=points, wait=True)
            self._size += len(payloads)
        return self

    def without(self, gone: set[int]) -> QdrantStore:
        """Delete captions from the collection; the last ones take the numbers that became free."""
        total = len(self)
        left = total - len(gone)
        if not left:
            raise DatastoreError(f"{self.collection}: no captions would be left; delete it instead")
        free = sorted(n for n in gone if n < left)
        models = _qdrant().models
        moved = self._retrieve([n for n in range(left, total) if n not in gone])
        points = [
            models.PointStruct(id=n, vector=point.vector, payload=point.payload)
            for n, point in zip(free, moved, strict=True)
        ]
        with _calls(self.collection):
            if points:
                self.client.upsert(self.collection, points=points, wait=True)
            if gone:
                tail = models.PointIdsList(points=list(range(left, total)))
                self.client.delete(self.collection, tail, wait=True)
        self._size = left
        self._kept.clear()
        return self

    def nearest(
        self, query_SD: Tensor, k: int, videos: Sequence[str | None], *, exact: bool = False
    ) -> NearestCaptions:
        """About the `k` captions of largest cosine to each query: see `recall`."""
        models, query_SD = _qdrant().models, query_SD.cpu()

        def others(video: str) -> Any:
            same = models.MatchValue(value=video_id(video))
            return models.Filter(must_not=[models.FieldCondition(key="video", match=same)])

        requests = [
            models.QueryRequest(
                query=query,
                limit=k,
                filter=None if video is None else others(video),
                params=models.SearchParams(exact=True) if exact else None,
                with_vector=True,
                with_payload=True,
            )
            for query, video in zip(query_SD.tolist(), videos, strict=True)
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

    def fetch(self, index: Sequence[int]) -> list[tuple[str, Tensor]]:
        """Caption and embedding of each index, from memory or from the server."""
        held = {n: self._kept[n] for n in index if n in self._kept}
        if missing := sorted({n for n in index if n not in held}):
            points = self._retrieve(missing)
            if len(points) < len(missing):
                raise IndexError(f"{self.collection}: no caption with the index {missing[0]}")
            self._keep(points)
            held |= {n: self._kept[n] for n in missing}
        return [held[n] for n in index]

    def points(self, *, vectors: bool = False) -> Iterator[Any]:
        """All points in order of index."""
        offset = None
        while True:
            with _calls(self.collection):
                points, offset = self.client.scroll(
                    self.collection, limit=_BATCH, offset=offset, with_vectors=vectors
                )
            yield from points
            if offset is None:
                return

    def _retrieve(self, index: Sequence[int]) -> list[Any]:
        with _calls(self.collection):
            return list(self.client.retrieve(self.collection, index, with_vectors=True))

    def _keep(self, points: Sequence[Any]) -> list[int]:
        """Remember what these points hold; returns their indices."""
        for point in points:
            self._kept[point.id] = (_caption(point), torch.tensor(point.vector))
            self._kept.move_to_end(point.id)
        while len(self._kept) > max(_KEPT, len(points)):
            self._kept.popitem(last=False)
        return [int(point.id) for point in points]


class _Captions(Sequence[str]):
    """The captions of a collection, fetched as they are read."""

    def __init__(self, store: QdrantStore) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store)

    def __iter__(self) -> Iterator[str]:
        return map(_caption, self._store.points())

    def __getitem__(self, index: Any) -> Any:
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
def _calls(collection: str, opened: Any = None) -> Iterator[None]:
    """Whatever Qdrant raises, as one line of ours; a client `opened` in vain is closed."""
    from qdrant_client.http.exceptions import ApiException

    try:
        yield
    except BaseException as error:
        if opened is not None:
            opened.close()
        known = (ApiException, OSError, ValueError, RuntimeError, KeyError, AttributeError)
        if not isinstance(error, known):
            raise
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


def _connect(location: Any, *, new: bool = False) -> tuple[Any, str | None]:
    """A client, and an address that is understood from any folder (None: a client was given)."""
    qdrant = _qdrant()
    if isinstance(location, qdrant.QdrantClient):
        return location, None
    location = str(location)
    with _calls(location):
        if location == ":memory:":
            return qdrant.QdrantClient(location), location
        if "://" in location:
            return qdrant.QdrantClient(url=location, check_compatibility=False), location
        folder = Path(location)
        empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        if not (folder / "meta.json").is_file() and not (new and empty):
            raise DatastoreError(f"{location}: not a folder of Qdrant; check the path")
        return qdrant.QdrantClient(path=location), str(folder.resolve())
