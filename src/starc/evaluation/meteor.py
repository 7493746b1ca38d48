"""METEOR 1.5 for English, with the numbers of the published jar and without Java.

In: a tokenised hypothesis and reference. Out: METEOR's 23 counts for the pair, the score of a
segment, and the aggregate of many segments, which the captioning papers report per video.
Denkowski and Lavie, "Meteor Universal: Language Specific Translation Evaluation for Any Target
Language", WMT 2014. The alignment runs in C where the extension was built, else in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from starc.evaluation.alignment import Aligner, Statistics
from starc.evaluation.meteor_data import Sources, open_index
from starc.evaluation.meteor_words import Lexicon, normalise

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

    backend: str
    """"c" or "python"; both give the same numbers."""

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
        index = open_index(cache, sources, progress)
        in_c = backend != "python" and _meteor is not None
        self.backend = "c" if in_c else "python"
        self._aligner = (_meteor.Aligner if in_c else Aligner)(
            index.node_words, index.child_starts, index.target_starts, index.targets
        )
        self._lexicon = Lexicon(index)
        self._prefixes = index.prefixes
        self._function_words = index.function_words
        self._words: dict[str, int] = {}
        self._sentences: dict[str, int] = {}
        self._known: dict[Pair, Statistics] = {}
        self._unmatched: dict[str, Statistics] = {}

    def statistics(self, hypothesis: str, reference: str) -> Statistics:
        """The 23 counts of a pair."""
        return self.statistics_many([(hypothesis, reference)])[0]

    def statistics_many(self, pairs: Sequence[Pair]) -> list[Statistics]:
        """The 23 counts of each pair (hypothesis, reference)."""
        known = self._known
        new = [pair for pair in dict.fromkeys(pairs) if pair not in known]
        plain = [pair for pair in new if SEPARATOR not in pair[1]]
        numbers = [(self._sentence(_cleaned(h)), self._sentence(r)) for h, r in plain]
        known.update(zip(plain, self._aligner.statistics(numbers), strict=True))
        for hypothesis, reference in new:
            if SEPARATOR in reference:
                known[hypothesis, reference] = self._best(hypothesis, reference.split(SEPARATOR))
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
            words = normalise(_cleaned(hypothesis), self._prefixes)
            functions = sum(word in self._function_words for word in words)
            self._unmatched[hypothesis] = (len(words), 1, functions, *[0] * 20)
        return self._unmatched[hypothesis]

    def aggregate(self, statistics: Sequence[Statistics]) -> float:
        """METEOR of many pairs together: the score of their summed counts.

        Chunks of perfect pairs are left out of the sum.
        """
        if not statistics:
            return 0.0
        total = [sum(column) for column in zip(*statistics, strict=True)]
        total[20] = sum(counts[20] for counts in statistics if not _perfect(counts))
        return score(total)

    def _best(self, hypothesis: str, references: Iterable[str]) -> Statistics:
        """METEOR takes a reference with the separator for several references."""
        return max((self.statistics(hypothesis, one) for one in references), key=score)

    def _sentence(self, text: str) -> int:
        number = self._sentences.get(text)
        if number is None:
            words = [self._word(word) for word in normalise(text, self._prefixes)]
            number = self._sentences[text] = self._aligner.add_sentence(words)
        return number

    def _word(self, spelling: str) -> int:
        number = self._words.get(spelling)
        if number is None:
            number = self._words[spelling] = self._aligner.add_word(*self._lexicon.word(spelling))
        return number


def score(statistics: Sequence[int]) -> float:
    """METEOR from the 23 counts.

        P, R  = weighted matches / weighted length   (content words δ, function words 1 - δ)
        F     = 1 / ((1 - α) / P + α / R)
        score = F (1 - γ (chunks / matches)^β)

    Matches in the penalty are the mean of both sides; a perfect pair has no penalty. The order of
    the additions is the jar's, to the last bit.
    """
    words_one, words_two, functions_one, functions_two, *matched = statistics[:20]
    one = _weighted(matched[0::4], matched[2::4])
    two = _weighted(matched[1::4], matched[3::4])
    if not one or not two:
        return 0.0
    precision = one / (DELTA * (words_one - functions_one) + (1 - DELTA) * functions_one)
    recall = two / (DELTA * (words_two - functions_two) + (1 - DELTA) * functions_two)
    mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
    if _perfect(statistics):
        return mean
    chunks, matches_one, matches_two = statistics[20:]
    return mean * (1 - GAMMA * math.pow(chunks / ((matches_one + matches_two) / 2), BETA))


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
