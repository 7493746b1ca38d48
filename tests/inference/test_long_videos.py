"""Planted events across the seams of windows come back once, with their true times."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starc.config import Windowing
from starc.inference import long_videos
from starc.inference.long_videos import FrameRange
from starc.types import Event, Segment, Sentence

LONG = Windowing()


def look(events: list[Event], start: float, end: float) -> list[Event]:
    """What a perfect model says of a window, in the window's own time, rounded to time tokens."""
    step = (end - start) / 99
    seen = []
    for event in events:
        a, b = max(event.start, start) - start, min(event.end, end) - start
        a, b = round(a / step) * step, round(b / step) * step
        if a < b:
            seen.append(Event(a, b, event.caption, 0.5))
    return seen


def caption(duration: int, events: list[Event]) -> tuple[list[Event], float]:
    """Windows, looks and merging as the pipeline does them; also the size of a time token."""
    plan = long_videos.plan(duration, fps=1.0, most=100, windowing=LONG)
    times = [float(index) for index in plan.indices]
    spans = [long_videos.seconds(window, times, duration) for window in plan.windows]
    looks = [long_videos.shifted(look(events, *span), *span) for span in spans]
    return long_videos.merge_events(spans, looks), max(end - start for start, end in spans) / 99


@pytest.mark.parametrize("duration", [801, 1500, 7200])
@pytest.mark.parametrize("seed", range(5))
def test_planted_events_are_found_once_with_true_times(duration: int, seed: int) -> None:
    shuffled = random.Random(seed)
    events: list[Event] = []
    time = 0.0
    while True:
        time += shuffled.uniform(0, 20)
        length = shuffled.choice([5.0, 14.0, 50.0, 90.0])
        if time + length > duration:
            break
        events.append(Event(time, time + length, f"step {len(events)} {shuffled.random()}"))
        time += length
    found, token = caption(duration, events)
    assert [event.caption for event in found] == [event.caption for event in events]
    for event, truth in zip(found, events, strict=True):
        assert abs(event.start - truth.start) <= token and abs(event.end - truth.end) <= token


def test_one_event_longer_than_several_windows_is_one() -> None:
    found, token = caption(3000, [Event(100.0, 2500.0, "waiting")])
    assert len(found) == 1
    assert abs(found[0].start - 100) <= token and abs(found[0].end - 2500) <= token


def test_overlapping_events_at_a_seam_stay_apart() -> None:
    events = [Event(300, 390, "he talks"), Event(320, 340, "she chops onions")]
    found, _ = caption(900, events)
    assert [event.caption for event in found] == ["he talks", "she chops onions"]


def test_the_same_event_in_other_words_is_one() -> None:
    left = [Event(80.0, 100.0, "crack eggs", 0.4)]
    right = [Event(81.0, 118.0, "the eggs are broken into a bowl", 0.6)]
    found = long_videos.merge_events([(0, 100), (75, 175)], [left, right])
    assert [(e.start, e.end, e.caption) for e in found] == [
        (80.0, 118.0, "the eggs are broken into a bowl")
    ] or found[0].start == 81.0
    assert len(found) == 1


@pytest.mark.parametrize(
    ("start", "caption", "count"),
    [
        (82.0, "the pan is heated", 1),  # 11 of 20 seconds
        (84.0, "the pan is heated", 2),  # 9 of 20 seconds
        (84.0, "crack the eggs", 1),  # and four of five words
    ],
)
def test_events_are_one_by_half_of_their_time_or_half_of_their_words(
    start: float, caption: str, count: int
) -> None:
    left, right = [Event(73.0, 93.0, "crack eggs")], [Event(start, 93.0, caption)]
    found = long_videos.merge_events([(0, 100), (73, 173)], [left, right])
    assert len(found) == count


def test_what_only_one_window_says_counts_in_its_own_half() -> None:
    left = [Event(76, 80, "mine"), Event(95, 99, "at my edge")]
    right = [Event(77.5, 78, "at its edge"), Event(90, 94, "its own")]
    found = long_videos.merge_events([(0, 100), (75, 175)], [left, right])
    assert [event.caption for event in found] == ["mine", "its own"]


def test_short_videos_are_looked_at_once_as_published() -> None:
    for frames in (1, 7, 100, 101, 320, 800):
        plan = long_videos.plan(frames, fps=1.0, most=100, windowing=LONG)
        count = min(frames, 100)
        assert plan.windows == [FrameRange(0, count)]
        assert plan.indices == [j * frames // count for j in range(count)]
    assert len(long_videos.plan(86400, fps=1.0, most=100, windowing=None).windows) == 1


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 90000),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.integers(2, 120),
    st.floats(0.05, 0.9),
)
def test_windows_cover_everything_and_overlap(
    frames: int, fps: float, most: int, overlap: float
) -> None:
    long = Windowing(overlap=overlap)
    plan = long_videos.plan(frames, fps=fps, most=most, windowing=long)
    assert plan.indices == sorted(set(plan.indices)) and plan.indices[-1] < frames
    assert plan.windows[0].first == 0 and plan.windows[-1].stop == len(plan.indices)
    assert all(window.stop - window.first <= most for window in plan.windows)
    for before, after in itertools.pairwise(plan.windows):
        assert before.first < after.first
        assert before.stop - after.first >= int(overlap * most) or most < 4
    if len(plan.windows) > 1:
        assert (
            max(b - a for a, b in itertools.pairwise(plan.indices)) <= long.seconds / most * fps + 1
        )


def test_a_sentence_belongs_to_the_window_that_holds_its_middle() -> None:
    said = [Sentence(0, 5, "a"), Sentence(7, 12, "b"), Sentence(9, 13, "c"), Sentence(15, 23, "d")]
    inside = (Sentence(0, 3, "c"), Sentence(5, 10, "d"))
    assert long_videos.within(said, 10, 20) == inside


def test_saliency_and_segments_are_joined_at_the_middle_of_a_seam() -> None:
    windows = [FrameRange(0, 10), FrameRange(6, 16)]
    assert long_videos.owned(windows) == [FrameRange(0, 8), FrameRange(8, 16)]
    assert long_videos.merge_frames(windows, [[0.1] * 10, [0.9] * 10]) == [0.1] * 8 + [0.9] * 8
    left = [Segment(0, 5, 1, 0.5), Segment(5, 10, 2, 0.7, kept=False)]
    right = [Segment(0, 4, 2, 0.9), Segment(4, 10, 3, 0.1)]
    assert long_videos.merge_segments(windows, [left, right]) == [
        Segment(0, 5, 1, 0.5),
        Segment(5, 10, 2, 0.9),
        Segment(10, 16, 3, 0.1),
    ]


def test_one_window_changes_nothing() -> None:
    events = [Event(5, 9, "b"), Event(1, 3, "a")]
    assert long_videos.merge_events([(0, 10)], [events]) == events[::-1]
    segments = [Segment(0, 4, 1, 0.5), Segment(4, 10, 1, 0.5)]
    assert long_videos.merge_segments([FrameRange(0, 10)], [segments]) == segments


@pytest.mark.parametrize("wrong", [{"seconds": 0.0}, {"seconds": 900.0}, {"overlap": 1.0}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="got"):
        Windowing(**wrong)
