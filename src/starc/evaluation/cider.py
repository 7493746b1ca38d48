"""CIDEr of caption pairs, with document frequencies from the pairs of one group.

A group is one video at one tIoU: its pairs are all the documents there are, so a group of one pair
scores 0. The published evaluator clips (CIDEr-D's numerator), penalises a difference in length with
a Gaussian (sigma 6) and multiplies by 10.
"""

from __future__ import annotations

import numpy as np

from starc.evaluation.ngrams import ORDERS, NGrams
from starc.evaluation.pairs import Floats, Groups, Ints, sums

_SIGMA = 6.0


def cider(groups: Groups, grams: NGrams) -> Floats:
    """Mean CIDEr of each group's pairs.

        CIDEr = 10 / 4 · Σ_n  Σ_w min(h_w, r_w) r_w / (|h| |r|) · exp(-(len_h - len_r)² / 2σ²)

    h and r are tf·idf vectors, idf_w = log N - log max(1, df_w); len is the number of bigrams.
    """
    hypothesis_I = groups.hypothesis_U[groups.pair_I]
    reference_I = groups.reference_U[groups.pair_I]
    pairs = len(hypothesis_I)
    row_h, owner_h = grams.rows(hypothesis_I)
    row_r, owner_r = grams.rows(reference_I)
    group_h, group_r = groups.group_I[owner_h], groups.group_I[owner_r]
    document, frequency = np.unique(group_r * grams.size + grams.gram_E[row_r], return_counts=True)

    def weight(group_E: Ints, row_E: Ints) -> Floats:
        frequency_E = _look_up(document, frequency, group_E * grams.size + grams.gram_E[row_E])
        idf_E: Floats = np.log(groups.size_G[group_E]) - np.log(np.maximum(frequency_E, 1))
        return grams.count_E[row_E] * idf_E

    weight_h, weight_r = weight(group_h, row_h), weight(group_r, row_r)
    norm_h = _norm(weight_h, owner_h, grams.order_E[row_h], pairs)
    norm_r = _norm(weight_r, owner_r, grams.order_E[row_r], pairs)

    # Both tables are sorted by pair and n-gram: what they share is found by one merge.
    key_h = owner_h * grams.size + grams.gram_E[row_h]
    key_r = owner_r * grams.size + grams.gram_E[row_r]
    shared_h, place_r = common(key_h, key_r)
    product = np.minimum(weight_h[shared_h], weight_r[place_r]) * weight_r[place_r]
    slot = owner_h[shared_h] * ORDERS + grams.order_E[row_h[shared_h]]
    value = sums(slot, product, pairs * ORDERS).reshape(-1, ORDERS)
    norms = norm_h * norm_r
    value = np.divide(value, norms, out=value, where=norms != 0)

    bigrams_C = np.maximum(grams.words_C - 1, 0)
    delta_I = (bigrams_C[hypothesis_I] - bigrams_C[reference_I]).astype(np.float64)
    score_I = value.mean(1) * np.exp(-(delta_I**2) / (2 * _SIGMA**2)) * 10.0
    total_G = sums(groups.group_I, score_I, len(groups.size_G))
    mean_G: Floats = total_G / np.maximum(groups.size_G, 1)
    return mean_G


def _look_up(sorted_keys: Ints, values: Ints, key_E: Ints) -> Ints:
    """Value of each key, 0 where it is unknown."""
    if not len(sorted_keys):
        return np.zeros(len(key_E), np.int64)
    place_E = np.minimum(np.searchsorted(sorted_keys, key_E), len(sorted_keys) - 1)
    return np.where(sorted_keys[place_E] == key_E, values[place_E], 0)


def common(key_a: Ints, key_b: Ints) -> tuple[Ints, Ints]:
    """Places in two sorted arrays of distinct keys at which they are equal."""
    if not len(key_b):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    place = np.minimum(np.searchsorted(key_b, key_a), len(key_b) - 1)
    hit = np.flatnonzero(key_b[place] == key_a)
    return hit, place[hit]


def _norm(weight_E: Floats, owner_E: Ints, order_E: Ints, pairs: int) -> Floats:
    square = sums(owner_E * ORDERS + order_E, weight_E**2, pairs * ORDERS)
    norm: Floats = np.sqrt(square).reshape(-1, ORDERS)
    return norm
