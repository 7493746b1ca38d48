"""Boundaries against boundaries: Pk, WindowDiff and boundary similarity, as text segmentation has.

In: the events of a video as predicted and as annotated. Out: errors from 0 (best) to 1 for Pk
(Beeferman et al. 1999) and WindowDiff (Pevzner and Hearst 2002), a similarity from 0 to 1 (best)
for boundary similarity B (Fournier 2013). A video is a row of units of UNIT seconds; a boundary
stands between two units, wherever an event starts or ends. The numbers are those of the package
`segeval` on the same boundaries, but the time they take depends on the number of boundaries, not on
the length of the video.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from starc_eval.annotations import VideoAnnotation
from starc_eval.pairs import Ints

UNIT = 1.0
"""Seconds."""
NEAR = 5
"""Units by which boundaries may be apart and still count as a near miss in B (segeval: n_t - 1)."""
SEGMENTATION = ("Pk", "WindowDiff", "Boundary_similarity")


class Segmentation(NamedTuple):
    """How one segmentation differs from the reference's, in the order of SEGMENTATION."""

    pk: float
    window_diff: float
    similarity: float


def segmentation(predicted: VideoAnnotation, reference: VideoAnnotation) -> Segmentation:
    """The measures for one video, which lasts as long as the reference says, or its last event."""
    last = max((max(span) for span in reference.spans), default=0.0)
    duration = reference.duration if reference.duration and reference.duration > 0 else last
    units = max(math.ceil(duration / UNIT), 1)
    said, wanted = (boundaries(each.spans, units) for each in (predicted, reference))
    window = max(round(units / (len(wanted) + 1) / 2), 2)
    return Segmentation(
        *window_errors(said, wanted, units, window), boundary_similarity(said, wanted)
    )


def boundaries(spans: Sequence[tuple[float, float]], units: int) -> Ints:
    """Where events start or end inside the video: before which unit, in order, each once."""
    place_X = np.unique(np.rint(np.array(spans, np.float64).ravel() / UNIT)).astype(np.int64)
    return place_X[(place_X > 0) & (place_X < units)]


def window_errors(said_X: Ints, wanted_Y: Ints, units: int, window: int) -> tuple[float, float]:
    """Pk and WindowDiff: the share of windows in which only one side has a boundary, and in which
    their numbers of boundaries differ. A window leads from one unit to the one `window` further.

    Between two places at which a boundary enters or leaves the window nothing changes.
    """
    windows = units - window
    if windows <= 0:
        return 0.0, 0.0
    both = np.concatenate([said_X, wanted_Y])
    changes = np.unique(np.clip(np.concatenate([[0, windows], both, both - window]), 0, windows))
    first_W, length_W = changes[:-1], np.diff(changes)
    said_W, wanted_W = (
        np.searchsorted(x, first_W + window, "right") - np.searchsorted(x, first_W, "right")
        for x in (said_X, wanted_Y)
    )
    different_W, unequal_W = (said_W > 0) != (wanted_W > 0), said_W != wanted_W
    return float(length_W @ different_W) / windows, float(length_W @ unequal_W) / windows


def boundary_similarity(said_X: Ints, wanted_Y: Ints) -> float:
    """B = 1 - (misses + Σ distance / (NEAR + 1)) / (matches + misses + near misses).

    Near misses are pairs of boundaries that only one side has, nearest first, then from the start
    on; 1 where neither side has a boundary.
    """
    said, wanted = set(said_X.tolist()), set(wanted_Y.tolist())
    matches = len(said & wanted)
    alone = dict.fromkeys(said - wanted, True) | dict.fromkeys(wanted - said, False)
    near = moved = 0
    for distance in range(1, NEAR + 1):
        for place in sorted(alone):
            other = place + distance
            if place in alone and other in alone and alone[place] is not alone[other]:
                del alone[place], alone[other]
                near, moved = near + 1, moved + distance
    total = matches + near + len(alone)
    return 1 - (len(alone) + moved / (NEAR + 1)) / total if total else 1.0
