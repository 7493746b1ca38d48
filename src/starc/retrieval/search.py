"""Exact search by cosine: the captions nearest to a query.

In: unit rows embedding_ND and unit queries. Out: NearestCaptions, equal to what a float64 search
over all rows gives. A scan scores every row cheaply, with a bound on its error; only rows that
could still be among the best are scored again in float64. Small datastores are scanned in float32,
large ones in bfloat16 where the processor has it, which is faster and changes no result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from starc.processor import has_bfloat16

log = logging.getLogger("starc")

SCAN_ROWS = 65_536
"""Rows scored at a time: the scores of a few queries stay in the processor's cache."""
HALF_FROM = 100_000
"""Captions from which a bfloat16 scan is used, and stored with the datastore."""
PREPARED = frozenset({"scan_row_ND", "scan_mean_D", "scan_length"})
"""The tensors that a bfloat16 scan is made of."""
_QUERIES = 64
_TILE = 32
_CACHED = 1024


class NearestCaptions(NamedTuple):
    """The best captions of each query, best first; equal scores in order of index."""

    index_SR: Tensor
    score_SR: Tensor


class EmbeddingTable(Protocol):
    """Embeddings by index: a tensor, or something that fetches them."""

    def __getitem__(self, index: Tensor, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Recall:
    """How many of the true top-k an approximate search finds, 0 to 1, and how that was measured."""

    value: float
    k: int
    queries: int

    def __str__(self) -> str:
        return f"recall@{self.k} = {self.value:.4f} | queries:{self.queries}"


@torch.no_grad()
def fastest_scan(embedding_ND: Tensor, prepared: Mapping[str, Tensor] | None = None) -> Scan:
    """The fastest scan for these rows that this machine computes correctly.

    Its preparation costs two or three searches in float32; `prepared` saves it.
    """
    large = len(embedding_ND) >= HALF_FROM and embedding_ND.device.type == "cpu"
    if large and has_bfloat16():
        try:
            return HalfScan(embedding_ND, prepared)
        except RuntimeError as error:
            log.info("datastore: searching in float32 (%s)", str(error)[:80])
    return FloatScan(embedding_ND)


@torch.no_grad()
def exact_search(
    embedding_ND: Tensor, query_SD: Tensor, k: int, scan: Scan, hidden: Sequence[Tensor | None]
) -> NearestCaptions:
    """The `k` rows of largest dot product with each unit query, leaving out its `hidden` rows.

    Scores are float64 sums rounded to float32, so they depend neither on the other queries nor on
    the scan, and rows that are equal tie. At least `k` rows must remain for every query.
    """
    index_SR = torch.empty(len(query_SD), k, dtype=torch.long, device=embedding_ND.device)
    score_SR = torch.empty(len(query_SD), k, device=embedding_ND.device)
    nonzero_S = query_SD.any(1)
    for query in (~nonzero_S).nonzero().flatten().tolist():
        # All captions tie. The published code asks this of padding and leaves the choice to
        # torch.topk; so do we, or its numbers could not be had again.
        score_N = embedding_ND.new_zeros(len(embedding_ND))
        if (rows := hidden[query]) is not None:
            score_N[rows] = -torch.inf
        score_SR[query], index_SR[query] = score_N.topk(k)
    nonzero = nonzero_S.nonzero().flatten().tolist()
    for first in range(0, len(nonzero), _QUERIES):
        chosen = nonzero[first : first + _QUERIES]
        candidates = _candidates(scan, query_SD[chosen], k, [hidden[query] for query in chosen])
        for query, candidate in zip(chosen, candidates, strict=True):
            best = _rank(embedding_ND, query_SD[query], *candidate, k)
            index_SR[query], score_SR[query] = best
    return NearestCaptions(index_SR, score_SR)


def _candidates(
    scan: Scan, query_SD: Tensor, k: int, hidden: Sequence[Tensor | None]
) -> list[tuple[Tensor, Tensor]]:
    """Rows that may be among the k best of each query, ascending, and the most they can score.

    A row is out if its upper bound (score + bound) lies below the k-th best lower bound so far
    (score - bound). Rows are first looked at in tiles: the k-th best tile is no better than the
    k-th best row, and most tiles hold nothing of interest.
    """
    queries = len(query_SD)
    lower_SR = query_SD.new_full((queries, k), -torch.inf)
    candidates: list[tuple[Tensor, Tensor, Tensor]] = []
    for first, score_SN, bound_S in scan.scores(query_SD):
        for query, rows in enumerate(hidden):
            if rows is not None:
                here = rows[(rows >= first) & (rows < first + score_SN.shape[1])]
                score_SN[query, here - first] = -torch.inf
        tiles = pad(score_SN, (0, -score_SN.shape[1] % _TILE), value=-torch.inf)
        tiles = tiles.view(queries, -1, _TILE)
        best_SN = tiles.amax(2)
        lower_SR = torch.cat([lower_SR, best_SN - bound_S[:, None]], dim=1).topk(k, dim=1).values
        least_S = lower_SR[:, -1] - bound_S
        which, tile = (best_SN >= least_S[:, None]).nonzero(as_tuple=True)
        score = tiles[which, tile]
        kept, column = ((score >= least_S[which, None]) & (score > -torch.inf)).nonzero(
            as_tuple=True
        )
        which, row = which[kept], tile[kept] * _TILE + column
        candidates.append((which, row + first, score[kept, column] + bound_S[which]))
    which, row, upper = (torch.cat(parts) for parts in zip(*candidates, strict=True))
    kept = upper >= lower_SR[which, -1]
    which, row, upper = which[kept], row[kept], upper[kept]
    scale_S, shift_S = scan.scale_and_shift(query_SD)
    upper = upper * scale_S[which] + shift_S[which] + _float_slack(query_SD.shape[1])
    order = which.argsort(stable=True)
    counts = which.bincount(minlength=queries).tolist()
    return list(
        zip(row[order].split_with_sizes(counts), upper[order].split_with_sizes(counts), strict=True)
    )


def _rank(
    embedding_ND: Tensor, query_D: Tensor, rows: Tensor, upper: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The k best of the candidate rows.

    The k-th best of the 2k most promising ones rules out most others; float32 rules out nearly all
    of the rest; float64 decides.
    """
    slack = 2 * _float_slack(len(query_D))
    if len(rows) > 2 * k:
        promising = rows[upper.topk(2 * k, sorted=False).indices]
        least = _dots(embedding_ND, query_D, promising, torch.float32).topk(k).values[-1]
        rows = rows[upper >= least - slack]
    rough = _dots(embedding_ND, query_D, rows, torch.float32)
    rows = rows[rough >= rough.topk(k).values[-1] - slack]
    score = _dots(embedding_ND, query_D, rows, torch.float64).float()
    score, order = score.sort(descending=True, stable=True)
    return rows[order[:k]], score[:k]


def _dots(embedding_ND: Tensor, query_D: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    query_D = query_D.to(dtype)
    return torch.cat(
        [embedding_ND[part].to(dtype) @ query_D for part in torch.split(rows, _CACHED)]
    )


def _float_slack(width: int) -> float:
    """Bound on the error of a float32 dot product of two unit vectors, in whatever order."""
    return float(width * 2**-23)


class FloatScan:
    """Scores all rows in float32."""

    def __init__(self, embedding_ND: Tensor) -> None:
        self.embedding_ND = embedding_ND

    def scores(self, query_SD: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Per part of the rows: its first row, its score_SN, and bound_S of their error."""
        bound_S = query_SD.new_full((len(query_SD),), _float_slack(query_SD.shape[1]))
        for first in range(0, len(self.embedding_ND), SCAN_ROWS):
            yield first, query_SD @ self.embedding_ND[first : first + SCAN_ROWS].T, bound_S

    def scale_and_shift(self, query_SD: Tensor) -> tuple[Tensor, Tensor]:
        """scale_S and shift_S: dot product = scale * (score ± bound) + shift."""
        one_S = query_SD.new_ones(len(query_SD))
        return one_S, one_S - 1


class HalfScan:
    """Scores a bfloat16 copy of the rows, half their size, on processors that multiply such.

    Rows are centred, which moves all scores of a query alike and makes them shorter. With q' the
    rounded query, r' the rounded row and s the rounded score,

        |q·r - s| <= |q - q'| |r| + |q'| |r - r'| + |q'| |r'| / 256,   |r - r'| <= |r| / 256.
    """

    def __init__(self, embedding_ND: Tensor, prepared: Mapping[str, Tensor] | None = None) -> None:
        """`prepared` is what an earlier scan of the same rows made (`prepare`)."""
        prepared = prepared or self.prepare(embedding_ND)
        self.row_ND, self.mean_D = prepared["scan_row_ND"], prepared["scan_mean_D"]
        self.length = prepared["scan_length"].item()
        self._check(embedding_ND[:SCAN_ROWS])

    @staticmethod
    def prepare(embedding_ND: Tensor) -> dict[str, Tensor]:
        """Centred rows, their mean, and the length of the longest."""
        mean_D = embedding_ND.mean(0)
        row_ND = torch.empty(embedding_ND.shape, dtype=torch.bfloat16)
        length = 0.0
        for start in range(0, len(embedding_ND), _CACHED):  # far slower out of the cache
            part = slice(start, start + _CACHED)
            centred_ND = embedding_ND[part] - mean_D
            row_ND[part] = centred_ND
            length = max(length, centred_ND.norm(dim=1).amax().item())
        return {
            "scan_row_ND": row_ND,
            "scan_mean_D": mean_D,
            "scan_length": torch.tensor([length]),
        }

    def scores(self, query_SD: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        rounded_SD = query_SD.bfloat16()
        error_S = (query_SD - rounded_SD).norm(dim=1)
        length_S = rounded_SD.float().norm(dim=1)
        # rows and scores are off by half a unit in the eighth bit; the last term covers the float32
        # rounding of summing and centring
        bound_S = (error_S + length_S * (2 / 256 + 1 / 256**2)) * self.length + 1e-5
        for first in range(0, len(self.row_ND), SCAN_ROWS):
            score_SN = rounded_SD @ self.row_ND[first : first + SCAN_ROWS].T
            yield first, score_SN.float(), bound_S

    def scale_and_shift(self, query_SD: Tensor) -> tuple[Tensor, Tensor]:
        return query_SD.new_ones(len(query_SD)), query_SD @ self.mean_D

    def _check(self, embedding_ND: Tensor) -> None:
        """RuntimeError where this processor's kernel does not keep the bound."""
        query_SD = embedding_ND[:: max(1, len(embedding_ND) // 8)][:8]
        _, score_SN, bound_S = next(self.scores(query_SD))
        true_SN = query_SD @ embedding_ND.T - self.scale_and_shift(query_SD)[1][:, None]
        if not bool(((score_SN - true_SN).abs() <= bound_S[:, None]).all()):
            raise RuntimeError("the bfloat16 kernel of this processor is not exact")


Scan = FloatScan | HalfScan
