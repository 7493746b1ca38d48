"""T5 v1.0: the encoder reads the speech, the decoder writes events over the memory.

In: token ids and the decoder memory [video | saliency prompt | retrieval | speech] of the paper.
Out: encoded speech, the cross-entropy of a target, or decoder states. One table embeds both
vocabularies and is the output layer: text ids, then time ids. Decoding one token at a time lives in
incremental.py, searching in beam_search.py.

The stacks below `T5` keep the parameter names of T5's checkpoints, so the published `t5_model.X` is
our `X` (names in capitals are theirs). Pre-norm layers without biases, no scale in the attention,
one table of relative positions per stack, held by its first layer:

    x + Attention(norm x)   [x + Attention(norm x, memory)]   x + W_o act(W_i norm x)

Written here because importing transformers' own takes longer than captioning a minute of video; the
tests hold it against them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from starc.config import T5Config
from starc.errors import ConfigError

PAD = 0
"""Padding, and the id with which the decoder starts."""
END = 1
"""End of a sequence."""
LOSS_TOKENS = 256
"""Target tokens whose logits exist at the same time: 33 MB at the full vocabulary."""
WASTE = 0.25
"""Speech is encoded in groups of similar length with at most this share of padding in a row."""
EPSILON = 1e-6
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


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


class Stack(nn.Module):
    """The encoder, or with `decoder` the decoder, whose tokens see the past and the memory."""

    def __init__(self, settings: T5Config, *, decoder: bool) -> None:
        super().__init__()
        self.recompute = settings.recompute
        layers = settings.decoder_layers if decoder else settings.layers
        self.block = nn.ModuleList(
            Block(settings, decoder=decoder, first=n == 0) for n in range(layers)
        )
        self.final_layer_norm = Norm(settings.width)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(
        self,
        x_BLD: Tensor,
        mask_BL: Tensor | None = None,
        memory_BMD: Tensor | None = None,
        memory_mask_BM: Tensor | None = None,
    ) -> Tensor:
        """States of the tokens; False in a mask hides a token or a place of the memory."""
        bias = self.positions(x_BLD.shape[1]).to(x_BLD.dtype)
        if mask_BL is not None:
            bias = bias.masked_fill(~mask_BL[:, None, None], float("-inf"))
        seen_B11M = None if memory_mask_BM is None else memory_mask_BM[:, None, None]
        x_BLD = self.dropout(x_BLD)
        for block in self.block:
            if self.recompute and self.training:
                x_BLD = checkpoint(block, x_BLD, bias, memory_BMD, seen_B11M, use_reentrant=False)
            else:
                x_BLD = block(x_BLD, bias, memory_BMD, seen_B11M)
        states_BLD: Tensor = self.dropout(self.final_layer_norm(x_BLD))
        return states_BLD

    @property
    def first_attention(self) -> Attention:
        """The attention that holds the table of positions."""
        return cast(OwnAttention, cast(Block, self.block[0]).layer[0]).SelfAttention

    def positions(self, length: int) -> Tensor:
        """Bias [1, H, L, L] of every pair of tokens; -inf where the decoder must not look."""
        attention = self.first_attention
        place_L = torch.arange(length, device=self.final_layer_norm.weight.device)
        behind_LL = place_L[:, None] - place_L
        bias_HN = attention.distance_bias(torch.arange(1 - length, length, device=place_L.device))
        bias_HLL: Tensor = bias_HN[:, behind_LL + length - 1]
        if attention.causal:
            bias_HLL = bias_HLL.masked_fill(behind_LL < 0, float("-inf"))
        return bias_HLL[None]


class Block(nn.Module):
    """One layer of a stack: its two or three steps, in order, under `layer`."""

    def __init__(self, settings: T5Config, *, decoder: bool, first: bool) -> None:
        super().__init__()
        steps: list[nn.Module] = [OwnAttention(settings, causal=decoder, positions=first)]
        if decoder:
            steps.append(MemoryAttention(settings))
        self.layer = nn.ModuleList([*steps, FeedForward(settings)])

    def forward(
        self, x_BLD: Tensor, bias: Tensor, memory_BMD: Tensor | None, seen_B11M: Tensor | None
    ) -> Tensor:
        x_BLD = self.layer[0](x_BLD, bias)
        if memory_BMD is not None:
            x_BLD = self.layer[1](x_BLD, memory_BMD, seen_B11M)
        out_BLD: Tensor = self.layer[-1](x_BLD)
        return out_BLD


class OwnAttention(nn.Module):
    """x + Attention(norm x)."""

    def __init__(self, settings: T5Config, *, causal: bool, positions: bool) -> None:
        super().__init__()
        self.SelfAttention = Attention(settings, causal=causal, positions=positions)
        self.layer_norm = Norm(settings.width)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x_BLD: Tensor, bias: Tensor) -> Tensor:
        normed_BLD = self.layer_norm(x_BLD)
        out_BLD: Tensor = x_BLD + self.dropout(self.SelfAttention(normed_BLD, normed_BLD, bias))
        return out_BLD


class MemoryAttention(nn.Module):
    """x + Attention(norm x, memory)."""

    def __init__(self, settings: T5Config) -> None:
        super().__init__()
        self.EncDecAttention = Attention(settings, causal=False, positions=False)
        self.layer_norm = Norm(settings.width)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x_BLD: Tensor, memory_BMD: Tensor, seen_B11M: Tensor | None) -> Tensor:
        found_BLD = self.EncDecAttention(self.layer_norm(x_BLD), memory_BMD, seen_B11M)
        out_BLD: Tensor = x_BLD + self.dropout(found_BLD)
        return out_BLD


class FeedForward(nn.Module):
    """x + W_o act(W_i norm x)."""

    def __init__(self, settings: T5Config) -> None:
        super().__init__()
        self.DenseReluDense = Dense(settings)
        self.layer_norm = Norm(settings.width)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        out_BLD: Tensor = x_BLD + self.dropout(self.DenseReluDense(self.layer_norm(x_BLD)))
        return out_BLD


class Dense(nn.Module):
    """W_o act(W_i x)."""

    def __init__(self, settings: T5Config) -> None:
        super().__init__()
        self.wi = _linear(settings.width, settings.feed_forward, settings.width**-0.5)
        self.wo = _linear(settings.feed_forward, settings.width, settings.feed_forward**-0.5)
        self.dropout = nn.Dropout(settings.dropout)
        if settings.feed_forward_activation not in ACTIVATIONS:
            raise ConfigError(
                f"t5.feed_forward_activation: {settings.feed_forward_activation!r} is not one of "
                f"{', '.join(ACTIVATIONS)}"
            )
        self.act = ACTIVATIONS[settings.feed_forward_activation]

    def forward(self, x_BLD: Tensor) -> Tensor:
        out_BLD: Tensor = self.wo(self.dropout(self.act(self.wi(x_BLD))))
        return out_BLD


class Attention(nn.Module):
    """softmax(q k + bias) v over several heads; T5 folds the usual scale into its weights."""

    def __init__(self, settings: T5Config, *, causal: bool, positions: bool) -> None:
        super().__init__()
        width, inner = settings.width, settings.heads * settings.head_width
        self.heads, self.causal, self.reach = settings.heads, causal, settings.relative_distance
        chosen = settings.attention_dropout
        self.dropout = settings.dropout if chosen is None else chosen
        self.q = _linear(width, inner, (width * settings.head_width) ** -0.5)
        self.k, self.v = (_linear(width, inner, width**-0.5) for _ in range(2))
        self.o = _linear(inner, width, inner**-0.5)
        if positions:
            self.relative_attention_bias = nn.Embedding(settings.relative_buckets, settings.heads)
            nn.init.normal_(self.relative_attention_bias.weight, std=width**-0.5)

    def forward(self, x_BLD: Tensor, given_BMD: Tensor, bias: Tensor | None) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q(x_BLD), self.k(given_BMD), self.v(given_BMD))
        )
        found_BHLd = F.scaled_dot_product_attention(
            query, key, value, bias, self.dropout if self.training else 0.0, scale=1.0
        )
        out_BLD: Tensor = self.o(found_BHLd.transpose(1, 2).flatten(2))
        return out_BLD

    def distance_bias(self, behind_N: Tensor) -> Tensor:
        """Bias [H, N] of each head for keys so many tokens behind the query."""
        bucket_N = _bucket(
            behind_N, self.relative_attention_bias.num_embeddings, self.reach, past=self.causal
        )
        bias_NH: Tensor = self.relative_attention_bias(bucket_N)
        return bias_NH.T


class Norm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, EPSILON)


def _bucket(behind_N: Tensor, buckets: int, reach: int, *, past: bool) -> Tensor:
    """The row of the position table for a distance.

    The nearest distances have a row each, farther ones share rows on a logarithmic scale up to
    `reach`, and all beyond it the last. Where both directions exist, each has half of the rows.
    """
    if past:
        first_N, away_N = torch.zeros_like(behind_N), behind_N.clamp(min=0)
    else:
        buckets //= 2
        first_N, away_N = (behind_N < 0) * buckets, behind_N.abs()
    single = buckets // 2
    # In float32 and in this order: where the buckets end is part of the weights' meaning.
    octave_N = (away_N.clamp(min=1).float() / single).log() / math.log(reach / single)
    shared_N = single + (octave_N * (buckets - single)).long()
    return first_N + torch.where(away_N < single, away_N, shared_N.clamp(max=buckets - 1))


def _linear(inputs: int, outputs: int, deviation: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=deviation)
    return layer
