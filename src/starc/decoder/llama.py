"""Llama-family language models: as STaRC's decoder, and under the caption writer.

RMSNorm, rotary positions, grouped keys and values, SwiGLU, tied embeddings; parameters bear the
names of transformers' LlamaForCausalLM and give its numbers (tests/decoder/test_llama.py).

    x + Attention(norm x)    x + W_down (silu(W_gate norm x) · W_up norm x)

`Llama` reads embeddings, with or without a `Cache` of what was read before. Rows are padded on the
right: causality keeps padding out of every real state, so no mask is needed. `CausalDecoder` is
STaRC's: T_in is the prefix, events follow in the same ids as T5's. Ids are padding, end and
unknown, then the model's own text ids, then sentinels and times; all but the text are rows of our
own (`added`), times starting from their digits. With `lora` the pretrained weights stay as they are
and each matrix W becomes W + B A.

Shapes: G key/value heads, H width of a head, C tokens a cache holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from starc.config import SPECIAL_IDS, LlamaConfig
from starc.decoder.t5 import PAD, chunked_loss, require_memory

GROWTH = 64
"""Tokens by which a full cache grows."""


@dataclass
class Cache:
    """Keys and values of the tokens read so far, row by row; beyond `length_B` undefined."""

    key: list[Tensor] = field(repr=False)
    value: list[Tensor] = field(repr=False)
    length_B: Tensor

    @classmethod
    def empty(cls, settings: LlamaConfig, rows: int, like: Tensor, capacity: int = 0) -> Cache:
        """Room for `capacity` tokens in each row; it grows when needed."""
        shape = (rows, settings.key_value_heads, capacity, settings.head_width)
        key, value = (
            [like.new_zeros(shape) for _ in range(settings.layers)] for _ in ("key", "value")
        )
        return cls(key, value, torch.zeros(rows, dtype=torch.long, device=like.device))

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` tokens in each row."""
        if (missing := tokens - self.key[0].shape[2]) > 0:
            room = (0, 0, 0, missing + GROWTH)
            self.key = [F.pad(key, room) for key in self.key]
            self.value = [F.pad(value, room) for value in self.value]

    def select(self, row_R: Tensor) -> None:
        """Keep these rows, in this order; a row may be taken twice."""
        self.key = [key[row_R] for key in self.key]
        self.value = [value[row_R] for value in self.value]
        self.length_B = self.length_B[row_R]


class Positions:
    """Positions of the tokens at hand: their rotations, and which keys each may see."""

    def __init__(self, settings: LlamaConfig, position_BL: Tensor, keys: int | None) -> None:
        pair_H = torch.arange(0, settings.head_width, 2, device=position_BL.device).float()
        speed_H = settings.rope_base ** (-pair_H / settings.head_width)
        angle_BLH = position_BL[..., None].float() * speed_H
        angle_B1LH = torch.cat([angle_BLH, angle_BLH], dim=-1)[:, None]
        self.cos_B1LH, self.sin_B1LH = angle_B1LH.cos(), angle_B1LH.sin()
        self.position_BL, self.keys = position_BL, keys
        self.visible_B1LC = None
        if keys is not None:
            key_C = torch.arange(keys, device=position_BL.device)
            self.visible_B1LC = (key_C <= position_BL[..., None])[:, None]

    def rotate(self, x_BNLH: Tensor) -> Tensor:
        """Rotary position embedding: the halves of a head turn against each other."""
        first, second = x_BNLH.chunk(2, dim=-1)
        turned_BNLH = torch.cat([-second, first], dim=-1)
        return (x_BNLH * self.cos_B1LH + turned_BNLH * self.sin_B1LH).to(x_BNLH.dtype)


