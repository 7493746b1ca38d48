"""Models that only watch or only listen, in training and in evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from starc.config import Config, apply_overrides, from_dict, to_dict
from starc.errors import ConfigError
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.training.evaluate import evaluate
from starc.training.recipes import NO_SPEECH, NO_VIDEO
from starc.training.train import run_training
from support import small_training as small


@pytest.mark.parametrize("settings", [NO_VIDEO, NO_SPEECH], ids=["listens", "watches"])
def test_what_is_left_out_changes_nothing(tmp_path: Path, settings: tuple[str, ...]) -> None:
    small.files(tmp_path)
    run_training(
        "tiny",
        small.given(tmp_path),
        tmp_path / "run",
        [*small.SMALL, *settings],
        resume=False,
        progress=lambda line: None,
    )
    plain = small.recipe().model
    store = small.task(small.recipe()).store
    checkpoint.save(tmp_path / "whole", STaRC(plain), tokenizer=small.tokenizer(), store=store)
    noise = {f"video{n}": torch.randn(24, small.WIDTH) for n in range(11)}
    torch.save(noise, tmp_path / "noise.pth")
    silence = {video: {"start": [], "end": [], "text": []} for video in noise}
    (tmp_path / "silence.json").write_text(json.dumps(silence))
    features, speech = "features.pth", "silence.json"
    if settings is NO_VIDEO:
        features, speech = "noise.pth", "speech.json"
    # A model trained without a sense needs no flag; another one is told.
    for folder, told in (("run", ()), ("whole", settings)):
        answers = [
            evaluate(
                tmp_path / folder,
                tmp_path / "validation.json",
                tmp_path / seen,
                tmp_path / heard,
                settings=told,
            ).predictions
            for seen, heard in (("features.pth", "speech.json"), (features, speech))
        ]
        assert answers[0] == answers[1]


def test_nothing_left_is_an_error() -> None:
    both = [setting.removeprefix("model.") for setting in (*NO_VIDEO, *NO_SPEECH)]
    with pytest.raises(ConfigError, match="neither video nor speech"):
        apply_overrides(Config(), both)
    with pytest.raises(ConfigError, match=r"inputs.video: .*--no-video"):
        apply_overrides(Config(), ["inputs.video=false"])


def test_older_folders_see_and_hear() -> None:
    facts = to_dict(Config())
    del facts["inputs"]["video"], facts["inputs"]["speech"]
    assert from_dict(facts).inputs.video and from_dict(facts).inputs.speech
