"""Temporal encoder: frame features in, frame features that know of each other out.

A pre-norm transformer over time with learned positions, as in Vid2Seq (paper, preliminaries). The
published model runs it twice: over the features, and over the refined features X' before they are
pooled (`saliency.second_pass`). Real frames come first in every row; padding follows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from starc.config import TemporalConfig


class TemporalBlock(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)).

    Attention has several heads and one matrix for query, key and value.
    """

    def __init__(self, width: int, config: TemporalConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(width, eps=1e-5)
        qkv, out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attention = nn.ModuleDict({"qkv": qkv, "out": out})
        self.feed_forward_norm = nn.LayerNorm(width, eps=1e-5)
        self.feed_forward_in = nn.Linear(width, config.feed_forward)
        self.feed_forward_out = nn.Linear(config.feed_forward, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, mask_B11T: Tensor | None) -> Tensor:
        """One layer of the encoder; frames attend to those that are real."""
        videos, frames, width = x_BTD.shape
        qkv_BTE = self.attention["qkv"](self.attention_norm(x_BTD))
        qkv_BT3HD = qkv_BTE.reshape(videos, frames, 3, self.heads, -1)
        query_BHTD, key_BHTD, value_BHTD = qkv_BT3HD.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout.p if self.training else 0.0
        read_BHTD = F.scaled_dot_product_attention(
            query_BHTD, key_BHTD, value_BHTD, attn_mask=mask_B11T, dropout_p=dropout
        )
        read_BTD = read_BHTD.transpose(1, 2).reshape(videos, frames, width)
        x_BTD = x_BTD + self.dropout(self.attention["out"](read_BTD))
        hidden_BTD = self.dropout(F.gelu(self.feed_forward_in(self.feed_forward_norm(x_BTD))))
        return x_BTD + self.dropout(self.feed_forward_out(hidden_BTD))  # type: ignore[no-any-return]


class TemporalEncoder(nn.Module):
    """Positions, blocks, and a last LayerNorm."""

    def __init__(self, width: int, config: TemporalConfig, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.position_1TD = nn.Parameter(torch.empty(1, config.positions, width))
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(TemporalBlock(width, config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(width, eps=1e-5)
        nn.init.trunc_normal_(self.position_1TD, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.normal_(module.bias, std=1e-6)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
        """Encode the frames; `mask_BT` None means that padding counts as video, as published."""
        x_BTD = self.dropout(x_BTD + self.positions(x_BTD.shape[1], mask_BT))
        mask_B11T = None if mask_BT is None else mask_BT[:, None, None, :]
        for block in self.blocks:
            if self.recompute and self.training and torch.is_grad_enabled():
                x_BTD = checkpoint(block, x_BTD, mask_B11T, use_reentrant=False)
            else:
                x_BTD = block(x_BTD, mask_B11T)
        return self.norm(x_BTD)  # type: ignore[no-any-return]

    def positions(self, frames: int, mask_BT: Tensor | None) -> Tensor:
        """The learned position of every frame.

        Without a mask the positions are stretched over the padded length (nearest neighbour, as
        published). With one, frame n has position n, and only a video longer than the positions
        has them stretched over its own length: how far a batch is padded does not matter.
        """
        known = self.position_1TD.shape[1]
        if mask_BT is None:
            if frames == known:
                return self.position_1TD
            return F.interpolate(self.position_1TD.transpose(1, 2), size=frames).transpose(1, 2)
        length_B1 = mask_BT.sum(1, keepdim=True)
        index_BT = torch.arange(frames, device=mask_BT.device) * known // length_B1.clamp(min=known)
        return self.position_1TD[0, index_BT.clamp(max=known - 1)]
