"""BLEU, CIDEr (n-grams as integers, n = 1 to 4) and ROUGE-L of each group of caption pairs.

A group is one video at one tIoU. BLEU and CIDEr split words at any white space; a prediction
without a match is compared with one word that occurs nowhere. ROUGE-L splits at the space character
only, so a token such as `1 1/2` with its no-break space stays one word, and an empty caption is one
empty word: two empty captions score 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starc.evaluation.pairs import Floats, Groups, Ints, sums

ORDERS = 4
TINY, SMALL = 1e-15, 1e-9
SIGMA = 6.0
BETA = 1.2


@dataclass(frozen=True)
class NGrams:
    """Distinct n-grams of each caption with their counts, sorted by caption and n-gram.

    Rows first_C[c] : first_C[c + 1] belong to caption c (E table entries, C captions).
    """

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

    def shared(self, row_a: Ints, owner_a: Ints, row_b: Ints, owner_b: Ints) -> tuple[Ints, Ints]:
        """Places in two lists of rows at which the same owner has the same n-gram."""
        key_a = owner_a * self.size + self.gram_E[row_a]
        key_b = owner_b * self.size + self.gram_E[row_b]
        place_b, hit_a = _find(key_a, key_b)
        return np.flatnonzero(hit_a), place_b[hit_a]

    def sum_orders(self, row_X: Ints, owner_X: Ints, value_X: Floats | Ints, owners: int) -> Floats:
        """Sum of values over the rows of each owner, by order, [owners, ORDERS]."""
        slot_X = owner_X * ORDERS + self.order_E[row_X]
        return sums(slot_X, value_X, owners * ORDERS).reshape(-1, ORDERS)


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

    captions, grams, orders, size = [], [], [], 0
    code_W = np.zeros(len(word_W), np.int64)  # number of the (n-1)-gram that starts at a word
    for n in range(ORDERS):
        place_W = np.flatnonzero(left_W > n)
        longer = code_W[place_W] * max(len(number), 1) + word_W[place_W + n]
        distinct, code = np.unique(longer, return_inverse=True)
        code_W[place_W] = code
        captions.append(caption_W[place_W])
        grams.append(code + size)
        orders.append(np.full(len(distinct), n))
        size += len(distinct)
    key = np.concatenate(captions) * max(size, 1) + np.concatenate(grams)
    key_E, count_E = np.unique(key, return_counts=True)
    caption_E, gram_E = np.divmod(key_E, max(size, 1))
    first_C = np.concatenate([[0], np.cumsum(np.bincount(caption_E, minlength=len(words)))])
    return NGrams(words_C, first_C, gram_E, count_E, np.concatenate(orders)[gram_E], size)


def bleu(groups: Groups, grams: NGrams) -> Floats:
    """Corpus BLEU_1..4 of each group, [G, 4].

        BLEU_n = (Π_k (correct_k + 1e-15) / (guess_k + 1e-9))^(1/n) · min(1, exp(1 - 1/ratio))

    Correct n-grams are counted as often as both captions have them. One reference a pair, so its
    length is the closest one.
    """
    row_h, owner_h = grams.rows(groups.hypothesis_U)
    row_r, owner_r = grams.rows(groups.reference_U)
    place_h, place_r = grams.shared(row_h, owner_h, row_r, owner_r)
    both = np.minimum(grams.count_E[row_h[place_h]], grams.count_E[row_r[place_r]])
    correct_U4 = grams.sum_orders(row_h[place_h], owner_h[place_h], both, len(groups.hypothesis_U))

    total = len(groups.size_G)
    words_I = grams.words_C[groups.hypothesis_U[groups.pair_I]]
    words_N = grams.words_C[groups.hypothesis_N]
    correct_G4, guess_G4 = np.zeros((total, ORDERS)), np.zeros((total, ORDERS))
    for n in range(ORDERS):
        correct_G4[:, n] = groups.sums(correct_U4[groups.pair_I, n])
        guess_G4[:, n] = groups.sums(np.maximum(words_I - n, 0))
        guess_G4[:, n] += sums(groups.group_N, np.maximum(words_N - n, 0), total)
    reference_G = groups.sums(grams.words_C[groups.reference_U[groups.pair_I]])
    reference_G += np.bincount(groups.group_N, minlength=total)

    product_G4 = np.cumprod((correct_G4 + TINY) / (guess_G4 + SMALL), 1)
    score_G4 = product_G4 ** (1 / np.arange(1, ORDERS + 1))
    ratio_G = (guess_G4[:, 0] + TINY) / (reference_G + SMALL)
    brevity_G = np.where(ratio_G < 1, np.exp(1 - 1 / np.maximum(ratio_G, 1e-300)), 1.0)
    result: Floats = score_G4 * brevity_G[:, None] * (groups.size_G > 0)[:, None]
    return result


def cider(groups: Groups, grams: NGrams) -> Floats:
    """Mean CIDEr of each group's pairs, which are all the documents there are.

        CIDEr = 10 / 4 · Σ_n  Σ_w min(h_w, r_w) r_w / (|h| |r|) · exp(-(len_h - len_r)² / 2σ²)

    h and r are tf·idf vectors, idf_w = log N - log max(1, df_w); len is the number of bigrams.
    A group of one pair scores 0.
    """
    hypothesis_I = groups.hypothesis_U[groups.pair_I]
    reference_I = groups.reference_U[groups.pair_I]
    row_h, owner_h = grams.rows(hypothesis_I)
    row_r, owner_r = grams.rows(reference_I)

    documents, count = np.unique(
        groups.group_I[owner_r] * grams.size + grams.gram_E[row_r], return_counts=True
    )

    def weights(row_X: Ints, owner_X: Ints) -> Floats:
        group_X = groups.group_I[owner_X]
        place_X, hit_X = _find(group_X * grams.size + grams.gram_E[row_X], documents)
        frequency_X = np.where(hit_X, np.append(count, 0)[place_X], 1)
        idf_X: Floats = np.log(groups.size_G[group_X]) - np.log(frequency_X)
        return grams.count_E[row_X] * idf_X

    weight_h, weight_r = weights(row_h, owner_h), weights(row_r, owner_r)
    pairs = len(hypothesis_I)
    norm_h = np.sqrt(grams.sum_orders(row_h, owner_h, weight_h**2, pairs))
    norm_r = np.sqrt(grams.sum_orders(row_r, owner_r, weight_r**2, pairs))
    place_h, place_r = grams.shared(row_h, owner_h, row_r, owner_r)
    product = np.minimum(weight_h[place_h], weight_r[place_r]) * weight_r[place_r]
    value = grams.sum_orders(row_h[place_h], owner_h[place_h], product, pairs)
    norms = norm_h * norm_r
    value = np.divide(value, norms, out=value, where=norms != 0)

    bigrams_C = np.maximum(grams.words_C - 1, 0)
    delta_I = (bigrams_C[hypothesis_I] - bigrams_C[reference_I]).astype(np.float64)
    return groups.means(value.mean(1) * np.exp(-(delta_I**2) / (2 * SIGMA**2)) * 10.0)


def _find(key_X: Ints, sorted_keys: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Place of each key among sorted distinct ones, and whether it is there at all."""
    place_X = np.searchsorted(sorted_keys, key_X)
    return place_X, np.append(sorted_keys, -1)[place_X] == key_X


