"""Published methods besides STaRC in plain torch, under their published parameter names.

model = methods.pdvc(features=768, vocabulary=len(words))     # or pdvc_light, cm2
model = methods.load("model-best.pth", words="vocabulary_youcook2.json")
events = model.caption(features_TF, duration)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starc.errors import CheckpointError
from starc.methods import settings
from starc.methods.settings import Padding
from starc.methods.words import Words

if TYPE_CHECKING:  # recipes are listed without torch
    from torch import Tensor

    from starc.methods.set_prediction import SetPredictor


def build(name: str, words: Words | None = None, **changes: Any) -> SetPredictor:
    """A method by name with fresh weights; `changes` are settings of PdvcConfig."""
    from starc.methods.set_prediction import SetPredictor

    sizes = {} if words is None else {"vocabulary": len(words)}
    return SetPredictor(settings.preset(name, **sizes | changes), words)


def pdvc(words: Words | None = None, **changes: Any) -> SetPredictor:
    """PDVC with LSTM-DSA captioner."""
    return build("pdvc", words, **changes)


def pdvc_light(words: Words | None = None, **changes: Any) -> SetPredictor:
    """PDVC with light captioner."""
    return build("pdvc_light", words, **changes)


def cm2(words: Words | None = None, bank: Tensor | None = None, **changes: Any) -> SetPredictor:
    """CM², with the text embeddings [N, D] of its memory bank."""
    model = build("cm2", words, **changes)
    model.bank_ND = bank
    return model


def load(
    source: str | Path | Mapping[str, Tensor],
    options: Mapping[str, Any] | None = None,
    *,
    words: str | Path | Words | None = None,
    bank: str | Path | Tensor | None = None,
    padding: Padding = "zeros",
) -> SetPredictor:
    """PDVC or CM² from a model folder, a published checkpoint (.pth) or its state dict.

    `options` are the published ones; default: those of the `info.json` beside the checkpoint, else
    those of the released models. `words` is the published vocabulary file, `bank` the embeddings
    (.npy) of the memory bank that CM² searches. `padding` is "zeros" for weights trained on a GPU,
    as the released ones, "border" for weights trained on a CPU with the published code.
    """
    from starc.methods import folder, published
    from starc.methods.set_prediction import SetPredictor

    if not isinstance(source, Mapping) and Path(source).is_dir():
        return folder.load(Path(source))
    state: Mapping[str, Tensor]
    found: Mapping[str, Any]
    if isinstance(source, Mapping):
        state, found, name = source, {}, "state dict"
    else:
        (state, found), name = published.read_checkpoint(Path(source)), str(source)
    state = {key: value for key, value in state.items() if not published.UNUSED.match(key)}
    model = SetPredictor(published.read_config(state, options or found, padding))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(
            f"{name}: weights do not fit; {' '.join(str(error).split())}"
        ) from None
    if words is not None:
        model.words = words if isinstance(words, Words) else Words.read(Path(words))
        if len(model.words) != model.config.vocabulary:
            raise CheckpointError(
                f"{name}: {model.config.vocabulary} words, the vocabulary has {len(model.words)}"
            )
    if bank is not None:
        if isinstance(bank, str | Path):
            bank = published.read_bank(Path(bank))
        model.bank_ND = bank
    return model.eval()
