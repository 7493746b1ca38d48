"""Pk, WindowDiff and boundary similarity: numbers of segeval, its code where it is installed, and
the definitions window by window."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from starc_eval import compare, score
from starc_eval.annotations import VideoAnnotation
from starc_eval.segmentation import NEAR, boundary_similarity, segmentation, window_errors

Places = list[int]
# Units, predicted and annotated boundaries; Pk, WindowDiff and B (n_t = 6) of segeval 2.0.11.
GOLDEN: list[tuple[int, Places, Places, list[float]]] = [
    (
        35,
        [1, 3, 9, 16, 19, 20, 21, 24, 31],
        [1, 5, 6, 15, 20, 21, 22, 25, 29],
        [0.515151515152, 0.575757575758, 0.777777777778],
    ),
    (90, [21], [4, 6, 35, 39, 50, 51, 55, 61, 77], [0.406976744186, 0.406976744186, 0]),
    (78, [5, 13, 18, 28, 47, 64, 77], [39, 54, 56, 65], [0.757142857143] * 2 + [0.083333333333]),
    (86, [9, 12, 16, 35, 37, 45, 62, 81, 82], [3, 16, 20, 38, 54, 55], [0.525, 0.6125, 11 / 78]),
    (10, [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5, 9], [0.375, 0.875, 0.444444444444]),
]


def measured(units: int, said: Places, wanted: Places) -> list[float]:
    window = max(round(units / (len(wanted) + 1) / 2), 2)
    said_X, wanted_Y = (np.array(x, np.int64) for x in (said, wanted))
    return [*window_errors(said_X, wanted_Y, units, window), boundary_similarity(said_X, wanted_Y)]


@pytest.mark.parametrize(("units", "said", "wanted", "golden"), GOLDEN)
def test_numbers_of_segeval(units: int, said: Places, wanted: Places, golden: list[float]) -> None:
    assert measured(units, said, wanted) == pytest.approx(golden, abs=1e-11)


@st.composite
def segmentations(draw: st.DrawFn) -> tuple[int, Places, Places]:
    units = draw(st.integers(3, 60))
    places = st.lists(st.integers(1, units - 1), max_size=9, unique=True).map(sorted)
    return units, draw(places), draw(places)


@given(segmentations())
def test_as_segeval(case: tuple[int, Places, Places]) -> None:
    segeval = pytest.importorskip("segeval")
    units, said, wanted = case
    assume(said or wanted)  # segeval's B stops where neither side has a boundary
    both = [[b - a for a, b in pairwise([0, *x, units])] for x in (said, wanted)]
    theirs = [
        float(segeval.pk(*both)),
        float(segeval.window_diff(*both)),
        float(segeval.boundary_similarity(*both, n_t=NEAR + 1)),
    ]
    assert measured(units, said, wanted) == pytest.approx(theirs, abs=1e-12)


@given(segmentations(), st.integers(1, 70))
def test_window_by_window(case: tuple[int, Places, Places], window: int) -> None:
    units, said, wanted = case
    counts = [
        [sum(at < place <= at + window for place in x) for x in (said, wanted)]
        for at in range(units - window)
    ]
    many = max(len(counts), 1)
    errors = window_errors(np.array(said, np.int64), np.array(wanted, np.int64), units, window)
    assert errors == pytest.approx(
        (sum((a > 0) != (b > 0) for a, b in counts) / many, sum(a != b for a, b in counts) / many)
    )


def test_a_video_is_as_long_as_its_reference_and_near_misses_count_by_distance() -> None:
    reference = VideoAnnotation(((0, 40), (40, 80)), ("a", "b"), 80.0)
    assert segmentation(reference, reference) == (0, 0, 1)
    late = VideoAnnotation(((0, 43.2), (43.2, 99)), ("a", "b"))
    # A window of 20 s misses the boundary by 3 s on either side.
    assert segmentation(late, reference) == pytest.approx((6 / 60, 6 / 60, 1 - 3 / 6))
    unknown = VideoAnnotation(reference.spans, ("a", "b"))
    assert segmentation(late, unknown) == segmentation(late, reference)
    assert segmentation(VideoAnnotation((), ()), reference)[2] == 0
    whole = VideoAnnotation(((0, 80),), ("a",), 80.0)
    assert segmentation(VideoAnnotation((), ()), whole) == (0, 0, 1)


def test_a_video_of_thirty_thousand_years_is_measured_at_once() -> None:
    reference = VideoAnnotation(((0, 5e11), (5e11, 1e12)), ("a", "b"), 1e12)
    moved = VideoAnnotation(((0, 2.5e11), (-1e12, 3.0)), ("a", "b"))
    pk, window_diff, similarity = segmentation(moved, reference)
    assert 0 < pk <= window_diff <= 1 and similarity == 0


def test_scored_when_asked_and_named_in_the_signature(data: Path) -> None:
    files = data / "eval/own_small.json", data / "eval/own_small_ref.json"
    report = score(*files, metrics=["segmentation"])
    assert {*report.metrics} == {"Pk", "WindowDiff", "Boundary_similarity"}
    assert "metrics:Pk,WindowDiff,Boundary_similarity | boundaries:1s,near-5s" in report.signature
    assert report.per_video["Pk"].mean() == report.metrics["Pk"] > 0
    assert [one.metric for one in compare(report, report)] == [*report.metrics]
    # Of two references each counts, and the mean is taken.
    twice = score(files[0], [files[1], files[1]], metrics=["segmentation"])
    assert twice.metrics == pytest.approx(report.metrics)
    proposals = score(*files, protocol="proposals", metrics=["localisation", "segmentation"])
    assert proposals.metrics["Pk"] == report.metrics["Pk"] and "F1" in proposals.metrics
