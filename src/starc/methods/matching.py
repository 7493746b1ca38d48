"""Set prediction: bipartite matching of queries to annotated events, and the losses of PDVC.

Boxes are (centre, length), normalised to [0, 1]. Formulas and constants are those of the published
code: 1e-5 is added to the denominators of IoU and generalised IoU, the focal loss is summed over
queries and divided by the events of the batch, and the event counter is weighted by the frequency
of each count in ActivityNet Captions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from starc.methods.settings import MatchingConfig, SetLossConfig

VIDEOS_WITH = [0, 0, 1936, 4125, 1891, 782, 510, 313, 185, 84, 66, 45, 22, 18, 6, 5]
VIDEOS_WITH += [5, 2, 3, 4, 3, 0, 2, 0, 0, 0, 1, 1]
"""Training videos of ActivityNet Captions with 0, 1, 2 ... events, out of VIDEOS."""
VIDEOS = 10009
SPREAD = 2.0
"""Standard deviation, in events, of the Gaussian that reduces the loss of nearly right counts."""
Pairs = tuple[Tensor, Tensor]
"""Indices of matched queries and events, by query."""


@dataclass(frozen=True, slots=True)
class Target:
    """The annotated events of one video."""

    box_E2: Tensor
    label_E: Tensor


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """Predictions of one decoder layer."""

    logit_BQC: Tensor
    box_BQ2: Tensor
    count_BN: Tensor


def assignment(cost_RC: NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The linear assignment of minimum cost, as rows (ascending) and their columns.

    Shortest augmenting paths with dual variables (Jonker and Volgenant).
    """
    cost = np.asarray(cost_RC, dtype=np.float64)
    if not np.isfinite(cost).all():
        raise ValueError("costs must be finite")
    if cost.shape[0] > cost.shape[1]:
        columns, rows = assignment(cost.T)
        order = np.argsort(rows)
        return rows[order], columns[order]
    height, width = cost.shape
    row_dual, column_dual = np.zeros(height), np.zeros(width)
    row_of = np.full(width, -1)
    for new in range(height):
        distance = np.full(width, np.inf)
        before = np.full(width, -1)  # previous column on the path; -1: none
        done = np.zeros(width, dtype=bool)
        row, column, length = new, -1, 0.0
        while True:
            reach = length + cost[row] - row_dual[row] - column_dual
            shorter = ~done & (reach < distance)
            distance[shorter], before[shorter] = reach[shorter], column
            column = int(np.where(done, np.inf, distance).argmin())
            length = distance[column]
            if row_of[column] < 0:
                break
            done[column] = True
            row = int(row_of[column])
        row_dual[new] += length
        row_dual[row_of[done]] += length - distance[done]
        column_dual[done] -= length - distance[done]
        while column >= 0:
            last = int(before[column])
            row_of[column] = row_of[last] if last >= 0 else new
            column = last
    columns = np.flatnonzero(row_of >= 0)
    order = np.argsort(row_of[columns])
    return row_of[columns][order].astype(np.int64), columns[order].astype(np.int64)


def spans(box_N2: Tensor) -> Tensor:
    """Start and end of boxes given as centre and length."""
    centre, length = box_N2.unbind(-1)
    return torch.stack((centre - 0.5 * length, centre + 0.5 * length), dim=-1)


