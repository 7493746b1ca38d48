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
import heapq
import itertools
import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from starc.errors import VideoError
from starc.types import Captioned, Event

INTRODUCTION = "Introduction"
"""Title of the time before the first event, where that is `LEAD` seconds or more."""
LEAD = 10.0
UNKNOWN_CONFIDENCE = 0.5
YOUTUBE_SHORTEST = 10
"""Whole seconds of a YouTube chapter."""
YOUTUBE_FEWEST = 3

Floats = NDArray[np.float64]


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


def _best_chain(events: Sequence[Event]) -> list[Event]:
    """The heaviest chain in which each event follows the one before; events sorted by end.

    A later event follows an earlier one if the overlap is at most half of either: the earlier has
    its middle before the later's start, and its end before the later's middle. So the middles are
    visited in order, when all that end before them are known, and a tree of prefix maxima over
    the middles finds the best of those to follow: O(n log n).
    """
    middles = [(event.start + event.end) / 2 for event in events]
    places = sorted(middles)
    tree: list[tuple[float, int]] = [(-math.inf, 1)] * (len(events) + 1)  # weight, minus the event
    best = [0.0] * len(events)
    before: list[int | None] = [None] * len(events)
    ended = 0
    for n in sorted(range(len(events)), key=middles.__getitem__):
        while ended < len(events) and events[ended].end <= middles[n]:
            place = bisect.bisect_left(places, middles[ended]) + 1
            while place <= len(events):
                tree[place] = max(tree[place], (best[ended], -ended))
                place += place & -place
            ended += 1
        place, most = bisect.bisect_right(places, events[n].start), tree[0]
        while place:
            most = max(most, tree[place])
            place &= place - 1
        before[n] = None if most[1] > 0 else -most[1]
        best[n] = _weight(events[n]) + (0.0 if before[n] is None else most[0])
    chain: list[Event] = []
    n_last = max(range(len(events)), key=best.__getitem__, default=None)
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
    """The cheapest pair is always at the top of a heap; entries of pairs that changed are stale."""
    between = _Between(captioned)
    after = list(range(1, len(events) + 1))
    back = list(range(-1, len(events)))
    cost = [between(a, b) for a, b in itertools.pairwise(events)]
    heap = [(value, n) for n, value in enumerate(cost)]
    heapq.heapify(heap)
    left = len(events)
    while left > target:
        value, n = heapq.heappop(heap)
        if cost[n] != value:
            continue
        gone = after[n]
        events[n] = _join(events[n], events[gone])
        after[n] = after[gone]
        back[after[n]] = n
        left -= 1
        if gone < len(cost):
            cost[gone] = math.inf
        cost[n] = math.inf
        for k in (back[n], n):
            if k >= 0 and after[k] < len(events):
                cost[k] = between(events[k], events[after[k]])
                heapq.heappush(heap, (cost[k], k))
    return tuple(events[n] for n in _linked(after))


def _linked(after: Sequence[int]) -> Iterator[int]:
    """The numbers of a linked list that begins with 0 and ends with its length."""
    n = 0
    while n < len(after):
        yield n
        n = after[n]


class _Between:
    """What is between two neighbours; saliency is looked up in tables of extremes."""

    def __init__(self, captioned: Captioned) -> None:
        self._duration = captioned.duration
        self._times = captioned.frame_times if captioned.saliency else ()
        self._lowest = _extremes(captioned.saliency, np.minimum)
        self._highest = _extremes(captioned.saliency, np.maximum)

    def __call__(self, a: Event, b: Event) -> float:
        gap = max(0.0, b.start - a.end)
        length = max(a.end, b.end) - a.start
        confidence = min(_confidence(a), _confidence(b))
        return (gap + length) / self._duration + self._dip(a, b) + confidence

    def _dip(self, a: Event, b: Event) -> float:
        """How far saliency falls between the middles of two events, below their lower peak."""
        low = self._extreme(self._lowest, (a.start + a.end) / 2, (b.start + b.end) / 2)
        peaks = [self._extreme(self._highest, event.start, event.end) for event in (a, b)]
        if low is None or None in peaks:
            return 0.0
        return max(0.0, min(peak for peak in peaks if peak is not None) - low)

    def _extreme(self, table: list[Floats], start: float, end: float) -> float | None:
        first = bisect.bisect_left(self._times, start)
        stop = bisect.bisect_right(self._times, end)
        if stop <= first:
            return None
        level = (stop - first).bit_length() - 1
        two = table[level][first], table[level][stop - (1 << level)]
        return float(min(two) if table is self._lowest else max(two))


def _extremes(values: Sequence[float], of: np.ufunc) -> list[Floats]:
    """By level k the extreme of each run of 2^k values: any run is covered by two of them."""
    table = [np.array(values, np.float64)]
    while len(table[-1]) > (width := 1 << (len(table) - 1)):
        table.append(of(table[-1][:-width], table[-1][width:]))
    return table


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


def _long_enough(whole: Sequence[Event], duration: float) -> list[Mark]:
    """Join the shortest chapter, the first of equals, until all are long enough.

    It is at the top of a heap; entries of chapters that are gone or have grown are stale.
    """
    starts = [span_ms(one.start, one.end)[0] // 1000 for one in whole]
    titles = [one_line(one.caption) for one in whole]
    after, back = list(range(1, len(whole) + 1)), list(range(-1, len(whole)))
    lengths = [end - start for start, end in zip(starts, [*starts[1:], duration], strict=True)]
    heap = [(length, n) for n, length in enumerate(lengths)]
    heapq.heapify(heap)
    while heap and after[0] < len(whole):
        length, n = heapq.heappop(heap)
        if length != lengths[n]:
            continue
        if length >= YOUTUBE_SHORTEST:
            break
        neighbours = [k for k in (back[n], after[n]) if 0 <= k < len(whole)]
        # A step joins the introduction only where there is nothing else.
        other = min(neighbours, key=lambda k: (titles[k] == INTRODUCTION, lengths[k]))
        a, b = sorted((n, other))
        if a == 0 and titles[0] == INTRODUCTION:
            titles[0] = titles[b]
        gone = b if a == 0 or lengths[a] >= lengths[b] else a
        grown = back[gone]
        after[grown] = after[gone]
        back[after[gone]] = grown
        end = starts[after[gone]] if after[gone] < len(whole) else duration
        lengths[grown], lengths[gone] = end - starts[grown], math.inf
        heapq.heappush(heap, (lengths[grown], grown))
    return [(starts[n], titles[n]) for n in _linked(after)]


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
