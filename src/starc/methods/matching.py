"""Which query answers for which annotated event, and what its answer costs: set prediction.

Boxes are (centre, length) as shares of the video. The formulas are those of the published code,
with its constants: 1e-5 in the denominators of IoU and generalised IoU, focal loss summed over
queries and divided by the events of the batch, a counter weighted by how rare a count is in
ActivityNet Captions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

VIDEOS_WITH = (0, 0, 1936, 4125, 1891, 782, 510, 313, 185, 84, 66, 45, 22, 18, 6, 5)
VIDEOS_WITH += (5, 2, 3, 4, 3, 0, 2, 0, 0, 0, 1, 1)
"""Videos of ActivityNet Captions' training set with 0, 1, 2 ... events, of VIDEOS."""
VIDEOS = 10009
SPREAD = 2.0
"""Width, in events, of the Gaussian in which a wrong count costs less."""
Pairs = tuple[Tensor, Tensor]
"""Queries and the events they answer for, in the order of the queries."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Weights of the matching and of the focal terms."""

    classes: float = 2.0
    boxes: float = 0.0
    giou: float = 4.0
    alpha: float = 0.25
    gamma: float = 2.0
    focal_alpha: float = 0.25
    focal_gamma: float = 2.0
    gaussian: bool = True
    beta: float = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """The annotated events of one video."""

    box_E2: Tensor
    label_E: Tensor


@dataclass(frozen=True, slots=True)
class Answer:
    """What one decoder layer says of each query."""

    logit_BQC: Tensor
    box_BQ2: Tensor
    count_BN: Tensor


