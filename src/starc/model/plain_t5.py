"""A plain T5, from a folder or the hub, as the start of a training: `--init t5:google-t5/t5-base`.

In: what transformers saves (config.json, model.safetensors or pytorch_model.bin, tokenizer.json),
T5 v1.0 or v1.1. Out: its weights under our names. As in Vid2Seq the rows of its table beyond the
tokenizer's ids go, and rows of time tokens come: random, as long on average as those of words.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from starc.config import Config, T5Config
from starc.decoder.t5 import T5
from starc.errors import CheckpointError
from starc.files.cache import hub_is_away
from starc.files.reading import parse_json
from starc.model.checkpoint import Loaded, read_tokenizer
from starc.model.folder import CONFIG, TOKENIZER, WEIGHTS
from starc.model.starc import STaRC

PREFIX = "t5:"
PICKLED = "pytorch_model.bin"
TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
"""Names that may repeat the table of embeddings."""


class T5Alone(nn.Module):
    """The part of a STaRC model that a plain T5 is."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.t5 = T5(config.t5)


def load(name: str, config: Config, tokenizer: Tokenizer | None = None) -> Loaded:
    """The T5 of a folder or hub id, with `config` at its sizes; `tokenizer` if it has none."""
    folder = _folder(name)
    try:
        facts = parse_json((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / CONFIG}: cannot be read ({error})") from None
    if (folder / TOKENIZER).is_file() and tokenizer is None:
        tokenizer = read_tokenizer(folder / TOKENIZER)
    if tokenizer is None:
        raise CheckpointError(
            f"{folder}: no {TOKENIZER} in it; give --tokenizer (that of t5-base serves v1.1 too)"
        )
    words = [word for word in tokenizer.get_vocab() if not word.startswith("<time=")]
    sizes = _sizes(folder, facts, config.t5, len(words))
    heads = config.temporal.heads
    if sizes.width % heads:
        heads = sizes.heads
    config = replace(config, t5=sizes, temporal=replace(config.temporal, heads=heads))
    model = T5Alone(config)
    # transformers 5 says so; before it, embeddings that were tied had their outputs scaled.
    scaled = facts.get("scale_decoder_outputs", facts.get("tie_word_embeddings", True))
    _fill(folder, model.t5, _weights(folder), scaled=bool(scaled))
    return Loaded(cast(STaRC, model), tokenizer, None, Path(f"{PREFIX}{name}"))


def _sizes(folder: Path, facts: Mapping[str, Any], wanted: T5Config, words: int) -> T5Config:
    if facts.get("model_type") != "t5":
        raise CheckpointError(f"{folder}: not a T5 (model_type {facts.get('model_type')!r})")
    try:
        found = replace(
            wanted,
            width=facts["d_model"],
            head_width=facts["d_kv"],
            feed_forward=facts["d_ff"],
            layers=facts["num_layers"],
            decoder_layers=facts.get("num_decoder_layers") or facts["num_layers"],
            heads=facts["num_heads"],
            feed_forward_activation=facts.get("feed_forward_proj", "relu"),
            relative_buckets=facts.get("relative_attention_num_buckets", 32),
            relative_distance=facts.get("relative_attention_max_distance", 128),
            text_vocabulary=words,
        )
        rows = int(facts["vocab_size"])
    except KeyError as error:
        raise CheckpointError(f"{folder / CONFIG}: no {error}; is this a T5's?") from None
    if rows < words:
        raise CheckpointError(f"{folder}: {rows} embeddings for a tokenizer of {words} words")
    return found


def _weights(folder: Path) -> dict[str, Tensor]:
    try:
        if (folder / WEIGHTS).is_file():
            return load_file(folder / WEIGHTS)
        loaded = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
        return dict(loaded)
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: neither {WEIGHTS} nor {PICKLED} in it") from None
    except (OSError, SafetensorError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).split("\n")[0][:100]
        raise CheckpointError(f"{folder}: its weights cannot be read ({reason})") from None


def _fill(folder: Path, t5: T5, state: dict[str, Tensor], *, scaled: bool) -> None:
    words = t5.settings.text_vocabulary
    state = {name: tensor.float() for name, tensor in state.items()}
    table_VD = state.get("shared.weight", state.get("encoder.embed_tokens.weight"))
    if table_VD is None:
        raise CheckpointError(f"{folder}: no shared.weight among its weights; is this a T5?")
    state["shared.weight"] = table_VD
    output_VD = state.get("lm_head.weight", table_VD)
    if t5.settings.gated:  # its output layer is its own here, and its states are not scaled
        state["lm_head.weight"] = output_VD * (t5.settings.width**-0.5 if scaled else 1.0)
    elif not scaled or not torch.equal(output_VD, table_VD):
        raise CheckpointError(f"{folder}: an untied output layer without a gate is not supported")
    ours = t5.state_dict()
    for name, fresh in ours.items():
        found = state.get(name)
        if found is not None and name in ("shared.weight", "lm_head.weight"):
            found = torch.cat([found[:words], fresh[words:]])
        if found is None or found.shape != fresh.shape:
            shape = "missing" if found is None else f"{tuple(found.shape)}"
            raise CheckpointError(f"{folder}: {name} is {shape}, not {tuple(fresh.shape)}")
        ours[name] = found
    if unknown := sorted({*state} - {*ours, *TIED}):
        raise CheckpointError(f"{folder}: {unknown[0]} has no place in this T5")
    t5.load_state_dict(ours)
    t5.rescale_time_embeddings()


def _folder(name: str) -> Path:
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    if name.count("/") != 1 or name[0] in "./~":
        raise CheckpointError(f"{PREFIX}{name}: no such folder; give one, or a hub id owner/name")
    from huggingface_hub import snapshot_download

    away = hub_is_away()
    try:
        found = snapshot_download(
            name, allow_patterns=[CONFIG, WEIGHTS, TOKENIZER], local_files_only=away
        )
        if not (Path(found) / WEIGHTS).is_file():
            found = snapshot_download(name, allow_patterns=[PICKLED], local_files_only=away)
        return Path(found)
    except Exception as error:  # offline, unknown, private: the hub has many classes for them
        said = str(error).split("\n")[0]
        reason = "the hub does not answer; is there a network?" if away else f"the hub says: {said}"
        raise CheckpointError(f"{PREFIX}{name}: not a folder, and {reason}") from None
