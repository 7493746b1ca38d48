"""PDVC and CM² through `starc train` and `starc evaluate`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from starc import methods
from starc.cli import app
from starc.errors import CheckpointError, ConfigError, DatastoreError
from starc.methods import folder as method_folder
from starc.methods.settings import TextConfig
from starc.methods.words import Words
from starc.model import checkpoint
from starc.retrieval.datastore import CaptionStore
from starc.training import set_prediction
from starc.training.loop import finish
from starc.training.recipes import METHODS, SetRecipe, apply_overrides
from starc.training.run import RunFolder
from support import small_training as small

SMALL = ("width=32", "feed_forward=32", "heads=2", "queries=6", "frames=24", "word_width=16")
SMALL += ("rnn_width=32", "caption_attention=16", "caption_words=10", "train.batch=4")
TEXT = ("text.windows=4", "text.captions=3")
LONG = ("train.epochs=60", "train.learning_rate=0.002", "train.schedule=constant")
STILL = ("dropout=0", "caption_dropout=0")


def settings(name: str, *more: str) -> list[str]:
    return [*SMALL, *(TEXT if name == "cm2" else ()), *more]


def recipe(name: str, *more: str) -> SetRecipe:
    return apply_overrides(METHODS[name](), settings(name, *more))


def trained(
    folder: Path, name: str, *more: str, stop: int | None = None, resume: bool = False
) -> list[dict[str, Any]]:
    """The lines of a run on the eight small videos."""
    videos = small.videos()
    store = None
    if name == "cm2":
        store = folder.parent / "store"
        captions = [text for one in videos.annotations.values() for text in one.sentences]
        generator = torch.Generator().manual_seed(0)
        embedding_ND = torch.randn(len(captions), small.WIDTH, generator=generator)
        CaptionStore(captions, embedding_ND).save(store)
    chosen, task, model = set_prediction.prepare(
        recipe(name, "train.epochs=2", "train.validate_every=0", *more), videos, None, None, store
    )
    with RunFolder(folder, resume=resume) as run:
        if not resume:
            run.write("recipe.json", {})
        training = set_prediction.SetTraining(chosen, task, run, model, lambda line: None)
        finish(training, stop)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_it_learns_what_it_is_shown(tmp_path: Path) -> None:
    lines = trained(tmp_path / "run", "pdvc", *LONG, *STILL)
    assert lines[-1]["loss"] < 0.45 * lines[0]["loss"]
    assert lines[-1]["captions"] < 0.35 * lines[0]["captions"]
    parts = ("classes", "boxes", "counter", "captions")
    assert lines[-1]["loss"] == pytest.approx(sum(lines[-1][part] for part in parts), rel=1e-5)
    video, wanted = small.videos().inputs(0), small.videos().annotations["video0"]
    events = method_folder.load(tmp_path / "run/last").caption(video.features_TD, video.duration)
    assert [event.caption for event in events] == [f"{text}." for text in wanted.sentences]
    for event, (start, end) in zip(events, wanted.spans, strict=True):
        assert abs(event.start - start) < 0.5 and abs(event.end - end) < 0.5


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_repeats_the_losses(tmp_path: Path, name: str) -> None:
    whole = trained(tmp_path / "whole", name)
    assert [line["step"] for line in whole] == [1, 2, 3, 4]
    trained(tmp_path / "parts", name, stop=3)
    assert trained(tmp_path / "parts", name, resume=True) == whole
    weights = [method_folder.load(tmp_path / run / "last") for run in ("whole", "parts")]
    one, other = (model.state_dict() for model in weights)
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_batch_in_parts_takes_the_same_steps(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", "pdvc_light", *STILL)
    parts = trained(tmp_path / "parts", "pdvc_light", "train.accumulate=2", *STILL)
    for one, other in zip(whole, parts, strict=True):
        for key in ("loss", "classes", "boxes", "counter", "captions", "norm"):
            assert other[key] == pytest.approx(one[key], rel=1e-4), (one["step"], key)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    small.files(tmp_path)
    common = [sys.executable, "-m", "starc", "train", "pdvc", "--features"]
    common += [str(tmp_path / "features.pth"), "--annotations", str(tmp_path / "annotations.json")]
    chosen = settings("pdvc", *STILL, "train.epochs=2", "train.validate_every=0")
    common += [part for one in chosen for part in ("--set", one)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    environments = [{}, *({**world, "RANK": rank, "LOCAL_RANK": rank} for rank in "01")]
    processes = [
        subprocess.Popen(
            [*common, "-o", str(tmp_path / ("two" if environment else "one"))],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stderr=subprocess.PIPE,
        )
        for environment in environments
    ]
    for process in processes:
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors
    one, two = (
        [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("one", "two")
    )
    for ours, theirs in zip(one, two, strict=True):
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_train_and_evaluate_by_command(tmp_path: Path, name: str) -> None:
    small.files(tmp_path)
    annotations, features = tmp_path / "annotations.json", tmp_path / "features.pth"
    run = tmp_path / "run"
    command = ["train", name, "--annotations", annotations, "--features", features, "-o", run]
    command += ["--validation", tmp_path / "validation.json", "--set", "train.epochs=1"]
    command += ["--datastore", tmp_path / "datastore"] if name == "cm2" else []
    command += [part for one in settings(name) for part in ("--set", one)]
    result = CliRunner().invoke(app, [str(part) for part in command])
    assert result.exit_code == 0, result.output
    assert "validation" in (run / "metrics.jsonl").read_text()
    command = ["evaluate", run, "--annotations", tmp_path / "validation.json", "--json"]
    command += ["--features", features]
    result = CliRunner().invoke(app, [str(part) for part in command])
    assert result.exit_code == 0, result.output
    (line,) = (
        json.loads(line)["validation"]
        for line in (run / "metrics.jsonl").read_text().splitlines()
        if "validation" in json.loads(line)
    )
    metrics = json.loads(result.stdout)["metrics"]
    assert {key: metrics[key] for key in line} == pytest.approx(line)
    refused = CliRunner().invoke(app, [*map(str, command), "--beams", "4"])
    assert isinstance(refused.exception, ConfigError) and "greedily" in str(refused.exception)
    with pytest.raises(CheckpointError, match="another method"):
        checkpoint.load(run / "best")


def test_cm2_needs_a_datastore_of_the_right_width(tmp_path: Path) -> None:
    videos, chosen = small.videos(), recipe("cm2")
    with pytest.raises(DatastoreError, match="--datastore"):
        set_prediction.prepare(chosen, videos, None, None, None)
    CaptionStore(["stir"] * 9, torch.randn(9, 5)).save(tmp_path / "store")
    with pytest.raises(DatastoreError, match="captions are 5 wide, the features 16"):
        set_prediction.prepare(chosen, videos, None, None, tmp_path / "store")


def test_import_by_command(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = TextConfig(width=8, windows=2, captions=2)
    sizes = {"width": 32, "heads": 8, "feed_forward": 32, "queries": 4, "rnn_width": 32}
    words, bank_ND = Words(["add", "oil", "UNK"]), torch.randn(5, 8)
    model = methods.cm2(words, bank_ND, features=8, text=text, **sizes).eval()
    torch.save(model.state_dict(), tmp_path / "model.pth")
    info = {"best": {"opt": {"window_size": 2, "soft_k": 2}}}
    (tmp_path / "info.json").write_text(json.dumps(info))
    (tmp_path / "words.json").write_text(json.dumps(words.to_json()))
    np.save(tmp_path / "bank.npy", bank_ND[:, None].numpy())
    command = ["import", tmp_path / "model.pth", "--preset", "cm2", "-o", tmp_path / "folder"]
    command += ["--tokenizer", tmp_path / "words.json"]
    result = CliRunner().invoke(app, [str(part) for part in command])
    assert isinstance(result.exception, ConfigError) and "memory bank" in str(result.exception)
    command += ["--datastore", tmp_path / "bank.npy"]
    result = CliRunner().invoke(app, [str(part) for part in command])
    assert result.exit_code == 0, result.output
    features_TF = torch.randn(20, 8)
    imported = method_folder.load(tmp_path / "folder")
    assert imported.caption(features_TF, 30.0) == model.caption(features_TF, 30.0)
