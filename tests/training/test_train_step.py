"""The published optimiser step, made by the loop's own code."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from starc.model import published
from starc.model.inputs import Collator
from starc.model.starc import Batch, STaRC
from starc.training import recipes
from starc.training.dataset import Videos
from starc.training.loop import Task, Training
from starc.training.recipes import Recipe
from starc.training.run import RunFolder
from starc_eval.annotations import VideoAnnotation
from support.scripts import script
from support.small_training import tokenizer

torch.set_num_threads(1)
STATE = "state_after_adam_lr1e-3_clip1_renorm"


@pytest.fixture(scope="module")
def parity() -> Any:
    return script("parity")


def begun(model: STaRC, store: Any, batch: Batch, folder: Path) -> Training:
    """The recipe `published` at the rate of the golden step, on videos named as the batch's."""
    train = dataclasses.replace(recipes.published().train, learning_rate=1e-3)
    recipe = Recipe(model=model.config, train=train)
    assert recipe.model.loss == recipes.published().model.loss
    features = {video: batch.clip_BTD[n] for n, video in enumerate(batch.ids)}
    annotations = {video: VideoAnnotation(((0, 5),), ("stir",), 100.0) for video in batch.ids}
    task = Task(
        Videos.of(annotations, features, {}), None, store, Collator(model.config, tokenizer())
    )
    return Training(recipe, task, RunFolder(folder, resume=False), model, lambda line: None)


def test_the_published_step_through_the_loop(shared: Path, tmp_path: Path, parity: Any) -> None:
    folder = shared / "parity/model"
    golden = torch.load(folder / "train_step_F100_B4.pt", weights_only=True)
    case = torch.load(folder / "case_F100_B4.pt", weights_only=True)
    batch, model = parity.to_batch(case["inputs"]), parity.load_model(folder)
    training = begun(model, parity.load_store(folder), batch, tmp_path / "run")
    clipped: dict[str, Tensor] = {}

    def remember(*_: Any) -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                clipped[published.to_published(name)] = parameter.grad.clone()

    training.optimiser.optimizer.register_step_pre_hook(remember)
    line = training.optimise([batch])
    training.run.close()

    report = parity.Report("step")
    for name, wanted in (
        ("caption", case["fwd"]["ce_loss#0"]),
        ("denoising", case["fwd"]["ce_loss#1"]),
        ("saliency", case["fwd"]["saliency_loss#0"]),
        ("loss", case["loss_generative"] + case["loss_denoising"]),
        ("norm", golden["total_grad_norm"]),
    ):
        report.close(name, torch.tensor(line[name]), torch.as_tensor(wanted), relative=True)
    # The published schedule is set after a step: step 0 runs at the full rate, step 1 at none.
    assert (line["rate"], training.optimiser.param_groups[0]["lr"]) == (1e-3, 0.0)
    assert golden["total_grad_norm"] > 1  # so clipping is part of what is compared
    for name, wanted in golden["grads"].items():
        assert (wanted is None) == (name not in clipped), name
        if wanted is not None:
            unclipped = clipped[name] * golden["total_grad_norm"]
            report.close("gradient", unclipped, wanted, relative=True)
    compare_state(report, model, golden, parity.ADAM_EPS)
    assert report.ok, report.line()


def compare_state(report: Any, model: STaRC, golden: dict[str, Any], eps: float) -> None:
    """All weights; where the gradient is below Adam's eps a step is rounding noise over eps."""
    noisy = 0
    for name, tensor in model.state_dict().items():
        wanted = golden[STATE][published.to_published(name)]
        gradient = golden["grads"].get(published.to_published(name))
        clear = torch.ones_like(tensor, dtype=torch.bool)
        if gradient is not None:
            clear = ((gradient / golden["total_grad_norm"]).abs() > eps) | (gradient == 0)
        if clear.any():
            report.close("state", tensor[clear], wanted[clear])
        assert ((tensor - wanted)[~clear].abs() < 1e-3).all(), name
        noisy += int((~clear).sum())
    assert noisy < 1000
