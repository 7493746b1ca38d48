"""ROUGE-L of caption pairs: longest common subsequence, beta 1.2.

Words split at the space character only, so a token such as `1 1/2` with its no-break space stays
one word, and an empty caption is one empty word: two empty captions score 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from starc.evaluation.pairs import Floats, Groups

_BETA = 1.2


def rouge(groups: Groups, tokenised: Sequence[str]) -> Floats:
    """Mean ROUGE-L of each group's pairs; a prediction without a match scores 0."""
    pairs = [*zip(groups.hypothesis_U.tolist(), groups.reference_U.tolist(), strict=True)]
    words = {c: tokenised[c].split(" ") for pair in pairs for c in pair}
    score_U = np.array([rouge_l(words[h], words[r]) for h, r in pairs], np.float64)
    return groups.means(score_U[groups.pair_I])


def rouge_l(hypothesis: Sequence[str], reference: Sequence[str]) -> float:
    """F of common-subsequence precision and recall: (1 + β²) P R / (R + β² P)."""
    common = common_subsequence(hypothesis, reference)
    if not common:
        return 0.0
    precision, recall = common / len(hypothesis), common / len(reference)
    return ((1 + _BETA**2) * precision * recall) / (recall + _BETA**2 * precision)


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
