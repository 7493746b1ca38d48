"""Approximate search for datastores of many millions of captions, with faiss (extra `faiss`).

In: a CaptionStore. Out: FaissStore with the same `search`. An inverted file (`ivf`) or a graph
(`hnsw`) proposes captions; their scores and order are then computed exactly. What may be missed is
measured against exact search when the index is made: `FaissStore.recall`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from starc.errors import DatastoreError, MissingExtra
from starc.retrieval.datastore import CaptionStore
from starc.retrieval.search import Exclude, Hits, per_query, unit_queries
from starc.retrieval.storage import read_folder, write_folder

__all__ = ["FaissStore", "Recall", "agreement", "probe_queries", "recall"]

_INDEX = "index.faiss"
_TRAINING = 128
"""Captions per list from which faiss learns its lists."""


@dataclass(frozen=True, slots=True)
class Recall:
    """How many of the true top-k an approximate search finds, 0 to 1, and how that was measured."""

    value: float
    k: int
    queries: int

    def __str__(self) -> str:
        return f"recall@{self.k} = {self.value:.4f} | queries:{self.queries}"


class FaissStore:
    """A datastore searched through a faiss index."""

    def __init__(
        self,
        store: CaptionStore,
        *,
        kind: Literal["ivf", "hnsw"] = "ivf",
        lists: int | None = None,
        effort: int | None = None,
        queries_SD: Tensor | None = None,
        k: int = 10,
    ) -> None:
        """Index the captions and measure recall@k.

        `lists` are the inverted lists (4√N by default), `effort` how many of them a query visits
        (a sixteenth, at least 16) or, in a graph, how many candidates it follows (128). Recall is
        measured with `queries_SD`, best real segments; else with `probe_queries`.
        """
        self._open(store)
        if kind == "ivf":
            lists = min(lists or max(1, int(4 * len(store) ** 0.5)), len(store))
            self._index = self._inverted(lists)
            self.effort = min(effort or max(16, lists // 16), lists)
        elif kind == "hnsw":
            self._index = self.faiss.IndexHNSWFlat(store.width, 32, self.faiss.METRIC_INNER_PRODUCT)
            self.effort = effort or 128
        else:
            raise ValueError(f"kind must be ivf or hnsw, got {kind!r}")
        self.kind: str = kind
        self._index.add(store.embedding_ND.numpy())
        asked = probe_queries(store) if queries_SD is None else queries_SD
        self.recall = recall(self, store, asked, k=k)
        """Measured when the index was made."""

    def _open(self, store: CaptionStore) -> None:
        self.faiss = _faiss()
        self.store = store.to("cpu")
        self.captions, self.videos = store.captions, store.videos
        self.embedding_ND = self.store.embedding_ND

    def _inverted(self, lists: int) -> Any:
        width = self.store.width
        quantiser = self.faiss.IndexFlatIP(width)
        index = self.faiss.IndexIVFFlat(quantiser, width, lists, self.faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1
        index.cp.max_points_per_centroid = _TRAINING
        index.train(self.embedding_ND.numpy())
        return index

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        return f"FaissStore({len(self)} captions, {self.kind}, {self.recall})"

    def search(self, query_SD: Tensor, *, k: int, exclude: Exclude = None) -> Hits:
        """About the `k` captions of largest cosine to each query: see `recall`.

        Scores are exact, order and ties as in `CaptionStore.search`. Queries for which the index
        finds fewer than k captions are searched exactly.
        """
        query_SD = unit_queries(query_SD, k=k, width=self.store.width, encoder=self.store.encoder)
        videos = per_query(exclude, len(query_SD))
        hidden = {video: self.store.owned(video) for video in set(videos)}
        most = max((len(rows) for rows in hidden.values() if rows is not None), default=0)
        k = min(k, len(self) - most)
        if k < 1:
            return self.store.search(query_SD, k=1, exclude=exclude)  # says what is wrong
        hits = Hits(torch.empty(len(query_SD), k).long(), torch.empty(len(query_SD), k))
        for video, rows in hidden.items():
            asked = torch.tensor([n for n, other in enumerate(videos) if other == video])
            found = self._proposed(query_SD[asked], k, rows)
            short = (found < 0).any(1)
            if bool(short.any()):
                found[short] = self.store.search(
                    query_SD[asked[short]], k=k, exclude=video
                ).index_SR
            hits.index_SR[asked], hits.score_SR[asked] = self._ranked(query_SD[asked], found)
        return hits

    def _proposed(self, query_SD: Tensor, k: int, hidden: Tensor | None) -> Tensor:
        options: dict[str, Any] = {}
        if hidden is not None:
            batch = self.faiss.IDSelectorBatch(hidden.numpy())
            options["sel"] = self.faiss.IDSelectorNot(batch)
        if self.kind == "ivf":
            parameters = self.faiss.SearchParametersIVF(nprobe=self.effort, **options)
        else:
            effort = max(self.effort, 2 * k)
            parameters = self.faiss.SearchParametersHNSW(efSearch=effort, **options)
        _, index_SR = self._index.search(query_SD.numpy(), k, params=parameters)
        return torch.from_numpy(index_SR)

    def _ranked(self, query_SD: Tensor, index_SR: Tensor) -> Hits:
        index_SR = index_SR.sort(dim=1).values
        row_SRD = self.embedding_ND[index_SR].double()
        score_SR = (row_SRD @ query_SD.double()[:, :, None]).squeeze(2).float()
        score_SR, order = score_SR.sort(dim=1, descending=True, stable=True)
        return Hits(index_SR.gather(1, order), score_SR)

    def save(self, folder: str | Path, *, half: bool = False) -> None:
        """Write a datastore folder with the index; `CaptionStore.load` reads the captions of it."""
        stored = self.store.stored(half=half)
        facts = {
            **stored.facts,
            "kind": "faiss",
            "index": self.kind,
            "effort": self.effort,
            "recall": asdict(self.recall),
        }
        write_folder(
            folder,
            replace(stored, facts=facts),
            extra={_INDEX: lambda path: self.faiss.write_index(self._index, str(path))},
        )

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = True) -> FaissStore:
        """Read what `save` wrote, with the recall measured then."""
        stored = read_folder(folder, verify=verify)
        found = cls.__new__(cls)
        found._open(CaptionStore.of(stored))
        try:
            found._index = found.faiss.read_index(str(Path(folder) / _INDEX))
            found.kind, found.effort = stored.facts["index"], int(stored.facts["effort"])
            found.recall = Recall(**stored.facts["recall"])
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            reason = str(error).split("\n")[0][:80]
            raise DatastoreError(f"{folder}: no faiss index that can be read ({reason})") from None
        return found


def probe_queries(store: CaptionStore, *, queries: int = 200, seed: int = 0) -> Tensor:
    """Queries to measure recall with: captions, each blurred by half its length."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(store), (queries,), generator=generator)
    noise_SD = normalize(torch.randn(queries, store.width, generator=generator), dim=1)
    return normalize(store.embedding_ND.cpu()[chosen] + noise_SD / 2, dim=1)


def recall(approximate: Any, exact: Any, queries_SD: Tensor, *, k: int) -> Recall:
    """Share of the exact top-k that the approximate datastore finds too, by index."""
    found = approximate.search(queries_SD, k=k).index_SR.tolist()
    true = exact.search(queries_SD, k=k).index_SR.tolist()
    return Recall(agreement(found, true), k, len(true))


def agreement(found: Sequence[Sequence[int]], true: Sequence[Sequence[int]]) -> float:
    """Share of the true indices that were found."""
    shared = sum(len(set(a) & set(b)) for a, b in zip(found, true, strict=True))
    return shared / max(1, sum(map(len, true)))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtra("faiss", "faiss") from None
    return faiss
