"""T5 v1.0: the encoder reads the speech, the decoder writes events over the memory.

In: token ids and the decoder memory [video | saliency prompt | retrieval | speech] of the paper.
Out: encoded speech, the cross-entropy of a target, or decoder states. The stacks are in stack.py
and keep the names of checkpoints, so the published `t5_model.X` is our `X`. One table embeds both
vocabularies and is the output layer: text ids, then time ids. Decoding one token at a time lives in
incremental.py, searching in decoding.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from starc.config import T5Config
from starc.decoder.stack import Stack

PAD = 0
"""Padding, and the id with which the decoder starts."""
END = 1
"""End of a sequence."""
LOSS_TOKENS = 256
"""Target tokens whose logits exist at the same time: 33 MB at the full vocabulary."""
WASTE = 0.25
"""Speech is encoded in groups of similar length with at most this share of padding in a row."""


class T5(nn.Module):
    """The language model: `encode` for speech, `loss` for training, `decode` for states."""

    def __init__(self, settings: T5Config) -> None:
        super().__init__()
        self.settings = settings
        self.shared = nn.Embedding(settings.vocabulary, settings.width)
        nn.init.normal_(self.shared.weight)
        self.head: nn.Module | None = None
        """Output layer of a quantised model (precision.py); None: `shared` itself."""
        self.encoder = Stack(settings, decoder=False)
        self.decoder = Stack(settings, decoder=True)

    def encode(self, speech_BL: Tensor, speech_mask_BL: Tensor) -> Tensor:
        """Encoded speech [B, L, D]; rows of padding are zero.

        Videos of similar length go together and leave their common padding out, so that a video
        with little speech costs little beside a long one. A video without any real token is zero.
        """
        self._check_ids(speech_BL, "speech")
        lengths = _last(speech_mask_BL)
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        out_BLD = self.shared.weight.new_zeros((*speech_BL.shape, self.settings.width))
        for rows, longest in _groups(order, lengths):
            index = torch.tensor(rows, device=speech_BL.device)
            mask_BL = speech_mask_BL[index, :longest].bool()
            states_BLD = self.encoder(self.shared(speech_BL[index, :longest]), mask_BL)
            states_BLD = states_BLD.masked_fill(~mask_BL[..., None], 0.0)
            padded_BLD = F.pad(states_BLD, (0, 0, 0, speech_BL.shape[1] - longest))
            out_BLD = out_BLD.index_copy(0, index, padded_BLD.to(out_BLD.dtype))
        return out_BLD

    def decode(self, memory_BMD: Tensor, memory_mask_BM: Tensor, target_BL: Tensor) -> Tensor:
        """Decoder states [B, L, D] that predict each target token from those before it.

        They are scaled by D^-½ (T5 v1.0 with tied embeddings), ready for `logits`.
        """
        self.check_memory(memory_BMD, memory_mask_BM)
        self._check_ids(target_BL, "target")
        given_BL = F.pad(target_BL[:, :-1], (1, 0), value=PAD)
        memory_BMD = memory_BMD.to(self.shared.weight.dtype)
        states_BLD: Tensor = self.decoder(
            self.shared(given_BL), None, memory_BMD, memory_mask_BM.bool()
        )
        scale: float = self.settings.width**-0.5
        return states_BLD * scale

    def logits(self, states: Tensor) -> Tensor:
        """Scores of all V ids for scaled decoder states [..., D]."""
        if self.head is not None:
            scores: Tensor = self.head(states)
            return scores
        return F.linear(states, self.shared.weight)

    def loss(
        self,
        memory_BMD: Tensor,
        memory_mask_BM: Tensor,
        target_BL: Tensor,
        target_mask_BL: Tensor,
        *,
        label_smoothing: float,
    ) -> Tensor:
        """Cross-entropy, mean over real target tokens.

            L = - mean over tokens of  (1 - s) log p[token] + s/V Σ_v log p[v]

        The logits [B, L, V] never exist: tokens go through the output layer in chunks, which are
        computed again in the backward pass.
        """
        lengths = _last(target_mask_BL)
        longest = max(lengths, default=0)
        if not longest:
            raise ValueError("target: no real token in the batch; an empty target is [end id]")
        target_BL, real_BL = target_BL[:, :longest], target_mask_BL[:, :longest].bool()
        states_ND = self.decode(memory_BMD, memory_mask_BM, target_BL)[real_BL]
        target_N = target_BL[real_BL]
        total = states_ND.new_zeros((), dtype=torch.float32)
        for first in range(0, len(target_N), LOSS_TOKENS):
            chunk = slice(first, first + LOSS_TOKENS)
            total = total + checkpoint(
                _summed_cross_entropy,
                states_ND[chunk],
                self.shared.weight,
                target_N[chunk],
                label_smoothing,
                use_reentrant=False,
            )
        return total / len(target_N)

    @torch.no_grad()
    def rescale_time_embeddings(self) -> None:
        """Scale the time rows so that their mean norm equals that of the text rows.

        Called after every optimiser step: time ids are rare, so their rows would drift.
        """
        text = self.settings.text_vocabulary
        text_VD, time_VD = self.shared.weight[:text], self.shared.weight[text:]
        time_VD.mul_(text_VD.norm(dim=1).mean() / time_VD.norm(dim=1).mean())

    def check_memory(self, memory_BMD: Tensor, memory_mask_BM: Tensor) -> None:
        """Raise ValueError for a memory that the decoder cannot attend to."""
        width = self.settings.width
        if memory_BMD.dim() != 3 or memory_BMD.shape[2] != width:
            raise ValueError(f"memory must be [B, M, {width}], got {tuple(memory_BMD.shape)}")
        if memory_mask_BM.shape != memory_BMD.shape[:2]:
            raise ValueError(
                f"memory mask must be {tuple(memory_BMD.shape[:2])}, "
                f"got {tuple(memory_mask_BM.shape)}"
            )
        empty = (~memory_mask_BM.bool().any(1)).nonzero().flatten().tolist()
        if empty:
            raise ValueError(f"memory of video {empty[0]} in the batch is empty: nothing to attend")

    def _check_ids(self, ids_BL: Tensor, name: str) -> None:
        if ids_BL.numel() == 0:
            return
        low, high = (int(bound) for bound in ids_BL.aminmax())
        if low < 0 or high >= self.settings.vocabulary:
            raise ValueError(
                f"{name} ids must lie in [0, {self.settings.vocabulary}), "
                f"got {low} to {high}; does the tokenizer belong to this model?"
            )


def _summed_cross_entropy(
    states_ND: Tensor, weight_VD: Tensor, target_N: Tensor, label_smoothing: float
) -> Tensor:
    logits_NV = F.linear(states_ND, weight_VD).float()
    return F.cross_entropy(logits_NV, target_N, reduction="sum", label_smoothing=label_smoothing)


def _last(mask_BL: Tensor) -> list[int]:
    """Length of each row up to its last real token."""
    position_L = torch.arange(1, mask_BL.shape[1] + 1, device=mask_BL.device)
    lengths: list[int] = (mask_BL.bool() * position_L).amax(1).tolist() if mask_BL.numel() else []
    return lengths


def _groups(order: list[int], lengths: list[int]) -> list[tuple[list[int], int]]:
    """Rows from long to short, cut where padding would exceed WASTE of a row; empty rows out."""
    groups: list[tuple[list[int], int]] = []
    for row in order:
        if not lengths[row]:
            break
        if not groups or lengths[row] < (1 - WASTE) * groups[-1][1]:
            groups.append(([], lengths[row]))
        groups[-1][0].append(row)
    return groups
