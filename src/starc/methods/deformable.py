"""Deformable attention in one dimension over several time scales, and the transformer made of it.

A query looks at a few points of each level of a pyramid of frames instead of at all of them: from
its reference (a moment, or a centre and a length, as shares of the video) it goes a learned offset
and reads there, between two frames, by linear interpolation. Beyond the ends there are two ways:
"border" repeats the outermost frame, "zeros" reads nothing. Published PDVC does the former on a
processor and the latter on a GPU, where its released weights were trained.

Shapes: B videos, M positions of all levels in a row, T positions of one level, Q queries, D width,
H heads, E width of a head, L levels, P points, R = 1 (moment) or 2 (centre, length).
Parameters carry the names of the published files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Padding = Literal["border", "zeros"]


@dataclass(frozen=True, slots=True)
class Pyramid:
    """The levels of some videos, laid out one after the other."""

    value_BMD: Tensor
    padding_BM: Tensor
    """True where there is no frame."""
    sizes: tuple[int, ...]
    valid_BL: Tensor
    """Share of each level that is frames."""

    def scaled(self, reference_BQR: Tensor) -> Tensor:
        """References as shares of each level with its padding, [B, Q, L, R]."""
        return reference_BQR[:, :, None] * self.valid_BL[:, None, :, None]

    def first(self, levels: int) -> Pyramid:
        """The first few levels."""
        stop, sizes = sum(self.sizes[:levels]), self.sizes[:levels]
        return Pyramid(
            self.value_BMD[:, :stop], self.padding_BM[:, :stop], sizes, self.valid_BL[:, :levels]
        )


def sample(
    value_BMHE: Tensor, sizes: tuple[int, ...], at_BQHLP: Tensor, padding: Padding
) -> Tensor:
    """What stands at each place, [B, Q, H, L, P, E]; a place is a share of its level."""
    videos, _, heads, _ = value_BMHE.shape
    found = []
    for level, value_BTHE in enumerate(value_BMHE.split(sizes, dim=1)):
        # As pictures one pixel high, for torch's interpolation: [B·H, E, 1, T] read at [B·H, Q, P].
        pictures = value_BTHE.permute(0, 2, 3, 1).flatten(0, 1).unsqueeze(2)
        across = at_BQHLP[:, :, :, level].transpose(1, 2).flatten(0, 1) * 2 - 1
        grid = torch.stack((across, torch.zeros_like(across)), dim=-1)
        read = F.grid_sample(pictures, grid, padding_mode=padding, align_corners=False)
        found.append(read.unflatten(0, (videos, heads)).permute(0, 3, 1, 4, 2))
    return torch.stack(found, dim=3)


class DeformableAttention(nn.Module):
    """Queries read a pyramid at places they choose themselves."""

    def __init__(
        self,
        width: int,
        levels: int,
        heads: int,
        points: int,
        padding: Padding,
        query_width: int | None = None,
    ) -> None:
        super().__init__()
        self.shape = (heads, levels, points)
        self.padding: Padding = padding
        query_width = query_width or width
        self.sampling_offsets = nn.Linear(query_width, heads * levels * points)
        self.attention_weights = nn.Linear(query_width, heads * levels * points)
        self.value_proj = nn.Linear(width, width)
        self.output_proj = nn.Linear(width, width)

    def start(self, centred: bool = False) -> None:
        """The published start: every head looks its own way, point after point further out."""
        heads, levels, points = self.shape
        angle = torch.arange(heads) * (2 * math.pi / heads)
        way = angle.cos() / torch.maximum(angle.cos().abs(), angle.sin().abs())
        offset = way[:, None, None] * torch.arange(1.0, points + 1).expand(levels, points)
        if centred:
            offset = offset - offset.mean(2, keepdim=True)
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(offset.flatten())
        for layer in (self.sampling_offsets, self.attention_weights):
            nn.init.zeros_(layer.weight)
        for layer in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(layer.weight)
        for layer in (self.attention_weights, self.value_proj, self.output_proj):
            nn.init.zeros_(layer.bias)

    def values(self, pyramid: Pyramid) -> Tensor:
        """What there is to read, [B, M, H, E]; nothing where there is no frame."""
        value_BMD: Tensor = self.value_proj(pyramid.value_BMD)
        value_BMD = value_BMD.masked_fill(pyramid.padding_BM[..., None], 0.0)
        return value_BMD.unflatten(-1, (self.shape[0], -1))

    def read(
        self, query_BQD: Tensor, reference_BQLR: Tensor, value_BMHE: Tensor, sizes: tuple[int, ...]
    ) -> Tensor:
        """What the queries find at their points, [B, Q, H, L, P, E]."""
        offset_BQHLP = self.sampling_offsets(query_BQD).unflatten(-1, self.shape)
        reference = reference_BQLR[:, :, None, :, None]
        if reference.shape[-1] == 1:
            step = offset_BQHLP / torch.tensor(sizes, device=offset_BQHLP.device)[:, None]
        else:
            step = offset_BQHLP / self.shape[-1] * reference[..., 1] * 0.5
        return sample(value_BMHE, sizes, reference[..., 0] + step, self.padding)

    def forward(self, query_BQD: Tensor, reference_BQLR: Tensor, pyramid: Pyramid) -> Tensor:
        found = self.read(query_BQD, reference_BQLR, self.values(pyramid), pyramid.sizes)
        weight = self.attention_weights(query_BQD).unflatten(-1, (self.shape[0], -1)).softmax(-1)
        mixed_BQHE = (found.flatten(3, 4) * weight[..., None]).sum(3)
        output: Tensor = self.output_proj(mixed_BQHE.flatten(2))
        return output


class EncoderLayer(nn.Module):
    def __init__(self, width: int, hidden: int, dropout: float, attention: DeformableAttention):
        super().__init__()
        self.self_attn = attention
        self.norm1 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, hidden)
        self.linear2 = nn.Linear(hidden, width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x_BMD: Tensor, position_BMD: Tensor, reference: Tensor, frames: Pyramid
    ) -> Tensor:
        here = Pyramid(x_BMD, frames.padding_BM, frames.sizes, frames.valid_BL)
        read = self.self_attn(x_BMD + position_BMD, reference, here)
        x_BMD = self.norm1(x_BMD + self.dropout(read))
        forward = self.linear2(self.dropout(self.linear1(x_BMD).relu()))
        output: Tensor = self.norm2(x_BMD + self.dropout(forward))
        return output


class DecoderLayer(nn.Module):
    def __init__(
        self, width: int, hidden: int, heads: int, dropout: float, attention: DeformableAttention
    ) -> None:
        super().__init__()
        self.cross_attn = attention
        self.norm1 = nn.LayerNorm(width)
        self.self_attn = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, hidden)
        self.linear2 = nn.Linear(hidden, width)
        self.norm3 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x_BQD: Tensor,
        position_BQD: Tensor,
        reference_BQLR: Tensor,
        memory: Pyramid,
        absent_BQ: Tensor | None,
        text_BWD: Tensor | None,
    ) -> Tensor:
        place = x_BQD + position_BQD
        told, _ = self.self_attn(
            place, place, x_BQD, key_padding_mask=absent_BQ, need_weights=False
        )
        x_BQD = self.norm2(x_BQD + self.dropout(told))
        read = self.cross_attn(x_BQD + position_BQD, reference_BQLR, memory)
        x_BQD = self.norm1(x_BQD + self.dropout(read))
        if text_BWD is not None:
            x_BQD = self.with_text(x_BQD, text_BWD)
        forward = self.linear2(self.dropout(self.linear1(x_BQD).relu()))
        output: Tensor = self.norm3(x_BQD + self.dropout(forward))
        return output

    def with_text(self, x_BQD: Tensor, text_BWD: Tensor) -> Tensor:
        raise ValueError("this decoder reads no text")


def logit(share: Tensor) -> Tensor:
    """The inverse of the sigmoid, for shares kept 1e-5 away from 0 and 1."""
    share = share.clamp(0, 1)
    return (share.clamp(min=1e-5) / (1 - share).clamp(min=1e-5)).log()


class _Encoder(nn.Module):
    def __init__(self, layers: list[EncoderLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)


class _Decoder(nn.Module):
    bbox_head: nn.ModuleList | None

    def __init__(self, layers: list[DecoderLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.bbox_head = None
        """Refines the references after each layer; the same module as the model's."""


