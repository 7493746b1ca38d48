"""A datastore that several machines share: an adapter for Qdrant (extra `qdrant`).

In: the URL of a server, or a folder (or ":memory:") for Qdrant's embedded mode. Out: QdrantStore
with the same `search`, captions and embeddings as a local datastore; what a search found is fetched
with it and kept for a while, so that reading captions costs no second trip. `upload` fills a
collection. Scores are computed here, exactly; what the server may miss is `QdrantStore.recall`.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn.functional import normalize

from starc.errors import DatastoreError, MissingExtra
from starc.files.annotations import video_id
from starc.retrieval.datastore import CaptionStore
from starc.retrieval.faiss_store import Recall, agreement
from starc.retrieval.search import Exclude, Hits, per_query, unit_queries

__all__ = ["QdrantStore"]

_KEPT = 4096
"""Captions and embeddings kept from recent searches."""
_PROBES = 100


class QdrantStore:
    """A collection of captions in Qdrant."""

    def __init__(self, location: Any, collection: str = "captions") -> None:
        """Open a collection; `location` is a URL, a folder, ":memory:" or a QdrantClient."""
        self.client, self.collection = _client(location), collection
        with self._calls():
            found = self.client.get_collection(collection)
        facts = found.config.metadata or {}
        self.encoder = str(facts.get("encoder", "unknown"))
        self.width = int(found.config.params.vectors.size)
        self._size = int(found.points_count)
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
        batch: int = 1024,
    ) -> QdrantStore:
        """Put a datastore into a new collection and open it; `replace` discards an old one."""
        models = _qdrant().models
        client = _client(location)
        with _calls(collection):
            if client.collection_exists(collection):
                if not replace:
                    raise DatastoreError(
                        f"{collection}: there is such a collection already; give another name, "
                        "or replace=True"
                    )
                client.delete_collection(collection)
            client.create_collection(
                collection,
                vectors_config=models.VectorParams(size=store.width, distance=models.Distance.DOT),
                metadata={"encoder": store.encoder, "starc": store.version},
            )
            for first in range(0, len(store), batch):
                part = slice(first, first + batch)
                payloads = [
                    {"caption": caption, "video": None if owner is None else video_id(owner)}
                    for caption, owner in zip(store.captions[part], store.videos[part], strict=True)
                ]
                points = models.Batch(
                    ids=list(range(first, first + len(payloads))),
                    vectors=store.embedding_ND[part].tolist(),
                    payloads=payloads,
                )
                client.upsert(collection, points=points, wait=True)
        return cls(client, collection)

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"QdrantStore({self.collection!r}, {len(self)} captions, encoder {self.encoder!r})"

    def close(self) -> None:
        """Let go of the server, or of the folder for another process."""
        self.client.close()

    def search(self, query_SD: Tensor, *, k: int, exclude: Exclude = None) -> Hits:
        """About the `k` captions of largest cosine to each query, best first, ties by index.

        Fewer come back when the collection, less what `exclude` hides, holds fewer.
        """
        return self._search(query_SD, k, exclude, exact=False)

    @cached_property
    def recall(self) -> Recall:
        """Recall@10 against the server's own exact search, of captions blurred by half."""
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randint(len(self), (min(_PROBES, len(self)),), generator=generator)
        noise_SD = normalize(torch.randn(len(chosen), self.width, generator=generator), dim=1)
        query_SD = self.embedding_ND[chosen] + noise_SD / 2
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Local mode performs exact")
            found, true = (self._search(query_SD, 10, None, exact=it) for it in (False, True))
        share = agreement(found.index_SR.tolist(), true.index_SR.tolist())
        return Recall(share, 10, len(query_SD))

    def _search(self, query_SD: Tensor, k: int, exclude: Exclude, *, exact: bool) -> Hits:
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
        with self._calls():
            answers = self.client.query_batch_points(self.collection, requests)
        points = [sorted(self._keep(answer.points)) for answer in answers]
        left = min((len(rows) for rows in points), default=min(k, len(self)))
        if left < 1:
            raise DatastoreError(
                f"{self.collection}: nothing to retrieve; is it empty, or are all captions "
                "of the video that is excluded?"
            )
        return self._ranked(query_SD, points, left)

    def _ranked(self, query_SD: Tensor, points: Sequence[Sequence[int]], k: int) -> Hits:
        hits = Hits(torch.empty(len(points), k).long(), torch.empty(len(points), k))
        for n, (query_D, rows) in enumerate(zip(query_SD.double(), points, strict=True)):
            index_R = torch.tensor(rows)
            score_R = (self.embedding_ND[index_R].double() @ query_D).float()
            score_R, order = score_R.sort(descending=True, stable=True)
            hits.index_SR[n], hits.score_SR[n] = index_R[order[:k]], score_R[:k]
        return hits

    def _filter(self, video: str | None) -> Any:
        if video is None:
            return None
        models = _qdrant().models
        same = models.MatchValue(value=video_id(video))
        return models.Filter(must_not=[models.FieldCondition(key="video", match=same)])

    def _keep(self, points: Sequence[Any]) -> list[int]:
        """Remember what these points hold; returns their indices."""
        for point in points:
            self._kept[point.id] = (str(point.payload["caption"]), torch.tensor(point.vector))
            self._kept.move_to_end(point.id)
        while len(self._kept) > max(_KEPT, len(points)):
            self._kept.popitem(last=False)
        return [int(point.id) for point in points]

    def fetch(self, index: Sequence[int]) -> list[tuple[str, Tensor]]:
        """Caption and embedding of each index, from memory or from the server."""
        missing = sorted({n for n in index if n not in self._kept})
        if missing:
            with self._calls():
                points = self.client.retrieve(
                    self.collection, missing, with_payload=True, with_vectors=True
                )
            if len(points) < len(missing):
                raise IndexError(f"{self.collection}: no caption with the index {missing[0]}")
            held = {n: self._kept[n] for n in index if n in self._kept}
            self._keep(points)
            return [held[n] if n in held else self._kept[n] for n in index]
        return [self._kept[n] for n in index]

    @contextmanager
    def _calls(self) -> Iterator[None]:
        with _calls(self.collection):
            yield


