"""The word vocabulary of PDVC and its successors: ids from 1; 0 is start, end and padding."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from starc.errors import CheckpointError

UNKNOWN = "UNK"
_PUNCTUATION = re.compile(r'[,:!_;\-.?/"\\]')
"""Replaced by blanks before a sentence is split, as published."""


class Words:
    """Words in the order of their ids; the last one stands for every unknown word."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=1)}

    @classmethod
    def of(cls, sentences: Iterable[str], least: int = 1) -> Words:
        """All words that occur at least `least` times, by frequency, then UNK."""
        counts = Counter(word for sentence in sentences for word in split(sentence))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls([*(word for word in ranked if counts[word] >= least), UNKNOWN])

    @classmethod
    def read(cls, path: Path) -> Words:
        """A vocabulary file in the published format (`ix_to_word`)."""
        try:
            words = json.loads(path.read_text("utf-8"))["ix_to_word"]
            return cls([str(words[str(number)]) for number in range(1, len(words) + 1)])
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CheckpointError(f"{path}: not a vocabulary (ix_to_word: ids from 1)") from None

    def to_json(self) -> dict[str, dict[str, str]]:
        """The published file format."""
        return {"ix_to_word": {str(n): word for n, word in enumerate(self.words, start=1)}}

    def encode(self, sentence: str, longest: int) -> list[int]:
        """Ids of a sentence between start and end, `longest` in all at most."""
        ids = [self._ids.get(word, len(self)) for word in split(sentence)]
        return [0, *ids[: longest - 2], 0]

    def decode(self, ids: Sequence[int]) -> str:
        """The words before the first 0 and a full stop; empty without words."""
        ids = ids[: ids.index(0)] if 0 in ids else ids
        return " ".join(self.words[number - 1] for number in ids) + "." if ids else ""


def split(sentence: str) -> list[str]:
    """Words in lower case, without punctuation."""
    return _PUNCTUATION.sub(" ", sentence).lower().split()