def rouge(groups: Groups, tokenised: Sequence[str]) -> Floats:
    """Mean ROUGE-L of each group's pairs; a prediction without a match scores 0."""
    pairs = [*zip(groups.hypothesis_U.tolist(), groups.reference_U.tolist(), strict=True)]
    words = {c: tokenised[c].split(" ") for pair in pairs for c in pair}
    score_U = np.array([rouge_l(words[h], words[r]) for h, r in pairs], np.float64)
    return groups.means(score_U[groups.pair_I])


def rouge_l(hypothesis: Sequence[str], reference: Sequence[str]) -> float:
    """ROUGE-L of one pair."""
    common = common_subsequence(hypothesis, reference)
    return rouge_f(common / len(hypothesis), common / len(reference))


def rouge_f(precision: float, recall: float) -> float:
    """F of common-subsequence precision and recall: (1 + β²) P R / (R + β² P)."""
    if not precision or not recall:
        return 0.0
    return ((1 + BETA**2) * precision * recall) / (recall + BETA**2 * precision)


def common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence, one row of its table in one integer.

    Bit j of the row is 0 where the table grows between b[:j] and b[:j + 1].
    """
    places: dict[str, int] = {}
    for j, word in enumerate(b):
        places[word] = places.get(word, 0) | (1 << j)
    full = (1 << len(b)) - 1
    row = full
    for word in a:
        hits = row & places.get(word, 0)
        if hits:
            row = ((row + hits) | (row - hits)) & full
    return len(b) - row.bit_count()
