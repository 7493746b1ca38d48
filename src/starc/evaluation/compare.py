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
from starc.evaluation.report import CAPTION_METRICS, TIOUS, Report

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
    values_a, names = _columns(first)
    values_b, _ = _columns(second)
    random = np.random.default_rng(seed)
    videos = len(first.videos)
    drawn: list[Floats] = []
    for start in range(0, resamples, _BLOCK):
        size = min(_BLOCK, resamples - start)
        weight_XV = random.multinomial(videos, np.full(videos, 1 / videos), size=size) / videos
        drawn.append(
            _headline(weight_XV @ values_b, names) - _headline(weight_XV @ values_a, names)
        )
    difference_XM = np.concatenate(drawn)
    low, high = np.quantile(difference_XM, [0.025, 0.975], axis=0)
    below, above = (difference_XM <= 0).mean(0), (difference_XM >= 0).mean(0)
    chance = np.minimum(1.0, 2 * np.minimum(below, above))
    return [
        Difference(
            metric,
            first.metrics[metric],
            second.metrics[metric],
            float(low[m]),
            float(high[m]),
            float(chance[m]),
        )
        for m, metric in enumerate(_headline_names(names))
    ]


def _columns(report: Report) -> tuple[Floats, list[str]]:
    names = [name for name in (*CAPTION_METRICS, "soda_c") if name in report.per_video]
    if "F1" in report.metrics:
        names += [f"Precision@{t}" for t in TIOUS] + [f"Recall@{t}" for t in TIOUS]
    return np.stack([report.per_video[name] for name in names], 1), names


def _headline_names(names: list[str]) -> list[str]:
    plain = [name for name in names if "@" not in name]
    return plain + (["F1", "Precision", "Recall"] if len(plain) < len(names) else [])


def _headline(mean_XC: Floats, names: list[str]) -> Floats:
    """Headline metrics from column means; F1 is a harmonic mean of means, so it comes last."""
    plain = sum("@" not in name for name in names)
    if plain == len(names):
        return mean_XC
    precision_XT = mean_XC[:, plain : plain + len(TIOUS)]
    recall_XT = mean_XC[:, plain + len(TIOUS) :]
    place = [f1(precision_XT, recall_XT), precision_XT, recall_XT]
    return np.concatenate([mean_XC[:, :plain], np.stack([x.mean(1) for x in place], 1)], 1)
