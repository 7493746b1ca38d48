"""From events to chapters, and to fewer of either.

Events may overlap and leave gaps; chapters follow one another from the first second to the last.
`chapters` chooses events that can be chapters, `regroup` joins neighbours until there are about
`granularity` times as many, and `for_youtube` repairs what YouTube would refuse. A chapter is
an `Event` whose end is the next one's start. Nothing here knows a model, nor says more than it did.

Below stands how times and captions are spelt in the files we write. Times are rounded to
milliseconds once, so all formats agree; where fewer digits are shown the rest is cut off, as
`viewer/static/times.js` does.
"""

from __future__ import annotations

import bisect
import itertools
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from starc.errors import VideoError
from starc.types import Captioned, Event

INTRODUCTION = "Introduction"
"""Title of the time before the first event, where that is `LEAD` seconds or more."""
LEAD = 10.0
UNKNOWN_CONFIDENCE = 0.5
YOUTUBE_SHORTEST = 10
"""Whole seconds of a YouTube chapter."""
YOUTUBE_FEWEST = 3


class Repaired(NamedTuple):
    """Chapters, and in words what was changed to make them valid."""

    chapters: tuple[Event, ...]
    notes: tuple[str, ...]


def chapters(captioned: Captioned, granularity: float = 1.0) -> tuple[Event, ...]:
    """Chapters over the whole video: none when nothing happens in it.

    Of events that overlap by more than half of the shorter one, only one can be a chapter: the
    chain with the largest sum of confidence times square root of length is chosen, so that one
    event over the whole video does not swallow ten good ones. A chapter begins where its event
    begins and lasts to the next; a first event after `LEAD` seconds leaves an introduction.
    Events that repeat an earlier one make no chapter.
    """
    duration = captioned.duration
    events = [
        replace(event, end=min(event.end, duration))
        for event in captioned.events
        if not event.repeated and event.start < duration
    ]
    chain = _best_chain(sorted(events, key=lambda event: (event.end, event.start)))
    if not chain:
        return ()
    joined = [*regroup(replace(captioned, events=tuple(chain)), granularity)]
    if joined[0].start >= LEAD:  # after joining: an introduction takes no step in
        joined.insert(0, Event(0.0, joined[0].start, INTRODUCTION))
    starts = [0.0, *(event.start for event in joined[1:])]
    ends = [*starts[1:], duration]
    return tuple(
        replace(event, start=start, end=end)
        for event, start, end in zip(joined, starts, ends, strict=True)
    )


def _weight(event: Event) -> float:
    return _confidence(event) * math.sqrt(event.end - event.start)


def _confidence(event: Event) -> float:
    return UNKNOWN_CONFIDENCE if event.confidence is None else event.confidence


def _follows(earlier: Event, later: Event) -> bool:
    """Both can be chapters: the later begins and ends later, and mostly after the earlier."""
    shorter = min(earlier.end - earlier.start, later.end - later.start)
    overlap = earlier.end - later.start
    return earlier.start < later.start and earlier.end < later.end and overlap <= shorter / 2


def _best_chain(events: Sequence[Event]) -> list[Event]:
    """The heaviest chain in which each event follows the one before; events sorted by end."""
    best: list[float] = []
    before: list[int | None] = []
    for n, event in enumerate(events):
        options = [k for k in range(n) if _follows(events[k], event)]
        previous = max(options, key=lambda k: best[k], default=None)
        before.append(previous)
        best.append(_weight(event) + (0.0 if previous is None else best[previous]))
    chain: list[Event] = []
    n_last = max(range(len(events)), key=lambda k: best[k], default=None)
    while n_last is not None:
        chain.append(events[n_last])
        n_last = before[n_last]
    return chain[::-1]


def regroup(captioned: Captioned, granularity: float) -> tuple[Event, ...]:
    """About `granularity` times as many events, each longer; all of them from 1 on.

    Joining takes, again and again, the neighbours with the least between them: the sum of their
    gap and of their joint length (as parts of the whole), of the dip in saliency between them and
    of the lower confidence. A pair begins with its earlier event and keeps that one's caption, so
    that a caption stands at the moment it is about.
    """
    if not (math.isfinite(granularity) and granularity > 0):
        raise ValueError(f"granularity must be positive, got {granularity = }")
    target = max(1, round(len(captioned.events) * min(granularity, 1.0)))
    if target >= len(captioned.events):
        return captioned.events
    events = sorted(captioned.events, key=lambda event: (event.start, event.end))
    return _joined(events, captioned, target)


def _joined(events: list[Event], captioned: Captioned, target: int) -> tuple[Event, ...]:
    costs = [_between(a, b, captioned) for a, b in itertools.pairwise(events)]
    while len(events) > target:
        n = min(range(len(costs)), key=costs.__getitem__)
        events[n : n + 2] = [_join(events[n], events[n + 1])]
        del costs[n]
        for k in (n - 1, n):
            if 0 <= k < len(costs):
                costs[k] = _between(events[k], events[k + 1], captioned)
    return tuple(events)


def _between(a: Event, b: Event, captioned: Captioned) -> float:
    gap = max(0.0, b.start - a.end)
    length = max(a.end, b.end) - a.start
    confidence = min(_confidence(a), _confidence(b))
    return (gap + length) / captioned.duration + _dip(a, b, captioned) + confidence


