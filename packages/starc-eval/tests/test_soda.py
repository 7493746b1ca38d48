"""SODA_c: the best chain against the table and against brute force."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starc_eval.annotations import VideoAnnotation
from starc_eval.pairs import Floats, Ints, corpus
from starc_eval.soda import best_chain, soda

value = st.one_of(st.just(0.0), st.floats(0.01, 1, allow_nan=False))
matrix = st.integers(1, 4).flatmap(
    lambda m: st.lists(st.lists(value, min_size=m, max_size=m), min_size=1, max_size=4)
)


def chain(rows: list[list[float]]) -> float:
    pairs = [(j, row[j]) for row in rows for j in reversed(range(len(row))) if row[j] > 0]
    return best_chain(iter(pairs), len(rows[0]))


@given(matrix)
@settings(deadline=None)
def test_best_chain(rows: list[list[float]]) -> None:
    n, m = len(rows), len(rows[0])
    table = np.zeros((n + 1, m + 1))
    for i in range(n):
        for j in range(m):
            table[i + 1, j + 1] = max(table[i, j + 1], table[i + 1, j], table[i, j] + rows[i][j])
    assert chain(rows) == table[n, m]
    brute = max(
        sum(rows[i][j] for i, j in zip(left, right, strict=True))
        for size in range(min(n, m) + 1)
        for left in combinations(range(n), size)
        for right in combinations(range(m), size)
    )
    assert chain(rows) == pytest.approx(brute)


def test_the_reference_is_meteors_hypothesis_and_order_is_kept() -> None:
    asked: list[tuple[str, str]] = []

    def meteor(hypothesis_X: Ints, reference_X: Ints) -> Floats:
        asked.extend(
            (events.captions[h], events.captions[r])
            for h, r in zip(hypothesis_X, reference_X, strict=True)
        )
        return np.ones(len(asked))

    predicted = {
        "a": VideoAnnotation(((20, 30), (0, 10)), ("late", "early")),
        "b": VideoAnnotation((), ()),
    }
    reference = {
        "a": VideoAnnotation(((0, 10), (20, 30)), ("one", "two")),
        "b": VideoAnnotation(((0, 9),), ("x",)),
    }
    events = corpus(predicted, [reference], ["a", "b"])
    scores = soda(events, events.references[0], meteor)
    assert sorted(asked) == [("one", "early"), ("two", "late")]
    assert scores.f1_V.tolist() == pytest.approx([1, 0])


def test_a_hundred_thousand_predictions() -> None:
    many = VideoAnnotation(
        tuple((float(n % 500), float(n % 500 + 5)) for n in range(100_000)),
        tuple(f"step {n % 7}" for n in range(100_000)),
    )
    reference = {"a": VideoAnnotation(((0, 50), (60, 90), (200, 220)), ("x", "y", "z"))}
    events = corpus({"a": many}, [reference], ["a"])
    scores = soda(events, events.references[0], lambda h, r: np.ones(len(h)))
    assert 0 < scores.recall_V[0] <= 1
