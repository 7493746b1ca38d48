"""What METEOR makes of a caption's text.

In: a tokenised caption. Out: METEOR's own words (`-norm` splits and joins tokens once more:
`do n't` becomes `do n 't`, `e.g.` becomes `eg`, `stir-fry` becomes `stir fry`), and for each word
what the four matchers compare: spelling, stem, synsets, paraphrases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

from starc.evaluation.meteor_data import Index, java_hash, stemmer

_LETTERS = r"A-Za-zÀ-ÖØ-öø-žЀ-ԧ\u1d00-\u1d7f\ua640-\ua66e\ua67e-\ua697"
_SPACES = r" \t\n\f\r"
_PLAIN = re.compile(r"[a-z0-9 ]*")
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

# WordNet's detachment rules: the first that leads to a known word counts.
_ENDINGS = [
    ("s", ""),
    ("ses", "s"),
    ("xes", "x"),
    ("zes", "z"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("men", "man"),
    ("ies", "y"),
    ("es", "e"),
    ("es", ""),
    ("ed", "e"),
    ("ed", ""),
    ("ing", "e"),
    ("ing", ""),
    ("er", ""),
    ("est", ""),
    ("er", "e"),
    ("est", "e"),
]


def normalise(text: str, prefixes: Mapping[str, bool]) -> list[str]:
    """The words METEOR sees (option -norm)."""
    if _PLAIN.fullmatch(text):
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


class Word(NamedTuple):
    """What the matchers compare."""

    key: int
    """Hash of the spelling."""
    stem: int
    """Hash of the stem."""
    function: bool
    synsets: list[int]
    number: int
    """Of the word in the paraphrase table; -1 if it is not there."""


class Lexicon:
    """Looks words up; keeps nothing, since each caller asks once per word."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._number = dict(zip(index.words, range(len(index.words)), strict=True))
        self._stem: Callable[[str], str] | None = None

    def word(self, spelling: str) -> Word:
        """All about one word."""
        index, number = self._index, self._number.get(spelling)
        synsets = {*self._own(spelling)}.union(*map(self._own, self._bases(spelling)))
        return Word(
            key=java_hash(spelling),
            stem=self._stem_hash(spelling) if number is None else index.stems[number],
            function=spelling in index.function_words,
            synsets=sorted(synsets),
            number=-1 if number is None or number >= index.phrase_words else number,
        )

    def _stem_hash(self, spelling: str) -> int:
        self._stem = self._stem or stemmer()
        return java_hash(self._stem(spelling))

    def _own(self, spelling: str) -> list[int]:
        """Synsets listed under this very word."""
        number = self._number.get(spelling)
        if number is None:
            return []
        starts = self._index.synset_starts
        return self._index.synsets[starts[number] : starts[number + 1]].tolist()

    def _bases(self, spelling: str) -> list[str]:
        """Base forms: of an irregular word those listed, else by the first rule that fits."""
        if spelling in self._index.exceptions:
            return self._index.exceptions[spelling]
        if len(spelling) < 3 or spelling.endswith("ss"):
            return []
        for ending, instead in _ENDINGS:
            if spelling.endswith(ending):
                base = spelling.removesuffix(ending) + instead
                if self._own(base):
                    return [base]
        return []
