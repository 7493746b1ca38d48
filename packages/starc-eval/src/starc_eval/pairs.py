"""Which prediction is compared with which reference, for all videos at once.

In: events per video. Out: flat arrays of predictions and references, the pairs of them that
overlap in time, and the groups (one video at one tIoU) in which captions are scored. Everything
here is integers and times; captions appear only as numbers (`Corpus.captions`).

How well events are placed needs no more than that. A prediction is covered if some reference of its
video overlaps it by more than the threshold, and the other way round; many predictions may cover
one reference. Precision and recall are taken per video and averaged; F1 is the harmonic mean of
those averages.

Arrays end in the letter of what they run over: P predictions, R references, O overlapping pairs,
U distinct caption pairs, G groups, I pairs inside groups, V videos, T thresholds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starc_eval.annotations import VideoAnnotation

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CAPTIONED_PREDICTIONS = 1000
"""Captioning and localisation read this many predictions of a video; SODA reads all."""
UNMATCHED = "xqzvkjwpfy"
"""What a prediction without a match is paired with: one content word that matches nothing."""
_BLOCK = 2_000_000
_NOTHING = VideoAnnotation((), ())


@dataclass(frozen=True)
class References:
    """One reference file, and the predictions that overlap with it, prediction by prediction."""

    span_R2: Floats
    video_R: Ints
    caption_R: Ints
    present_V: NDArray[np.bool_]
    prediction_O: Ints
    reference_O: Ints
    iou_O: Floats
    nearest_P: Floats
    """Seconds from a prediction's start to the nearest start of a reference."""
    nearest_R: Floats
    """Seconds from a reference's start to the nearest start of a prediction."""


@dataclass(frozen=True)
class Corpus:
    """Predictions and references of `videos` as flat arrays, ordered by video."""

    videos: tuple[str, ...]
    captions: tuple[str, ...]
    """Distinct raw captions; the `caption_*` arrays point into it."""
    span_P2: Floats
    video_P: Ints
    caption_P: Ints
    captioned_P: NDArray[np.bool_]
    """Among the first CAPTIONED_PREDICTIONS of its video."""
    references: tuple[References, ...]
    unmatched: int
    """The caption that predictions without a match are paired with."""


def corpus(
    predictions: Mapping[str, VideoAnnotation],
    references: Sequence[Mapping[str, VideoAnnotation]],
    videos: Sequence[str],
    unmatched: str = UNMATCHED,
) -> Corpus:
    """Lay the events of `videos` out as arrays."""
    number: defaultdict[str, int] = defaultdict(count().__next__)

    def flatten(annotations: Mapping[str, VideoAnnotation]) -> tuple[Floats, Ints, Ints, Ints]:
        """Span, video, caption and rank within its video of each event."""
        ordered = [annotations.get(video, _NOTHING) for video in videos]
        count_V = np.array([len(each.spans) for each in ordered], np.int64)
        spans = [*chain.from_iterable(each.spans for each in ordered)]
        captions = chain.from_iterable(each.sentences for each in ordered)
        caption_X = np.fromiter(map(number.__getitem__, captions), np.int64)
        rank_X = np.arange(len(spans)) - np.repeat(np.cumsum(count_V) - count_V, count_V)
        video_X = np.repeat(np.arange(len(ordered)), count_V)
        return np.array(spans, np.float64).reshape(-1, 2), video_X, caption_X, rank_X

    span_P2, video_P, caption_P, rank_P = flatten(predictions)
    files = []
    for reference in references:
        span_R2, video_R, caption_R, _ = flatten(reference)
        present_V = np.array([video in reference for video in videos], bool)
        overlaps = _overlaps(span_P2, video_P, span_R2, video_R, videos=len(videos))
        files.append(References(span_R2, video_R, caption_R, present_V, *overlaps))
    last = number[unmatched]
    return Corpus(
        tuple(videos),
        tuple(number),
        span_P2,
        video_P,
        caption_P,
        rank_P < CAPTIONED_PREDICTIONS,
        tuple(files),
        last,
    )


def iou(a_X2: Floats, b_X2: Floats) -> Floats:
    """Temporal IoU of spans, row by row.

        IoU = inter / (union + 1e-8),  union = min(hull, length + length)

    Empty and reversed spans overlap nothing.
    """
    first, last = np.maximum(a_X2[:, 0], b_X2[:, 0]), np.minimum(a_X2[:, 1], b_X2[:, 1])
    hull = np.maximum(a_X2[:, 1], b_X2[:, 1]) - np.minimum(a_X2[:, 0], b_X2[:, 0])
    lengths = (a_X2[:, 1] - a_X2[:, 0]) + (b_X2[:, 1] - b_X2[:, 0])
    inter = np.maximum(0.0, last - first)
    union = np.minimum(hull, lengths)
    score: Floats = np.divide(inter, union + 1e-8, out=np.zeros_like(inter), where=inter > 0)
    return score


def sums(index_X: Ints, weight_X: NDArray[Any], size: int) -> Floats:
    """Sum of the weights that belong to each index; zeros where there are none."""
    return np.bincount(index_X, weights=weight_X, minlength=size).astype(np.float64)


