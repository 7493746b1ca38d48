"""How well events are placed: precision, recall and F1 by overlap and by start, segment quality.

A prediction is covered if some reference of its video overlaps it by more than the threshold, and
the other way round; many predictions may cover one reference. Precision and recall are taken per
video and averaged; F1 is the harmonic mean of those averages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starc.evaluation.pairs import Corpus, Floats, Ints, sums


class Localisation(NamedTuple):
    """Per video and threshold; with several reference files the best of each."""

    precision_VT: Floats
    recall_VT: Floats


class SegmentQuality(NamedTuple):
    """The indicators of the paper's correlation figure, per video."""

    recall_V: Floats
    """Share of reference events that a prediction overlaps with IoU >= .5."""
    mean_iou_V: Floats
    """Mean over reference events of the best IoU of any prediction."""
    matched_V: Floats
    """Number of predictions with IoU >= .5 to a reference event."""


def by_overlap(corpus: Corpus, tious: Sequence[float]) -> Localisation:
    """Covered means IoU > t, strictly (captions are paired from IoU >= t on)."""
    covered = []
    for file in corpus.references:
        keep_O = corpus.captioned_P[file.prediction_O]
        iou_O = file.iou_O[keep_O]
        best_P = _largest(file.prediction_O[keep_O], iou_O, len(corpus.video_P))
        best_R = _largest(file.reference_O[keep_O], iou_O, len(file.video_R))
        covered.append((best_P[:, None] > tious, best_R[:, None] > tious))
    return _shares(corpus, covered)


def by_start(corpus: Corpus, seconds: Sequence[float]) -> Localisation:
    """Navigation: covered means that the starts differ by less than some seconds."""
    files = corpus.references
    near = [(f.nearest_P[:, None] < seconds, f.nearest_R[:, None] < seconds) for f in files]
    return _shares(corpus, near)


def f1(precision: Floats, recall: Floats) -> Floats:
    """Harmonic mean, 0 where both are 0."""
    total = precision + recall
    return np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total > 0)


def segment_quality(corpus: Corpus) -> SegmentQuality:
    """Recall@0.5, mean IoU and matched segments, against all reference events of a video."""
    videos = len(corpus.videos)
    recalled_V, best_V, events_V = np.zeros(videos), np.zeros(videos), np.zeros(videos)
    matched_P = np.zeros(len(corpus.video_P), bool)
    for file in corpus.references:
        best_R = _largest(file.reference_O, file.iou_O, len(file.video_R))
        matched_P[file.prediction_O[file.iou_O >= 0.5]] = True
        recalled_V += sums(file.video_R, best_R >= 0.5, videos)
        best_V += sums(file.video_R, best_R, videos)
        events_V += np.bincount(file.video_R, minlength=videos)
    events_V = np.maximum(events_V, 1)
    matched_V = sums(corpus.video_P, matched_P, videos)
    return SegmentQuality(recalled_V / events_V, best_V / events_V, matched_V)


def _shares(
    corpus: Corpus, covered: Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]]
) -> Localisation:
    """Shares of covered events per video, then the best over reference files, each for itself."""

    def share(video_X: Ints, hit_XT: NDArray[Any], counted_X: NDArray[np.bool_]) -> Floats:
        hits = [sums(video_X, hit_X & counted_X, len(corpus.videos)) for hit_X in hit_XT.T]
        counted_V = np.maximum(sums(video_X, counted_X, len(corpus.videos)), 1)
        return np.stack(hits, 1) / counted_V[:, None]

    precision = [share(corpus.video_P, hit_PT, corpus.captioned_P) for hit_PT, _ in covered]
    recall = [
        share(file.video_R, hit_RT, np.ones(len(file.video_R), bool))
        for file, (_, hit_RT) in zip(corpus.references, covered, strict=True)
    ]
    return Localisation(np.max(precision, 0), np.max(recall, 0))


def _largest(index_O: Ints, value_O: Floats, length: int) -> Floats:
    """The largest value that belongs to each index, 0 where there is none."""
    largest = np.zeros(length)
    np.maximum.at(largest, index_O, value_O)
    return largest
