"""BLEU, CIDEr (n-grams as integers, n = 1 to 4) and ROUGE-L of each group of caption pairs.

A group is one video at one tIoU. BLEU and CIDEr split words at any white space. ROUGE-L splits at
the space character only, so a token such as `1 1/2` with its no-break space stays one word, and an
empty caption is one empty word: two empty captions score 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starc_eval.pairs import Floats, Groups, Ints, sums

ORDERS = 4
TINY, SMALL = 1e-15, 1e-9
SIGMA = 6.0
BETA = 1.2
_BLOCK = 1 << 18


@dataclass(frozen=True)
class NGrams:
    """Distinct n-grams of each caption with their counts, sorted by caption and n-gram.

    Rows first_C[c] : first_C[c + 1] belong to caption c (E table entries, C captions).
    """

    words_C: Ints
    first_C: Ints
    gram_E: NDArray[np.int32]
    """Number of the n-gram; different orders have different numbers."""
    count_E: NDArray[np.int32]
    order_E: NDArray[np.int8]
    """n - 1."""
    size: int
    """Numbers of n-grams are below this."""

    def rows(self, caption_X: Ints) -> tuple[Ints, Ints]:
        """Table rows of the captions one after the other, and for each row its place in X."""
        return _spread(self.first_C[caption_X], self.first_C[caption_X + 1])

    def common(self, hypothesis_U: Ints, reference_U: Ints) -> Common:
        """The n-grams that both captions of a pair have."""
        rows_C = np.diff(self.first_C)
        rows_h, rows_r, owners = [], [], []
        for part in _blocks(rows_C[hypothesis_U] + rows_C[reference_U]):
            row_h, owner_h = self.rows(hypothesis_U[part])
            row_r, owner_r = self.rows(reference_U[part])
            key_h = owner_h * self.size + self.gram_E[row_h]
            place, hit = _find(owner_r * self.size + self.gram_E[row_r], key_h)
            rows_h.append(row_h[place[hit]])
            rows_r.append(row_r[hit])
            owners.append(owner_r[hit] + part.start)
        owner = np.concatenate([*owners, np.zeros(0, np.int64)])
        first_U = _starts(np.bincount(owner, minlength=len(hypothesis_U)))
        empty = np.zeros(0, np.int64)
        return Common(first_U, np.concatenate([*rows_h, empty]), np.concatenate([*rows_r, empty]))

    def sum_orders(self, row_X: Ints, owner_X: Ints, value_X: NDArray[Any], owners: int) -> Floats:
        """Sum of values over the rows of each owner, by order, [owners, ORDERS]."""
        slot_X = owner_X * ORDERS + self.order_E[row_X]
        return sums(slot_X, value_X, owners * ORDERS).reshape(-1, ORDERS)


class Common(NamedTuple):
    """Table rows of common n-grams: first_U[u] : first_U[u + 1] belong to pair u."""

    first_U: Ints
    row_h: Ints
    row_r: Ints


def _starts(count_X: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(count_X)])


def _spread(first_X: Ints, stop_X: Ints) -> tuple[Ints, Ints]:
    """The numbers of the ranges first : stop, one range after the other, and the range of each."""
    count_X = stop_X - first_X
    owner = np.repeat(np.arange(len(count_X)), count_X)
    return np.arange(len(owner)) + (first_X - np.cumsum(count_X) + count_X)[owner], owner


def _blocks(cost_X: Ints) -> Iterator[slice]:
    """Parts of X that cost about _BLOCK each, so that they stay in the processor's cache."""
    cuts = np.flatnonzero(np.diff(np.cumsum(cost_X) // _BLOCK)) + 1
    for first, stop in pairwise([0, *cuts.tolist(), len(cost_X)]):
        yield slice(first, stop)


def ngrams(tokenised: Sequence[str]) -> NGrams:
    """Count the n-grams of every caption."""
    number: defaultdict[str, int] = defaultdict(count().__next__)
    words = [text.split() for text in tokenised]
    words_C = np.array([len(text) for text in words], np.int64)
    word_W = np.fromiter(map(number.__getitem__, chain.from_iterable(words)), np.int64)
    caption_W = np.repeat(np.arange(len(words)), words_C)
    left_W = np.repeat(np.cumsum(words_C), words_C) - np.arange(len(word_W))  # words up to the end

    # The table can be large: keys are made order by order and sorted in place.
    code_W, size = word_W, len(number)  # number of the n-gram that starts at a word
    most = max(size, 1) * ORDERS + len(word_W) * ORDERS
    keys, first_gram = [caption_W * most + code_W], [0]
    for n in range(1, ORDERS):
        place_W = np.flatnonzero(left_W > n)
        longer = code_W[place_W] * max(len(number), 1) + word_W[place_W + n]
        distinct, code = np.unique(longer, return_inverse=True)
        code_W = np.zeros(len(word_W), np.int64)
        code_W[place_W] = code
        keys.append(caption_W[place_W] * most + code + size)
        first_gram.append(size)
        size += len(distinct)
    key = np.concatenate(keys)
    del keys
    key.sort()
    place_E = np.flatnonzero(np.diff(key, prepend=-1))
    count_E = np.diff(place_E, append=len(key)).astype(np.int32)
    caption_E, gram_E = np.divmod(key[place_E], most)
    first_C = _starts(np.bincount(caption_E, minlength=len(words)))
    order_E = (np.searchsorted(first_gram, gram_E, side="right") - 1).astype(np.int8)
    return NGrams(words_C, first_C, gram_E.astype(np.int32), count_E, order_E, size)


def bleu(groups: Groups, grams: NGrams, common: Common) -> Floats:
    """Corpus BLEU_1..4 of each group, [G, 4].

        BLEU_n = (Π_k (correct_k + 1e-15) / (guess_k + 1e-9))^(1/n) · min(1, exp(1 - 1/ratio))

    Correct n-grams are counted as often as both captions have them. One reference a pair, so its
    length is the closest one.
    """
    both = np.minimum(grams.count_E[common.row_h], grams.count_E[common.row_r])
    pairs = len(groups.hypothesis_U)
    owner = np.repeat(np.arange(pairs), np.diff(common.first_U))
    correct_U4 = grams.sum_orders(common.row_h, owner, both, pairs)

    total = len(groups.size_G)
    words_I = grams.words_C[groups.hypothesis_U[groups.pair_I]]
    correct_G4, guess_G4 = np.zeros((total, ORDERS)), np.zeros((total, ORDERS))
    for n in range(ORDERS):
        correct_G4[:, n] = groups.sums(correct_U4[groups.pair_I, n])
        guess_G4[:, n] = groups.sums(np.maximum(words_I - n, 0))
    reference_G = groups.sums(grams.words_C[groups.reference_U[groups.pair_I]])

    product_G4 = np.cumprod((correct_G4 + TINY) / (guess_G4 + SMALL), 1)
    score_G4 = product_G4 ** (1 / np.arange(1, ORDERS + 1))
    ratio_G = (guess_G4[:, 0] + TINY) / (reference_G + SMALL)
    brevity_G = np.where(ratio_G < 1, np.exp(1 - 1 / np.maximum(ratio_G, 1e-300)), 1.0)
    result: Floats = score_G4 * brevity_G[:, None] * (groups.size_G > 0)[:, None]
    return result


def cider(groups: Groups, grams: NGrams, common: Common) -> Floats:
    """Mean CIDEr of each group's pairs, which are all the documents there are.

        CIDEr = 10 / 4 · Σ_n  Σ_w min(h_w, r_w) r_w / (|h| |r|) · exp(-(len_h - len_r)² / 2σ²)

    h and r are tf·idf vectors, idf_w = log N - log max(1, df_w); len is the number of bigrams.
    A group of one pair scores 0.
    """
    rows_C = np.diff(grams.first_C)
    hypothesis_I = groups.hypothesis_U[groups.pair_I]
    reference_I = groups.reference_U[groups.pair_I]
    first_G = _starts(groups.size_G)
    cost_I = _starts(rows_C[hypothesis_I] + rows_C[reference_I])
    value_I = np.zeros(len(groups.pair_I))
    for part in _blocks(np.diff(cost_I[first_G])):
        pairs = slice(int(first_G[part.start]), int(first_G[part.stop]))
        value_I[pairs] = _cider(groups, grams, common, pairs)
    bigrams_C = np.maximum(grams.words_C - 1, 0)
    delta_I = (bigrams_C[hypothesis_I] - bigrams_C[reference_I]).astype(np.float64)
    return groups.means(value_I * np.exp(-(delta_I**2) / (2 * SIGMA**2)) * 10.0)


def _cider(groups: Groups, grams: NGrams, common: Common, pairs: slice) -> Floats:
    """CIDEr before the penalty of these pairs, which make up whole groups."""
    group_I, pair_I = groups.group_I[pairs], groups.pair_I[pairs]
    first_I, stop_I = common.first_U[pair_I], common.first_U[pair_I + 1]
    log_I = np.log(groups.size_G[group_I])
    group_I = group_I - (group_I[0] if len(group_I) else 0)

    start_r = grams.first_C[groups.reference_U[pair_I]]
    row_r, owner_r = grams.rows(groups.reference_U[pair_I])
    documents, place_r, count = np.unique(
        group_I[owner_r] * grams.size + grams.gram_E[row_r], return_inverse=True, return_counts=True
    )
    log_df = np.append(np.log(count), 0.0)
    weight_r = grams.count_E[row_r] * (log_I[owner_r] - log_df[place_r])

    start_h = grams.first_C[groups.hypothesis_U[pair_I]]
    stop_h = grams.first_C[groups.hypothesis_U[pair_I] + 1]
    stop_h = np.where(stop_I > first_I, stop_h, start_h)  # only where something is in common
    row_h, owner_h = _spread(start_h, stop_h)
    place_h, hit_h = _find(group_I[owner_h] * grams.size + grams.gram_E[row_h], documents)
    log_df_h = np.where(hit_h, log_df[place_h], 0.0)
    weight_h = grams.count_E[row_h] * (log_I[owner_h] - log_df_h)

    size = len(pair_I)
    norm_h = np.sqrt(grams.sum_orders(row_h, owner_h, weight_h**2, size))
    norm_r = np.sqrt(grams.sum_orders(row_r, owner_r, weight_r**2, size))
    place, owner = _spread(first_I, stop_I)
    both_h, both_r = common.row_h[place], common.row_r[place]
    at_h = both_h + (np.searchsorted(owner_h, np.arange(size)) - start_h)[owner]
    at_r = both_r + (np.searchsorted(owner_r, np.arange(size)) - start_r)[owner]
    product = np.minimum(weight_h[at_h], weight_r[at_r]) * weight_r[at_r]
    value = grams.sum_orders(both_h, owner, product, size)
    norms = norm_h * norm_r
    mean: Floats = np.divide(value, norms, out=value, where=norms != 0).mean(1)
    return mean


def _find(key_X: Ints, sorted_keys: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Place of each key among sorted distinct ones, and whether it is there at all."""
    place_X = np.searchsorted(sorted_keys, key_X)
    return place_X, np.append(sorted_keys, -1)[place_X] == key_X


def rouge(groups: Groups, tokenised: Sequence[str], common: Common) -> Floats:
    """Mean ROUGE-L of each group's pairs; captions without a common word score 0."""
    empty_C = np.array([not text for text in tokenised], bool)
    some_U = np.diff(common.first_U) > 0
    some_U |= empty_C[groups.hypothesis_U] & empty_C[groups.reference_U]
    hypotheses, references = groups.hypothesis_U[some_U], groups.reference_U[some_U]
    pairs = [*zip(hypotheses.tolist(), references.tolist(), strict=True)]
    words = {c: tokenised[c].split(" ") for pair in pairs for c in pair}
    score_U = np.zeros(len(some_U))
    score_U[some_U] = [rouge_l(words[h], words[r]) for h, r in pairs]
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
