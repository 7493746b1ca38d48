"""Which prediction is compared with which reference, for all videos at once.

In: events per video. Out: flat arrays of predictions and references, the pairs of them that
overlap in time, and the groups (one video at one tIoU) in which captions are scored. Everything
here is integers and times; captions appear only as numbers (`Corpus.captions`).

Arrays end in the letter of what they run over: P predictions, R references, O overlapping pairs,
U distinct caption pairs, G groups, I pairs inside groups, V videos, T thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starc.files.annotations import VideoAnnotation

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CAPTIONED_PREDICTIONS = 1000
"""Captioning and localisation read this many predictions of a video; SODA reads all."""
_BLOCK = 2_000_000


class Overlaps(NamedTuple):
    """Predictions and references of one video that overlap, prediction by prediction."""

    prediction_O: Ints
    reference_O: Ints
    iou_O: Floats
    nearest_prediction_P: Floats
    """Distance in seconds from a prediction's start to the nearest start of a reference."""
    nearest_reference_R: Floats


@dataclass(frozen=True)
class References:
    """One reference file, and how the predictions overlap with it."""

    span_R2: Floats
    video_R: Ints
    caption_R: Ints
    present_V: NDArray[np.bool_]
    overlaps: Overlaps


@dataclass(frozen=True)
class Corpus:
    """Predictions and references of `videos` as flat arrays, ordered by video."""

    videos: tuple[str, ...]
    predicted_V: NDArray[np.bool_]
    """The prediction file has an entry for this video, be it empty."""
    captions: tuple[str, ...]
    """Distinct raw captions; the `caption_*` arrays point into it."""
    span_P2: Floats
    video_P: Ints
    rank_P: Ints
    """Position of a prediction among those of its video."""
    caption_P: Ints
    references: tuple[References, ...]


