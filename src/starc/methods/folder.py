"""Model folders of the methods: config.json with settings and words, model.safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from starc.config import MODEL_VERSION, build, to_dict
from starc.errors import CheckpointError, ConfigError
from starc.files.atomic import replacing_folder, require_ours
from starc.methods.set_prediction import SetPredictor
from starc.methods.settings import PdvcConfig
from starc.methods.words import Words
from starc_eval.reading import parse_json

MARK, KIND = "starc_model", "method"
"""Keys of config.json: a model of ours, and which kind besides STaRC."""
SET_PREDICTION = "set prediction"
CONFIG, WEIGHTS, BANK = "config.json", "model.safetensors", "bank_ND"


def holds_method(folder: Path) -> bool:
    """Whether the folder is a model folder of a method besides STaRC."""
    try:
        facts = parse_json((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and MARK in facts and KIND in facts


def save(folder: Path, model: SetPredictor) -> None:
    """Write a model folder, whole or not at all."""
    require_ours(folder, CONFIG, MARK, lambda _: [WEIGHTS], CheckpointError)
    facts: dict[str, Any] = {MARK: MODEL_VERSION, KIND: SET_PREDICTION}
    facts |= {"settings": to_dict(model.config, training=True), "words": model.words.words}
    # Parameters shared by several layers are stored once.
    state = {name: value.detach().contiguous() for name, value in model.named_parameters()}
    if model.bank_ND is not None:
        state[BANK] = model.bank_ND.float().contiguous()
    with replacing_folder(folder) as fresh:
        (fresh / CONFIG).write_text(json.dumps(facts, indent=1, ensure_ascii=False), "utf-8")
        save_file(state, fresh / WEIGHTS)


def load(folder: Path) -> SetPredictor:
    """The model in a folder, ready to caption."""
    try:
        facts = parse_json((folder / CONFIG).read_text("utf-8"))
        if facts.get(MARK) != MODEL_VERSION or facts.get(KIND) != SET_PREDICTION:
            raise CheckpointError(f"{folder}: not a {SET_PREDICTION} model of this version")
        config = build(PdvcConfig, facts["settings"], "settings")
        model = SetPredictor(config, Words(facts["words"]))
        state = load_file(folder / WEIGHTS)
    except ConfigError as error:
        raise ConfigError(f"{folder / CONFIG}: {error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: not a model folder we can read ({error!r})") from None
    model.bank_ND = state.pop(BANK, None)
    wanted = dict(model.named_parameters())
    if wanted.keys() != state.keys() or any(wanted[k].shape != state[k].shape for k in state):
        raise CheckpointError(f"{folder / WEIGHTS}: weights do not fit the settings; save it again")
    model.load_state_dict(state, strict=False)
    return model.eval()
