"""SODA_m: SODA_c in which several predictions in a row may together answer one reference event.

SODA_c matches one to one, so a system that tells a step in two parts loses twice: the parts overlap
the step too little, and one of them stays unmatched. Here up to MERGED predictions that follow each
other by start, all of them overlapping the reference event, may be read as one: its span is their
hull, its caption is theirs in a row. A match is worth what it is in SODA_c, IoU × METEOR with the
reference as METEOR's hypothesis, and both sides keep their order. Of all such matchings the one
with the largest total counts, among equals the one that merges least. Recall divides the total by
the references, precision by the predictions that are left after merging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from starc_eval.errors import AnnotationError
from starc_eval.pairs import Corpus, Floats, Ints, References, f1, iou
from starc_eval.soda import Soda

MERGED = 8
"""Predictions that may be read as one, at most."""
MOST_PAIRS = 1_000_000
"""Overlapping pairs of events in a run, of which each leads to up to MERGED texts."""
Texts = Sequence[tuple[int, ...]]
ScoreTexts = Callable[[Texts, Texts], Floats]
"""Segment scores of texts, each several captions by number: hypotheses, references."""


class Match(NamedTuple):
    """Predictions `first` to `last` by start, read as one, for the reference `column`."""

    first: int
    last: int
    column: int
    value: float


def soda_merged(corpus: Corpus, file: References, meteor: ScoreTexts) -> Soda:
    """SODA_m of every video that the file has; 0 for the others."""
    if len(file.iou_O) > MOST_PAIRS:
        raise AnnotationError(
            f"soda_m: {len(file.iou_O)} pairs of predicted and reference events overlap, more than "
            f"{MOST_PAIRS} cannot be merged; predict fewer events, or leave soda_m out"
        )
    videos = len(corpus.videos)
    order_P = np.lexsort((corpus.span_P2[:, 0], corpus.video_P))
    order_R = np.lexsort((file.span_R2[:, 0], file.video_R))
    runs = np.array([*_runs(file, order_P, order_R)], np.int64).reshape(-1, 3)
    first_X, _, column_X = runs.T
    span_P2, caption_P = corpus.span_P2[order_P], corpus.caption_P[order_P].tolist()
    end_X = np.array([span_P2[a : b + 1, 1].max() for a, b, _ in runs.tolist()], np.float64)
    hull_X2 = np.stack([span_P2[first_X, 0], end_X], 1)
    said = [tuple(caption_P[a : b + 1]) for a, b, _ in runs.tolist()]
    wanted = [(c,) for c in file.caption_R[order_R][column_X].tolist()]
    value_X = iou(hull_X2, file.span_R2[order_R][column_X]) * meteor(wanted, said)

    matches: list[list[Match]] = [[] for _ in range(videos)]
    video_X = corpus.video_P[order_P][first_X].tolist()
    for video, (first, last, column), value in zip(
        video_X, runs.tolist(), value_X.tolist(), strict=True
    ):
        matches[video].append(Match(first, last, column, value))
    best = [best_matching(each) for each in matches]
    total_V = np.array([total for total, _ in best], np.float64)
    merged_V = np.array([merged for _, merged in best], np.int64)
    said_V = np.bincount(corpus.video_P, minlength=videos) - merged_V
    precision_V = total_V / np.maximum(said_V, 1)
    recall_V = total_V / np.maximum(np.bincount(file.video_R, minlength=videos), 1)
    return Soda(precision_V, recall_V, f1(precision_V, recall_V))


def _runs(file: References, order_P: Ints, order_R: Ints) -> Iterator[tuple[int, int, int]]:
    """First and last prediction and reference of all that may be matched, by place in the order."""
    place_P, place_R = np.argsort(order_P), np.argsort(order_R)
    pairs = np.stack([place_R[file.reference_O], place_P[file.prediction_O]], 1)
    overlapping = {tuple(pair) for pair in pairs.tolist()}
    for column, first in sorted(overlapping):
        for last in range(first, first + MERGED):
            if (column, last) not in overlapping:
                break
            yield first, last, column


def best_matching(matches: Sequence[Match]) -> tuple[float, int]:
    """The largest total of matches whose predictions and references both rise, and how many
    predictions less there are by its merging. A tree of prefix maxima over the references."""
    if not matches:
        return 0.0, 0
    columns = sorted({match.column for match in matches})
    rank = {column: place for place, column in enumerate(columns)}
    nothing = (0.0, 0)
    tree = [nothing] * (len(columns) + 1)
    waiting: dict[int, list[tuple[int, tuple[float, int]]]] = {}
    best = nothing
    ends = sorted({match.last for match in matches})
    closed = 0
    for match in sorted(matches):
        while ends[closed] < match.first:
            for place, total in waiting.pop(ends[closed], ()):
                while place <= len(columns):
                    tree[place] = max(tree[place], total)
                    place += place & -place
            closed += 1
        place = rank[match.column]
        before = nothing
        while place:
            before = max(before, tree[place])
            place &= place - 1
        total = before[0] + match.value, before[1] - (match.last - match.first)
        best = max(best, total)
        waiting.setdefault(match.last, []).append((rank[match.column] + 1, total))
    return best[0], -best[1]
