"""Published Vid2Seq and STaRC weights: their names, their sizes, their settings, as ours.

A published file holds tensors under names of its own and, at best, the command line it was trained
with. Here are the table of names (both ways), the sizes read off the shapes, and the settings read
off that command line. Only facts about the files; reading and writing them is checkpoint.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from starc.config import Config, PromptConfig, RetrievalConfig, published, vid2seq
from starc.errors import CheckpointError

NAMES = (
    ("t5_model.", "t5."),
    ("visual_encoder.pos_embed", "temporal.position_1TD"),
    ("visual_encoder.blocks.", "temporal.blocks."),
    ("visual_encoder.norm.", "temporal.norm."),
    ("visual_encoder.global_head.q", "saliency.pool.query_D"),
    ("visual_encoder.global_head.tau", "saliency.pool.temperature"),
    ("visual_encoder.global_head.Wk.", "saliency.pool.key."),
    ("visual_encoder.global_head.Wv.", "saliency.pool.value."),
    ("proj_v2t.", "video_projection."),
    ("proj_r2t.", "retrieved_projection."),
    ("saliency_proj1.", "saliency.frame."),
    ("saliency_proj2.", "saliency.video."),
    ("saliency_tok_proj.", "prompt_projection."),
    ("norm.", "swsa.norm."),
    ("anchors", "anchor_KD"),
)
"""How names begin: published, ours."""
BLOCK_NAMES = (
    (".norm1.", ".attention_norm."),
    (".norm2.", ".feed_forward_norm."),
    (".attn.qkv.", ".attention.qkv."),
    (".attn.proj.", ".attention.out."),
    (".mlp.fc1.", ".feed_forward_in."),
    (".mlp.fc2.", ".feed_forward_out."),
)
"""Inside a block of the temporal encoder: published, ours."""
ALIASES = ("t5.encoder.embed_tokens.weight", "t5.decoder.embed_tokens.weight", "t5.lm_head.weight")
"""Other names of t5.shared.weight in published files; the last one's own in T5 v1.1."""


def to_ours(name: str) -> str | None:
    """Our name of a published parameter; None if it is not one."""
    return _renamed(name, NAMES, BLOCK_NAMES)


def to_published(name: str) -> str | None:
    """The published name of one of our parameters; None if they have no such thing."""
    names = tuple((ours, theirs) for theirs, ours in NAMES)
    return _renamed(name, names, tuple((ours, theirs) for theirs, ours in BLOCK_NAMES))


def _renamed(
    name: str, names: tuple[tuple[str, str], ...], block_names: tuple[tuple[str, str], ...]
) -> str | None:
    for old, new in names:
        # An entry that ends in a dot is a beginning, any other is a whole name.
        if name.startswith(old) and (old.endswith(".") or name == old):
            name = new + name[len(old) :]
            if ".blocks." in name:
                for old_part, new_part in block_names:
                    name = name.replace(old_part, new_part)
            return name
    return None


