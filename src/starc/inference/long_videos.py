"""Long videos: overlapping windows, and merging what was found in them.

The model sees at most T frames. A video longer than `Windowing.longest` is cut into windows of
`Windowing.seconds`; each is captioned like a video of its own, and `merge_events` joins what two
windows say about the seconds they share. Everything here is plain arithmetic on frame indices (of
the frames the model sees) and seconds.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from starc.config import Windowing
from starc.types import Event, Segment, Sentence

SAME = 0.5
"""Overlap (tIoU inside the shared seconds) from which two events are one."""
SAME_WORDS = 0.5
"""Shared words (Dice) from which events that overlap less are one all the same."""
Moment = TypeVar("Moment", Event, Sentence)


class FrameRange(NamedTuple):
    """Consecutive positions [first, stop) among the frames the model sees."""

    first: int
    stop: int


class FramePlan(NamedTuple):
    """Which sampled frames are needed, and which of them each window sees."""

    indices: list[int]
    windows: list[FrameRange]


def plan(frames: int, *, most: int, windowing: Windowing | None, fps: float = 1.0) -> FramePlan:
    """Frames to use of a video with `frames` sampled at `fps`, for a model that sees `most`.

    One look takes (j frames) // most, as published; so do windows, with their own count for
    `most`. Windows overlap by `overlap` or more and begin evenly from the start to the end.
    """
    if frames < 1:
        raise ValueError(f"a video has frames, got {frames = }")
    count, firsts = min(frames, most), [0]
    if windowing and frames > most and frames / fps > windowing.longest:
        count = max(most + 1, math.ceil(frames / fps * most / windowing.seconds))
        count = min(count, frames)
        step = max(1, int(most * (1 - windowing.overlap)))
        windows = 1 + math.ceil((count - most) / step)
        firsts = [round(k * (count - most) / (windows - 1)) for k in range(windows)]
    ranges = [FrameRange(first, first + min(count, most)) for first in firsts]
    return FramePlan([j * frames // count for j in range(count)], ranges)


def seconds(window: FrameRange, times: Sequence[float], duration: float) -> tuple[float, float]:
    """Start and end of a window: it lasts until the frame after its last one."""
    start = times[window.first] if window.first else 0.0
    end = times[window.stop] if window.stop < len(times) else duration
    return start, max(end, math.nextafter(start, math.inf))


def within(moments: Iterable[Moment], start: float, end: float) -> tuple[Moment, ...]:
    """Sentences or events whose middle lies in [start, end), in the window's own time."""
    return tuple(
        replace(one, start=max(one.start - start, 0.0), end=min(one.end, end) - start)
        for one in moments
        if start <= (one.start + one.end) / 2 < end
    )


def shifted(events: Iterable[Event], start: float, end: float) -> list[Event]:
    """Events of a window in the time of the video."""
    moved = ((event, event.start + start, min(event.end + start, end)) for event in events)
    return [replace(event, start=a, end=b) for event, a, b in moved if a < b]


def merge_events(
    spans: Sequence[tuple[float, float]], events: Sequence[Sequence[Event]]
) -> list[Event]:
    """One list from the events of windows that lie at `spans` seconds, in order of time.

    Two events of neighbouring windows are one if, inside the seconds both windows see, they mostly
    cover each other, or overlap and share most words. The joint event takes each end from the
    window that sees further beyond it, so an event cut off at an edge regains its true end, and
    its caption from the window that saw more of it. What both could see whole and only one has
    said stays if it lies in that window's half.
    """
    merged = list(events[0]) if events else []
    for (before, after), following in zip(itertools.pairwise(spans), events[1:], strict=True):
        merged = _seam(merged, following, after[0], before[1])
    return sorted(merged, key=lambda event: (event.start, event.end))


def _seam(left: list[Event], right: Sequence[Event], start: float, end: float) -> list[Event]:
    """Join two lists over the shared seconds [start, end)."""
    if start >= end:
        return [*left, *right]
    candidates = [
        (-_alike(a, b, start, end), i, j) for i, a in enumerate(left) for j, b in enumerate(right)
    ]
    pairs: dict[int, int] = {}
    for rank, i, j in sorted(candidates):
        if rank < 0 and i not in pairs and j not in pairs.values():
            pairs[i] = j
    joined = [_joined(left[i], right[j], start, end) for i, j in pairs.items()]
    first = [
        event
        for i, event in enumerate(left)
        if i not in pairs and (event.start < start or event.start + event.end <= start + end)
    ]
    second = [
        event
        for j, event in enumerate(right)
        if j not in pairs.values() and (event.end > end or event.start + event.end > start + end)
    ]
    return [*first, *joined, *second]


def _alike(a: Event, b: Event, start: float, end: float) -> float:
    """How sure two events are one, 0 if they are not: overlap in [start, end) and shared words."""
    a_start, a_end = max(a.start, start), min(a.end, end)
    b_start, b_end = max(b.start, start), min(b.end, end)
    shared = min(a_end, b_end) - max(a_start, b_start)
    if shared <= 0 or a_end <= a_start or b_end <= b_start:
        return 0.0
    overlap = shared / (max(a_end, b_end) - min(a_start, b_start))
    words_a, words_b = (set(re.findall(r"\w+", one.caption.casefold())) for one in (a, b))
    said = len(words_a) + len(words_b)
    words = 2 * len(words_a & words_b) / said if said else 1.0
    return overlap + words if overlap >= SAME or words >= SAME_WORDS else 0.0


def _joined(a: Event, b: Event, start: float, end: float) -> Event:
    first = a.start if end - a.start >= b.start - start else b.start
    last = b.end if b.end - start >= end - a.end else a.end
    if first >= last:
        first, last = min(a.start, b.start), max(a.end, b.end)
    seen = [(event.end - event.start, event.confidence or 0.0) for event in (a, b)]
    chosen = b if seen[1] > seen[0] else a
    return replace(chosen, start=first, end=last, repeated=a.repeated and b.repeated)


def owned(windows: Sequence[FrameRange]) -> list[FrameRange]:
    """The positions each window answers for: shared ones are halved between neighbours."""
    cuts = [(before.stop + after.first) // 2 for before, after in itertools.pairwise(windows)]
    firsts, stops = [windows[0].first, *cuts], [*cuts, windows[-1].stop]
    return [FrameRange(first, stop) for first, stop in zip(firsts, stops, strict=True)]


def merge_frames(windows: Sequence[FrameRange], rows: Sequence[Sequence[float]]) -> list[float]:
    """A value (such as saliency) of every position, from the window that answers for it."""
    return [
        value
        for window, own, row in zip(windows, owned(windows), rows, strict=True)
        for value in row[own.first - window.first : own.stop - window.first]
    ]


def merge_segments(
    windows: Sequence[FrameRange], segments: Sequence[Sequence[Segment]]
) -> list[Segment]:
    """Segments of the whole video; at a seam, two of one anchor become one."""
    merged: list[Segment] = []
    for window, own, cut in zip(windows, owned(windows), segments, strict=True):
        cropped = []
        for segment in cut:
            first = max(segment.first + window.first, own.first)
            stop = min(segment.stop + window.first, own.stop)
            if first < stop:
                cropped.append(replace(segment, first=first, stop=stop))
        if merged and cropped and merged[-1].anchor == cropped[0].anchor:
            before, after = merged.pop(), cropped[0]
            chosen = max(before, after, key=lambda one: (one.kept, one.score))
            cropped[0] = replace(chosen, first=before.first, stop=after.stop)
        merged += cropped
    return merged