def overlaps(a_N2: Tensor, b_M2: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and generalised IoU of each span of `a` with each of `b`."""
    a, b = a_N2[:, None], b_M2[None]
    common = (torch.minimum(a[..., 1], b[..., 1]) - torch.maximum(a[..., 0], b[..., 0])).clamp(0)
    hull = (torch.maximum(a[..., 1], b[..., 1]) - torch.minimum(a[..., 0], b[..., 0])).clamp(0)
    union = (a[..., 1] - a[..., 0]) + (b[..., 1] - b[..., 0]) - common
    iou = common / (union + 1e-5)
    return iou, iou - (hull - union) / (hull + 1e-5)


@torch.no_grad()
def match(
    output: LayerOutput, targets: Sequence[Target], costs: MatchingConfig, repeat: int = 1
) -> list[Pairs]:
    """Pairs of minimum cost in each video; an event is matched up to `repeat` times."""
    pairs = []
    for video, target in enumerate(targets):
        prob_QC = output.logit_BQC[video].sigmoid()
        negative = (1 - costs.alpha) * prob_QC**costs.gamma * -(1 - prob_QC + 1e-8).log()
        positive = costs.alpha * (1 - prob_QC) ** costs.gamma * -(prob_QC + 1e-8).log()
        box_Q2 = output.box_BQ2[video]
        _, giou_QE = overlaps(spans(box_Q2), spans(target.box_E2))
        cost_QE = (
            costs.boxes * torch.cdist(box_Q2, target.box_E2, p=1)
            + costs.classes * (positive - negative)[:, target.label_E]
            - costs.giou * giou_QE
        )
        queries, events = assignment(cost_QE.repeat(1, repeat).cpu().numpy())
        device = output.box_BQ2.device
        pairs.append(
            (
                torch.as_tensor(queries, device=device),
                torch.as_tensor(events % max(len(target.box_E2), 1), device=device),
            )
        )
    return pairs


def losses(
    output: LayerOutput, targets: Sequence[Target], pairs: Sequence[Pairs], config: SetLossConfig
) -> dict[str, Tensor]:
    """The losses of one decoder layer, unweighted, by their published names.

    `loss_self_iou` and `cardinality_error` are only logged: they have no weight, and the former is
    NaN (0/0) for a video with one event.
    """
    total = max(sum(len(target.box_E2) for target in targets), 1)
    video = torch.cat([torch.full_like(queries, i) for i, (queries, _) in enumerate(pairs)])
    query = torch.cat([queries for queries, _ in pairs])
    predicted_P2 = output.box_BQ2[video, query]
    target_P2 = torch.cat([t.box_E2[events] for t, (_, events) in zip(targets, pairs, strict=True)])
    label_P = torch.cat([t.label_E[events] for t, (_, events) in zip(targets, pairs, strict=True)])

    target_BQC = torch.zeros_like(output.logit_BQC)
    target_BQC[video, query, label_P] = 1.0
    self_iou = predicted_P2.new_zeros(())
    for box_E2 in predicted_P2.split_with_sizes([len(queries) for queries, _ in pairs]):
        iou, _ = overlaps(spans(box_E2), spans(box_E2))
        self_iou = self_iou + iou.triu(1).sum() / (0.5 * len(box_E2) * (len(box_E2) - 1))
    _, giou = overlaps(spans(predicted_P2), spans(target_P2))
    events = torch.tensor([float(len(t.box_E2)) for t in targets], device=predicted_P2.device)
    predicted = (output.logit_BQC.argmax(-1) != output.logit_BQC.shape[-1] - 1).sum(1).float()
    return {
        "loss_ce": focal(output.logit_BQC, target_BQC, config) / total,
        "loss_counter": counter(output.count_BN, events.long(), config),
        "loss_bbox": (predicted_P2 - target_P2).abs().sum() / total,
        "loss_giou": (1 - giou.diagonal()).sum() / total,
        "loss_self_iou": self_iou,
        "cardinality_error": (predicted - events).abs().mean(),
    }


def focal(logit_BQC: Tensor, target_BQC: Tensor, config: SetLossConfig) -> Tensor:
    """Sigmoid focal loss, summed."""
    prob = logit_BQC.sigmoid()
    right = prob * target_BQC + (1 - prob) * (1 - target_BQC)
    loss = F.binary_cross_entropy_with_logits(logit_BQC, target_BQC, reduction="none")
    loss = loss * (1 - right) ** config.focal_gamma
    if config.focal_alpha >= 0:
        alpha = config.focal_alpha
        loss = loss * (alpha * target_BQC + (1 - alpha) * (1 - target_BQC))
    return loss.sum()


def counter(count_BN: Tensor, events_B: Tensor, config: SetLossConfig) -> Tensor:
    """Binary cross entropy over event counts; counts close to the right one weigh less."""
    classes = count_BN.shape[1]
    events_B = events_B.clamp(max=classes - 1)
    target_BN = F.one_hot(events_B, classes).to(count_BN)
    frequency = [videos / VIDEOS for videos in VIDEOS_WITH[:classes]]
    frequency += [0.0] * (classes - len(frequency))
    loss = F.binary_cross_entropy_with_logits(count_BN, target_BN, reduction="none")
    loss = loss * (1 - torch.tensor(frequency, device=count_BN.device))
    if config.gaussian:
        distance = torch.arange(classes, device=count_BN.device) - events_B[:, None]
        near = torch.exp(-(distance.float() ** 2) / (2 * SPREAD**2))
        loss = loss * (target_BN + (1 - near) ** config.beta * (1 - target_BN))
    return loss.mean()
