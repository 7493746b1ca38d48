"""T5: the encoder reads the speech, the decoder writes events over the memory.

In: token ids and the decoder memory [video | saliency prompt | retrieval | speech] of the paper.
Out: encoded speech, the cross-entropy of a target, or decoder states. One table embeds both
vocabularies and is the output layer: text ids, then time ids. Decoding one token at a time lives in
incremental.py, searching in beam_search.py.

The stacks keep the parameter names of T5's checkpoints (those in capitals), so the published
`t5_model.X` is our `X`. Pre-norm layers without biases, no scale in the attention, one table of
relative positions per stack, held by its first layer:

    x + Attention(norm x)   [x + Attention(norm x, memory)]   x + W_o act(W_i norm x)

T5 v1.1 ("gated-gelu") multiplies act(W_i0 norm x) by W_i1 norm x, and has an output layer of its
own, whose states are not scaled.

Written here because importing transformers' own takes longer than captioning a minute of video; the
tests hold it against them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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
        """Output layer of a quantised model (precision.py); None: `lm_head` or `shared` itself."""
        self.lm_head: nn.Module | None = None
        if settings.gated:
            self.lm_head = _linear(settings.width, settings.vocabulary, settings.width**-0.5)
        self.encoder = Stack(settings, decoder=False)
        self.decoder = Stack(settings, decoder=True)

    def encode(self, speech_BL: Tensor, speech_mask_BL: Tensor) -> Tensor:
        """Encoded speech [B, L, D]; rows of padding are zero.

        Videos of similar length go together and leave their common padding out, so that a video
        with little speech costs little beside a long one. A video without any real token is zero.
        """
        self._check_ids(speech_BL, "speech")
        place_L = torch.arange(1, speech_BL.shape[1] + 1, device=speech_BL.device)
        lengths: list[int] = []  # of each row up to its last real token
        if speech_BL.numel():
            lengths = (speech_mask_BL.bool() * place_L).amax(1).tolist()
        groups: list[list[int]] = []
        for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
            if not groups or lengths[row] < (1 - WASTE) * lengths[groups[-1][0]]:
                groups.append([])
            groups[-1].append(row)
        out_BLD = self.shared.weight.new_zeros((*speech_BL.shape, self.settings.width))
        for group in groups:
            longest, index = lengths[group[0]], torch.tensor(group, device=speech_BL.device)
            if not longest:
                break
            mask_BL = speech_mask_BL[index, :longest].bool()
            states_BLD = self.encoder(self.shared(speech_BL[index, :longest]), mask_BL)
            states_BLD = states_BLD.masked_fill(~mask_BL[..., None], 0.0)
            padded_BLD = F.pad(states_BLD, (0, 0, 0, speech_BL.shape[1] - longest))
            out_BLD = out_BLD.index_copy(0, index, padded_BLD.to(out_BLD.dtype))
        return out_BLD

    def decode(self, memory_BMD: Tensor, memory_mask_BM: Tensor, target_BL: Tensor) -> Tensor:
        """Decoder states [B, L, D] that predict each target token from those before it.

        They are scaled, ready for `logits`.
        """
        self.check_memory(memory_BMD, memory_mask_BM)
        self._check_ids(target_BL, "target")
        given_BL = F.pad(target_BL[:, :-1], (1, 0), value=PAD)
        memory_BMD = memory_BMD.to(self.shared.weight.dtype)
        states_BLD: Tensor = self.decoder(
            self.shared(given_BL), None, memory_BMD, memory_mask_BM.bool()
        )
        return states_BLD * self.scale

    @property
    def scale(self) -> float:
        """Of decoder states: D^-½ where the embeddings are tied (v1.0)."""
        return 1.0 if self.settings.gated else float(self.settings.width**-0.5)

    @property
    def table_VD(self) -> Tensor:
        """Weights of the output layer."""
        layer = self.shared if self.lm_head is None else self.lm_head
        return layer.weight  # type: ignore[return-value]

    def logits(self, states: Tensor) -> Tensor:
        """Scores of all V ids for scaled decoder states [..., D]."""
        if self.head is None:
            return F.linear(states, self.table_VD)
        return self.head(states)  # type: ignore[no-any-return]

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
        used = target_mask_BL.bool().any(0).nonzero()
        if not len(used):
            raise ValueError("target: no real token in the batch; an empty target is [end id]")
        longest = int(used[-1]) + 1
        target_BL, real_BL = target_BL[:, :longest], target_mask_BL[:, :longest].bool()
        states_ND = self.decode(memory_BMD, memory_mask_BM, target_BL)[real_BL]
        return chunked_loss(states_ND, target_BL[real_BL], self.table_VD, label_smoothing)

    @torch.no_grad()
    def rescale_time_embeddings(self) -> None:
        """Scale the time rows so that their mean norm equals that of the text rows.

        Called after every optimiser step: time ids are rare, so their rows would drift.
        """
        text = self.settings.text_vocabulary
        for table_VD in (self.shared.weight, *([self.table_VD] if self.settings.gated else ())):
            text_VD, time_VD = table_VD[:text], table_VD[text:]
            time_VD.mul_(text_VD.norm(dim=1).mean() / time_VD.norm(dim=1).mean())

    def check_memory(self, memory_BMD: Tensor, memory_mask_BM: Tensor) -> None:
        """Raise ValueError for a memory that the decoder cannot attend to."""
        require_memory(memory_BMD, memory_mask_BM, self.settings.width)

    def _check_ids(self, ids_BL: Tensor, name: str) -> None:
        low, high = (int(bound) for bound in ids_BL.aminmax()) if ids_BL.numel() else (0, 0)
        if low < 0 or high >= self.settings.vocabulary:
            raise ValueError(
                f"{name} ids must lie in [0, {self.settings.vocabulary}), "
                f"got {low} to {high}; does the tokenizer belong to this model?"
            )


def require_memory(memory_BMD: Tensor, memory_mask_BM: Tensor, width: int) -> None:
    """Raise ValueError for a memory that no decoder of this width can read."""
    if memory_BMD.dim() != 3 or memory_BMD.shape[2] != width:
        raise ValueError(f"memory must be [B, M, {width}], got {tuple(memory_BMD.shape)}")
    if memory_mask_BM.shape != memory_BMD.shape[:2]:
        raise ValueError(
            f"memory mask must be {tuple(memory_BMD.shape[:2])}, got {tuple(memory_mask_BM.shape)}"
        )
    empty = (~memory_mask_BM.bool().any(1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"memory of video {empty[0]} in the batch is empty: nothing to attend")


def chunked_loss(
    states_ND: Tensor, target_N: Tensor, table_VD: Tensor, label_smoothing: float
) -> Tensor:
    """Cross-entropy, mean over N tokens; logits exist for some tokens at a time only."""

    def summed(states_ND: Tensor, target_N: Tensor) -> Tensor:
        logits_NV = F.linear(states_ND, table_VD).float()
        return F.cross_entropy(
            logits_NV, target_N, reduction="sum", label_smoothing=label_smoothing
        )

    total = states_ND.new_zeros((), dtype=torch.float32)
    for first in range(0, len(target_N), LOSS_TOKENS):
        chunk = slice(first, first + LOSS_TOKENS)
        total += checkpoint(summed, states_ND[chunk], target_N[chunk], use_reentrant=False)
    return total / len(target_N)


class Stack(nn.Module):
    """The encoder, or with `decoder` the decoder, whose tokens see the past and the memory."""

    def __init__(self, settings: T5Config, *, decoder: bool) -> None:
        super().__init__()
        self.causal, self.reach = decoder, settings.relative_distance
        self.recompute = settings.recompute
        layers = settings.decoder_layers if decoder else settings.layers
        self.block: Any = nn.ModuleList(
            T5Block(settings, decoder=decoder, first=n == 0) for n in range(layers)
        )
        self.final_layer_norm = nn.RMSNorm(settings.width, EPSILON)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(
        self,
        x_BLD: Tensor,
        mask_BL: Tensor | None = None,
        memory_BMD: Tensor | None = None,
        memory_mask_BM: Tensor | None = None,
    ) -> Tensor:
        """States of the tokens; False in a mask hides a token or a place of the memory."""
        length = x_BLD.shape[1]
        place_L = torch.arange(length, device=x_BLD.device)
        behind_LL = place_L[:, None] - place_L
        bias_HN = self.distance_bias(torch.arange(1 - length, length, device=x_BLD.device))
        bias = bias_HN[:, behind_LL + length - 1].to(x_BLD.dtype)[None]
        if self.causal:
            bias = bias.masked_fill(behind_LL < 0, float("-inf"))
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

    def distance_bias(self, behind_N: Tensor) -> Tensor:
        """Bias [H, N] of each head for keys so many tokens behind the query.

        The nearest distances have a row of the table each, farther ones share rows on a logarithmic
        scale up to `reach`, and all beyond it the last. The encoder looks both ways and has half of
        the rows for each.
        """
        table: nn.Embedding = self.block[0].layer[0].SelfAttention.relative_attention_bias
        if self.causal:
            buckets = table.num_embeddings
            first_N, away_N = torch.zeros_like(behind_N), behind_N.clamp(min=0)
        else:
            buckets = table.num_embeddings // 2
            first_N, away_N = (behind_N < 0) * buckets, behind_N.abs()
        single = buckets // 2
        # In float32 and in this order: where the buckets end is part of the weights' meaning.
        octave_N = (away_N.clamp(min=1).float() / single).log() / math.log(self.reach / single)
        shared_N = single + (octave_N * (buckets - single)).long()
        bucket_N = torch.where(away_N < single, away_N, shared_N.clamp(max=buckets - 1))
        bias_NH: Tensor = table(first_N + bucket_N)
        return bias_NH.T


class T5Block(nn.Module):
    """One layer of a stack: its two or three steps, in order, under `layer`."""

    def __init__(self, settings: T5Config, *, decoder: bool, first: bool) -> None:
        super().__init__()
        width, inner = settings.width, settings.feed_forward
        name = settings.feed_forward_activation.removeprefix("gated-")
        if name not in ACTIVATIONS:
            raise ConfigError(
                f"t5.feed_forward_activation: {settings.feed_forward_activation!r:.60} is not one "
                f"of {', '.join(ACTIVATIONS)}"
            )
        act = ACTIVATIONS["gelu_new" if settings.gated and name == "gelu" else name]
        self.act = (lambda x: act(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]) if settings.gated else act
        self.up = ("wi_0", "wi_1") if settings.gated else ("wi",)
        """Names of the layers whose outputs, side by side, the activation takes."""
        self.dropout = nn.Dropout(settings.dropout)
        steps: dict[str, nn.Module] = {"SelfAttention": Attention(settings, positions=first)}
        if decoder:
            steps["EncDecAttention"] = Attention(settings, positions=False)
        dense = {up: _linear(width, inner, width**-0.5) for up in self.up}
        steps["DenseReluDense"] = nn.ModuleDict(dense | {"wo": _linear(inner, width, inner**-0.5)})
        self.layer: Any = nn.ModuleList(
            nn.ModuleDict({name: step, "layer_norm": nn.RMSNorm(width, EPSILON)})
            for name, step in steps.items()
        )

    def forward(
        self, x_BLD: Tensor, bias: Tensor, memory_BMD: Tensor | None, seen_B11M: Tensor | None
    ) -> Tensor:
        own, feed = self.layer[0], self.layer[-1]
        normed_BLD = own.layer_norm(x_BLD)
        x_BLD = x_BLD + self.dropout(own.SelfAttention(normed_BLD, normed_BLD, bias))
        if memory_BMD is not None:
            cross = self.layer[1]
            read_BLD = cross.EncDecAttention(cross.layer_norm(x_BLD), memory_BMD, seen_B11M)
            x_BLD = x_BLD + self.dropout(read_BLD)
        dense = feed.DenseReluDense
        normed_BLD = feed.layer_norm(x_BLD)
        raised = [dense[name](normed_BLD) for name in self.up]
        hidden_BLF = self.dropout(
            self.act(raised[0] if len(raised) == 1 else torch.cat(raised, -1))
        )
        return x_BLD + self.dropout(dense.wo(hidden_BLF))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """softmax(q k + bias) v over several heads; T5 folds the usual scale into its weights."""

    def __init__(self, settings: T5Config, *, positions: bool) -> None:
        super().__init__()
        width, inner = settings.width, settings.heads * settings.head_width
        self.heads, chosen = settings.heads, settings.attention_dropout
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
        read_BHLd = F.scaled_dot_product_attention(
            query, key, value, bias, self.dropout if self.training else 0.0, scale=1.0
        )
        out_BLD: Tensor = self.o(read_BHLd.transpose(1, 2).flatten(2))
        return out_BLD


def _linear(inputs: int, outputs: int, deviation: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=deviation)
    return layer
