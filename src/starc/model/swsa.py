"""Sliding-window self-attention (SWSA): X in, refined X' out.

Attention without projections inside windows of several sizes, averaged where windows overlap, a
LayerNorm, a residual (paper, feature refinement; appendix, the three equations of SWSA). All
windows of all videos are one masked softmax between two batched products: windows that do not
overlap share a layer of the mask, so a size w at stride s needs only ceil(w / s) layers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from starc.config import SwsaConfig


class SlidingWindowAttention(nn.Module):
    """X' = X + LayerNorm(windowed attention of X). The norm owns the only parameters."""

    def __init__(self, width: int, config: SwsaConfig) -> None:
        super().__init__()
        self.config = config
        self.norm = nn.LayerNorm(width, eps=1e-5)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
        """Refine the frames; `mask_BT` None means that padding counts as video."""
        if mask_BT is None:
            mask_BT = x_BTD.new_ones(1, x_BTD.shape[1], dtype=torch.bool)
        window_BPT = windows(mask_BT, self.config)
        return x_BTD + self.norm(attend(x_BTD, window_BPT))  # type: ignore[no-any-return]


def windows(mask_BT: Tensor, config: SwsaConfig) -> Tensor:
    """The window that each frame lies in, per layer P of windows that do not overlap; -1 is none.

    Windows of size w start at 0, s, 2s, ... as long as they end inside the video or, with
    `partial`, until one reaches its end. So a video's windows depend on its own length only.
    """
    frame_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    length_B1 = mask_BT.sum(1, keepdim=True)
    layers = []
    for size, step in zip(config.sizes, config.steps(), strict=True):
        period = step * math.ceil(size / step)
        for first in range(0, period, step):
            start_T = first + (frame_T - first).div(period, rounding_mode="floor") * period
            inside_T = (start_T >= 0) & (frame_T - start_T < size)
            # A window is needed if the one before it on the same size stopped short of the end.
            whole_BT = start_T + size <= length_B1
            reach_BT = (start_T == 0) | (start_T - step + size < length_B1)
            used_BT = inside_T & mask_BT & (reach_BT if config.partial else whole_BT)
            layers.append(torch.where(used_BT, start_T, -1))
    return torch.stack(layers, dim=1)


def attend(x_BTD: Tensor, window_BPT: Tensor) -> Tensor:
    """Attention inside each window, averaged over the C_n windows that cover frame n.

        A = softmax(x xᵀ / √D) x  per window;  x̂_n = sum of A_n over windows / (C_n + 1e-6)

    A frame in no window gets zero.
    """
    score_BTT = x_BTD @ x_BTD.transpose(1, 2) / math.sqrt(x_BTD.shape[-1])
    covered_BPT = window_BPT >= 0
    together_BPTT = window_BPT[..., :, None] == window_BPT[..., None, :]
    # A row outside every window attends within its fellow outsiders and is then dropped: a row of
    # nothing but -inf would make NaN in the backward pass.
    weight_BPTT = score_BTT[:, None].masked_fill(~together_BPTT, -torch.inf).softmax(-1)
    weight_BTT = (weight_BPTT * covered_BPT[..., None]).sum(1)
    return weight_BTT @ x_BTD / (covered_BPT.sum(1)[..., None] + 1e-6)
