"""Is one system better than another, or is it the videos? Paired bootstrap over videos.

In: two reports over the same videos. Out: for each headline metric both values, their difference
and an interval that holds 95 % of the differences when videos are drawn again with replacement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starc.errors import AnnotationError
from starc.evaluation.localisation import f1
from starc.evaluation.pairs import Floats
from starc.evaluation.report import CAPTION_METRICS, LOCALISATION, TIOUS, Report

_BLOCK = 256


@dataclass(frozen=True)
class Difference:
    """The second system minus the first, in one metric (raw, as in `Report.metrics`)."""

    metric: str
    first: float
    second: float
    low: float
    high: float
    probability: float
    """Two-sided: how often a redrawn difference falls on the other side of zero, doubled."""

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def clear(self) -> bool:
        """The interval leaves zero out."""
        return self.low > 0 or self.high < 0


def compare(
    first: Report, second: Report, *, resamples: int = 10_000, seed: int = 0
) -> list[Difference]:
    """Paired bootstrap of every headline metric that both reports have."""
    if first.signature != second.signature or first.videos != second.videos:
        raise AnnotationError(
            "the two systems are not scored on the same videos in the same way "
            f"({first.signature} / {second.signature}); score both on the same files"
        )
    if resamples < 1:
        raise ValueError(f"resamples must be positive, got {resamples = }")
    names = _columns(first)
    both_VC = [np.stack([report.per_video[n] for n in names], 1) for report in (first, second)]
    rng = np.random.default_rng(seed)
    videos = len(first.videos)
    blocks: list[Floats] = []
    for start in range(0, resamples, _BLOCK):
        size = min(_BLOCK, resamples - start)
        weight_XV = rng.multinomial(videos, np.full(videos, 1 / videos), size=size) / videos
        first_XM, second_XM = (_headline(weight_XV @ value_VC, names) for value_VC in both_VC)
        blocks.append(second_XM - first_XM)
    difference_XM = np.concatenate(blocks)
    low_M, high_M = np.quantile(difference_XM, [0.025, 0.975], axis=0).tolist()
    below_M, above_M = (difference_XM <= 0).mean(0), (difference_XM >= 0).mean(0)
    probability_M = np.minimum(1.0, 2 * np.minimum(below_M, above_M)).tolist()
    metrics = [name for name in names if "@" not in name]
    if len(metrics) < len(names):
        metrics += LOCALISATION
    return [
        Difference(metric, first.metrics[metric], second.metrics[metric], low, high, probability)
        for metric, low, high, probability in zip(
            metrics, low_M, high_M, probability_M, strict=True
        )
    ]


def _columns(report: Report) -> list[str]:
    """The values per video that the headline metrics are made from."""
    names = [name for name in (*CAPTION_METRICS, "soda_c") if name in report.per_video]
    if "F1" in report.metrics:
        names += [f"{name}@{t}" for name in ("Precision", "Recall") for t in TIOUS]
    return names


def _headline(mean_XC: Floats, names: list[str]) -> Floats:
    """Headline metrics from column means; F1 is a harmonic mean of means, so it comes last."""
    captions = sum("@" not in name for name in names)
    if captions == len(names):
        return mean_XC
    precision_XT, recall_XT = np.split(mean_XC[:, captions:], 2, axis=1)
    places = [f1(precision_XT, recall_XT), precision_XT, recall_XT]
    return np.concatenate([mean_XC[:, :captions], np.stack([x.mean(1) for x in places], 1)], 1)
