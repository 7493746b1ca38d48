"""Vid2Seq's first stage: what is spoken in narrated videos, told from their frames."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from starc.decoder.t5 import END, PAD
from starc.errors import AnnotationError, ConfigError
from starc.model.inputs import Collator
from starc.training.dataset import Videos
from starc.training.recipes import Recipe, apply_overrides
from starc.training.recipes import recipe as recipe_of
from starc.training.train import Files, run_training
from support import small_training as small

SETTINGS = [
    *(one for one in small.SMALL if "train." not in one),
    *("train.batch=4", "train.epochs=40", "train.learning_rate=3e-3", "train.save_every=1"),
]


def narrated(folder: Path, **more: Any) -> Files:
    """The files of a training without annotations, validation and datastore."""
    return replace(small.given(folder), annotations=None, datastore=None, **more)


def run(folder: Path, name: str, *, resume: bool = False, kill: int | None = None) -> list[Any]:
    seen: list[Any] = []

    def heard(line: dict[str, Any]) -> None:
        seen.append(line)
        if len(seen) == kill:
            raise KeyboardInterrupt

    try:
        run_training(
            "pretrain", narrated(folder), folder / name, SETTINGS, resume=resume, progress=heard
        )
    except KeyboardInterrupt:
        assert kill
    return seen


def test_speech_is_what_the_decoder_says_and_not_what_it_hears() -> None:
    chosen: Recipe = apply_overrides(recipe_of("pretrain"), small.SMALL)
    collate = Collator(chosen.model, small.tokenizer())
    videos = small.videos()
    batch = collate([videos[2], videos[0]], epoch=0)
    assert batch.speech_BL.tolist() == [[END], [END]]
    target_BL, hidden_BL = batch.wanted("target_BL"), batch.wanted("denoising_speech_BL")
    for row, index in enumerate((2, 0)):
        ids = collate.speech(videos[index])
        assert [token for token in target_BL[row].tolist() if token != PAD] == ids
    assert hidden_BL.shape[1] > 1, "denoising hears the speech, with gaps"
    # Whoever captions with the model lets it listen.
    assert collate([videos[2]]).speech_BL.shape[1] > 1


def test_it_learns_goes_on_when_killed_and_is_a_start(tmp_path: Path) -> None:
    small.files(tmp_path)
    lines = run(tmp_path, "whole")
    losses = [line["loss"] for line in lines]
    assert losses[-1] < 0.6 * losses[0] and lines[-1]["rate"] == lines[0]["rate"] == 3e-3
    assert {"caption", "denoising"} <= set(lines[0])
    run(tmp_path, "killed", kill=7)
    run(tmp_path, "killed", resume=True)
    weights = [(tmp_path / n / "last/model.safetensors").read_bytes() for n in ("whole", "killed")]
    assert weights[0] == weights[1]
    notes: list[str] = []
    run_training(
        "vid2seq",
        small.given(tmp_path, init=tmp_path / "whole/best", datastore=None),
        tmp_path / "tuned",
        ["train.epochs=1"],
        resume=False,
        progress=lambda line: None,
        on_note=notes.append,
    )
    assert "start fresh: none; left out: none" in notes[-1]
    recipe = json.loads((tmp_path / "tuned/recipe.json").read_text())
    assert recipe["model"]["loss"]["target"] == "events", "what to learn is the recipe's"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    small.files(tmp_path)

    def start(name: str, files: Files) -> None:
        run_training(
            name, files, tmp_path / "run", SETTINGS, resume=False, progress=lambda line: None
        )

    with pytest.raises(ConfigError, match="--annotations: this recipe learns annotated events"):
        start("vid2seq", narrated(tmp_path))
    with pytest.raises(ConfigError, match="--speech: this recipe learns what is spoken"):
        start("pretrain", narrated(tmp_path, speech=None))
    (tmp_path / "other.json").write_text('{"x": {"start": [0], "end": [1], "text": ["a"]}}')
    with pytest.raises(AnnotationError, match="none of its 1 videos has both"):
        Videos.narrated(tmp_path / "features.pth", tmp_path / "other.json")
    assert not (tmp_path / "run").exists()