def corpus(
    predictions: Mapping[str, VideoAnnotation],
    references: Sequence[Mapping[str, VideoAnnotation]],
    videos: Sequence[str],
) -> Corpus:
    """Lay the events of `videos` out as arrays."""
    number: dict[str, int] = {}

    def flatten(events: Mapping[str, VideoAnnotation]) -> tuple[Floats, Ints, Ints, Ints]:
        span: list[tuple[float, float]] = []
        video: list[int] = []
        rank: list[int] = []
        caption: list[int] = []
        for v, name in enumerate(videos):
            if name not in events:
                continue
            annotated = events[name]
            span.extend(annotated.spans)
            video.extend([v] * len(annotated.spans))
            rank.extend(range(len(annotated.spans)))
            caption.extend(number.setdefault(text, len(number)) for text in annotated.sentences)
        return (
            np.array(span, np.float64).reshape(-1, 2),
            np.array(video, np.int64),
            np.array(rank, np.int64),
            np.array(caption, np.int64),
        )

    span_P2, video_P, rank_P, caption_P = flatten(predictions)
    files = []
    for reference in references:
        span_R2, video_R, _, caption_R = flatten(reference)
        files.append(
            References(
                span_R2,
                video_R,
                caption_R,
                np.array([name in reference for name in videos], bool),
                overlaps(span_P2, video_P, span_R2, video_R, videos=len(videos)),
            )
        )
    return Corpus(
        tuple(videos),
        np.array([name in predictions for name in videos], bool),
        tuple(number),
        span_P2,
        video_P,
        rank_P,
        caption_P,
        tuple(files),
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


def overlaps(
    span_P2: Floats, video_P: Ints, span_R2: Floats, video_R: Ints, *, videos: int
) -> Overlaps:
    """All pairs that overlap; events are ordered by video. Memory stays bounded for any video."""
    per_video_V = np.bincount(video_R, minlength=videos)
    first_V = np.cumsum(per_video_V) - per_video_V
    partners_P = per_video_V[video_P]
    nearest_P, nearest_R = np.full(len(span_P2), np.inf), np.full(len(span_R2), np.inf)
    found: list[tuple[Ints, Ints, Floats]] = []
    for block_P in _blocks(partners_P):
        count_P = partners_P[block_P]
        prediction_O = np.repeat(block_P, count_P)
        place_O = np.arange(len(prediction_O)) - np.repeat(np.cumsum(count_P) - count_P, count_P)
        reference_O = first_V[video_P[prediction_O]] + place_O
        a_O2, b_O2 = span_P2[prediction_O], span_R2[reference_O]
        distance_O = np.abs(a_O2[:, 0] - b_O2[:, 0])
        np.minimum.at(nearest_P, prediction_O, distance_O)
        np.minimum.at(nearest_R, reference_O, distance_O)
        iou_O = iou(a_O2, b_O2)
        keep_O = iou_O > 0
        found.append((prediction_O[keep_O], reference_O[keep_O], iou_O[keep_O]))
    if not found:
        none = np.zeros(0, np.int64)
        return Overlaps(none, none, np.zeros(0), nearest_P, nearest_R)
    prediction, reference, score = zip(*found, strict=True)
    return Overlaps(
        np.concatenate(prediction),
        np.concatenate(reference),
        np.concatenate(score),
        nearest_P,
        nearest_R,
    )


def _blocks(partners_P: Ints) -> list[Ints]:
    """Consecutive predictions that together have about `_BLOCK` pairs."""
    block_P = np.cumsum(partners_P) // _BLOCK
    cuts = np.flatnonzero(np.diff(block_P)) + 1
    return [part for part in np.split(np.arange(len(partners_P)), cuts) if len(part)]


@dataclass(frozen=True)
class Groups:
    """Caption pairs of one video at one tIoU; thresholds with the same pairs share a group."""

    index_VT: Ints
    """The group of a video at a threshold."""
    size_G: Ints
    """Pairs in the group, unmatched predictions included."""
    group_I: Ints
    pair_I: Ints
    """Index of a matched pair into the distinct pairs U."""
    hypothesis_U: Ints
    reference_U: Ints
    group_N: Ints
    hypothesis_N: Ints
    """Predictions without a match, paired with a word that occurs nowhere."""


def groups(corpus: Corpus, tious: Sequence[float]) -> Groups:
    """Pair each prediction with every reference event of IoU >= t, over all reference files."""
    read_P = corpus.rank_P < CAPTIONED_PREDICTIONS
    prediction_O = np.concatenate([file.overlaps.prediction_O for file in corpus.references])
    caption_O = np.concatenate(
        [file.caption_R[file.overlaps.reference_O] for file in corpus.references]
    )
    iou_O = np.concatenate([file.overlaps.iou_O for file in corpus.references])
    keep_O = read_P[prediction_O] & (iou_O >= min(tious))
    prediction_O, caption_O, iou_O = prediction_O[keep_O], caption_O[keep_O], iou_O[keep_O]
    video_O = corpus.video_P[prediction_O]
    videos = len(corpus.videos)

    # Pairs only disappear as the threshold rises, so an equal count means the same pairs.
    count_VT = np.stack([np.bincount(video_O[iou_O >= t], minlength=videos) for t in tious], 1)
    new_VT = np.ones_like(count_VT, bool)
    new_VT[:, 1:] = count_VT[:, 1:] != count_VT[:, :-1]
    index_VT = (np.cumsum(new_VT.ravel()) - 1).reshape(new_VT.shape)

    width = max(len(corpus.captions), 1)
    key_U, pair_O = np.unique(
        corpus.caption_P[prediction_O] * width + caption_O, return_inverse=True
    )
    group_I, pair_I, group_N, hypothesis_N = [], [], [], []
    for t, tiou in enumerate(tious):
        match_O = (iou_O >= tiou) & new_VT[video_O, t]
        group_I.append(index_VT[video_O[match_O], t])
        pair_I.append(pair_O[match_O])
        lonely_P = read_P & new_VT[corpus.video_P, t]
        lonely_P[prediction_O[match_O]] = False
        group_N.append(index_VT[corpus.video_P[lonely_P], t])
        hypothesis_N.append(corpus.caption_P[lonely_P])
    matched, unmatched = np.concatenate(group_I), np.concatenate(group_N)
    total = int(new_VT.sum())
    size_G = np.bincount(matched, minlength=total) + np.bincount(unmatched, minlength=total)
    order_I = np.argsort(matched, kind="stable")
    return Groups(
        index_VT,
        size_G,
        matched[order_I],
        np.concatenate(pair_I)[order_I],
        key_U // width,
        key_U % width,
        unmatched,
        np.concatenate(hypothesis_N),
    )
