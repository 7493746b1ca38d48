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

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from starc_eval.alignment import LONGEST, MOST_MATCHES, Aligner
from starc_eval.errors import AnnotationError
from starc_eval.meteor_data import Sources, open_index
from starc_eval.pairs import Floats, Ints

try:
    from starc_eval import _meteor
except ImportError:  # built without a compiler
    _meteor = None  # type: ignore[assignment]

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
MODULE_WEIGHTS = (1.0, 0.6, 0.8, 0.6)
"""Of exact, stem, synonym and paraphrase matches."""
SEPARATOR = "|||"
COUNTS = 23
_CHUNKS = 20

Pair = tuple[str, str]
Counts: TypeAlias = NDArray[np.int32]
"""[X, 23]."""


class Meteor:
    """Scores pairs; holds METEOR's data and all texts it has seen, so make it once.

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
            raise ValueError("backend 'c': the extension starc_eval._meteor is not built")
        self.backend = "python" if backend == "python" or _meteor is None else "c"
        self._index = index = open_index(cache, sources, progress)
        self._aligner = (_meteor.Aligner if self.backend == "c" else Aligner)(
            index.node_words, index.child_starts, index.target_starts, index.targets
        )
        self._words = _Numbers(lambda word: self._aligner.add_word(*index.word(word)))
        self._sentences = _Numbers(self._add_sentence)

    def _add_sentence(self, text: str) -> int:
        words = normalise(text, self._index.prefixes)
        if len(words) > LONGEST:
            raise AnnotationError(
                f"METEOR: {text!r:.40}… has {len(words):,} words, {LONGEST:,} can be compared; "
                "shorten the captions"
            )
        return self._aligner.add_sentence([*map(self._words.__getitem__, words)])

    def statistics(self, hypothesis: str, reference: str) -> tuple[int, ...]:
        """The 23 counts of a pair."""
        counts: list[int] = self.statistics_many([(hypothesis, reference)])[0].tolist()
        return tuple(counts)

    def statistics_many(self, pairs: Sequence[Pair]) -> Counts:
        """The 23 counts of each pair (hypothesis, reference)."""
        texts = [text for pair in pairs for text in pair]
        place_X2 = np.arange(len(texts)).reshape(-1, 2)
        return self.statistics_of(texts, place_X2[:, 0], place_X2[:, 1])

    def statistics_of(self, texts: Sequence[str], hypothesis_X: Ints, reference_X: Ints) -> Counts:
        """The 23 counts of pairs of the texts, [X, 23].

        A reference with the separator in it is several references: the best one counts.
        """
        said, wanted = np.unique(hypothesis_X).tolist(), np.unique(reference_X).tolist()
        hypotheses = {c: self._sentences[_cleaned(texts[c])] for c in said}
        references = {c: self._sentences[texts[c]] for c in wanted}
        numbers = zip(
            map(hypotheses.__getitem__, hypothesis_X.tolist()),
            map(references.__getitem__, reference_X.tolist()),
            strict=True,
        )
        try:
            counts_X = np.frombuffer(self._aligner.statistics(numbers), np.int32)
        except OverflowError as error:
            both = " and ".join(f"{self._sentences.text(n)!r:.40}…" for n in error.args)
            raise AnnotationError(
                f"METEOR: {both} have too many equal or similar words (over {MOST_MATCHES:,} pairs "
                "of them); shorten the captions"
            ) from None
        counts_X = counts_X.reshape(-1, COUNTS)
        if several := [c for c in wanted if SEPARATOR in texts[c]]:
            counts_X = counts_X.copy()
            for place in np.flatnonzero(np.isin(reference_X, several)).tolist():
                hypothesis = texts[hypothesis_X[place]]
                parts = texts[reference_X[place]].split(SEPARATOR)
                counts_P = self.statistics_many([(hypothesis, part) for part in parts])
                counts_X[place] = counts_P[np.argmax(score(counts_P))]
        return counts_X

    def score(self, hypothesis: str, reference: str) -> float:
        """METEOR of one pair."""
        return float(score(self.statistics_many([(hypothesis, reference)]))[0])

    def score_many(self, pairs: Sequence[Pair]) -> Floats:
        """METEOR of each pair (hypothesis, reference)."""
        return score(self.statistics_many(pairs))


class _Numbers(dict[str, int]):
    """Numbers by text, made when they are first asked for."""

    def __init__(self, make: Callable[[str], int]) -> None:
        self._make = make

    def __missing__(self, text: str) -> int:
        number = self[text] = self._make(text)
        return number

    def text(self, number: int) -> str:
        return next(text for text, known in self.items() if known == number)


def aggregate(statistics: Counts) -> float:
    """METEOR of many pairs together: the score of their summed counts, 0 for none."""
    return float(score(summable(statistics).sum(0)))


def summable(statistics: Counts) -> Counts:
    """The counts as they are summed: chunks of perfect pairs are left out."""
    counts_X: Counts = np.array(statistics).reshape(-1, COUNTS)
    counts_X[_perfect(counts_X), _CHUNKS] = 0
    return counts_X


def score(statistics: NDArray[Any]) -> Floats:
    """METEOR from the 23 counts, which are the last axis.

        P, R  = weighted matches / weighted length   (content words δ, function words 1 - δ)
        F     = 1 / ((1 - α) / P + α / R)
        score = F (1 - γ (chunks / matches)^β)

    Matches in the penalty are the mean of both sides; a perfect pair has no penalty. The order of
    the additions is the jar's.
    """
    count = np.moveaxis(np.asarray(statistics, np.float64), -1, 0)
    words_h, words_r, functions_h, functions_r = count[:4]
    matched_h, matched_r = _weighted(count[4:20:2]), _weighted(count[5:20:2])
    with np.errstate(divide="ignore", invalid="ignore"):  # no match at all: 0 in the end
        precision = matched_h / (DELTA * (words_h - functions_h) + (1 - DELTA) * functions_h)
        recall = matched_r / (DELTA * (words_r - functions_r) + (1 - DELTA) * functions_r)
        mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
        chunks, matches_h, matches_r = count[_CHUNKS:]
        penalty = GAMMA * np.power(chunks / ((matches_h + matches_r) / 2), BETA)
    whole = np.where(_perfect(statistics), mean, mean * (1 - penalty))
    return np.where((matched_h > 0) & (matched_r > 0), whole, 0.0)


def _weighted(count_8X: Floats) -> Floats:
    """Matched content and function words in turn, of the four matchers."""
    total: Floats = np.zeros(count_8X.shape[1:])
    for weight, content in zip(MODULE_WEIGHTS, count_8X[0::2], strict=True):
        total = total + weight * content * DELTA
    for weight, function in zip(MODULE_WEIGHTS, count_8X[1::2], strict=True):
        total = total + weight * function * (1 - DELTA)
    return total


def _perfect(statistics: NDArray[Any]) -> NDArray[np.bool_]:
    """Every word matched, in one chunk."""
    counts = np.asarray(statistics)
    matched = (counts[..., :2] == counts[..., _CHUNKS + 1 :]).all(-1)
    whole: NDArray[np.bool_] = matched & (counts[..., _CHUNKS] == 1)
    return whole


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