def _overlaps(
    span_P2: Floats, video_P: Ints, span_R2: Floats, video_R: Ints, *, videos: int
) -> tuple[Ints, Ints, Floats, Floats, Floats]:
    """The last five fields of `References`; events are ordered by video.

    Goes by blocks of about `_BLOCK` pairs, so that memory stays bounded for any video.
    """
    count_V = np.bincount(video_R, minlength=videos)
    first_V = np.cumsum(count_V) - count_V
    partners_P = count_V[video_P]
    nearest_P, nearest_R = np.full(len(span_P2), np.inf), np.full(len(span_R2), np.inf)
    predictions, references, ious = [np.zeros(0, int)], [np.zeros(0, int)], [np.zeros(0)]
    cuts = np.flatnonzero(np.diff(np.cumsum(partners_P) // _BLOCK)) + 1
    for block_P in np.split(np.arange(len(partners_P)), cuts):
        count_P = partners_P[block_P]
        prediction_O = np.repeat(block_P, count_P)
        place_O = np.arange(len(prediction_O)) - np.repeat(np.cumsum(count_P) - count_P, count_P)
        reference_O = first_V[video_P[prediction_O]] + place_O
        a_O2, b_O2 = span_P2[prediction_O], span_R2[reference_O]
        distance_O = np.abs(a_O2[:, 0] - b_O2[:, 0])
        np.minimum.at(nearest_P, prediction_O, distance_O)
        np.minimum.at(nearest_R, reference_O, distance_O)
        iou_O = iou(a_O2, b_O2)
        predictions.append(prediction_O[iou_O > 0])
        references.append(reference_O[iou_O > 0])
        ious.append(iou_O[iou_O > 0])
    return (
        np.concatenate(predictions),
        np.concatenate(references),
        np.concatenate(ious),
        nearest_P,
        nearest_R,
    )


@dataclass(frozen=True)
class Groups:
    """Caption pairs of one video at one tIoU; thresholds with the same pairs share a group."""

    index_VT: Ints
    """The group of a video at a threshold."""
    size_G: Ints
    group_I: Ints
    pair_I: Ints
    """Index of a pair into the distinct pairs U."""
    hypothesis_U: Ints
    reference_U: Ints

    def sums(self, value_I: NDArray[Any]) -> Floats:
        """Sum over the pairs of each group."""
        return sums(self.group_I, value_I, len(self.size_G))

    def means(self, score_I: NDArray[Any]) -> Floats:
        """Mean over the pairs of each group."""
        mean_G: Floats = self.sums(score_I) / np.maximum(self.size_G, 1)
        return mean_G


def groups(corpus: Corpus, tious: Sequence[float], *, shared: bool = True) -> Groups:
    """Pair each prediction with every reference event of IoU >= t, over all reference files, or
    with the caption for those that match none. In a group, pairs are in order of prediction, file
    and reference. Without `shared` every video has a group of its own at every threshold."""
    files = corpus.references
    prediction_O = np.concatenate([file.prediction_O for file in files])
    caption_O = np.concatenate([file.caption_R[file.reference_O] for file in files])
    iou_O = np.concatenate([file.iou_O for file in files])
    keep_O = corpus.captioned_P[prediction_O] & (iou_O >= min(tious))
    prediction_O, caption_O, iou_O = prediction_O[keep_O], caption_O[keep_O], iou_O[keep_O]
    video_O = corpus.video_P[prediction_O]

    # Pairs only disappear as the threshold rises, so an equal count means the same pairs.
    videos = len(corpus.videos)
    count_VT = np.stack([np.bincount(video_O[iou_O >= t], minlength=videos) for t in tious], 1)
    new_VT = (np.diff(count_VT, axis=1, prepend=-1) != 0) | (not shared)
    index_VT = (np.cumsum(new_VT.ravel()) - 1).reshape(new_VT.shape)

    width = len(corpus.captions)
    key_O = corpus.caption_P[prediction_O] * width + caption_O
    groups_I, predictions_I, keys_I = [], [], []
    for t, tiou in enumerate(tious):
        match_O = (iou_O >= tiou) & new_VT[video_O, t]
        unmatched_P = corpus.captioned_P & new_VT[corpus.video_P, t]
        unmatched_P[prediction_O[match_O]] = False
        groups_I += [index_VT[video_O[match_O], t], index_VT[corpus.video_P[unmatched_P], t]]
        predictions_I += [prediction_O[match_O], np.flatnonzero(unmatched_P)]
        keys_I += [key_O[match_O], corpus.caption_P[unmatched_P] * width + corpus.unmatched]
    group_I = np.concatenate(groups_I)
    order_I = np.lexsort((np.concatenate(predictions_I), group_I))
    key_I = np.concatenate(keys_I)[order_I]
    size_G = np.bincount(group_I, minlength=int(new_VT.sum()))
    return Groups(index_VT, size_G, group_I[order_I], *distinct(key_I // width, key_I % width))


def distinct(hypothesis_I: Ints, reference_I: Ints) -> tuple[Ints, Ints, Ints]:
    """Distinct pairs of captions: pair_I, hypothesis_U, reference_U."""
    width = int(reference_I.max(initial=0)) + 1
    key_U, pair_I = np.unique(hypothesis_I * width + reference_I, return_inverse=True)
    return pair_I, key_U // width, key_U % width


class Localisation(NamedTuple):
    """Per video and threshold; with several reference files the best of each."""

    precision_VT: Floats
    recall_VT: Floats


class SegmentQuality(NamedTuple):
    """The indicators of the paper's correlation figure, per video."""

    recall_V: Floats
    """Share of reference events that a prediction overlaps with IoU >= 0.5."""
    mean_iou_V: Floats
    """Mean over reference events of the best IoU of any prediction."""
    matched_V: Floats
    """Number of predictions with IoU >= 0.5 to a reference event."""


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
