"""The settings of PDVC and its children: sizes off the weights, the rest from published options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from starc.errors import CheckpointError
from starc.methods.deformable import Padding
from starc.methods.matching import Costs


@dataclass(frozen=True, slots=True)
class PdvcConfig:
    """The sizes are in the weights; what leaves no trace there is in the published options."""

    features: int
    width: int
    feed_forward: int
    levels: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    encoder_points: int
    decoder_points: int
    queries: int
    classes: int
    most_events: int
    vocabulary: int
    words: int
    rnn: int
    rnn_layers: int
    captioner: Literal["standard", "light"]
    caption_attention: int = 0
    caption_heads: int = 1
    caption_levels: int = 4
    caption_points: int = 4
    shared_captioner: bool = True
    refine: bool = True
    longest_caption: int = 30
    frames: int | None = None
    """Features are resampled to this many; None: they are taken as they are."""
    sentence_weight: float = 0.3
    """Of the sentence's score beside the event's when events are ranked (ec_alpha)."""
    dropout: float = 0.1
    caption_dropout: float = 0.5
    costs: Costs = field(default_factory=Costs)
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the losses, by published name."""
    padding: Padding = "zeros"
    """Sampling beyond the ends in encoder and decoder; the captioner's is always "border"."""


def read_config(
    state: Mapping[str, Tensor], options: Mapping[str, Any], padding: Padding = "zeros"
) -> PdvcConfig:
    """Sizes off the weights, the rest from published options (of opts.py or a .yml of cfgs/)."""

    def shape(name: str) -> torch.Size:
        if name not in state:
            raise CheckpointError(f"{name}: missing; is this a PDVC checkpoint?")
        return state[name].shape

    def count(pattern: str) -> int:
        found = [int(match[1]) for name in state if (match := re.match(pattern, name))]
        return max(found, default=-1) + 1

    def points(module: str, levels: int, heads: int) -> int:
        return shape(f"{module}.sampling_offsets.weight")[0] // (levels * heads)

    def weight(name: str, default: float) -> float:
        return float(options.get(name, default))

    levels, width = shape("transformer.level_embed")
    heads = int(options.get("nheads", 8))
    head, core = "caption_head.0.", "caption_head.0.core."
    encoder, decoder = "transformer.encoder.layers.", "transformer.decoder.layers."
    encoder_layers = count(re.escape(encoder) + r"(\d+)\.")
    deformable = core + "ctx2att.weight" in state
    caption_heads = width // shape(core + "ctx2att.weight")[1] if deformable else 1
    caption_levels = int(options.get("cap_num_feature_levels", levels))
    decoder_layers = count(re.escape(decoder) + r"(\d+)\.")
    same = all(
        torch.equal(state[name], state[name.replace(head, f"caption_head.{layer}.", 1)])
        for name in state
        if name.startswith(head)
        for layer in range(1, decoder_layers)
        if name.replace(head, f"caption_head.{layer}.", 1) in state
    )
    layer_weights = {
        "loss_ce": weight("cls_loss_coef", 2),
        "loss_bbox": weight("bbox_loss_coef", 0),
        "loss_giou": weight("giou_loss_coef", 4),
        "loss_counter": weight("count_loss_coef", 0.5),
        "loss_caption": weight("caption_loss_coef", 2),
    }
    suffixes = ["", *(f"_{layer}" for layer in range(decoder_layers - 1))]
    return PdvcConfig(
        features=shape("base_encoder.input_proj.0.0.weight")[1],
        width=width,
        feed_forward=shape(decoder + "0.linear1.weight")[0],
        levels=levels,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        heads=heads,
        encoder_points=points(encoder + "0.self_attn", levels, heads) if encoder_layers else 0,
        decoder_points=points(decoder + "0.cross_attn", levels, heads),
        queries=shape("query_embed.weight")[0],
        classes=shape("class_head.0.weight")[0],
        most_events=shape("count_head.0.weight")[0] - 1,
        vocabulary=shape(head + "embed.weight")[0] - 1,
        words=shape(head + "embed.weight")[1],
        rnn=shape(head + "logit.weight")[1],
        rnn_layers=count(re.escape(core) + r"rnn\.weight_ih_l(\d+)"),
        captioner="standard" if deformable else "light",
        caption_attention=shape(core + "ctx2att.weight")[0] if deformable else 0,
        caption_heads=caption_heads,
        caption_levels=caption_levels,
        caption_points=points(core + "deformable_att", caption_levels, caption_heads)
        if deformable
        else 0,
        shared_captioner=bool(options.get("share_caption_head", same)),
        refine="transformer.decoder.bbox_head.0.layers.0.weight" in state,
        longest_caption=int(options.get("max_caption_len", 30)),
        frames=int(options.get("frame_embedding_num", 100))
        if options.get("data_rescale", 1)
        else None,
        sentence_weight=weight("ec_alpha", 1.0 if deformable else 0.3),
        dropout=weight("transformer_dropout_prob", 0.1),
        caption_dropout=weight("drop_prob", 0.5),
        costs=Costs(
            classes=weight("set_cost_class", 2),
            boxes=weight("set_cost_bbox", 0),
            giou=weight("set_cost_giou", 4),
            alpha=weight("cost_alpha", 0.25),
            gamma=weight("cost_gamma", 2),
            focal_alpha=weight("focal_alpha", 0.25),
            focal_gamma=weight("focal_gamma", 2),
            gaussian=bool(options.get("lloss_gau_mask", 1)),
            beta=weight("lloss_beta", 1),
        ),
        weights={k + suffix: v for suffix in suffixes for k, v in layer_weights.items()},
        padding=padding,
    )
