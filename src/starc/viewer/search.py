"""Search over captions and speech: a question in, moments out, best first.

Words that only make it a question are dropped ("where do they add garlic?" asks for *add garlic*),
the rest is cut to a stem and looked for at the start of words. A moment scores the sum of
log(1 + passages / passages with the word) over the words it has, captions before speech.
There is no index: a thousand videos hold a few megabytes of text, which is scanned in a breath.
"""

from __future__ import annotations

import bisect
import heapq
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from starc.viewer.library import Item, Passage

_QUESTION = """
    a an and are at be by can did do does for from get gets has have he her his how i in into is
    it its let me my of on or our she show so that the their them then there they this to up us
    was we were what when where which who why will with you your
"""
_IDLE = frozenset(_QUESTION.split())
MOST_WORDS = 12


@dataclass(frozen=True, slots=True)
class Hit:
    """A moment that answers."""

    item: Item
    passage: Passage
    score: float


def words_of(query: str) -> list[str]:
    """The stems to look for; if every word is idle, they are looked for all the same."""
    words = re.findall(r"\w+", query.casefold())
    telling = [word for word in words if word not in _IDLE] or words
    return list(dict.fromkeys(map(stem, telling)))[:MOST_WORDS]


def stem(word: str) -> str:
    """A prefix that the word's other forms share: `adding`, `added` and `adds` give `add`."""
    for ending in ("ing", "ied", "ies", "ed", "es", "s", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    # chopp(ing) and chop must meet; ll and ss are part of the word (grill, press).
    doubled = len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz"
    return word[:-1] if doubled else word


def search(items: Iterable[Item], query: str, *, limit: int) -> tuple[list[Hit], int]:
    """The best moments, and how many there are in all."""
    patterns = [re.compile(rf"\b{re.escape(word)}") for word in words_of(query)]
    counts, passages = [0] * len(patterns), 0
    answers: list[tuple[Item, Passage, set[int]]] = []
    for item in items:
        found: dict[int, set[int]] = {}
        for place, word in _matches(item.summary.passages, patterns):
            found.setdefault(place, set()).add(word)
        for place, words in found.items():
            answers.append((item, item.summary.passages[place], words))
            for word in words:
                counts[word] += 1
        passages += len(item.summary.passages)
    weight = [math.log1p(passages / count) if count else 0.0 for count in counts]
    hits = [
        Hit(item, passage, sum(weight[word] for word in words) * (0.9 if passage.spoken else 1.0))
        for item, passage, words in answers
    ]
    best = heapq.nsmallest(
        limit, hits, key=lambda hit: (-hit.score, hit.item.summary.title, hit.passage.start)
    )
    return best, len(hits)


def _matches(
    passages: tuple[Passage, ...], patterns: list[re.Pattern[str]]
) -> Iterable[tuple[int, int]]:
    """Pairs (passage, word). One scan over the joined text is far cheaper than one per passage."""
    texts = [passage.text.casefold() for passage in passages]
    starts, position = [], 0
    for text in texts:
        starts.append(position)
        position += len(text) + 1
    whole = "\n".join(texts)
    for word, pattern in enumerate(patterns):
        for match in pattern.finditer(whole):
            yield bisect.bisect_right(starts, match.start()) - 1, word