class RMSNorm(nn.Module):
    """x / rms(x) · weight."""

    def __init__(self, settings: LlamaConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(settings.width))
        self.epsilon = settings.norm_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class LoRALinear(nn.Linear):
    """W x, or with a rank (W + B A) x of which only A and B learn."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.lora_A = self.lora_B = None
        if rank:
            self.lora_A = nn.Parameter(torch.empty(rank, inputs))
            nn.init.normal_(self.lora_A, std=inputs**-0.5)
            self.lora_B = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        if self.lora_A is None or self.lora_B is None:
            return y
        return y + F.linear(F.linear(x, self.lora_A), self.lora_B)

    @torch.no_grad()
    def merge(self) -> None:
        """Put B A into W."""
        if self.lora_A is not None and self.lora_B is not None:
            self.weight.addmm_(self.lora_B, self.lora_A)
            self.lora_A = self.lora_B = None


class Attention(nn.Module):
    """Causal self-attention; several query heads share a key head."""

    def __init__(self, settings: LlamaConfig, rank: int) -> None:
        super().__init__()
        self.head_width = settings.head_width
        wide = settings.heads * settings.head_width
        narrow = settings.key_value_heads * settings.head_width
        self.q_proj = LoRALinear(settings.width, wide, rank)
        self.k_proj = LoRALinear(settings.width, narrow, rank)
        self.v_proj = LoRALinear(settings.width, narrow, rank)
        self.o_proj = LoRALinear(wide, settings.width, rank)

    def forward(
        self, x_BLD: Tensor, positions: Positions, cache: Cache | None, layer: int
    ) -> Tensor:
        query_BNLH = positions.rotate(self._heads(self.q_proj(x_BLD)))
        key_BGLH = positions.rotate(self._heads(self.k_proj(x_BLD)))
        value_BGLH = self._heads(self.v_proj(x_BLD))
        if cache is not None:
            index = positions.position_BL[:, None, :, None].expand_as(key_BGLH)
            cache.key[layer].scatter_(2, index, key_BGLH)
            cache.value[layer].scatter_(2, index, value_BGLH)
            key_BGLH = cache.key[layer][:, :, : positions.keys]
            value_BGLH = cache.value[layer][:, :, : positions.keys]
        out_BNLH = F.scaled_dot_product_attention(
            query_BNLH,
            key_BGLH,
            value_BGLH,
            attn_mask=positions.visible_B1LC,
            is_causal=cache is None,
            enable_gqa=True,
        )
        joined_BLD: Tensor = self.o_proj(out_BNLH.transpose(1, 2).flatten(2))
        return joined_BLD

    def _heads(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.view(*x_BLD.shape[:2], -1, self.head_width).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, settings: LlamaConfig, rank: int) -> None:
        super().__init__()
        self.gate_proj = LoRALinear(settings.width, settings.feed_forward, rank)
        self.up_proj = LoRALinear(settings.width, settings.feed_forward, rank)
        self.down_proj = LoRALinear(settings.feed_forward, settings.width, rank)

    def forward(self, x_BLD: Tensor) -> Tensor:
        out_BLD: Tensor = self.down_proj(F.silu(self.gate_proj(x_BLD)) * self.up_proj(x_BLD))
        return out_BLD


class Layer(nn.Module):
    """Attention and feed-forward."""

    def __init__(self, settings: LlamaConfig, rank: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(settings)
        self.self_attn = Attention(settings, rank)
        self.post_attention_layernorm = RMSNorm(settings)
        self.mlp = FeedForward(settings, rank)

    def forward(
        self, x_BLD: Tensor, positions: Positions, cache: Cache | None, layer: int
    ) -> Tensor:
        x_BLD = x_BLD + self.self_attn(self.input_layernorm(x_BLD), positions, cache, layer)
        out_BLD: Tensor = x_BLD + self.mlp(self.post_attention_layernorm(x_BLD))
        return out_BLD


class Stack(nn.Module):
    """Embeddings, layers and the last norm (`model.` of the hub)."""

    def __init__(self, settings: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(settings.words, settings.width)
        ranks = [settings.lora * (n >= settings.lora_from) for n in range(settings.layers)]
        self.layers = nn.ModuleList(Layer(settings, rank) for rank in ranks)
        self.norm = RMSNorm(settings)


class Llama(nn.Module):
    """The language model: `forward` gives states, `logits` scores them."""

    def __init__(self, settings: LlamaConfig) -> None:
        super().__init__()
        self.settings = settings
        self.model = Stack(settings)
        nn.init.normal_(self.model.embed_tokens.weight, std=settings.width**-0.5)
        if settings.lora:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_("lora_" in name)

    def embed(self, token_BL: Tensor) -> Tensor:
        """Token embeddings, to be joined with others or given back as they are."""
        embedded: Tensor = self.model.embed_tokens(token_BL)
        return embedded

    def forward(
        self, x_BLD: Tensor, cache: Cache | None = None, length_B: Tensor | None = None
    ) -> Tensor:
        """States after the last norm of embeddings padded on the right.

        With a cache the embeddings go on where each of its rows stands; `length_B` says how many
        of them are real (all, unless said).
        """
        rows, tokens = x_BLD.shape[:2]
        position_BL = torch.arange(tokens, device=x_BLD.device).expand(rows, -1)
        keys = None
        if cache is not None:
            position_BL = position_BL + cache.length_B[:, None]
            keys = int(position_BL.max()) + 1
            cache.reserve(keys)
        positions = Positions(self.settings, position_BL, keys)
        for n, layer in enumerate(self.model.layers):
            if self.training and self.settings.recompute and cache is None:
                x_BLD = checkpoint(layer, x_BLD, positions, None, n, use_reentrant=False)
            else:
                x_BLD = layer(x_BLD, positions, cache, n)
        if cache is not None:
            cache.length_B = cache.length_B + (tokens if length_B is None else length_B)
        states_BLD: Tensor = self.model.norm(x_BLD)
        return states_BLD

    def logits(self, states: Tensor) -> Tensor:
        """Scores of all text ids for states [..., D]."""
        return F.linear(states, self.model.embed_tokens.weight)


def merge(part: nn.Module) -> None:
    """Put all low-rank changes of a model or a layer into its weights."""
    for module in part.modules():
        if isinstance(module, LoRALinear):
            module.merge()


class CausalDecoder(nn.Module):
    """STaRC's decoder with T_in as prefix; the same calls as `T5`."""

    def __init__(self, settings: LlamaConfig) -> None:
        super().__init__()
        self.settings = settings
        self.llama = Llama(settings)
        self.added = nn.Embedding(settings.vocabulary - settings.words, settings.width)
        """Rows that the language model does not bring: three special ids, sentinels, times."""
        nn.init.normal_(self.added.weight, std=settings.width**-0.5)

    @property
    def table_VD(self) -> Tensor:
        """The embeddings of all ids, which also score them."""
        before_VD, after_VD = self.added.weight.tensor_split([SPECIAL_IDS])
        return torch.cat([before_VD, self.llama.model.embed_tokens.weight, after_VD])

    def encode(self, speech_BL: Tensor, speech_mask_BL: Tensor) -> Tensor:
        """Speech as its own tokens [B, L, D]; rows of padding are zero."""
        speech_BLD = F.embedding(speech_BL, self.table_VD)
        return speech_BLD.masked_fill(~speech_mask_BL.bool()[..., None], 0.0)

    def loss(
        self,
        memory_BMD: Tensor,
        memory_mask_BM: Tensor,
        target_BL: Tensor,
        target_mask_BL: Tensor,
        *,
        label_smoothing: float,
    ) -> Tensor:
        """Cross-entropy of target ids after the prefix, mean over real target tokens."""
        self.check_memory(memory_BMD, memory_mask_BM)
        table_VD, real_BL = self.table_VD, target_mask_BL.bool()
        given_BL = F.pad(target_BL[:, :-1], (1, 0), value=PAD)
        rows, wanted = [], []
        for memory_MD, mask_M, given_L, real_L in zip(
            memory_BMD, memory_mask_BM.bool(), given_BL, real_BL, strict=True
        ):
            prefix_MD, said_LD = memory_MD[mask_M], F.embedding(given_L[real_L], table_VD)
            rows.append(torch.cat([prefix_MD.to(said_LD.dtype), said_LD]))
            wanted.append(slice(len(prefix_MD), len(rows[-1])))
        states_BLD = self.llama(pad_sequence(rows, batch_first=True))
        states_ND = torch.cat([row[some] for row, some in zip(states_BLD, wanted, strict=True)])
        return chunked_loss(states_ND, target_BL[real_BL], table_VD, label_smoothing)

    @torch.no_grad()
    def start_times_from_digits(self, digits: Callable[[str], Sequence[int]]) -> None:
        """Each time row becomes the mean of its number's digits, the others the mean of all words.

        `digits` gives the text ids, as the language model counts them, of a number.
        """
        words_VD = self.llama.model.embed_tokens.weight
        self.added.weight.mul_(0.1).add_(words_VD.mean(0))
        first = len(self.added.weight) - self.settings.bins
        for bin_ in range(self.settings.bins):
            self.added.weight[first + bin_] = words_VD[list(digits(str(bin_)))].mean(0)

    @torch.no_grad()
    def rescale_time_embeddings(self) -> None:
        """Scale the time rows so that their mean norm equals that of the text rows."""
        time_VD = self.added.weight[-self.settings.bins :]
        words_VD = self.llama.model.embed_tokens.weight
        time_VD.mul_(words_VD.norm(dim=1).mean() / time_VD.norm(dim=1).mean())

    def check_memory(self, memory_BMD: Tensor, memory_mask_BM: Tensor) -> None:
        """Raise ValueError for a prefix that cannot be read."""
        require_memory(memory_BMD, memory_mask_BM, self.settings.width)


