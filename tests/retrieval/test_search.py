"""Exact search: equal to brute force, whatever scans the rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from starc.retrieval import search
from starc.retrieval.datastore import CaptionStore
from support.datastores import random_store


def by_force(store: CaptionStore, query_SD: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """What `search` promises: float64 cosines rounded to float32, ties by index."""
    unit_SD = normalize(query_SD.float(), dim=1).double()
    score_SN = (unit_SD @ store.embedding_ND.double().T).float()
    score_SN, index_SN = score_SN.sort(dim=1, descending=True, stable=True)
    return index_SN[:, :k], score_SN[:, :k]


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 300),
    st.sampled_from([1, 3, 64, 70]),
    st.integers(1, 40),
    st.integers(0, 4),
    st.integers(0, 10**6),
)
def test_search_equals_brute_force(captions: int, width: int, k: int, queries: int, seed: int):
    store = random_store(captions, width, seed)
    query_SD = torch.randn(queries, width, generator=torch.Generator().manual_seed(seed + 1))
    nearest = store.search(query_SD, k=k)
    index_SR, score_SR = by_force(store, query_SD, k)
    assert torch.equal(nearest.score_SR, score_SR)
    assert torch.equal(nearest.index_SR, index_SR)
    assert nearest.index_SR.shape == (queries, min(k, captions))


def clip_like(captions: int, width: int) -> Tensor:
    """Rows with a strong common part and two huge coordinates, as CLIP's have."""
    rows = torch.randn(captions, width, generator=torch.Generator().manual_seed(3))
    rows = 0.6 * normalize(rows * torch.linspace(1, 0.1, width), dim=1)
    rows[:, 5] += 0.7
    rows[:, 40] -= 0.4
    return rows


@pytest.mark.parametrize("shape", ["random", "clip", "narrow", "copies"])
def test_half_scan_changes_nothing(monkeypatch: pytest.MonkeyPatch, shape: str):
    monkeypatch.setattr(search, "HALF_FROM", 1000)
    monkeypatch.setattr(search, "SCAN_ROWS", 1024)
    monkeypatch.setattr(search, "has_bfloat16", lambda: True)
    rows = {
        "random": lambda: torch.randn(5000, 128, generator=torch.Generator().manual_seed(1)),
        "clip": lambda: clip_like(5000, 128),
        "narrow": lambda: torch.randn(5000, 10, generator=torch.Generator().manual_seed(1)),
        "copies": lambda: torch.eye(3, 64).repeat(1500, 1),
    }[shape]()
    videos = [f"video{n % 7}" for n in range(len(rows))]
    store = CaptionStore(["x"] * len(rows), rows, videos=videos)
    query_SD = rows[::701] + 0.3 * torch.randn(
        rows[::701].shape, generator=torch.Generator().manual_seed(2)
    )
    assert torch.equal(store.search(query_SD, k=10).index_SR, by_force(store, query_SD, 10)[0])
    assert store._scan is None  # one search does not repay preparing
    nearest = store.search(query_SD, k=10)
    assert isinstance(store._scan, search.HalfScan)
    index_SR, score_SR = by_force(store, query_SD, 10)
    assert torch.equal(nearest.index_SR, index_SR)
    assert torch.equal(nearest.score_SR, score_SR)
    plain = search.FloatScan(store.embedding_ND)
    hidden = store.search(query_SD, k=10, exclude="video3")
    store._scan = plain
    assert torch.equal(hidden.index_SR, store.search(query_SD, k=10, exclude="video3").index_SR)
    assert not (hidden.index_SR % 7 == 3).any()


def test_half_scan_prunes():
    rows = normalize(torch.randn(20_000, 128, generator=torch.Generator().manual_seed(1)), dim=1)
    scan = search.HalfScan(rows)
    query_SD = normalize(torch.randn(3, 128, generator=torch.Generator().manual_seed(2)), dim=1)
    found = search._candidates(scan, query_SD, 10, [None] * 3)
    assert all(10 <= len(index) < 1500 for index, _ in found)


def test_the_bound_of_a_half_scan_covers_the_worst_rounding():
    """Coordinates that bfloat16 rounds down by nearly half a unit: the error is over two thirds."""
    row_D = torch.full((64,), (1 + 2**-8 - 2**-14) / 8)
    row_D[60:] = 0
    row_D[60] = (1 - row_D.square().sum()).sqrt()
    rows = torch.stack([row_D, -row_D])  # their mean is zero
    scan = search.HalfScan(rows)
    ((_, score_SN, bound_S),) = scan.scores(rows)
    error_SN = (score_SN.double() - rows.double() @ rows.double().T).abs()
    assert (error_SN <= bound_S[:, None]).all()
    assert (error_SN > 0.6 * bound_S[:, None]).all(), "half of it would not be enough"


@pytest.mark.parametrize("what", ["processor", "kernel"])
def test_a_machine_without_bfloat16_searches_in_float32(monkeypatch: pytest.MonkeyPatch, what: str):
    query_SD = torch.randn(3, 8, generator=torch.Generator().manual_seed(9))
    wanted = by_force(random_store(50, 8), query_SD, 3)
    monkeypatch.setattr(search, "HALF_FROM", 10)
    monkeypatch.setattr(search, "has_bfloat16", lambda: what == "kernel")
    wrong = torch.tensor([-1.0])  # nothing may be off by so little
    prepare = search.HalfScan.prepare
    damaged = staticmethod(lambda rows: {**prepare(rows), "scan_length": wrong})
    monkeypatch.setattr(search.HalfScan, "prepare", damaged)
    store = random_store(50, 8)
    store.search(query_SD, k=3)
    hits = store.search(query_SD, k=3)
    assert isinstance(store._scan, search.FloatScan)
    assert torch.equal(hits.index_SR, wanted[0]) and torch.equal(hits.score_SR, wanted[1])


def test_ties_go_to_the_lowest_index_and_neighbours_do_not_matter():
    rows = torch.tensor([[0.0, 1], [1, 0], [1, 1], [1, 0], [2, 0]])
    store = CaptionStore(list("abcde"), rows)
    assert store.search(torch.tensor([[1.0, 0]]), k=4).index_SR.tolist() == [[1, 3, 4, 2]]
    store = random_store(500, 32)
    query_SD = torch.randn(100, 32, generator=torch.Generator().manual_seed(9))
    together = store.search(query_SD, k=5)
    for n in (0, 63, 64, 99):
        alone = store.search(query_SD[n : n + 1], k=5)
        assert torch.equal(alone.score_SR[0], together.score_SR[n])
        assert torch.equal(alone.index_SR[0], together.index_SR[n])
