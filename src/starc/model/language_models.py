"""A plain language model as the start of a training: `--init t5:google-t5/t5-base`, `llama:FOLDER`.

A T5 (v1.0 or v1.1) is what transformers saves, in a folder or on the hub: config.json,
model.safetensors or pytorch_model.bin, tokenizer.json. As in Vid2Seq the rows of its table beyond
the tokenizer's ids go, and rows of time tokens come: random, as long on average as those of words.
A model of the Llama family is a folder of the hub or a GGUF file; its time tokens start from their
digits, and `--set model.llama.lora=16` trains low-rank changes only. Out: the weights under our
names, sizes as in the files; everything before the decoder is fresh.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from starc.config import Config, LlamaConfig, T5Config
from starc.decoder.llama import CausalDecoder, Llama
from starc.decoder.pretrained import brief, read_llama, size
from starc.decoder.t5 import T5
from starc.errors import CheckpointError
from starc.model.checkpoint import Loaded, planned, read_tokenizer, repeats, require_same
from starc.model.folder import CONFIG, LARGEST_CONFIG, TOKENIZER, WEIGHTS, hub_copy
from starc.model.starc import STaRC
from starc_eval.reading import parse_json, read_text, regular

PREFIXES = T5_PREFIX, LLAMA_PREFIX = "t5:", "llama:"
PICKLED = "pytorch_model.bin"
TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
"""Names that may repeat the table of embeddings."""
TABLES = ("shared.weight", "lm_head.weight")
"""A row per word, and per time token."""


class Alone(nn.Module):
    """The part of a STaRC model that a plain language model is."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        if config.llama is None:
            self.t5 = T5(config.t5)
        else:
            self.causal = CausalDecoder(config.llama)


def load(origin: str, config: Config, tokenizer: Tokenizer | None = None) -> Loaded:
    """The model that `--init` names, with `config` at its sizes; `tokenizer` if a T5 has none."""
    if origin.startswith(LLAMA_PREFIX):
        model, tokenizer = _load_llama(origin.removeprefix(LLAMA_PREFIX), config)
    else:
        model, tokenizer = _load_t5(origin.removeprefix(T5_PREFIX), config, tokenizer)
    return Loaded(cast(STaRC, model), tokenizer, None, Path(origin))


def _load_llama(name: str, config: Config) -> tuple[Alone, Tokenizer]:
    pretrained = read_llama(Path(os.path.expanduser(name)))
    sizes = replace(pretrained.config, bins=config.language_model.bins)
    plan = planned(Path(name), sizes, len(pretrained.state), lambda: Llama(sizes))
    shapes = {key: tuple(tensor.shape) for key, tensor in pretrained.state.items()}
    require_same(f"{LLAMA_PREFIX}{name}", plan.state_dict(), shapes)
    model, tokenizer = Alone(replace(_fitting(config, sizes), llama=sizes)), pretrained.tokenizer
    model.causal.llama.load_state_dict(pretrained.state)
    model.causal.start_times_from_digits(lambda text: tokenizer.encode(text).ids)
    return model, tokenizer


def _load_t5(name: str, config: Config, tokenizer: Tokenizer | None) -> tuple[Alone, Tokenizer]:
    folder = _folder(name)
    try:
        facts = parse_json(read_text(folder / CONFIG, most=LARGEST_CONFIG))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / CONFIG}: cannot be read ({brief(error)})") from None
    if not isinstance(facts, dict):
        raise CheckpointError(f"{folder / CONFIG}: holds a {type(facts).__name__}, not settings")
    if (folder / TOKENIZER).is_file() and tokenizer is None:
        tokenizer = read_tokenizer(folder / TOKENIZER)
    if tokenizer is None:
        raise CheckpointError(
            f"{folder}: no {TOKENIZER} in it; give --tokenizer (that of t5-base serves v1.1 too)"
        )
    words = [word for word in tokenizer.get_vocab() if not word.startswith("<time=")]
    sizes = _sizes(folder, facts, config.t5, len(words))
    state = _weights(folder)
    plan = planned(folder / WEIGHTS, sizes, len(state), lambda: T5(sizes))
    # transformers 5 says so; before it, embeddings that were tied had their outputs scaled.
    scaled = facts.get("scale_decoder_outputs", facts.get("tie_word_embeddings", True))
    state = _own_layer(folder, sizes, state, scaled=bool(scaled))
    _check(folder, plan, state)
    model = Alone(replace(_fitting(config, sizes), t5=sizes, llama=None))
    _fill(model.t5, state)
    return model, tokenizer


def _fitting(config: Config, sizes: T5Config | LlamaConfig) -> Config:
    """With as many heads in the temporal encoder as divide the width."""
    heads = config.temporal.heads
    if sizes.width % heads:
        heads = sizes.heads
    return replace(config, temporal=replace(config.temporal, heads=heads))


