"""Overlaps and groups against plain loops."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starc_eval import pairs
from starc_eval.annotations import VideoAnnotation
from starc_eval.pairs import UNMATCHED, corpus, groups, iou

TIOUS = (0.3, 0.5, 0.7, 0.9)
second = st.integers(0, 40).map(float)
span = st.tuples(second, second)
video = st.lists(span, max_size=6)


def iou_by_definition(a: tuple[float, float], b: tuple[float, float]) -> float:
    inter = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    union = min(max(a[1], b[1]) - min(a[0], b[0]), (a[1] - a[0]) + (b[1] - b[0]))
    return inter / (union + 1e-8) if inter > 0 else 0.0


def annotated(spans: list[tuple[float, float]], word: str) -> VideoAnnotation:
    return VideoAnnotation(tuple(spans), tuple(f"{word} {n % 3}" for n in range(len(spans))))


@given(a=span, b=span)
@settings(deadline=None)
def test_iou(a: tuple[float, float], b: tuple[float, float]) -> None:
    value = iou(np.array([a]), np.array([b]))[0]
    assert value == iou_by_definition(a, b) == iou(np.array([b]), np.array([a]))[0]
    assert 0 <= value <= 1
    if a[1] <= a[0]:
        assert value == 0


@given(predicted=st.lists(video, min_size=1, max_size=4), data=st.data())
@settings(deadline=None, max_examples=60)
def test_overlaps_and_nearest_starts(
    predicted: list[list[tuple[float, float]]], data: st.DataObject
) -> None:
    referred = [data.draw(video) for _ in predicted]
    names = [f"video{v}" for v in range(len(predicted))]
    events = corpus(
        dict(zip(names, (annotated(x, "p") for x in predicted), strict=True)),
        [dict(zip(names, (annotated(x, "r") for x in referred), strict=True))],
        names,
    )
    over = events.references[0]
    overlaps = {
        (int(p), int(r)): float(x)
        for p, r, x in zip(over.prediction_O, over.reference_O, over.iou_O, strict=True)
    }
    expected, nearest = {}, []
    first_p = first_r = 0
    for these, those in zip(predicted, referred, strict=True):
        for p, a in enumerate(these):
            nearest.append(min((abs(a[0] - b[0]) for b in those), default=np.inf))
            for r, b in enumerate(those):
                if iou_by_definition(a, b) > 0:
                    expected[first_p + p, first_r + r] = iou_by_definition(a, b)
        first_p, first_r = first_p + len(these), first_r + len(those)
    assert overlaps == expected
    assert over.nearest_P.tolist() == nearest


def test_small_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    spans = [tuple(sorted(rng.uniform(0, 60, 2))) for _ in range(80)]
    events = {"a": annotated(spans[:30], "p"), "b": annotated(spans[30:], "p")}
    whole = corpus(events, [events], ["a", "b"]).references[0]
    monkeypatch.setattr(pairs, "_BLOCK", 70)
    parts = corpus(events, [events], ["a", "b"]).references[0]
    for field in dataclasses.fields(whole):
        assert np.array_equal(getattr(whole, field.name), getattr(parts, field.name))


def test_thresholds_with_the_same_pairs_share_a_group() -> None:
    predicted = {
        "a": VideoAnnotation(((0, 10), (20, 30)), ("x", "y")),
        "b": VideoAnnotation((), ()),
    }
    reference = {
        "a": VideoAnnotation(((0, 10), (20, 28)), ("x", "z")),
        "b": VideoAnnotation(((0, 1),), ("w",)),
    }
    events = corpus(predicted, [reference], ["a", "b"])
    grouped = groups(events, TIOUS)
    assert grouped.index_VT.tolist() == [[0, 0, 0, 1], [2, 2, 2, 2]]
    assert grouped.size_G.tolist() == [2, 2, 0]
    assert grouped.group_I.tolist() == [0, 0, 1, 1]
    names = [
        tuple(events.captions[it[grouped.pair_I[n]]] for n in range(4))
        for it in (grouped.hypothesis_U, grouped.reference_U)
    ]
    assert names == [("x", "y", "x", "y"), ("x", "z", "x", UNMATCHED)]


def test_captions_read_a_thousand_predictions() -> None:
    many = VideoAnnotation(((0, 10),) * 1500, tuple(str(n) for n in range(1500)))
    grouped = groups(
        corpus({"a": many}, [{"a": VideoAnnotation(((0, 10),), ("x",))}], ["a"]), TIOUS
    )
    assert grouped.size_G.tolist() == [1000]
