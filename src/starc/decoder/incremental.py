"""T5's decoder, one token at a time, for many hypotheses (beams) of each video.

In: the weights of `T5.decoder`, the memory of B videos, then one token per beam and step.
Out: logits of the next token. Two things make it cheap. The keys and values of the memory exist
once per video, whatever the number of beams. And no beam is ever copied: each step writes the keys
and values of its tokens into fresh slots, and a beam attends to the slots of its own ancestors;
choosing other beams only rearranges that small table. Here K is beams and S slots.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from starc.decoder.precision import PACKED_ROWS, fused_linear
from starc.decoder.t5 import T5

Linear = Callable[[Tensor], Tensor]

SLOT_STEPS = 32
"""Steps between two clearings of the slots that no living beam descends from."""
ALIGNMENT = 16
"""Products over slots and memory are padded to multiples of this: twice as fast on a CPU."""


class _Layer(NamedTuple):
    """The weights of one decoder layer, as functions, with q, k and v of a token in one product."""

    self_norm: Linear
    self_qkv: Linear
    self_out: Linear
    cross_norm: Linear
    cross_q: Linear
    cross_out: Linear
    norm: Linear
    up: Linear
    activation: Linear
    down: Linear


class _Fused(NamedTuple):
    """What was made of the weights of a decoder, and of which state of them."""

    layers: list[_Layer]
    output: Linear
    state: object
    weights: list[Tensor]
    """Held, so that no other tensor gets the address of one of them."""


_FUSED: WeakKeyDictionary[T5, _Fused] = WeakKeyDictionary()


def _fused(t5: T5, *, rows: int) -> _Fused:
    """Layers and output layer as functions; made again only when the weights have changed."""
    weights = [t5.table_VD, *t5.decoder.parameters(), *t5.decoder.buffers()]
    state = min(rows, PACKED_ROWS), t5.head, [
        (id(it), it.data_ptr(), it.dtype, 0 if it.is_inference() else it._version) for it in weights
    ]  # fmt: skip
    made = _FUSED.get(t5)
    if made is not None and made.state == state:
        return made
    fused, layers = partial(fused_linear, rows=rows), list[_Layer]()
    for block in t5.decoder.block:
        own, cross, feed = block.layer
        attention, memory, dense = own.SelfAttention, cross.EncDecAttention, feed.DenseReluDense
        layers.append(
            _Layer(
                own.layer_norm, fused([attention.q, attention.k, attention.v]),
                fused([attention.o]),
                cross.layer_norm, fused([memory.q]), fused([memory.o]),
                feed.layer_norm, fused([dense[name] for name in block.up]), block.act,
                fused([dense.wo]),
            )
        )  # fmt: skip
    output = fused([t5.head or t5.lm_head or t5.shared])
    _FUSED[t5] = made = _Fused(layers, output, state, weights)
    return made


class IncrementalDecoder:
    """The state of decoding B videos with K beams each; `step` after `step`, `choose` between.

    All tensors of heads are kept as [B·H, ...], keys with their width before the slots.
    """

    def __init__(self, t5: T5, memory_BMD: Tensor, memory_mask_BM: Tensor, *, beams: int) -> None:
        settings, device = t5.settings, memory_BMD.device
        self.settings, self.device = settings, device
        self.t5, self.videos, self.beams = t5, len(memory_BMD), beams
        self.heads, self.width = settings.heads, settings.head_width
        self.dtype = t5.shared.weight.dtype
        fused = _fused(t5, rows=self.videos * beams)
        self.layers, self.output = fused.layers, fused.output
        self._read_memory(memory_BMD, memory_mask_BM)
        self.steps = self.used = 0
        self.bias_HL = torch.empty(0)
        self.ancestor_BKS = torch.zeros(self.videos, beams, 0, dtype=torch.bool, device=device)
        self.position_BS = torch.zeros(self.videos, 0, dtype=torch.long, device=device)
        rows = self.videos * self.heads
        empty = torch.empty(rows, self.width, 0, dtype=self.dtype, device=device)
        self.keys = [empty for _ in self.layers]
        self.values = [empty.mT for _ in self.layers]

    def _read_memory(self, memory_BMD: Tensor, memory_mask_BM: Tensor) -> None:
        """Keys and values of the memory, once for all steps and beams of a video.

        Masked positions are left out: cross-attention has no positions, so order is free.
        """
        lengths = memory_mask_BM.sum(1)
        longest = -(-int(lengths.max()) // ALIGNMENT) * ALIGNMENT
        order_BM = memory_mask_BM.bool().argsort(dim=1, descending=True, stable=True)[:, :longest]
        real_BMD = memory_BMD.gather(1, order_BM[..., None].expand(-1, -1, memory_BMD.shape[2]))
        real_BMD = F.pad(real_BMD, (0, 0, 0, longest - real_BMD.shape[1])).to(self.dtype)
        beyond_BM = torch.arange(longest, device=lengths.device) >= lengths[:, None]
        real_BMD = real_BMD.masked_fill(beyond_BM[..., None], 0.0)
        bias_BM = beyond_BM.to(self.dtype).masked_fill(beyond_BM, float("-inf"))
        self.memory_bias_N1M = bias_BM[:, None].repeat_interleave(self.heads, dim=0)
        self.memory_keys, self.memory_values = [], []
        for block in self.t5.decoder.block:
            attention = block.layer[1].EncDecAttention
            self.memory_keys.append(self._split(attention.k(real_BMD)).mT.contiguous())
            self.memory_values.append(self._split(attention.v(real_BMD)).contiguous())

    def _split(self, x_BLE: Tensor) -> Tensor:
        """[B, L, H·d] -> [B·H, L, d]."""
        shape = (*x_BLE.shape[:2], self.heads, self.width)
        return x_BLE.view(shape).transpose(1, 2).reshape(-1, x_BLE.shape[1], self.width)

    def _attend(self, query_BKE: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """softmax(q k + bias) v as [B·K, H·d]; T5 folds the usual scale into its weights."""
        scores = torch.baddbmm(bias, self._split(query_BKE), keys)
        out = torch.bmm(scores.softmax(-1, dtype=torch.float32).to(values.dtype), values)
        out_BHKd = out.view(self.videos, self.heads, *out.shape[1:])
        return out_BHKd.transpose(1, 2).reshape(-1, self.heads * self.width)

    def step(self, token_BK: Tensor) -> Tensor:
        """Logits [B, K, V] of the tokens that follow, in float32."""
        if self.used + self.beams > self.position_BS.shape[1]:
            self._clear_slots()
        written = slice(self.used, self.used + self.beams)
        own_KK = torch.eye(self.beams, dtype=torch.bool, device=token_BK.device)
        self.ancestor_BKS[:, :, written] = own_KK
        self.position_BS[:, written] = self.steps
        self.used += self.beams
        # T5's bias of relative positions over the slots; -inf where no ancestor stands.
        if self.steps >= self.bias_HL.shape[-1]:
            behind_N = torch.arange(2 * self.steps + 64, device=token_BK.device)
            self.bias_HL = self.t5.decoder.distance_bias(behind_N)
        slots = -(-self.used // ALIGNMENT) * ALIGNMENT
        bias_HBS = self.bias_HL[:, self.steps - self.position_BS[:, :slots]]
        stranger_BKS = ~self.ancestor_BKS[..., :slots]
        bias_BHKS = bias_HBS.transpose(0, 1)[:, :, None].masked_fill(
            stranger_BKS[:, None], float("-inf")
        )
        bias_NKS = bias_BHKS.flatten(0, 1)
        x_BD = self.t5.shared(token_BK.reshape(-1))
        for index, layer in enumerate(self.layers):
            qkv_BKE = layer.self_qkv(layer.self_norm(x_BD)).view(self.videos, self.beams, -1)
            query_BKE, key_BKE, value_BKE = qkv_BKE.chunk(3, dim=2)
            keys, values = self.keys[index], self.values[index]
            keys[:, :, written] = self._split(key_BKE).mT
            values[:, written] = self._split(value_BKE)
            read = self._attend(query_BKE, keys[:, :, :slots], values[:, :slots], bias_NKS)
            x_BD = x_BD + layer.self_out(read)
            query_BKE = layer.cross_q(layer.cross_norm(x_BD)).view(self.videos, self.beams, -1)
            memory = self.memory_keys[index], self.memory_values[index]
            x_BD = x_BD + layer.cross_out(self._attend(query_BKE, *memory, self.memory_bias_N1M))
            x_BD = x_BD + layer.down(layer.activation(layer.up(layer.norm(x_BD))))
        states_BD = self.t5.decoder.final_layer_norm(x_BD) * self.t5.scale
        self.steps += 1
        return self.output(states_BD).float().view(self.videos, self.beams, -1)

    def choose(self, parent_BK: Tensor) -> None:
        """The beams of the next step continue these beams of the last one."""
        index_BKS = parent_BK[..., None].expand(-1, -1, self.ancestor_BKS.shape[2])
        self.ancestor_BKS = self.ancestor_BKS.gather(1, index_BKS)

    def keep(self, videos: Tensor) -> None:
        """Go on with these videos only (indices into the current ones)."""
        self.ancestor_BKS, self.position_BS = self.ancestor_BKS[videos], self.position_BS[videos]
        head_H = torch.arange(self.heads, device=videos.device)
        rows = (videos[:, None] * self.heads + head_H).view(-1)
        self.memory_bias_N1M = self.memory_bias_N1M[rows]
        for cache in (self.keys, self.values, self.memory_keys, self.memory_values):
            for index, tensor in enumerate(cache):
                cache[index] = tensor[rows]
        self.videos = len(videos)

    def _clear_slots(self) -> None:
        """Move the slots with living descendants to the front and make room for more steps.

        Beams soon share most of their past, so about one slot per step stays alive, not K.
        """
        alive_BS = self.ancestor_BKS[..., : self.used].any(1)
        kept = int(alive_BS.sum(1).max()) if self.used else 0
        order_BS = alive_BS.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :kept]
        room = -(-(kept + SLOT_STEPS * self.beams) // ALIGNMENT) * ALIGNMENT - kept
        order_BKS = order_BS[:, None].expand(-1, self.beams, -1)
        self.ancestor_BKS = F.pad(self.ancestor_BKS.gather(2, order_BKS), (0, room))
        self.position_BS = F.pad(self.position_BS.gather(1, order_BS), (0, room))
        order_NS = order_BS.repeat_interleave(self.heads, dim=0)
        order_NdS = order_NS[:, None].expand(-1, self.width, -1)
        order_NSd = order_NS[..., None].expand(-1, -1, self.width)
        for index in range(len(self.layers)):
            self.keys[index] = F.pad(self.keys[index].gather(2, order_NdS), (0, room))
            self.values[index] = F.pad(self.values[index].gather(1, order_NSd), (0, 0, 0, room))
        self.used = kept
