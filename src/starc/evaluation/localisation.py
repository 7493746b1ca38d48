"""How well events are placed: precision, recall and F1 by overlap and by start, segment quality.

A prediction is covered if some reference of its video overlaps it by more than the threshold, and
the other way round; many predictions may cover one reference. Precision and recall are taken per
video and averaged; F1 is the harmonic mean of those averages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from starc.evaluation.pairs import CAPTIONED_PREDICTIONS, Corpus, Floats, Ints, References, sums


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
    read_P = corpus.rank_P < CAPTIONED_PREDICTIONS

    def covered(file: References, t: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        over = file.overlaps
        hit_O = (over.iou_O > t) & read_P[over.prediction_O]
        return (
            _mark(over.prediction_O[hit_O], len(corpus.video_P)),
            _mark(over.reference_O[hit_O], len(file.video_R)),
        )

    return _best(corpus, [[covered(file, t) for t in tious] for file in corpus.references])


def by_start(corpus: Corpus, seconds: Sequence[float]) -> Localisation:
    """Navigation: covered means that the starts differ by less than some seconds."""
    return _best(
        corpus,
        [
            [
                (
                    file.overlaps.nearest_prediction_P < limit,
                    file.overlaps.nearest_reference_R < limit,
                )
                for limit in seconds
            ]
            for file in corpus.references
        ],
    )


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
        over = file.overlaps
        best_R = np.zeros(len(file.video_R))
        np.maximum.at(best_R, over.reference_O, over.iou_O)
        matched_P[over.prediction_O[over.iou_O >= 0.5]] = True
        recalled_V += sums(file.video_R, best_R >= 0.5, videos)
        best_V += sums(file.video_R, best_R, videos)
        events_V += np.bincount(file.video_R, minlength=videos)
    return SegmentQuality(
        recalled_V / np.maximum(events_V, 1),
        best_V / np.maximum(events_V, 1),
        sums(corpus.video_P, matched_P, videos),
    )


def _best(
    corpus: Corpus, covered: Sequence[Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]]]
) -> Localisation:
    """Shares of covered events per video, then the best over reference files, each for itself."""
    videos = len(corpus.videos)
    read_P = corpus.rank_P < CAPTIONED_PREDICTIONS
    predictions_V = np.maximum(sums(corpus.video_P, read_P, videos), 1)
    precisions, recalls = [], []
    for file, marks in zip(corpus.references, covered, strict=True):
        references_V = np.maximum(np.bincount(file.video_R, minlength=videos), 1)
        precisions.append(
            np.stack([sums(corpus.video_P, hit_P & read_P, videos) for hit_P, _ in marks], 1)
            / predictions_V[:, None]
        )
        recalls.append(
            np.stack([sums(file.video_R, hit_R, videos) for _, hit_R in marks], 1)
            / references_V[:, None]
        )
    return Localisation(np.max(precisions, 0), np.max(recalls, 0))


def _mark(index: Ints, length: int) -> NDArray[np.bool_]:
    marks = np.zeros(length, bool)
    marks[index] = True
    return marks