class _Captions(Sequence[str]):
    """The captions of a collection, fetched as they are read."""

    def __init__(self, store: QdrantStore) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            found = self._store.fetch(range(*index.indices(len(self))))
            return [caption for caption, _ in found]
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be below {len(self)}, got {index}")
        return self._store.fetch([index % len(self)])[0][0]


class _Embeddings:
    """The embeddings of a collection, fetched by index."""

    def __init__(self, store: QdrantStore) -> None:
        self._store = store

    def __getitem__(self, index: Tensor) -> Tensor:
        rows = [row for _, row in self._store.fetch(index.flatten().tolist())]
        return torch.stack(rows).view(*index.shape, self._store.width)


@contextmanager
def _calls(collection: str) -> Iterator[None]:
    """Whatever Qdrant raises, as one line of ours."""
    from qdrant_client.http.exceptions import ApiException

    try:
        yield
    except (ApiException, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise DatastoreError(
            f"{collection}: Qdrant did not answer as expected ({reason}); "
            "check the URL and that the collection exists"
        ) from None


def _client(location: Any) -> Any:
    qdrant = _qdrant()
    if not isinstance(location, str):
        return location if isinstance(location, qdrant.QdrantClient) else _client(str(location))
    with _calls(location):
        if location == ":memory:":
            return qdrant.QdrantClient(location)
        if "://" in location:
            return qdrant.QdrantClient(url=location, check_compatibility=False)
        return qdrant.QdrantClient(path=location)


def _qdrant() -> Any:
    try:
        import qdrant_client
    except ImportError:
        raise MissingExtra("qdrant-client", "qdrant") from None
    return qdrant_client