def assignment(cost_RC: NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The cheapest one-to-one pairs of rows and columns, as many as there can be, by row.

    Shortest augmenting paths with potentials (Jonker and Volgenant): rows join one by one, each by
    the cheapest chain of exchanges that leads to a free column.
    """
    cost = np.asarray(cost_RC, dtype=np.float64)
    if not np.isfinite(cost).all():
        raise ValueError("costs must be finite")
    if cost.shape[0] > cost.shape[1]:
        columns, rows = assignment(cost.T)
        order = np.argsort(rows)
        return rows[order], columns[order]
    height, width = cost.shape
    row_price, column_price = np.zeros(height), np.zeros(width)
    row_of = np.full(width, -1)
    for new in range(height):
        distance = np.full(width, np.inf)
        before = np.full(width, -1)  # the column from whose row it was reached; -1: the new row
        done = np.zeros(width, dtype=bool)
        row, column, length = new, -1, 0.0
        while True:
            reach = length + cost[row] - row_price[row] - column_price
            shorter = ~done & (reach < distance)
            distance[shorter], before[shorter] = reach[shorter], column
            column = int(np.where(done, np.inf, distance).argmin())
            length = distance[column]
            if row_of[column] < 0:
                break
            done[column] = True
            row = int(row_of[column])
        row_price[new] += length
        row_price[row_of[done]] += length - distance[done]
        column_price[done] -= length - distance[done]
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
def match(answer: Answer, targets: Sequence[Target], costs: Costs, repeat: int = 1) -> list[Pairs]:
    """The cheapest pairs in each video; each event may be answered for `repeat` times."""
    pairs = []
    for video, target in enumerate(targets):
        chance_QC = answer.logit_BQC[video].sigmoid()
        wrong = (1 - costs.alpha) * chance_QC**costs.gamma * -(1 - chance_QC + 1e-8).log()
        right = costs.alpha * (1 - chance_QC) ** costs.gamma * -(chance_QC + 1e-8).log()
        box_Q2 = answer.box_BQ2[video]
        _, giou_QE = overlaps(spans(box_Q2), spans(target.box_E2))
        cost_QE = (
            costs.boxes * torch.cdist(box_Q2, target.box_E2, p=1)
            + costs.classes * (right - wrong)[:, target.label_E]
            - costs.giou * giou_QE
        )
        queries, events = assignment(cost_QE.repeat(1, repeat).cpu().numpy())
        device = answer.box_BQ2.device
        pairs.append(
            (
                torch.as_tensor(queries, device=device),
                torch.as_tensor(events % max(len(target.box_E2), 1), device=device),
            )
        )
    return pairs


def losses(
    answer: Answer, targets: Sequence[Target], pairs: Sequence[Pairs], costs: Costs
) -> dict[str, Tensor]:
    """The losses of one decoder layer, unweighted, by their published names.

    `loss_self_iou` and `cardinality_error` are for the log: no published weight names them, and
    the former is 0/0 in a video with one event.
    """
    boxes = max(sum(len(target.box_E2) for target in targets), 1)
    video = torch.cat([torch.full_like(queries, i) for i, (queries, _) in enumerate(pairs)])
    query = torch.cat([queries for queries, _ in pairs])
    found_P2 = answer.box_BQ2[video, query]
    wanted_P2 = torch.cat([t.box_E2[events] for t, (_, events) in zip(targets, pairs, strict=True)])
    label_P = torch.cat([t.label_E[events] for t, (_, events) in zip(targets, pairs, strict=True)])

    wanted_BQC = torch.zeros_like(answer.logit_BQC)
    wanted_BQC[video, query, label_P] = 1.0
    self_iou = found_P2.new_zeros(())
    for box_E2 in found_P2.split([len(queries) for queries, _ in pairs]):
        iou, _ = overlaps(spans(box_E2), spans(box_E2))
        self_iou = self_iou + iou.triu(1).sum() / (0.5 * len(box_E2) * (len(box_E2) - 1))
    _, giou = overlaps(spans(found_P2), spans(wanted_P2))
    events = torch.tensor([float(len(t.box_E2)) for t in targets], device=found_P2.device)
    said = (answer.logit_BQC.argmax(-1) != answer.logit_BQC.shape[-1] - 1).sum(1).float()
    return {
        "loss_ce": focal(answer.logit_BQC, wanted_BQC, costs) / boxes,
        "loss_counter": counter(answer.count_BN, events.long(), costs),
        "loss_bbox": (found_P2 - wanted_P2).abs().sum() / boxes,
        "loss_giou": (1 - giou.diagonal()).sum() / boxes,
        "loss_self_iou": self_iou,
        "cardinality_error": (said - events).abs().mean(),
    }


def focal(logit_BQC: Tensor, wanted_BQC: Tensor, costs: Costs) -> Tensor:
    """Cross entropy in which what is nearly right counts little."""
    chance = logit_BQC.sigmoid()
    right = chance * wanted_BQC + (1 - chance) * (1 - wanted_BQC)
    loss = F.binary_cross_entropy_with_logits(logit_BQC, wanted_BQC, reduction="none")
    loss = loss * (1 - right) ** costs.focal_gamma
    if costs.focal_alpha >= 0:
        alpha = costs.focal_alpha
        loss = loss * (alpha * wanted_BQC + (1 - alpha) * (1 - wanted_BQC))
    return loss.sum()


def counter(count_BN: Tensor, events_B: Tensor, costs: Costs) -> Tensor:
    """How wrong the number of events is; a count close to the right one costs less."""
    classes = count_BN.shape[1]
    events_B = events_B.clamp(max=classes - 1)
    wanted_BN = F.one_hot(events_B, classes).to(count_BN)
    frequency = [videos / VIDEOS for videos in VIDEOS_WITH[:classes]]
    frequency += [0.0] * (classes - len(frequency))
    loss = F.binary_cross_entropy_with_logits(count_BN, wanted_BN, reduction="none")
    loss = loss * (1 - torch.tensor(frequency, device=count_BN.device))
    if costs.gaussian:
        away = torch.arange(classes, device=count_BN.device) - events_B[:, None]
        near = torch.exp(-(away.float() ** 2) / (2 * SPREAD**2))
        loss = loss * (wanted_BN + (1 - near) ** costs.beta * (1 - wanted_BN))
    return loss.mean()