class DeformableTransformer(nn.Module):
    """Encoder over the pyramid, decoder over event queries."""

    def __init__(
        self, width: int, levels: int, encoder: list[EncoderLayer], decoder: list[DecoderLayer]
    ) -> None:
        super().__init__()
        self.level_embed = nn.Parameter(torch.empty(levels, width))
        self.encoder = _Encoder(encoder)
        self.decoder = _Decoder(decoder)
        self.pos_trans = nn.Linear(width, width * 2)
        self.pos_trans_norm = nn.LayerNorm(width * 2)
        self.reference_points = nn.Linear(width, 1)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for module in self.modules():
            if isinstance(module, DeformableAttention):
                module.start()
        nn.init.zeros_(self.reference_points.bias)
        nn.init.normal_(self.level_embed)

    def encode(self, frames: Pyramid, position_BMD: Tensor) -> Pyramid:
        """The same pyramid, each place knowing the others; positions without the level's own."""
        sizes, valid_BL = frames.sizes, frames.valid_BL
        levels = torch.tensor(
            [level for level, size in enumerate(sizes) for _ in range(size)],
            device=position_BMD.device,
        )
        moment_BM = torch.cat(
            [
                torch.linspace(0.5, size - 0.5, size, device=valid_BL.device)
                / (valid_BL[:, level, None] * size)
                for level, size in enumerate(sizes)
            ],
            dim=1,
        )
        reference = frames.scaled(moment_BM[..., None])
        position_BMD = position_BMD + self.level_embed[levels]
        x_BMD = frames.value_BMD
        for layer in self.encoder.layers:
            x_BMD = layer(x_BMD, position_BMD, reference, frames)
        return Pyramid(x_BMD, frames.padding_BM, sizes, valid_BL)

    def decode(
        self,
        x_BQD: Tensor,
        position_BQD: Tensor,
        reference_BQR: Tensor,
        memory: Pyramid,
        absent_BQ: Tensor | None = None,
        text_BWD: Tensor | None = None,
        refine: bool = True,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Each layer's queries, and the references: the first, then those after each layer."""
        states, references = [], [reference_BQR]
        for index, layer in enumerate(self.decoder.layers):
            scaled = memory.scaled(references[-1])
            x_BQD = layer(x_BQD, position_BQD, scaled, memory, absent_BQ, text_BWD)
            states.append(x_BQD)
            if refine and self.decoder.bbox_head is not None:
                change = self.decoder.bbox_head[index](x_BQD)
                references.append(moved(change, references[-1]).detach())
            else:
                references.append(references[-1])
        return states, references

    def proposal_queries(self, box_BQ2: Tensor) -> tuple[Tensor, Tensor]:
        """Positions and contents of queries that stand for given boxes."""
        width = self.pos_trans.in_features // 2
        place_BQD = sine(logit(box_BQ2).sigmoid() * (2 * math.pi), width).flatten(2)
        position, content = self.pos_trans_norm(self.pos_trans(place_BQD)).chunk(2, dim=-1)
        return position, content


def moved(change_BQ2: Tensor, reference_BQR: Tensor, length_too: bool = False) -> Tensor:
    """Boxes from references and what a head wants changed, in logits.

    A reference without a length moves the centre only; published evaluation adds it to the length
    as well (`length_too`), which shows in the first decoder layer.
    """
    start = logit(reference_BQR)
    if start.shape[-1] == 1:
        start = start.expand_as(change_BQ2) if length_too else F.pad(start, (0, 1))
    return (change_BQ2 + start).sigmoid()


def sine(angle: Tensor, width: int) -> Tensor:
    """Sines and cosines of an angle at `width` frequencies, in turns, as a new last axis."""
    index = torch.arange(width, dtype=torch.float32, device=angle.device)
    phase = angle[..., None] / 10000 ** (2 * (index // 2) / width)
    return torch.stack((phase[..., 0::2].sin(), phase[..., 1::2].cos()), dim=-1).flatten(-2)
