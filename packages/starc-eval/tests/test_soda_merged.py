"""SODA_m: the best matching against brute force, and a step that is told in two parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starc_eval import AnnotationError, score
from starc_eval.annotations import VideoAnnotation
from starc_eval.meteor import Meteor
from starc_eval.soda_merged import MERGED, Match, best_matching


@pytest.fixture(scope="module")
def meteor(meteor_backend: Any) -> Meteor:
    made: Meteor = meteor_backend("python")
    return made


one_match = st.builds(
    lambda first, more, column, value: Match(first, first + more, column, value),
    st.integers(0, 5),
    st.integers(0, 3),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]),
)


@given(st.lists(one_match, max_size=7))
def test_best_matching(matches: list[Match]) -> None:
    """Binary fractions, so that sums are exact and ties are ties."""

    def chains(after: Match | None) -> list[list[Match]]:
        follow = [
            match
            for match in matches
            if after is None or (match.first > after.last and match.column > after.column)
        ]
        return [[], *([match, *rest] for match in follow for rest in chains(match))]

    totals = [
        (sum(match.value for match in chain), -sum(match.last - match.first for match in chain))
        for chain in chains(None)
    ]
    total, fewer = max(totals)
    assert best_matching(matches) == (total, -fewer)


def test_a_step_told_in_two_parts_counts_as_one(meteor: Meteor) -> None:
    reference = {"a": VideoAnnotation(((0, 20), (20, 30)), ("cut the onion and fry it", "serve"))}
    spans, captions = ((10, 20), (0, 10), (20, 30)), ("and fry it", "cut the onion", "serve")
    said = {"a": VideoAnnotation(spans, captions)}
    report = score(said, reference, metrics=["soda", "soda_m"], meteor=lambda: meteor)
    whole = {"a": VideoAnnotation(((0, 20), (20, 30)), ("cut the onion and fry it", "serve"))}
    perfect = score(whole, reference, metrics=["soda", "soda_m"], meteor=lambda: meteor)
    assert perfect.metrics["soda_m"] == perfect.metrics["soda_c"] == pytest.approx(1, abs=1e-8)
    assert report.metrics["soda_m"] == pytest.approx(1, abs=1e-8)
    assert report.metrics["soda_c"] < 0.7
    assert "metrics:soda_c,soda_m | tok:ptb-3.4.1 | meteor:1.5 | merged:8" in report.signature


def test_one_more_than_may_be_merged(meteor: Meteor) -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    reference = {"a": VideoAnnotation(((0, 9.0),), (" ".join(words),))}
    spans = tuple((float(n), n + 1.0) for n in range(9))
    said = {"a": VideoAnnotation(spans, tuple(words))}
    report = score(said, reference, metrics=["soda_m"], meteor=lambda: meteor)
    parts = words[:MERGED], words[-MERGED:]
    best = 8 / 9 * max(meteor.score(" ".join(words), " ".join(part)) for part in parts)
    assert report.metrics["soda_m"] == pytest.approx(2 * best / (1 + 2))  # one is left over


def test_parts_that_say_other_things_are_not_merged_and_nothing_scores_nothing(
    meteor: Meteor,
) -> None:
    reference = {"a": VideoAnnotation(((0, 10), (10, 20)), ("cut the onion", "boil water"))}
    said = {"a": VideoAnnotation(((0, 10), (9, 20)), ("cut the onion", "boil water"))}
    report = score(said, reference, metrics=["soda", "soda_m"], meteor=lambda: meteor)
    assert report.metrics["soda_m"] == pytest.approx(report.metrics["soda_c"])
    for empty in ((), ((30, 40),)):
        none = {"a": VideoAnnotation(empty, ("x",) * len(empty))}
        assert score(none, reference, metrics=["soda_m"], meteor=lambda: meteor).metrics == {
            "soda_m": 0
        }


def test_more_overlaps_than_can_be_merged_are_refused() -> None:
    spans = tuple((0.0, 10.0 + n) for n in range(710))
    crowd = {video: VideoAnnotation(spans, ("stir",) * 710) for video in "ab"}
    with pytest.raises(AnnotationError, match=r"soda_m: 1008200 pairs .* leave soda_m out"):
        score(crowd, crowd, metrics=["soda_m"])


def test_never_less_in_total_than_one_to_one(data: Path, meteor: Meteor) -> None:
    files = data / "eval/own_small.json", data / "eval/own_small_ref.json"
    report = score(*files, metrics=["soda", "soda_m"], meteor=lambda: meteor)
    merged_V, single_V = report.per_video["soda_m"], report.per_video["soda_c"]
    assert (merged_V >= single_V - 1e-12).all() and (merged_V > single_V).any()
    assert (merged_V <= 1).all()
