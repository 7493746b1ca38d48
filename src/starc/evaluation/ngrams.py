"""N-grams of captions as integers, shared by CIDEr and BLEU.

In: tokenised captions. Out: for each caption its distinct n-grams (n = 1..4) with their counts, as
one flat table sorted by caption and n-gram. Words split at any white space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from starc.evaluation.pairs import Ints

ORDERS = 4


@dataclass(frozen=True)
class NGrams:
    """Rows first_C[c] : first_C[c + 1] belong to caption c (E table entries, C captions)."""

    words_C: Ints
    first_C: Ints
    gram_E: Ints
    """Number of the n-gram; different orders have different numbers."""
    count_E: Ints
    order_E: Ints
    """n - 1."""
    size: int
    """Numbers of n-grams are below this."""

    def rows(self, caption_X: Ints) -> tuple[Ints, Ints]:
        """Table rows of the captions one after the other, and for each row its place in X."""
        count_X = self.first_C[caption_X + 1] - self.first_C[caption_X]
        owner = np.repeat(np.arange(len(caption_X)), count_X)
        start_X = self.first_C[caption_X] - (np.cumsum(count_X) - count_X)
        return np.arange(len(owner)) + start_X[owner], owner


def ngrams(tokenised: Sequence[str]) -> NGrams:
    """Count the n-grams of every caption."""
    number: dict[str, int] = {}
    words = [text.split() for text in tokenised]
    word_W = np.array(
        [number.setdefault(word, len(number)) for text in words for word in text], np.int64
    )
    words_C = np.array([len(text) for text in words], np.int64)
    caption_W = np.repeat(np.arange(len(words)), words_C)
    left_W = np.repeat(np.cumsum(words_C), words_C) - np.arange(len(word_W))  # words up to the end

    keys, orders, size = [], [], 0
    code_W = np.zeros(len(word_W), np.int64)  # number of the (n-1)-gram that starts at a word
    for n in range(ORDERS):
        place_W = np.flatnonzero(left_W > n)
        longer = code_W[place_W] * max(len(number), 1) + word_W[place_W + n]
        distinct, code = np.unique(longer, return_inverse=True)
        code_W[place_W] = code
        keys.append(np.stack([caption_W[place_W], code + size], 1))
        orders.append(np.full(len(distinct), n))
        size += len(distinct)
    pair = np.concatenate(keys)
    key_E, count_E = np.unique(pair[:, 0] * max(size, 1) + pair[:, 1], return_counts=True)
    caption_E, gram_E = np.divmod(key_E, max(size, 1))
    per_caption = np.bincount(caption_E, minlength=len(words))
    first_C = np.concatenate([[0], np.cumsum(per_caption)])
    return NGrams(words_C, first_C, gram_E, count_E, np.concatenate(orders)[gram_E], size)
