"""SODA_c: the best matching of predictions and references that keeps both in order.

A pair is worth IoU × METEOR, with the reference as METEOR's hypothesis. One reference file at a
time; precision divides the best total by the predictions of a video, recall by its references.
Only overlapping pairs are ever scored, and the matching looks at nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from starc_eval.pairs import Corpus, Floats, Ints, References, distinct, f1

ScorePairs = Callable[[Ints, Ints], Floats]
"""Segment scores of captions by number: hypotheses, references."""


class Soda(NamedTuple):
    """Per video, against one reference file."""

    precision_V: Floats
    recall_V: Floats
    f1_V: Floats


def soda(corpus: Corpus, file: References, meteor: ScorePairs) -> Soda:
    """SODA_c of every video that the file has; 0 for the others."""
    videos = len(corpus.videos)
    pair_O, *captions_U = distinct(
        file.caption_R[file.reference_O], corpus.caption_P[file.prediction_O]
    )
    value_O = file.iou_O * meteor(*captions_U)[pair_O]

    # By start; within a prediction from the last reference to the first, so that a prediction
    # never builds on itself.
    row_O = _rank_by_start(corpus.span_P2, corpus.video_P)[file.prediction_O]
    column_O = _rank_by_start(file.span_R2, file.video_R)[file.reference_O]
    order_O = np.lexsort((-column_O, row_O))
    video_O = corpus.video_P[file.prediction_O][order_O]
    columns_V = np.bincount(file.video_R, minlength=videos)
    column_O = column_O[order_O] - (np.cumsum(columns_V) - columns_V)[video_O]
    value_O = value_O[order_O]

    best_V = np.zeros(videos)
    cuts = np.searchsorted(video_O, np.arange(videos + 1))
    for v in np.flatnonzero(np.diff(cuts)).tolist():
        part = slice(cuts[v], cuts[v + 1])
        pairs = zip(column_O[part].tolist(), value_O[part].tolist(), strict=True)
        best_V[v] = best_chain(pairs, int(columns_V[v]))
    precision_V = best_V / np.maximum(np.bincount(corpus.video_P, minlength=videos), 1)
    recall_V = best_V / np.maximum(columns_V, 1)
    return Soda(precision_V, recall_V, f1(precision_V, recall_V))


def _rank_by_start(span_X2: Floats, video_X: Ints) -> Ints:
    """Place of each event among all, by video and start; equal starts keep their order."""
    rank_X = np.empty(len(video_X), np.int64)
    rank_X[np.lexsort((span_X2[:, 0], video_X))] = np.arange(len(video_X))
    return rank_X


def best_chain(pairs: Iterable[tuple[int, float]], columns: int) -> float:
    """Largest sum over pairs whose rows and columns both strictly rise.

    The same value, to the last bit, as the table `max(up, left, diagonal + value)`: a chain is
    summed from its first pair on. `pairs` come row by row and, within a row, from the last column
    to the first. A tree of prefix maxima makes it O(pairs · log columns).
    """
    tree = [0.0] * (columns + 1)
    overall = 0.0
    for column, value in pairs:
        before, place = 0.0, column
        while place:
            before = max(before, tree[place])
            place &= place - 1
        total, place = before + value, column + 1
        overall = max(overall, total)
        while place <= columns:
            tree[place] = max(tree[place], total)
            place += place & -place
    return overall
