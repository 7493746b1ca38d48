"""Chapters cover the video without overlap; granularity joins and splits; YouTube accepts them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starc.errors import VideoError
from starc.output import formats
from starc.output.chapters import (
    INTRODUCTION,
    _best_chain,
    _weight,
    chapters,
    for_youtube,
    regroup,
)
from starc.types import Captioned, Event
from support.growth import NEAR_LINEAR, growth


def captioned(
    *events: tuple[float, float, str, float | None], duration: float = 100.0
) -> Captioned:
    return Captioned("a.mp4", duration, tuple(Event(*event) for event in events))


@st.composite
def videos(draw: st.DrawFn, shortest: float = 0.5) -> Captioned:
    duration = draw(st.floats(shortest, 5000))
    events = []
    for _ in range(draw(st.integers(0, 12))):
        start = draw(st.floats(0, 1)) * duration
        length = draw(st.floats(0.001, 1)) * duration
        confidence = draw(st.none() | st.floats(0, 1))
        events.append(Event(start, start + length, "step", confidence, draw(st.booleans())))
    frames = draw(st.integers(0, 30))
    times = tuple(k * duration / max(frames, 1) for k in range(frames))
    saliency = tuple(draw(st.floats(0, 1)) for _ in range(frames))
    return Captioned("v.mp4", duration, tuple(events), frame_times=times, saliency=saliency)


@settings(deadline=None, max_examples=60)
@given(videos(), st.sampled_from([0.3, 1.0, 2.5]))
def test_chapters_partition_the_video(video: Captioned, granularity: float) -> None:
    result = chapters(video, granularity=granularity)
    assert bool(result) == any(not e.repeated and e.start < video.duration for e in video.events)
    if result:
        assert result[0].start == 0 and result[-1].end == video.duration
        assert all(a.end == b.start for a, b in itertools.pairwise(result))


def test_chapters_begin_where_events_begin() -> None:
    video = captioned((4, 20, "a", 0.9), (18, 40, "b", 0.9), (60, 80, "c", 0.9))
    assert [(c.start, c.end, c.caption) for c in chapters(video)] == [
        (0, 18, "a"),
        (18, 60, "b"),
        (60, 100, "c"),
    ]


def test_the_time_before_a_late_first_event_is_an_introduction() -> None:
    result = chapters(captioned((30, 50, "a", 0.9)))
    assert [(c.start, c.end, c.caption) for c in result] == [(0, 30, INTRODUCTION), (30, 100, "a")]


def test_one_event_over_everything_does_not_swallow_good_ones() -> None:
    parts = [(10.0 * k, 10.0 * k + 9, f"part {k}", 0.6) for k in range(10)]
    result = chapters(captioned((0, 100, "a man cooks", 0.7), *parts))
    assert [c.caption for c in result] == [f"part {k}" for k in range(10)]


def test_a_short_event_inside_a_long_one_is_no_chapter() -> None:
    result = chapters(
        captioned((0, 60, "long", 0.6), (20, 24, "short", 0.9), (60, 100, "next", 0.6))
    )
    assert [c.caption for c in result] == ["long", "next"]


def test_repeated_events_make_no_chapter() -> None:
    events = (Event(0, 50, "a", 0.9), Event(50, 100, "a", 0.9, repeated=True))
    assert len(chapters(Captioned("v", 100, events))) == 1


@settings(deadline=None, max_examples=60)
@given(videos(), st.floats(0.05, 4))
def test_granularity_moves_the_count_and_keeps_the_extent(video: Captioned, level: float) -> None:
    result = regroup(video, level)
    target = max(1, round(len(video.events) * level)) if video.events else 0
    assert len(result) == min(target, len(video.events))
    assert {event.caption for event in result} <= {event.caption for event in video.events}
    if video.events:
        assert min(e.start for e in result) == min(e.start for e in video.events)
        assert max(e.end for e in result) == max(e.end for e in video.events)


def test_granularity_one_changes_nothing() -> None:
    video = captioned((50, 60, "b", 0.5), (0, 10, "a", None))
    assert regroup(video, 1.0) is video.events


def test_joining_prefers_near_and_weak_neighbours() -> None:
    video = captioned((0, 10, "a", 0.9), (11, 20, "b", 0.2), (60, 90, "c", 0.9))
    result = regroup(video, 0.67)
    assert [(e.start, e.end, e.caption) for e in result] == [(0, 20, "a"), (60, 90, "c")]
    assert result[0].confidence == pytest.approx((0.9 * 10 + 0.2 * 9) / 19)


def test_joining_respects_a_dip_in_saliency() -> None:
    events = tuple(
        Event(start, start + 30.0, name, 0.5)
        for start, name in zip((0, 30, 60), "abc", strict=True)
    )
    times = tuple(float(k) for k in range(90))
    saliency = tuple(0.05 if 28 <= k <= 32 else 0.9 for k in range(90))
    video = Captioned("v", 90, events, frame_times=times, saliency=saliency)
    assert [(e.start, e.end) for e in regroup(video, 0.67)] == [(0, 30), (30, 90)]


def test_one_caption_is_never_made_into_several() -> None:
    video = captioned((0, 100, "cook", 0.5))
    assert regroup(video, 6) == chapters(video, 6) == video.events
    for name in ("vtt", "youtube"):
        text, notes = formats.render(video, format=name, granularity=6)
        assert text.count("cook") == 1
        assert "granularity 6: the model found 1 and no more" in notes


@pytest.mark.parametrize("level", [0.0, -1.0, float("nan"), float("inf")])
def test_a_granularity_that_means_nothing_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match="granularity"):
        regroup(captioned((0, 10, "a", None)), level)


@settings(deadline=None, max_examples=150)
@given(videos(shortest=30.0))
def test_youtube_chapters_are_valid_by_construction(video: Captioned) -> None:
    if not chapters(video):
        with pytest.raises(VideoError, match="no events"):
            for_youtube(video)
        return
    result, notes = for_youtube(video)
    starts = [chapter.start for chapter in result]
    assert starts[0] == 0 and (len(result) >= 3 or "three" in notes[-1])
    assert all(isinstance(start, int) for start in starts)
    assert all(b - a >= 10 for a, b in itertools.pairwise([*starts, video.duration]))
    before = chapters(video)
    assert len(result) <= len(before)
    if [int(c.start) for c in before] != starts:
        assert notes


def test_youtube_repairs_are_said() -> None:
    short = captioned(
        (0, 40, "a", 0.9), (40, 44, "b", 0.9), (44, 70, "c", 0.9), (70, 100, "d", 0.9)
    )
    result, notes = for_youtube(short)
    assert [(c.start, c.caption) for c in result] == [(0, "a"), (44, "c"), (70, "d")]
    assert any("joined 1" in note for note in notes)
    result, notes = for_youtube(captioned((0, 100, "only", 0.9)))
    assert [c.caption for c in result] == ["only"]
    assert notes == ("YouTube shows chapters only where there are three (found 1)",)


def test_a_video_too_short_for_youtube_says_so() -> None:
    with pytest.raises(VideoError, match=r"too short for YouTube chapters \(29\.0 s"):
        for_youtube(captioned((0, 20, "a", 0.9), duration=29))


@settings(deadline=None, max_examples=100)
@given(videos(shortest=30.0), st.sampled_from([0.2, 0.5, 0.8]))
def test_what_is_joined_names_the_moment_it_begins_at(video: Captioned, level: float) -> None:
    named = tuple(replace(e, caption=f"step {n}") for n, e in enumerate(video.events))
    video = replace(video, events=named)
    starts = {event.caption: event.start for event in named}
    assert all(starts[event.caption] == event.start for event in regroup(video, level))
    for chapter in chapters(video, level)[1:]:
        assert starts[chapter.caption] == chapter.start
    if chapters(video):
        for chapter in for_youtube(video, level).chapters[1:]:
            assert int(starts[chapter.caption]) == chapter.start


@pytest.mark.parametrize("level", [0.3, 0.5])
def test_an_introduction_takes_no_step_in(level: float) -> None:
    video = captioned((30, 34, "chop", 0.1), (36, 60, "fry", 0.9), (70, 100, "serve", 0.9))
    assert [(c.start, c.caption) for c in chapters(video, level)][:2] == [
        (0, INTRODUCTION),
        (30, "chop"),
    ]
    result = for_youtube(captioned((12, 16, "chop", 0.9), (16, 60, "fry", 0.9), (60, 90, "eat", 1)))
    assert [(c.start, c.caption) for c in result.chapters] == [
        (0, INTRODUCTION),
        (16, "fry"),
        (60, "eat"),
    ]


def test_youtube_gets_three_chapters_where_there_are_three() -> None:
    video = captioned((0, 30, "a", 0.9), (30, 60, "b", 0.9), (60, 100, "c", 0.9))
    result, notes = for_youtube(video, 0.3)
    assert [c.caption for c in result] == ["a", "b", "c"]
    assert notes == (
        "granularity 0.3 would leave 1 chapters and YouTube wants three: it was not heeded",
    )


def many(n: int) -> Captioned:
    """Overlapping events of a long video, with saliency: every neighbour can be joined."""
    events = tuple(Event(k, k + 1.5 + k % 3, "stir", 0.2 + k % 7 / 10) for k in range(n))
    times = tuple(map(float, range(n)))
    return Captioned(
        "v.mp4", n + 5.0, events, frame_times=times, saliency=tuple(k % 11 / 11 for k in range(n))
    )


@pytest.mark.parametrize("granularity", [1.0, 0.01])
@pytest.mark.parametrize("format", ["chapters", "youtube", "srt", "html"])
def test_work_grows_with_the_number_of_events(format: str, granularity: float) -> None:
    def export(video: Captioned) -> object:
        return formats.render(video, format=format, granularity=granularity)

    assert growth(many, export, 800) < NEAR_LINEAR


def follows(earlier: Event, later: Event) -> bool:
    middles = [(event.start + event.end) / 2 for event in (earlier, later)]
    return middles[0] <= later.start and earlier.end <= middles[1]


@settings(deadline=None, max_examples=200)
@given(videos())
def test_the_chain_is_the_one_that_trying_every_pair_finds(video: Captioned) -> None:
    events = sorted(video.events, key=lambda event: (event.end, event.start))
    best: list[float] = []
    before: list[int | None] = []
    for n, event in enumerate(events):
        options = [k for k in range(n) if follows(events[k], event)]
        before.append(max(options, key=best.__getitem__, default=None))
        best.append(_weight(event) + (0.0 if before[n] is None else best[before[n]]))  # type: ignore[index]
    expected: list[Event] = []
    last = max(range(len(events)), key=best.__getitem__, default=None)
    while last is not None:
        expected.append(events[last])
        last = before[last]
    assert _best_chain(events) == expected[::-1]
