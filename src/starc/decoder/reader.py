"""A Llama that reads many texts at once, each at its own pace, for inference.

In: the layers of a language model, then the next tokens of some texts, a paragraph of one and a
single word of another. Out: the state after the last token of each. The tokens of all texts go
through a matrix together, without padding; each text attends to its own keys. Matrices of the same
input are one, laid out for the processor (precision.py); the layers they come from are not kept.
They are made when the first text is read: a model that is asked to read nothing stays small.

Shapes: N tokens of all texts, G key/value heads, H width of a head, C tokens a text has room for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from starc.config import LlamaConfig
from starc.decoder.llama import Layer, Llama, Positions
from starc.decoder.precision import fused_linear

Linear = Callable[[Tensor], Tensor]
ROWS = 16
"""Tokens for which matrices are laid out; others are as fast."""


class _Layer(NamedTuple):
    """One layer as functions."""

    norm: Linear
    qkv: Linear
    out: Linear
    feed_norm: Linear
    gate_up: Linear
    down: Linear

    @classmethod
    def of(cls, layer: Layer) -> _Layer:
        own, feed = layer.self_attn, layer.mlp
        return cls(
            layer.input_layernorm,
            fused_linear([own.q_proj, own.k_proj, own.v_proj], rows=ROWS),
            fused_linear([own.o_proj], rows=ROWS),
            layer.post_attention_layernorm,
            fused_linear([feed.gate_proj, feed.up_proj], rows=ROWS),
            fused_linear([feed.down_proj], rows=ROWS),
        )


class Text:
    """Keys and values [layers, G, C, H] of what was read of one text."""

    def __init__(self, reader: Reader, capacity: int) -> None:
        settings = reader.settings
        shape = (settings.layers, settings.key_value_heads, capacity, settings.head_width)
        self.keys, self.values = (reader.table_VD.new_empty(shape) for _ in range(2))
        self.length = 0


class _Part(NamedTuple):
    """The tokens of one text among all that are read."""

    text: Text
    here: slice
    there: slice
    """Their places in the text."""
    visible_QC: Tensor | None
    """Which keys each query may see, if not all; queries of the same key head one after another."""


class Reader:
    """A language model ready to read; low-rank changes must be merged before."""

    def __init__(
        self, settings: LlamaConfig, table_VD: Tensor, layers: Iterable[Layer], norm: Linear
    ) -> None:
        self.settings, self.norm = settings, norm
        self.table_VD = table_VD.detach()
        """Embeddings, which also score the words."""
        self._given: Iterable[Layer] = layers
        self._layers: list[_Layer] | None = None
        self._opening = threading.Lock()

    @classmethod
    def of(cls, llama: Llama) -> Reader:
        """From a whole model, as it is now."""
        stack = llama.model
        reader = cls(llama.settings, stack.embed_tokens.weight, stack.layers, stack.norm)  # type: ignore[arg-type]
        reader.layers  # noqa: B018
        return reader

    @property
    def layers(self) -> list[_Layer]:
        """The layers, laid out when they are first asked for."""
        with self._opening:
            if self._layers is None:
                self._layers = [_Layer.of(layer) for layer in self._given]
                self._given = ()
            return self._layers

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.table_VD.device

    @torch.inference_mode()
    def read(self, texts: Sequence[Text], given: Sequence[Sequence[int]]) -> Tensor:
        """Read the next ids of each text, at least one; states after the last ones [texts, D]."""
        parts, first = list[_Part](), 0
        for text, ids in zip(texts, given, strict=True):
            there = slice(text.length, text.length + len(ids))
            here = slice(first, first + len(ids))
            parts.append(_Part(text, here, there, self._visible(there)))
            text.length, first = there.stop, here.stop
        states_ND = self._through([one for ids in given for one in ids], parts, len(self.layers))
        return self.norm(states_ND[[part.here.stop - 1 for part in parts]])

    @torch.inference_mode()
    def first_layers(self, ids: Sequence[int], layers: int) -> Tensor:
        """States [N, D] of a text of its own after so many layers, without a norm."""
        whole = slice(0, len(ids))
        part = _Part(Text(self, len(ids)), whole, whole, self._visible(whole))
        return self._through(ids, [part], layers)

    def logits(self, states: Tensor) -> Tensor:
        """Scores of all words for states [..., D], in float32."""
        return F.linear(states, self.table_VD).float()

    def _visible(self, there: slice) -> Tensor | None:
        if there.stop - there.start == 1:
            return None
        place_C = torch.arange(there.stop, device=self.device)
        shared = self.settings.heads // self.settings.key_value_heads
        return (place_C <= place_C[there, None]).repeat(shared, 1)

    def _through(self, ids: Sequence[int], parts: Sequence[_Part], layers: int) -> Tensor:
        places = [place for part in parts for place in range(part.there.start, part.there.stop)]
        positions = Positions(self.settings, torch.tensor([places], device=self.device), None)
        x_ND = F.embedding(torch.tensor(ids, device=self.device), self.table_VD)
        for n, layer in enumerate(self.layers[:layers]):
            x_ND = x_ND + layer.out(self._attend(n, layer.qkv(layer.norm(x_ND)), positions, parts))
            gate_NF, up_NF = layer.gate_up(layer.feed_norm(x_ND)).chunk(2, dim=-1)
            x_ND = x_ND + layer.down(F.silu(gate_NF) * up_NF)
        return x_ND

    def _attend(
        self, n: int, qkv_NE: Tensor, positions: Positions, parts: Sequence[_Part]
    ) -> Tensor:
        settings = self.settings
        groups, width = settings.key_value_heads, settings.head_width
        qkv_ANH = qkv_NE.view(len(qkv_NE), -1, width).transpose(0, 1)
        turned_ANH = positions.rotate(qkv_ANH[None, :-groups])[0]
        query_ANH, key_GNH = turned_ANH.tensor_split([settings.heads])
        value_GNH = qkv_ANH[-groups:]
        read_NE = qkv_NE.new_empty(len(qkv_NE), settings.heads * width)
        for text, here, there, visible_QC in parts:
            text.keys[n, :, there], text.values[n, :, there] = key_GNH[:, here], value_GNH[:, here]
            # Heads that share keys are more queries of one head: nothing is copied.
            out_1GQH = F.scaled_dot_product_attention(
                query_ANH[:, here].reshape(1, groups, -1, width),
                text.keys[None, n, :, : there.stop],
                text.values[None, n, :, : there.stop],
                attn_mask=visible_QC,
            )
            out_ALH = out_1GQH.view(settings.heads, -1, width)
            read_NE[here] = out_ALH.transpose(0, 1).flatten(1)
        return read_NE
