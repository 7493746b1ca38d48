"""Deformable attention over a temporal feature pyramid, and the transformer built from it.

A query attends to a few sampling points on each level of a feature pyramid instead of to all
frames. Sampling points are learned offsets from the query's reference (a centre, or a centre and a
length, normalised to [0, 1]); values between two frames are interpolated linearly. Outside the
video, padding "border" repeats the outermost frame and "zeros" gives zeros. Published PDVC uses
"border" on the CPU and "zeros" in its CUDA operator, with which the released weights were trained.

Shapes: B videos, M positions of all levels concatenated, T positions of one level, Q queries,
D width, H heads, E width of a head, L levels, P points, W text vectors, R = 1 (centre) or 2
(centre, length). Parameter names are the published ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from starc.methods.settings import Padding


@dataclass(frozen=True, slots=True)
class Pyramid:
    """Levels of a feature pyramid, concatenated."""

    value_BMD: Tensor
    padding_BM: Tensor
    """True on padding."""
    sizes: tuple[int, ...]
    valid_BL: Tensor
    """Fraction of each level that is not padding."""

    def scaled(self, reference_BQR: Tensor) -> Tensor:
        """References relative to the padded length of each level, [B, Q, L, R]."""
        return reference_BQR[:, :, None] * self.valid_BL[:, None, :, None]

    def first(self, levels: int) -> Pyramid:
        """The first `levels` levels."""
        stop, sizes = sum(self.sizes[:levels]), self.sizes[:levels]
        return Pyramid(
            self.value_BMD[:, :stop], self.padding_BM[:, :stop], sizes, self.valid_BL[:, :levels]
        )

    def video(self, index: int) -> Pyramid:
        """The pyramid of one video, with a batch axis."""
        one = slice(index, index + 1)
        return Pyramid(self.value_BMD[one], self.padding_BM[one], self.sizes, self.valid_BL[one])


def sample(
    value_BMHE: Tensor, sizes: tuple[int, ...], at_BQHLP: Tensor, padding: Padding
) -> Tensor:
    """Values interpolated at normalised locations, [B, H, E, Q, L·P]."""
    sampled = []
    for level, value_BTHE in enumerate(value_BMHE.split_with_sizes(sizes, dim=1)):
        # As images one pixel high, [B·H, E, 1, T], sampled at a grid [B·H, Q, P, 2].
        image = value_BTHE.permute(0, 2, 3, 1).flatten(0, 1).unsqueeze(2)
        x = at_BQHLP[:, :, :, level].transpose(1, 2).flatten(0, 1) * 2 - 1
        grid = torch.stack((x, torch.zeros_like(x)), dim=-1)
        sampled.append(F.grid_sample(image, grid, padding_mode=padding, align_corners=False))
    videos, heads = at_BQHLP.shape[0], at_BQHLP.shape[2]
    return torch.unflatten(torch.stack(sampled, dim=-2).flatten(-2), 0, (videos, heads))


class DeformableAttention(nn.Module):
    """Multi-scale deformable attention in one dimension."""

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

    def reset_parameters(self, centred: bool = False) -> None:
        """Published initialisation: each head has its own direction, points at growing distance."""
        heads, levels, points = self.shape
        angle = torch.arange(heads) * (2 * math.pi / heads)
        direction = angle.cos() / torch.maximum(angle.cos().abs(), angle.sin().abs())
        offset = direction[:, None, None] * torch.arange(1.0, points + 1).expand(levels, points)
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
        """Projected values by head, [B, M, H, E]; zero on padding."""
        value_BMD: Tensor = self.value_proj(pyramid.value_BMD)
        value_BMD = value_BMD.masked_fill(pyramid.padding_BM[..., None], 0.0)
        return torch.unflatten(value_BMD, -1, (self.shape[0], -1))

    def sample(
        self, query_BQD: Tensor, reference_BQLR: Tensor, value_BMHE: Tensor, sizes: tuple[int, ...]
    ) -> Tensor:
        """Values at the sampling points of each query, [B, H, E, Q, L·P]."""
        offset_BQHLP = self.sampling_offsets(query_BQD).unflatten(-1, self.shape)
        reference = reference_BQLR[:, :, None, :, None]
        if reference.shape[-1] == 1:
            offset_BQHLP = offset_BQHLP / torch.tensor(sizes, device=offset_BQHLP.device)[:, None]
        else:
            offset_BQHLP = offset_BQHLP / self.shape[-1] * reference[..., 1] * 0.5
        return sample(value_BMHE, sizes, reference[..., 0] + offset_BQHLP, self.padding)

    def forward(self, query_BQD: Tensor, reference_BQLR: Tensor, pyramid: Pyramid) -> Tensor:
        sampled = self.sample(query_BQD, reference_BQLR, self.values(pyramid), pyramid.sizes)
        weight = self.attention_weights(query_BQD).unflatten(-1, (self.shape[0], -1)).softmax(-1)
        mixed_BHEQ = (sampled * weight.transpose(1, 2).unsqueeze(2)).sum(-1)
        output: Tensor = self.output_proj(mixed_BHEQ.flatten(1, 2).mT)
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
        attended = self.self_attn(x_BMD + position_BMD, reference, replace(frames, value_BMD=x_BMD))
        x_BMD = self.norm1(x_BMD + self.dropout(attended))
        hidden = self.linear2(self.dropout(self.linear1(x_BMD).relu()))
        output: Tensor = self.norm2(x_BMD + self.dropout(hidden))
        return output


class TextAttention(nn.Module):
    """Cross-attention of CM² from event queries to retrieved text."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.proj = nn.Linear(width, width)

    def forward(self, x_BQD: Tensor, text_BWD: Tensor) -> Tensor:
        query, key, value = (
            layer(source).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, source in ((self.q, x_BQD), (self.k, text_BWD), (self.v, text_BWD))
        )
        weight = (query @ key.mT * query.shape[-1] ** -0.5).softmax(dim=-1)
        attended = weight @ value
        output: Tensor = self.proj(attended.transpose(1, 2).flatten(2))
        return output


