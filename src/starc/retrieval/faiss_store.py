"""Approximate search for datastores of many millions of captions, with faiss (extra `faiss`).

In: a CaptionStore. Out: FaissStore with the same `search`. An inverted file (`ivf`) or a graph
(`hnsw`) proposes captions; their scores and order are then computed exactly. What may be missed is
measured against exact search when the index is made: `FaissStore.recall`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from starc.errors import DatastoreError, MissingExtra
from starc.retrieval.datastore import CaptionStore, Datastore
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
from starc.retrieval.storage import read_folder, write_folder

_INDEX = "index.faiss"
_TRAINING = 128
"""Captions per list from which faiss learns its lists."""


class FaissStore(Datastore):
    """A datastore searched through a faiss index."""

    def __init__(
        self,
        store: CaptionStore,
        *,
        index: Literal["ivf", "hnsw"] = "ivf",
        lists: int | None = None,
        effort: int | None = None,
        queries_SD: Tensor | None = None,
        k: int = 10,
    ) -> None:
        """Index the captions and measure recall@k.

        `lists` are the inverted lists (4√N by default), `effort` how many of them a query visits
        (a sixteenth, at least 16) or, in a graph, how many candidates it follows (128). Recall is
        measured with `queries_SD`, best real segments; else with `recall_queries`.
        """
        self._open(store)
        if index == "ivf":
            lists = min(lists or max(1, int(4 * len(store) ** 0.5)), len(store))
            self._index = self._inverted(lists)
            self.effort = min(effort or max(16, lists // 16), lists)
        elif index == "hnsw":
            self._index = self.faiss.IndexHNSWFlat(self.width, 32, self.faiss.METRIC_INNER_PRODUCT)
            self.effort = effort or 128
        else:
            raise ValueError(f"index must be ivf or hnsw, got {index!r}")
        self.index: Literal["ivf", "hnsw"] = index
        self._index.add(self.embedding_ND.numpy())
        if queries_SD is None:
            queries_SD = recall_queries(self.embedding_ND, len(self), self.width)
        self._recall = measure_recall(
            self.search(queries_SD, k=k), self.store.search(queries_SD, k=k)
        )

    def _open(self, store: CaptionStore) -> None:
        self.faiss = _faiss()
        self.store = store.to("cpu")
        self.captions, self.videos = store.captions, store.videos
        self.embedding_ND: Tensor = self.store.embedding_ND
        self.encoder, self.width, self.mean_D = store.encoder, store.width, store.mean_D

    def _inverted(self, lists: int) -> Any:
        quantiser = self.faiss.IndexFlatIP(self.width)
        index = self.faiss.IndexIVFFlat(
            quantiser, self.width, lists, self.faiss.METRIC_INNER_PRODUCT
        )
        index.cp.min_points_per_centroid = 1
        index.cp.max_points_per_centroid = _TRAINING
        index.train(self.embedding_ND.numpy())
        return index

    def __repr__(self) -> str:
        return f"FaissStore({len(self)} captions, {self.index}, {self.recall})"

    @property
    def recall(self) -> Recall:
        """Measured when the index was made."""
        return self._recall

    @property
    def facts(self) -> dict[str, Any]:
        return {
            **self.store.facts,
            "kind": "faiss",
            "index": self.index,
            "lists": getattr(self._index, "nlist", None),
            "effort": self.effort,
            "recall": asdict(self.recall),
        }

    def rebuilt(self, store: CaptionStore) -> FaissStore:
        """The same kind of index over other captions, of the size that is usual for them."""
        return FaissStore(store, index=self.index)

    def search(self, query_SD: Tensor, *, k: int, exclude: Exclude = None) -> NearestCaptions:
        """About the `k` captions of largest cosine to each query: see `recall`.

        Scores are exact, order and ties as in `CaptionStore.search`. Queries for which the index
        finds fewer than k captions are searched exactly.
        """
        query_SD = unit_queries(query_SD, k=k, width=self.width, encoder=self.encoder).cpu()
        videos = per_query(exclude, len(query_SD))
        hidden = {video: self.store.owned(video) for video in set(videos)}
        most = max((len(rows) for rows in hidden.values() if rows is not None), default=0)
        k = min(k, len(self) - most)
        if k < 1:
            return self.store.search(query_SD, k=1, exclude=exclude)  # says what is wrong
        index_SR = torch.empty(len(query_SD), k, dtype=torch.long)
        for video, rows in hidden.items():
            queries = torch.tensor([n for n, other in enumerate(videos) if other == video])
            index_SR[queries] = self._proposed(query_SD[queries], k, rows)
            short = queries[(index_SR[queries] < 0).any(1)]
            if len(short):
                exact = self.store.search(query_SD[short], k=k, exclude=video)
                index_SR[short] = exact.index_SR
        return rescore(self.embedding_ND, query_SD, index_SR)

    def _proposed(self, query_SD: Tensor, k: int, hidden: Tensor | None) -> Tensor:
        options: dict[str, Any] = {}
        if hidden is not None:
            batch = self.faiss.IDSelectorBatch(hidden.numpy())
            options["sel"] = self.faiss.IDSelectorNot(batch)
        if self.index == "ivf":
            parameters = self.faiss.SearchParametersIVF(nprobe=self.effort, **options)
        else:
            effort = max(self.effort, 2 * k)
            parameters = self.faiss.SearchParametersHNSW(efSearch=effort, **options)
        _, index_SR = self._index.search(query_SD.numpy(), k, params=parameters)
        return torch.from_numpy(index_SR)

    def save(self, folder: str | Path, *, half: bool = False) -> None:
        """Write a datastore folder with the index; `CaptionStore.load` reads the captions of it."""
        files = {
            **self.store.files(half=half),
            _INDEX: lambda path: self.faiss.write_index(self._index, str(path)),
        }
        write_folder(folder, self.facts, files)

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = True) -> FaissStore:
        """Read what `save` wrote, with the recall measured then."""
        stored = read_folder(folder, verify=verify)
        store = cls.__new__(cls)
        store._open(CaptionStore.of(stored))
        store._digest = stored.digest
        try:
            store._index = store.faiss.read_index(str(Path(folder) / _INDEX))
            store.index, store.effort = stored.facts["index"], int(stored.facts["effort"])
            store._recall = Recall(**stored.facts["recall"])
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            reason = str(error).split("\n")[0][:80]
            raise DatastoreError(f"{folder}: no faiss index that can be read ({reason})") from None
        return store


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtra("faiss", "faiss") from None
    return faiss