def resized(config: Config, state: Mapping[str, Tensor], written: Mapping[str, Any]) -> Config:
    """The config at the sizes of these tensors (under our names).

    The heads of the temporal encoder and the number of time tokens leave no trace in a shape: they
    are taken from the file's own settings where it has them, else 64 wide heads and 100 bins.
    """
    position_1TD = _tensor(state, "temporal.position_1TD")
    vocabulary, width = _tensor(state, "t5.shared.weight").shape
    bins = int(written.get("num_bins", 100))
    inner = _tensor(state, "t5.encoder.block.0.layer.0.SelfAttention.q.weight").shape[0]
    bias = _tensor(state, "t5.encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
    projection = state.get("retrieved_projection.weight", position_1TD)
    dense = "t5.encoder.block.0.layer.1.DenseReluDense"
    gated = f"{dense}.wi_0.weight" in state  # from t5-v1_1-base
    temporal = dataclasses.replace(
        config.temporal,
        features=projection.shape[-1],
        positions=position_1TD.shape[1],
        depth=_count(state, r"temporal\.blocks\.(\d+)\."),
        heads=int(written.get("heads", written.get("vit_heads", position_1TD.shape[2] // 64 or 1))),
        feed_forward=_tensor(state, "temporal.blocks.0.feed_forward_in.weight").shape[0],
    )
    t5 = dataclasses.replace(
        config.t5,
        width=width,
        head_width=inner // bias.shape[1],
        feed_forward=_tensor(state, f"{dense}.{'wi_0' if gated else 'wi'}.weight").shape[0],
        feed_forward_activation="gated-gelu" if gated else config.t5.feed_forward_activation,
        layers=_count(state, r"t5\.encoder\.block\.(\d+)\."),
        decoder_layers=_count(state, r"t5\.decoder\.block\.(\d+)\."),
        heads=bias.shape[1],
        relative_buckets=bias.shape[0],
        text_vocabulary=vocabulary - bins,
        bins=bins,
    )
    transport = config.transport
    if "anchor_KD" in state:
        transport = dataclasses.replace(transport, anchors=state["anchor_KD"].shape[0])
    frames = int(written.get("max_feats", temporal.positions))
    inputs = dataclasses.replace(config.inputs, frames=frames)
    return dataclasses.replace(config, inputs=inputs, temporal=temporal, t5=t5, transport=transport)


def _tensor(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state:
        raise CheckpointError(
            f"{to_published(name)}: missing; is this a Vid2Seq or STaRC checkpoint?"
        )
    return state[name]


def _count(state: Mapping[str, Tensor], pattern: str) -> int:
    """How many blocks there are of a kind: their numbers begin with 0 and leave none out."""
    numbers = {match[1] for name in state if (match := re.match(pattern, name))}
    return next(n for n in itertools.count() if str(n) not in numbers)


def guessed(state: Mapping[str, Tensor], written: Mapping[str, Any]) -> Config:
    """The preset that a file belongs to, with the settings it was trained with.

    A file with saliency layers is STaRC, one without is Vid2Seq.
    """
    if "saliency.frame.weight" not in state:
        config = vid2seq()
        has_projection = "video_projection.weight" in state
        temporal = dataclasses.replace(config.temporal, projection=has_projection)
        config = dataclasses.replace(config, temporal=temporal, windowing=None)
        return with_shared_settings(config, written)
    return with_settings(published(), written)


def with_shared_settings(config: Config, written: Mapping[str, Any]) -> Config:
    """The options that VidChapters' Vid2Seq and STaRC have in common, by those names.

    Beams 0 is sampling there, which is not for scores: greedy here.
    """

    def read(part: Any, **names: str) -> Any:
        """The part of the config with the fields whose option is written, as the fields' types."""
        changes = {
            field: type(getattr(part, field))(written[option])
            for field, option in names.items()
            if option in written
        }
        return dataclasses.replace(part, **changes)

    written = {**written, "num_beams": max(1, int(written.get("num_beams", config.decoding.beams)))}
    return dataclasses.replace(
        config,
        inputs=read(
            config.inputs,
            video="use_video",
            speech="use_speech",
            speech_tokens="max_input_tokens",
        ),
        decoding=read(
            config.decoding,
            beams="num_beams",
            max_tokens="max_output_tokens",
            length_penalty="length_penalty",
            repetition_penalty="repetition_penalty",
        ),
        temporal=read(config.temporal, dropout="visual_encoder_dropout"),
        t5=read(config.t5, dropout="text_encoder_dropout"),
        loss=read(
            config.loss,
            label_smoothing="label_smoothing",
            denoising_weight="denoising",
            corruption="mask_prob",
            corrupted_span="mask_len",
        ),
    )


def with_settings(config: Config, written: Mapping[str, Any]) -> Config:
    """The published preset with what a command line of the published code would change.

    λ acts as int(λ / 2) there; the constants of inference are not among its options.
    """
    config = with_shared_settings(config, written)
    assert config.saliency is not None and config.swsa is not None
    transport = dataclasses.replace(
        config.transport,
        anchors=int(written.get("asot_K", config.transport.anchors)),
        saliency_bias=float(written.get("asot_mu_salbias", config.transport.saliency_bias)),
        frame_penalty=float(written.get("asot_lambda_frames", config.transport.frame_penalty)),
    )
    top_k = int(written.get("asot_topk_for_retrieval", config.segments.top_k))
    weight = float(written.get("loss_lambda", 2 * config.loss.saliency_weight))
    temperature = float(written.get("tau", config.saliency.temperature))
    retrieval = config.retrieval or RetrievalConfig()
    captions = int(written.get("soft_k", retrieval.captions))
    saliency = bool(written.get("use_saliency", True))
    return dataclasses.replace(
        config,
        swsa=config.swsa if written.get("self_attn", True) else None,
        saliency=dataclasses.replace(config.saliency, temperature=temperature),
        transport=transport,
        segments=dataclasses.replace(config.segments, top_k=top_k),
        retrieval=dataclasses.replace(retrieval, captions=captions)
        if written.get("use_ret", True)
        else None,
        prompt=PromptConfig() if saliency and written.get("use_salip", True) else None,
        loss=dataclasses.replace(
            config.loss,
            saliency_weight=float(int(weight / 2)) if saliency else 0.0,
        ),
    )
