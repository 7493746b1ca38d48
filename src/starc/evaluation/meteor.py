"""METEOR 1.5 for English, with the numbers of the published jar and without Java.

In: a tokenised hypothesis and reference. Out: METEOR's 23 counts for the pair, the score of a
segment, and the aggregate of many segments, which the captioning papers report per video.
Denkowski and Lavie, "Meteor Universal: Language Specific Translation Evaluation for Any Target
Language", WMT 2014. The alignment runs in C where the extension was built, else in Python.

METEOR splits and joins tokens once more (`normalise`): `do n't` becomes `do n 't`, `e.g.` becomes
`eg`, `stir-fry` becomes `stir fry`. For each word four matchers compare spelling, stem, synsets
and paraphrases (`Index.word`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from starc.evaluation.alignment import Aligner, Statistics
from starc.evaluation.meteor_data import Sources, open_index

try:
    from starc.evaluation import _meteor
except ImportError:  # built without a compiler
    _meteor = None  # type: ignore[assignment]

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
MODULE_WEIGHTS = (1.0, 0.6, 0.8, 0.6)
"""Of exact, stem, synonym and paraphrase matches."""
SEPARATOR = "|||"

Pair = tuple[str, str]


class Meteor:
    """Scores pairs; holds METEOR's data and what it has already computed, so make it once.

    The 23 counts of a pair (as the published jar prints them): words of hypothesis and reference,
    function words of both; for each of the four matchers the matched content words of both and the
    matched function words of both; chunks; matched words of both.
    """

    backend: Literal["c", "python"]
    """Both give the same numbers."""

    def __init__(
        self,
        *,
        backend: Literal["auto", "c", "python"] = "auto",
        cache: Path | None = None,
        progress: Callable[[float], None] | None = None,
        sources: Sources | None = None,
    ) -> None:
        if backend not in ("auto", "c", "python"):
            raise ValueError(f"backend must be auto, c or python, got {backend!r}")
        if backend == "c" and _meteor is None:
            raise ValueError("backend 'c': the extension starc.evaluation._meteor is not built")
        self.backend = "python" if backend == "python" or _meteor is None else "c"
        self._index = index = open_index(cache, sources, progress)
        self._aligner = (_meteor.Aligner if self.backend == "c" else Aligner)(
            index.node_words, index.child_starts, index.target_starts, index.targets
        )
        self._words: dict[str, int] = {}
        self._sentences: dict[str, int] = {}
        self._statistics: dict[Pair, Statistics] = {}
        self._unmatched: dict[str, Statistics] = {}

    def statistics(self, hypothesis: str, reference: str) -> Statistics:
        """The 23 counts of a pair."""
        return self.statistics_many([(hypothesis, reference)])[0]

    def statistics_many(self, pairs: Sequence[Pair]) -> list[Statistics]:
        """The 23 counts of each pair (hypothesis, reference).

        A reference with the separator in it is several references: the best one counts.
        """
        known = self._statistics
        new = [pair for pair in dict.fromkeys(pairs) if pair not in known]
        single = [pair for pair in new if SEPARATOR not in pair[1]]
        numbers = [(self._sentence(_cleaned(h)), self._sentence(r)) for h, r in single]
        known.update(zip(single, self._aligner.statistics(numbers), strict=True))
        for hypothesis, several in new:
            if SEPARATOR in several:
                parts = [(hypothesis, reference) for reference in several.split(SEPARATOR)]
                known[hypothesis, several] = max(self.statistics_many(parts), key=score)
        return [known[pair] for pair in pairs]

    def score(self, hypothesis: str, reference: str) -> float:
        """METEOR of one pair."""
        return score(self.statistics(hypothesis, reference))

    def score_many(self, pairs: Sequence[Pair]) -> list[float]:
        """METEOR of each pair (hypothesis, reference)."""
        return [score(statistics) for statistics in self.statistics_many(pairs)]

    def unmatched(self, hypothesis: str) -> Statistics:
        """The counts of a hypothesis beside one content word that matches nothing."""
        if hypothesis not in self._unmatched:
            words = normalise(_cleaned(hypothesis), self._index.prefixes)
            functions = sum(word in self._index.function_words for word in words)
            self._unmatched[hypothesis] = (len(words), 1, functions, *[0] * 20)
        return self._unmatched[hypothesis]

    def _sentence(self, text: str) -> int:
        if text not in self._sentences:
            words = [self._word(word) for word in normalise(text, self._index.prefixes)]
            self._sentences[text] = self._aligner.add_sentence(words)
        return self._sentences[text]

    def _word(self, spelling: str) -> int:
        if spelling not in self._words:
            self._words[spelling] = self._aligner.add_word(*self._index.word(spelling))
        return self._words[spelling]


def aggregate(statistics: Sequence[Statistics]) -> float:
    """METEOR of many pairs together: the score of their summed counts, 0 for none.

    Chunks of perfect pairs are left out of the sum.
    """
    if not statistics:
        return 0.0
    total = [sum(column) for column in zip(*statistics, strict=True)]
    total[20] = sum(counts[20] for counts in statistics if not _perfect(counts))
    return score(total)


def score(statistics: Sequence[int]) -> float:
    """METEOR from the 23 counts.

        P, R  = weighted matches / weighted length   (content words δ, function words 1 - δ)
        F     = 1 / ((1 - α) / P + α / R)
        score = F (1 - γ (chunks / matches)^β)

    Matches in the penalty are the mean of both sides; a perfect pair has no penalty. The order of
    the additions is the jar's, to the last bit.
    """
    words_h, words_r, functions_h, functions_r, *matched = statistics[:20]
    matched_h = _weighted(matched[0::4], matched[2::4])
    matched_r = _weighted(matched[1::4], matched[3::4])
    if not matched_h or not matched_r:
        return 0.0
    precision = matched_h / (DELTA * (words_h - functions_h) + (1 - DELTA) * functions_h)
    recall = matched_r / (DELTA * (words_r - functions_r) + (1 - DELTA) * functions_r)
    mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
    if _perfect(statistics):
        return mean
    chunks, matches_h, matches_r = statistics[20:]
    return mean * (1 - GAMMA * math.pow(chunks / ((matches_h + matches_r) / 2), BETA))


def _weighted(content: Sequence[int], function: Sequence[int]) -> float:
    total = 0.0
    for weight, count in zip(MODULE_WEIGHTS, content, strict=True):
        total += weight * count * DELTA
    for weight, count in zip(MODULE_WEIGHTS, function, strict=True):
        total += weight * count * (1 - DELTA)
    return total


def _perfect(statistics: Sequence[int]) -> bool:
    """Every word matched, in one chunk."""
    return statistics[20] == 1 and (statistics[0], statistics[1]) == tuple(statistics[21:])


def _cleaned(hypothesis: str) -> str:
    """The published wrapper does this to hypotheses only."""
    return hypothesis.replace(SEPARATOR, "").replace("  ", " ")


_LETTERS = r"A-Za-zÀ-ÖØ-öø-žЀ-ԧ\u1d00-\u1d7f\ua640-\ua66e\ua67e-\ua697"
_SPACES = r" \t\n\f\r"
_ORDINARY = re.compile(r"[a-z0-9 ]*")
_WIDE_SPACES = re.compile(rf"[{_SPACES}\u00a0\u2000-\u200a\u202f\u205f\u3000]+")
_LETTER = re.compile(f"[{_LETTERS}]")
_QUOTES = str.maketrans({"‘": "'", "’": "'", "`": "'", "“": '"', "”": '"'})
_DOTS = re.compile(r"\.{2,}")
_HIDDEN_DOT = "\0"
_CONTROLS = "".join(map(chr, range(33)))

_LETTER_SET, _OTHER_SET = f"[{_LETTERS}]", f"[^{_LETTERS}]"
_DIGIT, _NO_DIGIT = "[0-9]", "[^0-9]"


def _between(left: str, mark: str, right: str, gap: str) -> tuple[re.Pattern[str], str]:
    """Give a mark that stands between two kinds of character other surroundings."""
    return re.compile(f"({left}){mark}({right})"), rf"\1{gap}\2"


# In this order, each over the whole line; what a match has used up cannot match again. Signs stand
# alone, a comma unless between two digits; a hyphen inside a word parts it; an apostrophe goes with
# the letters that follow it.
_SEPARATIONS = [
    (re.compile(rf"([^{_LETTERS}0-9{_SPACES}\v.',\-\0])"), r" \1 "),
    (re.compile("–"), "-"),
    _between(_NO_DIGIT, ",", _NO_DIGIT, " , "),
    _between(_DIGIT, ",", _NO_DIGIT, " , "),
    _between(_NO_DIGIT, ",", _DIGIT, " , "),
    (re.compile("--"), "-"),
    _between(f"[{_LETTERS}0-9.]", "-", f"[{_LETTERS}0-9]", " "),
    (re.compile("''"), ' " '),
    _between(_OTHER_SET, "'", _OTHER_SET, " ' "),
    _between(f"[^{_LETTERS}0-9]", "'", _LETTER_SET, " ' "),
    _between(_LETTER_SET, "'", _OTHER_SET, " ' "),
    _between(_LETTER_SET, "'", _LETTER_SET, " '"),
    _between(_DIGIT, "'", "s", " '"),
]


def normalise(text: str, prefixes: Mapping[str, bool]) -> list[str]:
    """The words METEOR sees (option -norm)."""
    if _ORDINARY.fullmatch(text):
        return text.split()
    text = f" {text} ".replace(_HIDDEN_DOT, " ").translate(_QUOTES)
    text = _DOTS.sub(lambda dots: f" {_HIDDEN_DOT * len(dots[0])} ", text)
    for pattern, replacement in _SEPARATIONS:
        text = pattern.sub(replacement, text)
    words = [word for word in re.split(f"[{_SPACES}]", text) if word]
    ended = [_end(word, next_, prefixes) for word, next_ in pairwise([*words, ""])]
    whole = " ".join(ended).replace(_HIDDEN_DOT, ".").lower().strip(_CONTROLS)
    return [word for word in _WIDE_SPACES.split(whole) if word]


def _end(word: str, next_: str, prefixes: Mapping[str, bool]) -> str:
    """Part the full stop from a word, unless it is an acronym, abbreviation or no end at all."""
    if len(word) < 2 or word[-1] != ".":
        return word
    stem = word[:-1]
    if "." in stem and _LETTER.search(stem):
        return word.replace(".", "")
    only_before_numbers = prefixes.get(stem)
    if only_before_numbers is False or re.match("[a-z]", next_):
        return word
    return word if only_before_numbers and re.match("[0-9]", next_) else f"{stem} ."
