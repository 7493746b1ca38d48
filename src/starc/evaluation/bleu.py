"""Corpus BLEU 1 to 4 of each group of caption pairs.

One reference a pair, so its length is the closest one. A prediction without a match is compared
with one word that occurs nowhere.
"""

from __future__ import annotations

import numpy as np

from starc.evaluation.cider import common
from starc.evaluation.ngrams import ORDERS, NGrams
from starc.evaluation.pairs import Floats, Groups, sums

_TINY, _SMALL = 1e-15, 1e-9


def bleu(groups: Groups, grams: NGrams) -> Floats:
    """BLEU_1..4 of each group, [G, 4].

    BLEU_n = (Π_k (correct_k + 1e-15) / (guess_k + 1e-9))^(1/n) · min(1, exp(1 - 1/ratio))
    """
    total = len(groups.size_G)
    correct_U4 = _clipped(groups, grams)
    words_I = grams.words_C[groups.hypothesis_U[groups.pair_I]]
    words_N = grams.words_C[groups.hypothesis_N]
    reference_I = grams.words_C[groups.reference_U[groups.pair_I]]

    correct_G4, guess_G4 = np.zeros((total, ORDERS)), np.zeros((total, ORDERS))
    for n in range(ORDERS):
        correct_G4[:, n] = sums(groups.group_I, correct_U4[groups.pair_I, n], total)
        guess_G4[:, n] = sums(groups.group_I, np.maximum(words_I - n, 0), total)
        guess_G4[:, n] += sums(groups.group_N, np.maximum(words_N - n, 0), total)
    tested_G = sums(groups.group_I, words_I, total) + sums(groups.group_N, words_N, total)
    reference_G = sums(groups.group_I, reference_I, total)
    reference_G += np.bincount(groups.group_N, minlength=total)

    product_G4 = np.cumprod((correct_G4 + _TINY) / (guess_G4 + _SMALL), 1)
    score_G4 = product_G4 ** (1 / np.arange(1, ORDERS + 1))
    ratio_G = (tested_G + _TINY) / (reference_G + _SMALL)
    brevity_G = np.where(ratio_G < 1, np.exp(1 - 1 / np.maximum(ratio_G, 1e-300)), 1.0)
    result: Floats = score_G4 * brevity_G[:, None] * (groups.size_G > 0)[:, None]
    return result


def _clipped(groups: Groups, grams: NGrams) -> Floats:
    """N-grams that both captions of a distinct pair have, counted as often as both have them."""
    row_h, owner_h = grams.rows(groups.hypothesis_U)
    row_r, owner_r = grams.rows(groups.reference_U)
    shared_h, place_r = common(
        owner_h * grams.size + grams.gram_E[row_h], owner_r * grams.size + grams.gram_E[row_r]
    )
    both = np.minimum(grams.count_E[row_h[shared_h]], grams.count_E[row_r[place_r]])
    slot = owner_h[shared_h] * ORDERS + grams.order_E[row_h[shared_h]]
    pairs = len(groups.hypothesis_U)
    return sums(slot, both, pairs * ORDERS).reshape(-1, ORDERS)
