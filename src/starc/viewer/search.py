"""Moments that answer a question, among the captions and the speech of a library.

Words that only make it a question are dropped ("where do they add garlic?" asks for *add garlic*),
the rest is cut to a stem and looked for at the start of words. Chinese, Japanese, Thai and other
scripts that put no space between words are looked for anywhere: Han and kana by pairs of letters,
the others by fours. A moment scores the sum of log(1 + passages / passages with
the word) over the words it has, captions before speech. There is no index: the text of a thousand
videos is a few megabytes.
"""

from __future__ import annotations

import bisect
import heapq
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from starc.viewer.library import Item
from starc.viewer.records import Passage

MOST_WORDS = 12
_QUESTION = """
    a an and are at be by can did do does for from get gets has have he her his how i in into is
    it its let me my of on or our she show so that the their them then there they this to up us
    was we were what when where which who why will with you your
"""
_STOP_WORDS = frozenset(_QUESTION.split())
_MARKS = "".join(c for c in map(chr, range(0x300, 0xFFFF)) if unicodedata.category(c)[0] == "M")
"""Vowel signs and accents, which belong to the letter before them; `\\w` knows nothing of them."""
_HAN = r"\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUN_ON = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Thai, Lao, Burmese, Khmer."""
_LETTER = re.compile(rf"(?![{_HAN}{_RUN_ON}])[\w{_MARKS}]")
_WORD = re.compile(rf"[{_HAN}]+|[{_RUN_ON}]+|(?:{_LETTER.pattern})+")
_HAN_RUN, _ANYWHERE = re.compile(f"[{_HAN}]"), re.compile(f"[{_HAN}{_RUN_ON}]")


class Moment(NamedTuple):
    item: Item
    passage: Passage
    score: float


def words_of(query: str) -> list[str]:
    """The stems to look for; if there are only stop words, they are looked for all the same."""
    words = [part for word in _WORD.findall(folded(query)) for part in _parts(word)]
    telling = [word for word in words if word not in _STOP_WORDS] or words
    return list(dict.fromkeys(map(stem, telling)))[:MOST_WORDS]


def folded(text: str) -> str:
    """Text as it is compared: one form of each letter, no capitals."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def _parts(word: str) -> Iterator[str]:
    """Overlapping parts of a run without spaces, in which words cannot be told; else the word."""
    size = 2 if _HAN_RUN.match(word) else 4 if _ANYWHERE.match(word) else len(word)
    yield from (word[n : n + size] for n in range(max(1, len(word) - size + 1)))


def _places(text: str, word: str) -> Iterator[int]:
    """Where a word begins in a text. A pattern that knows all letters would be slower."""
    anywhere, place = _ANYWHERE.match(word), text.find(word)
    while place >= 0:
        if anywhere or place == 0 or not _LETTER.match(text[place - 1]):
            yield place
        place = text.find(word, place + 1)


def stem(word: str) -> str:
    """A prefix that the word's other forms share: `adding`, `added` and `adds` give `add`."""
    for ending in ("ing", "ied", "ies", "ed", "es", "s", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    # chopp(ing) and chop must meet; ll and ss are part of the word (grill, press).
    doubled = len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz"
    return word[:-1] if doubled else word


def search(
    items: Iterable[Item], query: str, *, limit: int, skip: int = 0
) -> tuple[list[Moment], int]:
    """The best moments after the first `skip`, and how many there are in all."""
    wanted = words_of(query)
    counts, passages = [0] * len(wanted), 0
    answers: list[tuple[Item, Passage, set[int]]] = []
    for item in items:
        for place, words in _matches(item.summary.passages, wanted).items():
            answers.append((item, item.summary.passages[place], words))
            for word in words:
                counts[word] += 1
        passages += len(item.summary.passages)
    weight = [math.log1p(passages / count) if count else 0.0 for count in counts]
    moments = [
        Moment(item, passage, sum(map(weight.__getitem__, words)) * (0.9 if passage.spoken else 1))
        for item, passage, words in answers
    ]
    best = heapq.nsmallest(
        skip + limit,
        moments,
        key=lambda one: (-one.score, one.item.summary.title, one.passage.start),
    )
    return best[skip:], len(moments)


def by_title(items: Iterable[Item], query: str) -> list[Item]:
    """Videos with every word in their titles, in the order of titles."""
    wanted = words_of(query)
    found = [item for item in items if wanted and _has_all(item.summary.title, wanted)]
    return sorted(found, key=lambda item: item.summary.title)


def _has_all(title: str, wanted: list[str]) -> bool:
    text = folded(title).replace("_", " ")  # file names
    return all(next(_places(text, word), None) is not None for word in wanted)


def _matches(passages: tuple[Passage, ...], wanted: list[str]) -> dict[int, set[int]]:
    """Passage -> words in it. One scan over the joined text is far cheaper than one per passage."""
    texts = [folded(passage.text) for passage in passages]
    starts = [0]
    for text in texts:
        starts.append(starts[-1] + len(text) + 1)
    whole = "\n".join(texts)
    matches: dict[int, set[int]] = {}
    for word, text in enumerate(wanted):
        for start in _places(whole, text):
            matches.setdefault(bisect.bisect_right(starts, start) - 1, set()).add(word)
    return matches