def _sizes(folder: Path, facts: Mapping[str, Any], wanted: T5Config, words: int) -> T5Config:
    if facts.get("model_type") != "t5":
        raise CheckpointError(f"{folder}: not a T5 (model_type {facts.get('model_type')!r:.60})")
    try:
        sizes = replace(
            wanted,
            width=size(facts, "d_model"),
            head_width=size(facts, "d_kv"),
            feed_forward=size(facts, "d_ff"),
            layers=size(facts, "num_layers"),
            decoder_layers=size(facts, "num_decoder_layers", size(facts, "num_layers")),
            heads=size(facts, "num_heads"),
            feed_forward_activation=str(facts.get("feed_forward_proj", "relu")),
            relative_buckets=size(facts, "relative_attention_num_buckets", 32),
            relative_distance=size(facts, "relative_attention_max_distance", 128),
            text_vocabulary=words,
        )
        rows = size(facts, "vocab_size")
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{folder / CONFIG}: {brief(error)}; is this a T5's?") from None
    if rows < words:
        raise CheckpointError(f"{folder}: {rows} embeddings for a tokenizer of {words} words")
    return sizes


def _weights(folder: Path) -> dict[str, Tensor]:
    try:
        if (folder / WEIGHTS).is_file():
            return load_file(folder / WEIGHTS)
        loaded = torch.load(regular(folder / PICKLED), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: neither {WEIGHTS} nor {PICKLED} in it") from None
    except Exception as error:  # a damaged file can raise anything
        raise CheckpointError(f"{folder}: its weights cannot be read ({brief(error)})") from None
    tensors = loaded if isinstance(loaded, dict) else {"": loaded}
    if not all(isinstance(one, Tensor) and not repeats(one) for one in tensors.values()):
        raise CheckpointError(f"{folder / PICKLED}: not a dictionary of whole tensors")
    return {str(name): tensor for name, tensor in tensors.items()}


def _own_layer(
    folder: Path, sizes: T5Config, state: Mapping[str, Tensor], *, scaled: bool
) -> dict[str, Tensor]:
    """The weights in float32, table and output layer under the names they have here."""
    state = {name: tensor.float() for name, tensor in state.items()}
    table_VD = state.get("shared.weight", state.get("encoder.embed_tokens.weight"))
    if table_VD is None:
        raise CheckpointError(f"{folder}: no shared.weight among its weights; is this a T5?")
    state["shared.weight"] = table_VD
    output_VD = state.get("lm_head.weight", table_VD)
    if sizes.gated:  # its output layer is its own here, and its states are not scaled
        state["lm_head.weight"] = output_VD * (sizes.width**-0.5 if scaled else 1.0)
    elif not scaled or not torch.equal(output_VD, table_VD):
        raise CheckpointError(f"{folder}: an untied output layer without a gate is not supported")
    return state


def _check(folder: Path, plan: T5, state: Mapping[str, Tensor]) -> None:
    """An error unless the weights are those of this T5; of the table, its words."""
    wanted = plan.state_dict()
    for name, fresh in wanted.items():
        theirs = state.get(name)
        shape = None if theirs is None else tuple(theirs.shape)
        if shape and name in TABLES and shape[0] >= plan.settings.text_vocabulary:
            shape = (len(fresh), *shape[1:])
        if shape != fresh.shape:
            found = "missing" if theirs is None else f"{tuple(theirs.shape)}"
            raise CheckpointError(f"{folder}: {name} is {found}, not {tuple(fresh.shape)}")
    if unknown := sorted({*state} - {*wanted, *TIED}):
        raise CheckpointError(f"{folder}: {unknown[0]!r:.80} has no place in this T5")


def _fill(t5: T5, state: Mapping[str, Tensor]) -> None:
    words = t5.settings.text_vocabulary
    ours = t5.state_dict()
    for name, fresh in ours.items():
        theirs = state[name]
        ours[name] = torch.cat([theirs[:words], fresh[words:]]) if name in TABLES else theirs
    t5.load_state_dict(ours)
    t5.rescale_time_embeddings()


def _folder(name: str) -> Path:
    if os.path.isdir(folder := os.path.expanduser(name)):
        return Path(folder)
    if name.count("/") != 1 or name[0] in "./~":
        raise CheckpointError(
            f"{T5_PREFIX}{name}: no such folder; give one, or a hub id owner/name"
        )
    copy = hub_copy(name, [CONFIG, WEIGHTS, TOKENIZER], prefix=T5_PREFIX)
    if not (copy / WEIGHTS).is_file():
        copy = hub_copy(name, [PICKLED], prefix=T5_PREFIX)
    return copy
