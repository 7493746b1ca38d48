"""Rates, decay and betas reach the optimiser; curves reach Weights & Biases."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from starc.cli import app
from starc.errors import ConfigError, MissingExtra
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.training.loop import adam, rate, train
from starc.training.recipes import TrainConfig, apply_overrides, from_dict, to_dict
from starc.training.run import RunFolder
from starc.training.train import run_training
from support import small_training as small


def test_schedules() -> None:
    def rates(schedule: str) -> list[float]:
        config = TrainConfig(learning_rate=1.0, warmup=0.2, schedule=schedule)  # type: ignore[arg-type]
        return [rate(step, 10, config) for step in range(10)]

    assert rates("constant") == [0.5, *[1.0] * 9]
    assert rates("linear")[:4] == [0.5, 1.0, 1.0, 1 - 1 / 8]
    assert rates("cosine")[6] == pytest.approx(0.5)


def test_what_decays_and_what_is_fresh() -> None:
    config = TrainConfig(learning_rate=1e-3, fresh_rate=1e-2, weight_decay=0.1, betas=(0.8, 0.95))
    model = STaRC(small.recipe().model)
    made = adam(model, config, {"prompt_projection.weight", "prompt_projection.bias"})
    assert isinstance(made, torch.optim.AdamW)
    group_of = {id(one): group for group in made.param_groups for one in group["params"]}
    names = dict(model.named_parameters())

    def found(name: str) -> tuple[float, float, Any]:
        group = group_of[id(names[name])]
        return group["scale"], group["weight_decay"], group["betas"]

    betas = (0.8, 0.95)
    assert found("prompt_projection.weight") == (pytest.approx(10), 0.1, betas)
    assert found("prompt_projection.bias") == (pytest.approx(10), 0.0, betas)
    assert found("t5.shared.weight") == (1.0, 0.1, betas)
    assert type(adam(model, TrainConfig())) is torch.optim.Adam


@pytest.mark.parametrize(
    "wrong", ["betas=0.9,1.0", "betas=0.9", "weight_decay=-1", "schedule=step"]
)
def test_settings_that_cannot_be(wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"train.{wrong.partition('=')[0]}"):
        apply_overrides(small.recipe(), [f"train.{wrong}"])


def test_fresh_parts_stay_fresh_when_resumed(tmp_path: Path) -> None:
    """Killed or not, the same weights: what was fresh is not forgotten with the first save."""
    small.files(tmp_path)
    bare = apply_overrides(small.recipe(), ["model.prompt=none", "model.retrieval=none"])
    checkpoint.save(tmp_path / "first", STaRC(bare.model), tokenizer=small.tokenizer())
    given = small.given(tmp_path, init=tmp_path / "first")
    settings = ["train.fresh_rate=1e-2", "train.learning_rate=1e-4", "train.epochs=2"]
    settings += ["train.batch=4", "train.save_every=1", "train.weight_decay=0.01"]

    def run(name: str, *, resume: bool = False, steps: int | None = None) -> None:
        heard = iter(range(1, 100))

        def stop(line: dict[str, Any]) -> None:
            if next(heard) == steps:
                raise KeyboardInterrupt

        try:
            run_training("tiny", given, tmp_path / name, settings, resume=resume, progress=stop)
        except KeyboardInterrupt:
            assert steps

    run("whole")
    run("cut", steps=3)
    run("cut", resume=True)
    manifest = json.loads((tmp_path / "whole/manifest.json").read_text())
    assert "prompt_projection.weight" in manifest["fresh"]
    first, second = (
        (tmp_path / n / "last/model.safetensors").read_bytes() for n in ("whole", "cut")
    )
    assert first == second


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A stand-in for the package, which records what it is told."""
    told: list[Any] = []

    def init(**settings: Any) -> Any:
        told.append(settings)
        return SimpleNamespace(
            log=lambda values, step: told.append((step, values)),
            finish=lambda: told.append("finished"),
        )

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    yield told


def test_weights_and_biases_gets_what_the_metrics_get(tmp_path: Path, wandb: list[Any]) -> None:
    chosen = small.recipe(wandb="kitchen", validate_every=1)
    with RunFolder(tmp_path / "run", resume=False) as run:
        run.write("recipe.json", {})
        train(chosen, small.task(chosen, validation=True), run)
    with RunFolder(tmp_path / "run", resume=True) as run:
        train(chosen, small.task(chosen, validation=True), run)
    begun, *middle = wandb[: wandb.index("finished")]
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [step for step, _ in middle] == [line["step"] for line in lines]
    assert [values.get("train/loss") for _, values in middle] == [
        line.get("loss") for line in lines
    ]
    scored = [values for _, values in middle if "validation/CIDEr" in values]
    assert len(scored) == 2
    assert begun["project"] == "kitchen" and begun["config"]["train"]["wandb"] == "kitchen"
    again = wandb[wandb.index("finished") + 1]
    assert (again["id"], again["resume"]) == (begun["id"], "allow")


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    small.files(tmp_path)
    with pytest.raises(MissingExtra, match=r"pip install 'starc\[wandb\]'"):
        run_training(
            "tiny",
            small.given(tmp_path),
            tmp_path / "run",
            [*small.SMALL, "train.wandb=kitchen"],
            resume=False,
            progress=lambda line: None,
        )
    assert not (tmp_path / "run").exists()


def test_a_line_per_validation_where_there_is_no_terminal(tmp_path: Path) -> None:
    arguments = small.files(tmp_path)
    settings = [part for setting in small.SMALL for part in ("--set", setting)]
    run = tmp_path / f"[long] {'name ' * 20}"
    store = ["--datastore", str(tmp_path / "datastore"), "--run", str(run)]
    ended = CliRunner().invoke(app, ["train", "tiny", *arguments, *store, *settings])
    assert ended.exit_code == 0, ended.output
    scores, folder = ended.stdout.splitlines()
    assert scores.startswith("epoch 1, step 2: CIDEr") and "Recall" in scores
    assert folder == str(run / "best")


def test_runs_begun_before_these_settings_go_on() -> None:
    old = to_dict(small.recipe())
    for name in ("fresh_rate", "schedule", "betas", "weight_decay", "wandb"):
        del old["train"][name]
    del old["model"]["loss"]["target"]
    assert from_dict(old) == small.recipe()
