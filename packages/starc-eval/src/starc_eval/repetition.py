"""How much the captions of a video repeat each other.

In: captions of a video, tokenised, in order of start. Out: shares from 0 to 1, smaller is better.
References repeat themselves too ("add salt"), so a report has the same shares of the references
beside those of the predictions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

ORDER = 4
"""Words of an n-gram that is counted as repeated."""
REPETITION = ("Rep_4", "Duplicates", "Redundancy")
LOCALISED = 0.5
"""tIoU from which an event counts as localised."""


class Repetition(NamedTuple):
    """Of one video, in the order of REPETITION."""

    repeated: float
    """Share of the n-grams of ORDER words that occur earlier in the video's captions."""
    duplicates: float
    """Share of captions that are, word by word, an earlier caption of the video."""
    redundancy: float
    """Mean overlap of a caption's words with those of the caption before it (F1 of counts)."""


def repetition(captions: Sequence[str]) -> Repetition:
    """The shares of one video; 0 where there is nothing that could be repeated."""
    words = [caption.split() for caption in captions]
    grams = [tuple(each[at : at + ORDER]) for each in words for at in range(len(each) - ORDER + 1)]
    counts = [Counter(each) for each in words]
    neighbours = [*pairwise(counts)]
    return Repetition(
        _share(len(grams) - len(set(grams)), len(grams)),
        _share(sum(repeats(captions)), len(captions)),
        _share(sum(_overlap(*pair) for pair in neighbours), len(neighbours)),
    )


def repeats(captions: Sequence[str]) -> list[bool]:
    """Which captions are, word by word, an earlier one."""
    seen: set[str] = set()
    found = []
    for caption in (" ".join(each.split()) for each in captions):
        found.append(caption in seen)
        seen.add(caption)
    return found


def _overlap(before: Counter[str], after: Counter[str]) -> float:
    return _share(2 * (before & after).total(), before.total() + after.total())


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0
