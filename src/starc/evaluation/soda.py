"""SODA_c: the best matching of predictions and references that keeps both in order.

A pair is worth IoU × METEOR, with the reference as METEOR's hypothesis. One reference file at a
time; precision divides the best total by the predictions of a video, recall by its references.
Only overlapping pairs are ever scored, and the matching looks at nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from starc.evaluation.localisation import f1
from starc.evaluation.pairs import Corpus, Floats, References

Meteor = Callable[[Sequence[tuple[str, str]]], Sequence[float]]
"""Segment scores of (hypothesis, reference) pairs."""


class Soda(NamedTuple):
    """Per video, against one reference file."""

    precision_V: Floats
    recall_V: Floats
    f1_V: Floats


def soda(corpus: Corpus, file: References, tokenised: Sequence[str], meteor: Meteor) -> Soda:
    """SODA_c of every video that the file has; 0 for the others."""
    over = file.overlaps
    videos = len(corpus.videos)
    caption_O = np.stack([file.caption_R[over.reference_O], corpus.caption_P[over.prediction_O]], 1)
    pair_U2, place_O = np.unique(caption_O, axis=0, return_inverse=True)
    score_U = meteor([(tokenised[a], tokenised[b]) for a, b in pair_U2.tolist()])
    value_O = over.iou_O * np.array(score_U, np.float64)[place_O.ravel()]

    # Places by start; equal starts keep their order in the file.
    rank_P, rank_R = np.empty(len(corpus.video_P), int), np.empty(len(file.video_R), int)
    rank_P[np.lexsort((corpus.span_P2[:, 0], corpus.video_P))] = np.arange(len(rank_P))
    rank_R[np.lexsort((file.span_R2[:, 0], file.video_R))] = np.arange(len(rank_R))
    row_O, column_O = rank_P[over.prediction_O], rank_R[over.reference_O]
    video_O = corpus.video_P[over.prediction_O]
    # Within a row from right to left, so that a row never builds on itself.
    order_O = np.lexsort((-column_O, row_O))
    columns_V = np.bincount(file.video_R, minlength=videos)
    first_V = np.cumsum(columns_V) - columns_V
    cuts = np.searchsorted(video_O[order_O], np.arange(videos + 1))
    column_O = (column_O - first_V[video_O])[order_O]
    value_O = value_O[order_O]

    best_V = np.zeros(videos)
    for v in np.flatnonzero(np.diff(cuts)).tolist():
        part = slice(cuts[v], cuts[v + 1])
        best_V[v] = best_chain(
            zip(column_O[part].tolist(), value_O[part].tolist(), strict=True), int(columns_V[v])
        )
    precision_V = best_V / np.maximum(np.bincount(corpus.video_P, minlength=videos), 1)
    recall_V = best_V / np.maximum(columns_V, 1)
    return Soda(precision_V, recall_V, f1(precision_V, recall_V))


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
            if tree[place] > before:
                before = tree[place]
            place &= place - 1
        total, place = before + value, column + 1
        if total > overall:
            overall = total
        while place <= columns:
            if tree[place] < total:
                tree[place] = total
            place += place & -place
    return overall
