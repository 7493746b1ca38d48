"""How much captions repeat each other, by hand; and beside the references'."""

from __future__ import annotations

from pathlib import Path

import pytest

from starc_eval import AnnotationError, score
from starc_eval.annotations import VideoAnnotation
from starc_eval.meteor import Meteor
from starc_eval.repetition import repeats, repetition


def test_by_hand() -> None:
    captions = ["add the salt to the pot", "add the salt to the pan", "add the salt to the pot"]
    # Nine 4-grams: add the salt to, the salt to the, salt to the pot, …, pan, and the first three.
    assert repetition(captions) == pytest.approx((5 / 9, 1 / 3, 5 / 6))
    assert repetition(["stir", "fry the onion", "serve"]) == (0, 0, 0)
    assert repetition([]) == repetition(["stir"]) == (0, 0, 0)
    assert repetition(["a a b", "a b b"]).redundancy == pytest.approx(2 / 3)
    assert repeats(["stir", "fry", "stir ", "stir"]) == [False, False, True, True]


def unwanted() -> Meteor:
    raise AssertionError("repetition needs no METEOR")


def test_the_papers_failure_case_well_placed_and_said_before() -> None:
    spans = ((0.0, 10.0), (10.0, 20.0), (20.0, 30.0), (40.0, 41.0))
    reference = {"a": VideoAnnotation(spans, ("cut", "fry it", "boil", "Fry it."), 50.0)}
    said = ("Mix it.", "mix it", "mix it", "serve")
    # Out of order; the last two are in no place of the reference.
    places = ((0.0, 9.0), (10.0, 21.0), (60.0, 70.0), (80.0, 90.0))
    backwards = VideoAnnotation(places[::-1], said[::-1], 50.0)
    report = score({"a": backwards}, reference, metrics=["repetition"], meteor=unwanted)
    assert report.metrics == {
        "Rep_4": 0,
        "Duplicates": 2 / 4,
        "Redundancy": pytest.approx(2 / 3),
        "Localised_duplicates": 1 / 2,
    }
    assert report.reference_repetition == {"Rep_4": 0, "Duplicates": 1 / 4, "Redundancy": 0}
    assert report.to_json()["reference_repetition"] == report.reference_repetition
    assert "tok:ptb-3.4.1 | protocol" in report.signature and "Rep_4" in report.signature


def test_missing_videos_and_several_references(data: Path) -> None:
    reference = {"a": VideoAnnotation(((0, 9), (9, 12)), ("x y", "x y")), "b": _one("z")}
    report = score(
        {"a": _one("x")}, [reference, reference], protocol="pdvc", metrics=["repetition"]
    )
    assert report.per_video["Duplicates"].tolist() == [0, 0]
    assert report.reference_repetition["Duplicates"] == 1 / 4
    with pytest.raises(AnnotationError, match=r"proposals does not have repetition; it has local"):
        score({"a": _one("x")}, reference, protocol="proposals", metrics=["repetition"])
    with pytest.raises(AnnotationError, match=r"titles does not have soda; its metrics cannot"):
        score({"a": _one("x")}, reference, protocol="titles", metrics=["soda"])
    with pytest.raises(ValueError, match="among"):
        score({"a": _one("x")}, reference, metrics=["bertscore"])


def _one(caption: str) -> VideoAnnotation:
    return VideoAnnotation(((0, 9),), (caption,))