class CausalSteps:
    """Decoding B videos with K beams each, after one reading of the prefix."""

    def __init__(
        self, decoder: CausalDecoder, memory_BMD: Tensor, memory_mask_BM: Tensor, *, beams: int
    ) -> None:
        self.decoder, self.settings = decoder, decoder.settings
        self.videos, self.beams, self.device = len(memory_BMD), beams, memory_BMD.device
        self.table_VD = decoder.table_VD
        prefix = [row[mask] for row, mask in zip(memory_BMD, memory_mask_BM.bool(), strict=True)]
        length_B = torch.tensor([len(row) for row in prefix], device=self.device)
        prefix_BMD = pad_sequence(prefix, batch_first=True).to(self.table_VD.dtype)
        self.cache = Cache.empty(self.settings, self.videos, prefix_BMD, prefix_BMD.shape[1])
        decoder.llama(prefix_BMD, self.cache, length_B)
        self.cache.select(torch.arange(self.videos).repeat_interleave(beams).to(self.device))

    def step(self, token_BK: Tensor) -> Tensor:
        """Logits [B, K, V] of the tokens that follow, in float32."""
        x_N1D = F.embedding(token_BK.reshape(-1, 1), self.table_VD)
        states_ND = self.decoder.llama(x_N1D, self.cache)[:, 0]
        logits_NV = F.linear(states_ND, self.table_VD).float()
        return logits_NV.view(self.videos, self.beams, -1)

    def choose(self, parent_BK: Tensor) -> None:
        """The beams of the next step continue these beams of the last one."""
        first_B1 = torch.arange(self.videos, device=self.device)[:, None] * self.beams
        self.cache.select((first_B1 + parent_BK).view(-1))

    def keep(self, videos: Tensor) -> None:
        """Go on with these videos only (indices into the current ones)."""
        beam_K = torch.arange(self.beams, device=self.device)
        self.cache.select((videos[:, None] * self.beams + beam_K).view(-1))
        self.videos = len(videos)
