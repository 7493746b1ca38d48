"""Segments: who each frame belongs to in, scored ranges of frames and their pooled features out.

A segment is a maximal run of frames with one label (paper, SGSR; Eq. scoring). For STaRC the label
is the anchor with most mass; the segmentations it is compared with (uniform windows of HiCM²,
similarity change of Sali4Vid, k-means) only give other labels and take the same code path. Nothing
here carries gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from starc.config import SegmentsConfig
from starc.model.transport import Plan
from starc.types import Segment

LLOYD_STEPS = 20
"""Iterations of k-means; a hundred frames settle in fewer."""


@torch.no_grad()
def find(
    clip_BTD: Tensor,
    prior_BT: Tensor,
    mask_BT: Tensor,
    plan: Plan | None,
    config: SegmentsConfig,
    *,
    clusters: int,
) -> list[list[Segment]]:
    """All segments of every video in order of time, the top-k by score marked as kept.

    Without a plan S_OT has no meaning; the mean saliency of a segment takes its place.
    """
    affinity_BT = prior_BT
    if config.method == "transport":
        if plan is None:
            raise ValueError("segments of method 'transport' need a plan")
        label_BT = plan.anchor_BT
        affinity_BT = plan.mass_BTK.gather(-1, label_BT[..., None])[..., 0]
    elif config.method == "uniform":
        label_BT = uniform(mask_BT, config.top_k)
    elif config.method == "adaptive":
        label_BT = adaptive(clip_BTD, mask_BT, threshold=config.threshold)
    else:
        label_BT = kmeans(clip_BTD, mask_BT, clusters=clusters)
    videos = zip(label_BT.tolist(), affinity_BT.tolist(), mask_BT.sum(1).tolist(), strict=True)
    return [
        keep_best(cut(label_T[:length], affinity_T[:length]), config.top_k)
        for label_T, affinity_T, length in videos
    ]


def cut(label_T: Sequence[int], affinity_T: Sequence[float]) -> list[Segment]:
    """Runs of equal labels, with their score (Eq. scoring).

    S = S_OT × S_len,   S_OT = mean affinity of the run,   S_len = log(1 + L)
    """
    segments, first = [], 0
    for label, run in itertools.groupby(label_T):
        length = sum(1 for _ in run)
        stop = first + length
        score = math.fsum(affinity_T[first:stop]) / length * math.log1p(length)
        segments.append(Segment(first=first, stop=stop, anchor=label, score=score))
        first = stop
    return segments


def keep_best(segments: Sequence[Segment], top_k: int) -> list[Segment]:
    """The same segments, `kept` set on the `top_k` best; all of them when there are fewer."""
    best = set(sorted(range(len(segments)), key=lambda n: -segments[n].score)[:top_k])
    return [replace(segment, kept=n in best) for n, segment in enumerate(segments)]


def ranked(segments: Sequence[Segment]) -> list[Segment]:
    """The kept segments, best first: the order of the retrieval tokens."""
    kept = (segment for segment in segments if segment.kept)
    return sorted(kept, key=lambda segment: -segment.score)


@torch.no_grad()
def pool(
    clip_BTD: Tensor, weight_BT: Tensor, segments: Sequence[Sequence[Segment]]
) -> tuple[Tensor, Tensor]:
    """Weighted mean of the unit features of each segment (Eq. sal-weight), and which rows are real.

        x̄_j = Σ w_n x_n / Σ w_n   over n in segment j

    Returns pooled_BSD and mask_BS, with S the largest count of the batch.
    """
    videos, frames, _ = clip_BTD.shape
    most = max((len(chosen) for chosen in segments), default=0)
    member_BST = torch.zeros(videos, most, frames, dtype=torch.bool)
    for video, chosen in enumerate(segments):
        for row, segment in enumerate(chosen):
            member_BST[video, row, segment.first : segment.stop] = True
    member_BST = member_BST.to(clip_BTD.device)
    weight_BST = member_BST * weight_BT[:, None]
    mask_BS = member_BST.any(-1)
    total_BS1 = weight_BST.sum(-1, keepdim=True) + ~mask_BS[..., None]
    return weight_BST @ F.normalize(clip_BTD, dim=-1) / total_BS1, mask_BS


def uniform(mask_BT: Tensor, count: int) -> Tensor:
    """Labels of `count` equal windows of each video; one per frame when it has fewer frames."""
    frame_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    length_B1 = mask_BT.sum(1, keepdim=True)
    return frame_T * length_B1.clamp(max=count) // length_B1


def adaptive(clip_BTD: Tensor, mask_BT: Tensor, *, threshold: float) -> Tensor:
    """A new label wherever neighbouring frames differ more than is usual in the video.

    The change is 1 − cosine; it cuts above its mean + `threshold` standard deviations.
    """
    clip_BTD = F.normalize(clip_BTD, dim=-1)
    change_BT = 1 - (clip_BTD[:, 1:] * clip_BTD[:, :-1]).sum(-1)
    mask_BT = mask_BT[:, 1:]
    count_B1 = mask_BT.sum(1, keepdim=True).clamp(min=1)
    mean_B1 = (change_BT * mask_BT).sum(1, keepdim=True) / count_B1
    centred_BT = (change_BT - mean_B1) * mask_BT
    deviation_B1 = (centred_BT.square().sum(1, keepdim=True) / count_B1).sqrt()
    cut_BT = (centred_BT > threshold * deviation_B1) & mask_BT
    return F.pad(cut_BT.long().cumsum(1), (1, 0))


def kmeans(clip_BTD: Tensor, mask_BT: Tensor, *, clusters: int) -> Tensor:
    """Labels of spherical k-means over a video's own frames.

    Centres start at the first frame and then, one by one, at the frame farthest from all centres
    so far: no random start, so the same video always has the same segments.
    """
    clip_BTD = F.normalize(clip_BTD, dim=-1) * mask_BT[..., None]
    centre_BKD = clip_BTD[:, :1]
    for _ in range(clusters - 1):
        nearest_BT = (clip_BTD @ centre_BKD.mT).amax(-1).masked_fill(~mask_BT, torch.inf)
        farthest_B11 = nearest_BT.argmin(1)[:, None, None]
        added_B1D = clip_BTD.gather(1, farthest_B11.expand(-1, 1, clip_BTD.shape[-1]))
        centre_BKD = torch.cat((centre_BKD, added_B1D), dim=1)
    for _ in range(LLOYD_STEPS):
        label_BT = (clip_BTD @ centre_BKD.mT).argmax(-1)
        member_BTK = F.one_hot(label_BT, clusters) * mask_BT[..., None]
        moved_BKD = F.normalize(member_BTK.mT.to(clip_BTD.dtype) @ clip_BTD, dim=-1)
        empty_BK1 = (member_BTK.sum(1) == 0)[..., None]
        centre_BKD = torch.where(empty_BK1, centre_BKD, moved_BKD)
    return (clip_BTD @ centre_BKD.mT).argmax(-1)
