"""Saliency: refined frames in, one score per frame out, and the loss that teaches it.

The head compares each frame with an attention-pooled global feature (Eq. saliency). Labels come
from the events of the annotation, the loss is a listwise softmax over the frames of a video
(Eq. softmax-prob, Eq. video-loss). `prior` turns scores into p_s, the weight of a frame in SGSR.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from starc.types import Event

TINY = 1e-6
"""Added to denominators, as published."""


class AttentionPool(nn.Module):
    """One feature for a whole video: g = Σ a_n W_v y_n,  a = softmax(W_k y · q / temperature)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query_D = nn.Parameter(torch.randn(width))
        self.temperature = nn.Parameter(torch.tensor(10.0))
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)

    def forward(self, y_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
        """Pool over the real frames: [B, D]."""
        score_BT = self.key(y_BTD) @ self.query_D / self.temperature.clamp(min=1e-3)
        if mask_BT is not None:
            score_BT = score_BT.masked_fill(~mask_BT, -torch.inf)
        weight_B1T = score_BT.softmax(-1)[:, None]
        return (weight_B1T @ self.value(y_BTD))[:, 0]  # type: ignore[no-any-return]


class SaliencyHead(nn.Module):
    """P_s(x'_n) = (W1 x'_n + b1) · (W2 g + b2) / √D  (Eq. saliency; the biases are published)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pool = AttentionPool(width)
        self.frame = nn.Linear(width, width)
        self.video = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor, pooled_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
        """Scores [B, T] of the refined frames against the pool over `pooled_BTD`.

        The paper pools X' itself; the published model pools a second pass of X' through the
        temporal encoder but still scores X'.
        """
        video_BD1 = self.video(self.pool(pooled_BTD, mask_BT))[..., None]
        return (self.frame(x_BTD) @ video_BD1)[..., 0] / math.sqrt(x_BTD.shape[-1])  # type: ignore[no-any-return]


def prior(saliency_BT: Tensor, mask_BT: Tensor, *, standardise: bool) -> Tensor:
    """p_s in [0, 1]: sigmoid(P_s), or of P_s standardised over the video's frames (published)."""
    if standardise:
        count_B1 = mask_BT.sum(1, keepdim=True)
        mean_B1 = (saliency_BT * mask_BT).sum(1, keepdim=True) / count_B1
        centred_BT = (saliency_BT - mean_B1) * mask_BT
        # Unbiased, and zero for a video of one frame where the unbiased deviation is undefined.
        variance_B1 = centred_BT.square().sum(1, keepdim=True) / (count_B1 - 1).clamp(min=1)
        saliency_BT = centred_BT / (variance_B1.sqrt() + TINY)
    return saliency_BT.sigmoid() * mask_BT


def labels(events: Sequence[Event], *, duration: float, frames: int) -> Tensor:
    """Highlight labels H: 1 on frames floor(start/duration·F) up to ceil(end/duration·F).

    An event marks at least one frame. `frames` is the number of real frames
    (`saliency.align_labels`); the published code stretches labels over the padded length instead.
    """
    if not (math.isfinite(duration) and duration > 0):
        raise ValueError(f"duration must be positive, got {duration = }")
    salient_T = torch.zeros(frames, dtype=torch.bool)
    for event in events:
        first = min(max(math.floor(event.start / duration * frames), 0), frames - 1)
        stop = min(math.ceil(event.end / duration * frames), frames)
        salient_T[first : max(stop, first + 1)] = True
    return salient_T


def loss(saliency_BT: Tensor, salient_BT: Tensor, mask_BT: Tensor, *, temperature: float) -> Tensor:
    """Listwise saliency loss (Eq. softmax-prob, Eq. video-loss).

        L = - mean over salient frames t of  log softmax(saliency / temperature)[t]

    Padding takes no part. A video without salient frames adds nothing; the mean is over the
    others. The small terms are those of the published code.
    """
    salient_BT = salient_BT.bool() & mask_BT
    logit_BT = (saliency_BT / temperature).masked_fill(~mask_BT, -torch.inf)
    logit_BT = logit_BT - logit_BT.amax(1, keepdim=True).detach()
    log_p_BT = logit_BT - (logit_BT.exp().sum(1, keepdim=True) + TINY).log()
    chosen_BT = log_p_BT.masked_fill(~salient_BT, 0.0)
    loss_B = -chosen_BT.sum(1) / (salient_BT.sum(1) + TINY)
    counted_B = salient_BT.any(1)
    return (loss_B * counted_B).sum() / (counted_B.sum() + TINY)
