"""The training loop: exact resuming, exact sharing between processes, and what stops it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from starc.errors import (
    CheckpointError,
    ConfigError,
    DatastoreError,
    MissingExtra,
    StarcError,
)
from starc.model import checkpoint
from starc.retrieval.datastore import CaptionStore
from starc.training import loop
from starc.training.evaluate import headline_scores
from starc.training.loop import Training, freeze, rate, train
from starc.training.recipes import Recipe, TrainConfig, apply_overrides, to_dict
from starc.training.run import RECIPE, RunFolder
from starc_eval.annotations import read_predictions
from support.small_training import recipe, task

torch.set_num_threads(1)  # the model is so small that threads would only wait for each other
PROGRAM = Path(__file__).parents[1] / "support" / "small_training.py"


def trained(folder: Path, chosen: Recipe, *, resume: bool = False, **options: Any) -> list[Any]:
    """The lines of metrics.jsonl after a training."""
    with RunFolder(folder, resume=resume) as run:
        run.write(RECIPE, to_dict(chosen))
        train(chosen, task(chosen, validation=bool(chosen.train.validate_every)), run, **options)
    return lines(folder)


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_run_repeats_the_losses(tmp_path: Path, stop: int) -> None:
    chosen = recipe()
    whole = trained(tmp_path / "whole", chosen)
    assert [line["step"] for line in whole] == [1, 2, 3, 4]
    trained(tmp_path / "parts", chosen, stop_after=stop)
    assert trained(tmp_path / "parts", chosen, resume=True) == whole
    weights = [
        checkpoint.load(tmp_path / name / "last").model.state_dict() for name in ("whole", "parts")
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def program(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stderr=subprocess.PIPE,
    )


def test_killed_at_a_random_moment_and_resumed(tmp_path: Path) -> None:
    long = ["--set", "train.epochs=10", "--set", "train.save_every=2"]
    undisturbed = program(tmp_path / "whole", *long)
    killed = program(tmp_path / "killed", *long)
    path = tmp_path / "killed/metrics.jsonl"
    while not path.exists() or path.read_text().count("\n") < 7:
        assert killed.poll() is None, killed.stderr and killed.stderr.read()
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    if killed.stderr:
        killed.stderr.close()
    resumed = program(tmp_path / "killed", "--resume")
    for process in (undisturbed, resumed):
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")


def two_processes(folder: Path, *arguments: str) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    return [program(folder, *arguments, **world, RANK=rank, LOCAL_RANK=rank) for rank in "01"]


STILL = [f"--set={setting}" for setting in ("model.t5.dropout=0", "model.temporal.dropout=0")]


@pytest.mark.parametrize("count", ["8", "9", "11"])
def test_two_processes_are_one(tmp_path: Path, count: str) -> None:
    """9 and 11 videos leave batches of one and of three: a process without work, uneven shares."""
    still = [*STILL, "--videos", count]
    processes = two_processes(tmp_path / "two", *still)
    processes.append(program(tmp_path / "one", *still, "--set", "train.accumulate=2"))
    processes.append(program(tmp_path / "plain", *still))
    for process in processes:
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors.decode()
    plain = lines(tmp_path / "plain")
    for name in ("two", "one"):
        for found, expected in zip(lines(tmp_path / name), plain, strict=True):
            assert found == pytest.approx(expected, rel=1e-4), name


def ended(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        errors = process.communicate(timeout=100)[1]
        assert process.returncode == 0, errors.decode()


def test_two_processes_resume_together(tmp_path: Path) -> None:
    long = [*STILL, "--set=train.epochs=4", "--set=train.save_every=1"]
    ended(two_processes(tmp_path / "whole", *long))
    ended(two_processes(tmp_path / "parts", *long, "--steps", "3"))
    ended(two_processes(tmp_path / "parts", "--resume"))
    assert len(lines(tmp_path / "whole")) == 8
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    weights = [
        (tmp_path / name / "last/model.safetensors").read_bytes() for name in ("whole", "parts")
    ]
    assert weights[0] == weights[1]


def test_processes_that_see_different_saves_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run", resume=False)
    chosen = recipe()
    training = Training(chosen, task(chosen), run, loop.STaRC(chosen.model), lambda line: None)
    monkeypatch.setattr(training.accelerator, "gather", lambda step: torch.tensor([4, -1]))
    with pytest.raises(CheckpointError, match=r"different saves \(steps \[4, -1\]\)"):
        training._require_one_start(None)
    run.close()


def test_processes_that_would_each_train_everything_are_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Alone:
        num_processes = 1

        def __init__(self, **_: Any) -> None: ...

    monkeypatch.setattr(loop._accelerate(), "Accelerator", Alone)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="2 processes were started, but 1 would train"):
        loop.accelerator(TrainConfig())


def test_a_kill_before_the_best_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = recipe()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "mark_best", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", chosen)
    monkeypatch.undo()
    trained(tmp_path / "run", chosen, resume=True, stop_after=3)
    assert (tmp_path / "run/best").resolve().name == "step-000002"


def test_validation_chooses_the_best(tmp_path: Path, meteor_backend: Any) -> None:
    meteor_backend("auto")
    found = trained(tmp_path / "run", recipe(validate_every=1))
    scored = [line for line in found if "validation" in line]
    assert [line["epoch"] for line in scored] == [1, 2]
    assert {"CIDEr", "F1", "soda_c"} <= set(scored[0]["validation"])
    assert (tmp_path / "run/best/config.json").is_file()
    assert (tmp_path / "run/last/model.safetensors").is_file()
    predicted = read_predictions(tmp_path / "run/last/predictions.json")
    wanted = task(recipe(), validation=True).validation
    assert wanted is not None and predicted.keys() == {*wanted.ids}
    assert headline_scores(predicted, wanted) == pytest.approx(scored[-1]["validation"])


def test_training_learns(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", recipe(epochs=16, learning_rate=1e-2))
    assert found[-1]["caption"] < 0.7 * found[0]["caption"]
    assert found[-1]["saliency"] < found[0]["saliency"]
    assert found[-1]["rate"] < found[10]["rate"]


def test_frozen_parts_stay(tmp_path: Path) -> None:
    chosen = recipe(freeze=("t5.encoder.*",))
    torch.manual_seed(chosen.train.seed)
    before = loop.STaRC(chosen.model).state_dict()
    trained(tmp_path / "run", chosen)
    after = checkpoint.load(tmp_path / "run/last").model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not any(name.startswith("t5.encoder.") for name in changed)
    with pytest.raises(ConfigError, match="no parameter matches 'nothing'"):
        freeze(loop.STaRC(chosen.model), ["nothing"])


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    chosen = recipe()
    held = RunFolder(tmp_path / "run", resume=False)
    held.write(RECIPE, to_dict(chosen))
    with pytest.raises(ConfigError, match="another process is training here"):
        RunFolder(tmp_path / "run", resume=True)
    held.close()
    with pytest.raises(ConfigError, match="holds a run already"):
        RunFolder(tmp_path / "run", resume=False)
    with pytest.raises(ConfigError, match="nothing to resume"):
        RunFolder(tmp_path / "other", resume=True)


def test_a_full_disk_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = recipe()
    trained(tmp_path / "run", chosen, stop_after=1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop.checkpoint, "save", full)
    with pytest.raises(CheckpointError, match=r"No space left.*step-000001 is still whole"):
        trained(tmp_path / "run", chosen, resume=True)
    monkeypatch.undo()
    assert (tmp_path / "run/last/model.safetensors").is_file()
    assert not list((tmp_path / "run").glob(".half*"))
    assert len(trained(tmp_path / "run", chosen, resume=True)) == 4


@pytest.mark.parametrize("more", [["model.retrieval=none"], []])
def test_a_loss_that_is_no_number_names_its_videos(tmp_path: Path, more: list[str]) -> None:
    chosen = apply_overrides(recipe(learning_rate=1e30, clip=0.0, epochs=4), more)
    with pytest.raises(StarcError, match=r"the loss is .* on the videos video\d"):
        trained(tmp_path / "run", chosen)


def test_a_datastore_in_the_wrong_is_not_blamed_on_the_loss(tmp_path: Path) -> None:
    chosen = recipe()
    own = task(chosen)
    only = CaptionStore(["stir"], torch.ones(1, 16), videos=[own.train.ids[0]])
    with RunFolder(tmp_path / "run", resume=False) as run:
        run.write(RECIPE, to_dict(chosen))
        with pytest.raises(DatastoreError, match="belong to the video that is excluded"):
            train(chosen, replace(own, store=only), run)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard would draw, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {
        tag: [(event.step, event.value) for event in seen.Scalars(tag)]
        for tag in seen.Tags()["scalars"]
    }


def test_tensorboard_has_what_the_metrics_have(tmp_path: Path, meteor_backend: Any) -> None:
    pytest.importorskip("tensorboard")
    meteor_backend("auto")
    chosen = recipe(tensorboard=True, validate_every=2)
    trained(tmp_path / "run", chosen, stop_after=3)
    found = trained(tmp_path / "run", chosen, resume=True)
    drawn = scalars(tmp_path / "run")
    steps = [line for line in found if "loss" in line]
    for name in ("loss", "caption", "saliency", "rate", "norm"):
        assert drawn[f"train/{name}"] == [
            (line["step"], pytest.approx(line[name], rel=1e-6)) for line in steps
        ]
    (scored,) = (line for line in found if "validation" in line)
    assert drawn["validation/F1"] == [(4, pytest.approx(scored["validation"]["F1"], rel=1e-6))]
    assert not any("epoch" in tag or "steps" in tag for tag in drawn)


def test_without_tensorboard_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"tensorboard.*pip install 'starc\[tensorboard\]'"):
        trained(tmp_path / "run", recipe(tensorboard=True))
    trained(tmp_path / "other", recipe())


def test_batches_must_come_out_even(tmp_path: Path) -> None:
    chosen = apply_overrides(recipe(), ["train.accumulate=4", "train.batch=4"])
    run = RunFolder(tmp_path / "run", resume=False)
    run.write(RECIPE, to_dict(chosen))
    Training(chosen, task(chosen), run, loop.STaRC(chosen.model), lambda line: None)
    run.close()
    with pytest.raises(ConfigError, match="does not divide"):
        apply_overrides(recipe(), ["train.accumulate=3"])


def test_rates() -> None:
    config = TrainConfig(learning_rate=1.0, warmup=0.1)
    found = [rate(step, 100, config) for step in range(100)]
    assert found[0] == 0.1
    assert found[9] == found[10] == 1.0
    assert found[55] == pytest.approx(0.5, abs=1e-9)
    assert found[99] == pytest.approx(0, abs=1e-3)
    late = TrainConfig(learning_rate=1.0, warmup=0.1, late_schedule=True)
    assert rate(0, 100, late) == 0.0
