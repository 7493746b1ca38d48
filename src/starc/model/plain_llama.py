"""A plain language model as the start of a training: `--init llama:FOLDER` or `llama:MODEL.gguf`.

In: a Llama-family model of the hub, or a GGUF file. Out: the decoder of a STaRC model, T_in its
prefix; time tokens start from their digits, everything before the decoder is fresh. Sizes come from
the file; `--set model.llama.lora=16` trains low-rank changes only.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from torch import nn

from starc.config import Config
from starc.decoder.llama import CausalDecoder
from starc.decoder.pretrained import read_llama
from starc.model.checkpoint import Loaded
from starc.model.starc import STaRC

PREFIX = "llama:"


class LlamaAlone(nn.Module):
    """The part of a STaRC model that a plain language model is."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.llama is not None
        self.config = config
        self.causal = CausalDecoder(config.llama)


def load(name: str, config: Config) -> Loaded:
    """The model of a folder or file, with `config` at its sizes."""
    pretrained = read_llama(Path(name).expanduser())
    sizes = replace(pretrained.config, bins=config.language_model.bins)
    heads = config.temporal.heads
    if sizes.width % heads:
        heads = sizes.heads
    config = replace(config, llama=sizes, temporal=replace(config.temporal, heads=heads))
    model, tokenizer = LlamaAlone(config), pretrained.tokenizer
    model.causal.llama.load_state_dict(pretrained.state)
    model.causal.start_times_from_digits(lambda text: tokenizer.encode(text).ids)
    return Loaded(cast(STaRC, model), tokenizer, None, Path(f"{PREFIX}{name}"))
