"""How well the events of a video meet those of the reference: the figures of the page's cards.

Pairs of the highest overlap first, each used once, and a pair counts from an IoU of 0.5 on: as the
page itself compares (`static/matching.js`). Captions are not judged here; `starc score` does that.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

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
