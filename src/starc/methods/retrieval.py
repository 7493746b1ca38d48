"""Memory retrieval of CM² (Kim et al., CVPR 2024): text for each window of a video.

Shapes: B videos, T frames, D width, W windows, K captions of a window, N captions in the bank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from starc.errors import DatastoreError
from starc.methods.settings import TextConfig


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Captions of each window by similarity, and the mean of their embeddings."""

    index_BWK: Tensor
    score_BWK: Tensor
    mean_BWD: Tensor


def retrieve(
    feature_BTD: Tensor, valid_BT: Tensor, bank_ND: Tensor, config: TextConfig, *, skip_best: bool
) -> Retrieved:
    """The captions of highest cosine to the mean feature of each window.

    Windows have equal length and the remainder of the frames is dropped. `skip_best` removes the
    single best caption of each window, as published training does.
    """
    if len(bank_ND) < config.captions + skip_best:
        raise DatastoreError(
            f"memory bank: {len(bank_ND)} captions, {config.captions + skip_best} are needed"
        )
    unit_ND = F.normalize(bank_ND, dim=1)
    indices, scores = [], []
    for feature_TD, valid_T in zip(feature_BTD, valid_BT, strict=True):
        frames_TD = feature_TD[valid_T]
        length = len(frames_TD) // config.windows
        if not length:
            raise DatastoreError(
                f"memory bank: {len(frames_TD)} frames for {config.windows} windows; "
                "give more frames, or lower text.windows"
            )
        windows = frames_TD[: length * config.windows].unflatten(0, (config.windows, length))
        score_WN = F.normalize(windows.mean(1), dim=1) @ unit_ND.mT
        if skip_best:
            score_WN = score_WN.scatter(1, score_WN.argmax(1, keepdim=True), -1.0)
        best = score_WN.topk(config.captions, dim=1)
        indices.append(best.indices)
        scores.append(best.values)
    index_BWK = torch.stack(indices)
    return Retrieved(index_BWK, torch.stack(scores), bank_ND[index_BWK].mean(2))


class Projection(nn.Module):
    """One layer of the published text projection."""

    def __init__(self, inputs: int, outputs: int, dropout: float, relu: bool) -> None:
        super().__init__()
        self.LayerNorm = nn.LayerNorm(inputs)
        self.net = nn.Sequential(nn.Dropout(dropout), nn.Linear(inputs, outputs))
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.net(self.LayerNorm(x))
        return output.relu() if self.relu else output


def projection(config: TextConfig, width: int) -> nn.Sequential:
    """Text embeddings to the width of the transformer."""
    return nn.Sequential(
        Projection(config.width, width, config.dropout, relu=True),
        Projection(width, width, config.dropout, relu=False),
    )