def _dip(a: Event, b: Event, captioned: Captioned) -> float:
    """How far saliency falls between the middles of two events, below the lower of their peaks."""
    between = _frames(captioned, (a.start + a.end) / 2, (b.start + b.end) / 2)
    peaks = [_frames(captioned, event.start, event.end) for event in (a, b)]
    if not (between and all(peaks)):
        return 0.0
    return max(0.0, min(max(frames)[0] for frames in peaks) - min(between)[0])


def _frames(captioned: Captioned, start: float, end: float) -> list[tuple[float, float]]:
    """Saliency and time of the frames within a span; nothing where there is no saliency."""
    if not captioned.saliency:
        return []
    first = bisect.bisect_left(captioned.frame_times, start)
    stop = bisect.bisect_right(captioned.frame_times, end)
    return list(zip(captioned.saliency[first:stop], captioned.frame_times[first:stop], strict=True))


def _join(a: Event, b: Event) -> Event:
    """Both as one, captioned as the earlier: a caption belongs to the moment it begins at."""
    confidence = None
    if a.confidence is not None and b.confidence is not None:
        lengths = (a.end - a.start, b.end - b.start)
        confidence = (a.confidence * lengths[0] + b.confidence * lengths[1]) / sum(lengths)
    return replace(
        a,
        end=max(a.end, b.end),
        confidence=confidence,
        repeated=a.repeated and b.repeated,
        times_from=tuple(dict.fromkeys((*a.times_from, *b.times_from))),
    )


def for_youtube(captioned: Captioned, granularity: float = 1.0) -> Repaired:
    """Chapters as YouTube wants them: from 00:00, in whole seconds, each of ten or more.

    A shorter chapter joins its shorter neighbour; of the two, the longer keeps its start and its
    caption. YouTube wants three: where `granularity` leaves fewer, it is not heeded; where there
    are not more, a note says so. A video under 30 seconds cannot have chapters there.
    """
    duration = captioned.duration
    if not (whole := chapters(captioned, granularity)):
        raise VideoError(f"{captioned.video}: no events to make chapters of; choose another format")
    if duration < YOUTUBE_FEWEST * YOUTUBE_SHORTEST:
        raise VideoError(
            f"{captioned.video}: too short for YouTube chapters ({duration:.1f} s, "
            f"{YOUTUBE_FEWEST * YOUTUBE_SHORTEST} s needed); choose another format"
        )
    notes = []
    joined = _long_enough(whole, duration)
    if len(joined) < YOUTUBE_FEWEST and granularity < 1:
        all_of_them = chapters(captioned)
        if len(finer := _long_enough(all_of_them, duration)) > len(joined):
            notes.append(
                f"granularity {granularity:g} would leave {len(joined)} chapters and YouTube wants "
                "three: it was not heeded"
            )
            whole, joined = all_of_them, finer
    if len(joined) < len(whole):
        notes.append(f"joined {len(whole) - len(joined)} chapters shorter than 10 s to neighbours")
    if len(joined) < YOUTUBE_FEWEST:
        notes.append(f"YouTube shows chapters only where there are three (found {len(joined)})")
    ends = [*(start for start, _ in joined[1:]), duration]
    return Repaired(
        tuple(Event(start, end, t) for (start, t), end in zip(joined, ends, strict=True)),
        tuple(notes),
    )


Mark = tuple[int, str]


def _lengths(marks: Sequence[Mark], duration: float) -> list[float]:
    ends = [*(start for start, _ in marks[1:]), duration]
    return [end - start for (start, _), end in zip(marks, ends, strict=True)]


def _long_enough(whole: Sequence[Event], duration: float) -> list[Mark]:
    marks = [(span_ms(one.start, one.end)[0] // 1000, one_line(one.caption)) for one in whole]
    while len(marks) > 1:
        lengths = _lengths(marks, duration)
        n = min(range(len(marks)), key=lengths.__getitem__)
        if lengths[n] >= YOUTUBE_SHORTEST:
            break
        neighbours = [k for k in (n - 1, n + 1) if 0 <= k < len(marks)]
        # A step joins the introduction only where there is nothing else.
        other = min(neighbours, key=lambda k: (marks[k][1] == INTRODUCTION, lengths[k]))
        a, b = sorted((n, other))
        if a == 0 and marks[0][1] == INTRODUCTION:
            marks[:2] = [(0, marks[1][1])]
        elif a == 0 or lengths[a] >= lengths[b]:
            del marks[b]
        else:
            del marks[a]
    return marks


def one_line(text: str) -> str:
    """One line of printable text: runs of white space become a space, control characters go.

    A caption may hold anything: line breaks, control characters, half a surrogate.
    """
    text = " ".join(text.split())
    return "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cs")).strip()


def span_ms(start: float, end: float) -> tuple[int, int]:
    """Start and end in milliseconds, never an empty span: readers drop those."""
    first = round(start * 1000)
    return first, max(round(end * 1000), first + 1)


def stamp(time_ms: int, *, point: str = ".") -> str:
    """01:02:03.004, as WebVTT writes it; SRT has a comma for the point."""
    seconds, rest = divmod(time_ms, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{rest:03}"


def clock(seconds: float) -> str:
    """02:03, or 1:02:03 from the first hour on; fractions are cut off."""
    whole = round(seconds * 1000) // 1000
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes:02}:{whole % 60:02}"
