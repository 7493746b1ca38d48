"""Precision, recall and segment quality on cases small enough to do by hand."""

import numpy as np
import pytest

from starc_eval.annotations import VideoAnnotation
from starc_eval.pairs import by_overlap, by_start, corpus, f1, segment_quality

PREDICTED = {
    "a": VideoAnnotation(((0, 10), (0, 10), (50, 60)), ("x", "x", "y")),
    "b": VideoAnnotation((), ()),
}
REFERENCE = {
    "a": VideoAnnotation(((0, 10), (20, 30)), ("x", "z")),
    "b": VideoAnnotation(((0, 5),), ("w",)),
}
SECOND = {"a": VideoAnnotation(((50, 60),), ("y",))}


def test_duplicates_count_and_empty_lists_score_zero() -> None:
    scores = by_overlap(corpus(PREDICTED, [REFERENCE], ["a", "b"]), [0.5])
    assert scores.precision_VT.tolist() == [[2 / 3], [0]]
    assert scores.recall_VT.tolist() == [[1 / 2], [0]]


def test_the_threshold_is_strict() -> None:
    half = corpus(
        {"a": VideoAnnotation(((0, 5),), ("x",))},
        [{"a": VideoAnnotation(((0, 10),), ("x",))}],
        ["a"],
    )
    exact = half.references[0].iou_O[0]
    assert by_overlap(half, [exact]).precision_VT.tolist() == [[0]]
    assert by_overlap(half, [np.nextafter(exact, 0)]).precision_VT.tolist() == [[1]]


def test_several_references_give_the_best_of_each() -> None:
    scores = by_overlap(corpus(PREDICTED, [REFERENCE, SECOND], ["a", "b"]), [0.5])
    assert scores.precision_VT[0].tolist() == [2 / 3]
    assert scores.recall_VT[0].tolist() == [1]


def test_navigation_looks_at_starts() -> None:
    events = corpus(
        {"a": VideoAnnotation(((0, 1), (8, 9)), ("x", "y"))},
        [{"a": VideoAnnotation(((2, 50),), ("x",))}],
        ["a"],
    )
    scores = by_start(events, [2, 3, 7])
    assert scores.precision_VT.tolist() == [[0, 0.5, 1]]
    assert scores.recall_VT.tolist() == [[0, 1, 1]]


def test_segment_quality() -> None:
    quality = segment_quality(corpus(PREDICTED, [REFERENCE], ["a", "b"]))
    assert quality.recall_V.tolist() == [0.5, 0]
    assert quality.mean_iou_V.tolist() == pytest.approx([0.5, 0])
    assert quality.matched_V.tolist() == [2, 0]


def test_f1_of_nothing_is_nothing() -> None:
    assert f1(np.array([0.0, 1.0, 0.5]), np.array([0.0, 0.0, 1.0])).tolist() == [0, 0, 2 / 3]
