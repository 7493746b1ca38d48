"""A reference or a second system beside the predictions, and how well the two meet.

`overlaps` gives the figures of the page's cards: pairs of the highest overlap first, each used
once, and a pair counts from an IoU of 0.5 on, as the page itself compares (`static/matching.js`).
Captions are not judged here; `starc score` does that.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from starc.types import Captioned, Event
from starc.viewer.library import Item, Library, read_item
from starc.viewer.records import Passage, read_many

THRESHOLD = 0.5
Span = tuple[float, float]


class Overlaps(NamedTuple):
    """Shares, 0 to 1."""

    recall: float
    precision: float
    f1: float


def overlaps(ours: Sequence[Span], theirs: Sequence[Span]) -> Overlaps:
    """Recall, precision and F1 of `ours` against the reference `theirs`."""
    ordered = sorted(theirs)
    starts = [start for start, _ in ordered]
    longest = max((end - start for start, end in ordered), default=0.0)
    pairs = []
    for i, (start, end) in enumerate(ours):
        first = bisect.bisect_left(starts, start - longest)
        for j in range(first, bisect.bisect_left(starts, end)):
            shared = min(end, ordered[j][1]) - max(start, starts[j])
            union = max(end, ordered[j][1]) - min(start, starts[j])
            if shared >= THRESHOLD * union:
                pairs.append((-shared / union, i, j))
    used_ours, used_theirs = set[int](), set[int]()
    for _, i, j in sorted(pairs):
        if i not in used_ours and j not in used_theirs:
            used_ours.add(i)
            used_theirs.add(j)
    good = len(used_ours)
    recall = good / len(theirs) if theirs else 0.0
    precision = good / len(ours) if ours else 0.0
    return Overlaps(recall, precision, 2 * good / ((len(ours) + len(theirs)) or 1))


class Comparison:
    """A reference or a second system, shown with the predictions; videos meet by `video_id`.

    It is a file of any annotation or prediction format, or a folder of captioned JSON, of which the
    newest versions are shown.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name if path.is_dir() else path.stem
        self._library = Library([path]) if path.is_dir() else None
        self._records = {} if self._library else read_many(path)

    def captioned(self, names: Iterable[str]) -> Captioned | None:
        """The record of a video that goes by any of `names`."""
        items = self._items()
        for name in names:
            if name in self._records:
                return self._records[name]
            if name in items:
                return read_item(items[name])
        return None

    def _items(self) -> dict[str, Item]:
        items: dict[str, Item] = {}
        for item in self._library.refresh() if self._library else ():
            for name in item.names if item.record else ():
                items.setdefault(name, item)
        return items

    def score(self, items: Iterable[Item]) -> dict[str, Overlaps]:
        """Id -> how well its events meet those here, of the items that are known here."""
        known, scores = self._items(), {}
        for item in items:
            name = next((n for n in item.names if n in self._records or n in known), None)
            if name is None or not item.captioned or item.summary.problem:
                continue
            record = self._records.get(name)
            theirs = _spans(known[name]) if record is None else _times(record.events)
            scores[item.id] = overlaps(_spans(item), theirs)
        return scores


def _times(parts: Iterable[Event | Passage]) -> list[tuple[float, float]]:
    return [(one.start, one.end) for one in parts]


def _spans(item: Item) -> list[tuple[float, float]]:
    """When the events of a record are, without reading it again."""
    return _times(one for one in item.summary.passages if not one.spoken)
