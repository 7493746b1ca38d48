"""Published PDVC and CM² files: checkpoints, options, vocabularies and memory banks.

Sizes are read off the weights, the rest from the published options (opts.py, a .yml of cfgs/, or
the info.json beside a checkpoint). Nothing in a file is executed.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from starc.errors import CheckpointError
from starc.methods.settings import (
    MatchingConfig,
    Padding,
    PdvcConfig,
    SetLossConfig,
    TextConfig,
)

UNUSED = re.compile(
    r"clip_model\.|cls_token$|text_transformer_layers\.|text_positional_encoding\."
    r"|pos_embed\.duration|transformer\.decoder\.layers\.\d+\.norm_t\."
)
"""Parameters of CM² files that take no part in its results with --ret_encoder avg."""


def read_config(
    state: Mapping[str, Tensor], options: Mapping[str, Any], padding: Padding = "zeros"
) -> PdvcConfig:
    """The settings of a checkpoint; options that are absent have the released models' values."""

    def shape(name: str) -> torch.Size:
        if name not in state:
            raise CheckpointError(f"{name}: missing; is this a PDVC or CM² checkpoint?")
        return state[name].shape

    def count(pattern: str) -> int:
        return len({match[1] for name in state if (match := re.match(pattern, name))})

    def points(module: str, levels: int, heads: int) -> int:
        return shape(f"{module}.sampling_offsets.weight")[0] // (levels * heads)

    def number(name: str, default: float) -> float:
        return float(options.get(name, default))

    levels, width = shape("transformer.level_embed")
    heads = int(options.get("nheads", 8))
    head, core = "caption_head.0.", "caption_head.0.core."
    encoder, decoder = "transformer.encoder.layers.", "transformer.decoder.layers."
    encoder_layers = count(re.escape(encoder) + r"(\d+)\.")
    queries = shape("query_embed.weight")[0]
    resampled, released = options.get("data_rescale", 1), 200 if queries == 100 else 100
    light = core + "ctx2att.weight" not in state
    attention: dict[str, Any] = {"captioner": "light"}
    if not light:
        caption_levels = int(options.get("cap_num_feature_levels", levels))
        caption_width, per_head = shape(core + "ctx2att.weight")
        caption_heads = width // per_head
        attention = {
            "captioner": "standard",
            "caption_attention": caption_width,
            "caption_heads": caption_heads,
            "caption_levels": caption_levels,
            "caption_points": points(core + "deformable_att", caption_levels, caption_heads),
        }
    text = None
    if decoder + "0.text_cross.q.weight" in state:
        if (kind := options.get("ret_encoder", "avg")) != "avg":
            raise CheckpointError(f"ret_encoder {kind!r}: not available; only avg is reproducible")
        resampled = False
        text = TextConfig(
            width=shape("down_proj.0.net.1.weight")[1],
            windows=int(options.get("window_size", 50)),
            captions=int(options.get("soft_k", 80)),
            first=options.get("text_crossAttn_loc", "after") == "before",
        )
    return PdvcConfig(
        features=shape("base_encoder.input_proj.0.0.weight")[1],
        frames=int(options.get("frame_embedding_num", released)) if resampled else None,
        width=width,
        feed_forward=shape(decoder + "0.linear1.weight")[0],
        heads=heads,
        levels=levels,
        encoder_layers=encoder_layers,
        decoder_layers=count(re.escape(decoder) + r"(\d+)\."),
        encoder_points=points(encoder + "0.self_attn", levels, heads) if encoder_layers else 0,
        decoder_points=points(decoder + "0.cross_attn", levels, heads),
        queries=queries,
        classes=shape("class_head.0.weight")[0],
        max_events=shape("count_head.0.weight")[0] - 1,
        refine="transformer.decoder.bbox_head.0.layers.0.weight" in state,
        vocabulary=shape(head + "embed.weight")[0] - 1,
        word_width=shape(head + "embed.weight")[1],
        rnn_width=shape(head + "logit.weight")[1],
        rnn_layers=count(re.escape(core) + r"rnn\.weight_ih_l(\d+)"),
        shared_captioner=bool(options.get("share_caption_head", 1)),
        caption_words=int(options.get("max_caption_len", 30)),
        sentence_weight=number("ec_alpha", 0.3 if light else 1.0),
        padding=padding,
        text=text,
        dropout=number("transformer_dropout_prob", 0.1),
        caption_dropout=number("drop_prob", 0.5),
        matching=MatchingConfig(
            classes=number("set_cost_class", 2),
            boxes=number("set_cost_bbox", 0),
            giou=number("set_cost_giou", 4),
            alpha=number("cost_alpha", 0.25),
            gamma=number("cost_gamma", 2),
        ),
        loss=SetLossConfig(
            classes=number("cls_loss_coef", 2),
            boxes=number("bbox_loss_coef", 0),
            giou=number("giou_loss_coef", 4),
            counter=number("count_loss_coef", 0.5),
            captions=number("caption_loss_coef", 2),
            focal_alpha=number("focal_alpha", 0.25),
            focal_gamma=number("focal_gamma", 2),
            gaussian=bool(options.get("lloss_gau_mask", 1)),
            beta=number("lloss_beta", 1),
        ),
        **attention,
    )


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """Weights of a published .pth, and the options of the info.json beside it, if any."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path}: not a checkpoint of tensors ({reason})") from None
    state = saved.get("model", saved) if isinstance(saved, dict) else None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise CheckpointError(f"{path}: no state dict inside; is this a PDVC or CM² checkpoint?")
    info = path.parent / "info.json"
    try:
        options = json.loads(info.read_text("utf-8"))["best"]["opt"] if info.is_file() else {}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{info}: no options under best, opt ({error!r})") from None
    return state, options


def read_bank(path: Path) -> Tensor:
    """Text embeddings [N, D] of a published memory bank (.npy)."""
    try:
        bank = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{path}: not an array of text embeddings ({error})") from None
    if bank.ndim == 3 and bank.shape[1] == 1:
        bank = bank[:, 0]
    if bank.ndim != 2 or not bank.size:
        raise CheckpointError(f"{path}: text embeddings must be [N, D], found {bank.shape}")
    return torch.from_numpy(np.ascontiguousarray(bank)).float()