class DecoderLayer(nn.Module):
    """Self-attention, deformable cross-attention, attention to text if there is any, MLP."""

    def __init__(
        self,
        width: int,
        hidden: int,
        heads: int,
        dropout: float,
        attention: DeformableAttention,
        text: bool = False,
        text_first: bool = False,
    ) -> None:
        super().__init__()
        self.cross_attn = attention
        self.norm1 = nn.LayerNorm(width)
        self.self_attn = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, hidden)
        self.linear2 = nn.Linear(hidden, width)
        self.norm3 = nn.LayerNorm(width)
        self.text_cross = TextAttention(width, heads) if text else None
        self.text_first = text_first
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
        key = x_BQD + position_BQD
        attended, _ = self.self_attn(key, key, x_BQD, key_padding_mask=absent_BQ)
        x_BQD = self.norm2(x_BQD + self.dropout(attended))
        if self.text_first:
            x_BQD = self._with_text(x_BQD, text_BWD)
        attended = self.cross_attn(x_BQD + position_BQD, reference_BQLR, memory)
        x_BQD = self.norm1(x_BQD + self.dropout(attended))
        if not self.text_first:
            x_BQD = self._with_text(x_BQD, text_BWD)
        hidden = self.linear2(self.dropout(self.linear1(x_BQD).relu()))
        output: Tensor = self.norm3(x_BQD + self.dropout(hidden))
        return output

    def _with_text(self, x_BQD: Tensor, text_BWD: Tensor | None) -> Tensor:
        """Normalised by norm1 again, as published; the norm_t of CM² files is never used."""
        if self.text_cross is None or text_BWD is None:
            return x_BQD
        output: Tensor = self.norm1(x_BQD + self.dropout(self.text_cross(x_BQD, text_BWD)))
        return output


def logit(x: Tensor) -> Tensor:
    """Inverse sigmoid; numerator and denominator are at least 1e-5."""
    x = x.clamp(0, 1)
    return (x.clamp(min=1e-5) / (1 - x).clamp(min=1e-5)).log()


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
        """Refines the references after each layer; shared with the model."""


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
                module.reset_parameters()
        nn.init.zeros_(self.reference_points.bias)
        nn.init.normal_(self.level_embed)

    def encode(self, frames: Pyramid, position_BMD: Tensor) -> Pyramid:
        """The encoded pyramid; level embeddings are added to `position_BMD` here."""
        sizes, valid_BL = frames.sizes, frames.valid_BL
        levels = torch.tensor(
            [level for level, size in enumerate(sizes) for _ in range(size)],
            device=position_BMD.device,
        )
        centre_BM = torch.cat(
            [
                torch.linspace(0.5, size - 0.5, size, device=valid_BL.device)
                / (valid_BL[:, level, None] * size)
                for level, size in enumerate(sizes)
            ],
            dim=1,
        )
        reference = frames.scaled(centre_BM[..., None])
        position_BMD = position_BMD + self.level_embed[levels]
        x_BMD = frames.value_BMD
        for layer in self.encoder.layers:
            x_BMD = layer(x_BMD, position_BMD, reference, frames)
        return replace(frames, value_BMD=x_BMD)

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
        """Queries after each layer; references before the first layer and after each layer."""
        states, references = [], [reference_BQR]
        for index, layer in enumerate(self.decoder.layers):
            scaled = memory.scaled(references[-1])
            x_BQD = layer(x_BQD, position_BQD, scaled, memory, absent_BQ, text_BWD)
            states.append(x_BQD)
            if refine and self.decoder.bbox_head is not None:
                delta = self.decoder.bbox_head[index](x_BQD)
                references.append(refine_boxes(delta, references[-1]).detach())
            else:
                references.append(references[-1])
        return states, references

    def proposal_queries(self, box_BQ2: Tensor) -> tuple[Tensor, Tensor]:
        """Positions and contents of queries made from given boxes."""
        width = self.pos_trans.in_features // 2
        embedded_BQD = sine(logit(box_BQ2).sigmoid() * (2 * math.pi), width).flatten(2)
        position, content = self.pos_trans_norm(self.pos_trans(embedded_BQD)).chunk(2, dim=-1)
        return position, content


def refine_boxes(delta_BQ2: Tensor, reference_BQR: Tensor, length_too: bool = False) -> Tensor:
    """Boxes from references and predicted changes, added as logits.

    A reference without a length changes the centre only. The published evaluation adds it to the
    length as well (`length_too`), which affects the first decoder layer.
    """
    reference = logit(reference_BQR)
    if reference.shape[-1] == 1:
        reference = reference.expand_as(delta_BQ2) if length_too else F.pad(reference, (0, 1))
    return (delta_BQ2 + reference).sigmoid()


def sine(angle: Tensor, width: int) -> Tensor:
    """Sine and cosine embedding of an angle, alternating, as a new last axis of size `width`."""
    index = torch.arange(width, dtype=torch.float32, device=angle.device)
    phase = angle[..., None] / 10000 ** (2 * (index // 2) / width)
    return torch.stack((phase[..., 0::2].sin(), phase[..., 1::2].cos()), dim=-1).flatten(-2)
