"""The training loop, readable from top to bottom, on one device or many.

In: a recipe, videos to train and validate on, a datastore, a folder. Out: models in that folder.

A step is a function of (weights, optimiser, seed, step): batches follow from seed and epoch, and
dropout is seeded anew in each step. So a run that was killed and resumed repeats the losses of an
undisturbed one to the last digit, and several processes share one global batch: each loss is
weighted by its share of tokens (videos, frames), not averaged over processes.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from starc.decoder.t5 import PAD
from starc.errors import CheckpointError, ConfigError, DatastoreError, MissingExtra, StarcError
from starc.model import checkpoint
from starc.model.checkpoint import Loaded
from starc.model.inputs import Batch
from starc.model.joint_space import JointSpace
from starc.model.starc import Losses, STaRC
from starc.processor import prepare
from starc.retrieval.datastore import Datastore
from starc.training.dataset import Part, Videos, batch_order, batches_per_epoch
from starc.training.evaluate import as_annotations, caption_videos, headline_scores
from starc.training.recipes import Recipe, SetRecipe, TrainConfig, to_dict
from starc.training.run import PREDICTIONS, RunFolder, TensorBoard, WandB
from starc_eval.annotations import VideoAnnotation, prediction_file

Progress = Callable[[dict[str, Any]], None]
"""Prediction about each step and each validation, in the main process."""
_PRECISION = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class Task:
    """What a run works on."""

    train: Videos
    validation: Videos | None
    store: Datastore | None
    collate: Any
    """Batches of examples: a `Collator`, or that of another method."""
    joint: JointSpace | None = None
    """Kept beside the weights, for a model whose features are vectors of a joint space."""


def train(
    recipe: Recipe,
    task: Task,
    run: RunFolder,
    *,
    model: STaRC | None = None,
    fresh: Collection[str] = (),
    progress: Progress = lambda line: None,
    stop_after: int | None = None,
) -> None:
    """Train to the end of the last epoch, or to step `stop_after`; go on where `run` was left.

    `fresh` names the parameters that came with no model to start from.
    """
    torch.manual_seed(recipe.train.seed)
    finish(Training(recipe, task, run, model or STaRC(recipe.model), progress, fresh), stop_after)


def finish(training: Training, stop_after: int | None = None) -> None:
    """Train to the end of the last epoch, or to step `stop_after`."""
    try:
        while training.step < training.steps:
            training.epoch(stop_after)
            if training.step == stop_after:
                break
    finally:
        training.close()


def _accelerate() -> Any:
    try:
        import accelerate
    except ModuleNotFoundError:
        raise MissingExtra("accelerate, which training needs,", "train") from None
    return accelerate


def accelerator(config: TrainConfig) -> Any:
    """The processes of this job, told by torchrun or accelerate; without a GPU they use CPUs."""
    made, world = _accelerate().Accelerator, int(os.environ.get("WORLD_SIZE", "1"))
    on_cpu = world > 1 and not torch.accelerator.is_available()
    try:
        chosen = made(mixed_precision=_PRECISION[config.precision], cpu=on_cpu)
    except ValueError as error:  # such as float16 without a GPU
        raise ConfigError(f"train.precision={config.precision}: {error}") from None
    if chosen.num_processes != world:
        raise ConfigError(
            f"WORLD_SIZE: {world} processes were started, but {chosen.num_processes} would train "
            "together; start them with accelerate launch -m starc train …"
        )
    return chosen


class Training:
    """A run under way: the weights, the optimiser and the step they have reached."""

    def __init__(
        self,
        recipe: Recipe | SetRecipe,
        task: Task,
        run: RunFolder,
        model: nn.Module,
        progress: Progress,
        fresh: Collection[str] = (),
    ) -> None:
        prepare()
        self.recipe, self.task, self.run, self.progress = recipe, task, run, progress
        self.config = recipe.train
        self.accelerator = accelerator(self.config)
        freeze(model, self.config.freeze)
        self.step, self.best = 0, -math.inf
        state = run.state()
        self._require_one_start(state)
        if state is not None:
            model.load_state_dict(self.read_weights(run.folder / "last"))
            self.step, self.best = state["step"], state["best"]
        optimiser = self.make_optimiser(model, fresh)
        self.model, self.optimiser = self.accelerator.prepare(model, optimiser)
        if state is not None:
            self.optimiser.load_state_dict(state["optimiser"])
            if self.accelerator.is_main_process:
                run.forget_after(self.step)
                if state["is_best"]:  # a kill may have come before the link
                    run.mark_best(run.folder / f"step-{self.step:06d}")
        else:
            self._save()  # so that a run killed before its first save begins with the same weights
        parts = len(task.train.parts(self.window, random.Random(0)))
        self.per_epoch = batches_per_epoch(parts, self.config)
        self.steps = self.per_epoch * self.config.epochs
        self.boards: list[TensorBoard | WandB] = []
        if self.config.tensorboard and self.accelerator.is_main_process:
            self.boards.append(TensorBoard(run.folder, step=self.step))
        if self.config.wandb and self.accelerator.is_main_process:
            self.boards.append(WandB(run, self.config.wandb, to_dict(recipe)))

    # What is particular to STaRC; another method overrides it (set_prediction.py).

    @property
    def window(self) -> float:
        """Seconds of the parts that videos are cut into; 0: videos whole."""
        assert isinstance(self.recipe, Recipe)
        windowing = self.recipe.model.windowing
        return windowing.seconds if windowing is not None and windowing.in_training else 0.0

    def make_optimiser(self, model: Any, fresh: Collection[str]) -> torch.optim.Optimizer:
        return adam(model, self.config, fresh)

    def counts(self, part: Any) -> Tensor:
        """What each loss is a mean over."""
        return _counts(part)

    def after_step(self, model: Any) -> None:
        """Called with the plain model after each optimiser step."""
        model.decoder.rescale_time_embeddings()

    def predict(self, videos: Videos, indices: Iterable[int]) -> dict[str, VideoAnnotation]:
        """Predicted events of validation videos."""
        assert isinstance(self.recipe, Recipe)
        task, decoding = self.task, self.recipe.model.decoding
        loaded = Loaded(
            model=self.accelerator.unwrap_model(self.model),
            tokenizer=task.collate.tokenizer,
            store=task.store,
            folder=self.run.folder,
            joint=task.joint,
        )
        search = replace(decoding, beams=self.config.validation_beams or decoding.beams)
        return as_annotations(caption_videos(loaded, videos, indices, search=search), videos)

    def read_weights(self, folder: Path) -> Mapping[str, Tensor]:
        """The weights of a model folder of this run."""
        return checkpoint.load(folder, device="cpu").model.state_dict()

    def write_model(self, folder: Path, model: Any) -> None:
        """Write a model folder."""
        task = self.task
        checkpoint.save(
            folder, model, tokenizer=task.collate.tokenizer, store=task.store, joint=task.joint
        )

    def close(self) -> None:
        """Write what is waiting to be written."""
        for board in self.boards:
            board.close()

    def epoch(self, stop_after: int | None) -> None:
        """The rest of the epoch under way, then a save and a validation."""
        number, first = divmod(self.step, self.per_epoch)
        videos = self.task.train
        cuts = videos.parts(self.window, random.Random(f"{self.config.seed}/{number}"))
        ordered = batch_order([videos.length(cut) for cut in cuts], self.config, number)
        planned = [[cuts[index] for index in batch] for batch in ordered[first:]]
        for parts, filled in self._prefetched(planned, number):
            line = self.optimise(parts, filled)
            self.step += 1
            self._tell(line | {"step": self.step, "epoch": number + 1, "steps": self.steps})
            if self.step % self.per_epoch == 0:
                self._end_of_epoch(number + 1)
            elif self.step == stop_after or (
                self.config.save_every and self.step % self.config.save_every == 0
            ):
                self._save()
            if self.step == stop_after:
                return

    def optimise(self, parts: Sequence[Batch], filled: int | None = None) -> dict[str, Any]:
        """One optimiser step over this process's parts of the global batch; its losses.

        Only the first `filled` parts count: where a small batch has no video for a part, it holds
        a repeated one of weight 0, so that all processes take the same steps.
        """
        config, accelerator = self.config, self.accelerator
        self.model.train()
        if not config.late_schedule:
            self._set_rate()
        counts = torch.stack([self.counts(part) for part in parts]).to(accelerator.device)
        counts[len(parts) if filled is None else filled :] = 0
        everywhere = accelerator.reduce(counts.sum(0), reduction="sum").clamp(min=1)
        shares = counts * accelerator.num_processes / everywhere
        seen: list[dict[str, Tensor]] = []
        for n, (part, share) in enumerate(zip(parts, shares, strict=True)):
            torch.manual_seed(self._seed(accelerator.process_index * len(parts) + n))
            last = n == len(parts) - 1
            with nullcontext() if last else accelerator.no_sync(self.model):
                with accelerator.autocast():
                    losses = self._losses(part.to(accelerator.device), share)
                self._require_finite(losses.total, part)
                accelerator.backward(losses.total)
            seen.append({n: v.detach() for n, v in losses._asdict().items() if v is not None})
        norm = accelerator.clip_grad_norm_(self.model.parameters(), config.clip or math.inf)
        first = self.optimiser.param_groups[0]
        used = first["lr"] / first["scale"]
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.after_step(accelerator.unwrap_model(self.model))
        if config.late_schedule:
            self._set_rate()
        names = sorted(seen[0])
        values = torch.stack([sum(part[name] for part in seen) for name in names])  # type: ignore[misc]
        means = accelerator.reduce(values, reduction="mean").tolist()
        line = dict(zip(names, means, strict=True))
        return {"loss": line.pop("total")} | line | {"rate": used, "norm": float(norm)}

    def _losses(self, part: Batch, share: Tensor) -> Losses:
        """The model's losses; numbers that ran away reach the datastore before the loss."""
        try:
            losses: Losses = self.model(part, self.task.store, share)
        except DatastoreError:
            self._require_finite(self._loss_without_retrieval(part), part)
            raise
        return losses

    @torch.no_grad()
    def _loss_without_retrieval(self, part: Batch) -> Tensor:
        model = self.accelerator.unwrap_model(self.model)
        config = model.config
        model.config = replace(config, retrieval=None)
        try:
            total: Tensor = model(part, None).total
        finally:
            model.config = config
        return total

    def _end_of_epoch(self, number: int) -> None:
        config, videos, accelerator = self.config, self.task.validation, self.accelerator
        due = config.validate_every and (
            number % config.validate_every == 0 or number == config.epochs
        )
        if videos is None or not due:
            self._save(best=self.best == -math.inf)
            return
        mine = self.predict(
            videos, range(accelerator.process_index, len(videos), accelerator.num_processes)
        )
        utils = _accelerate().utils
        everyone: dict[str, VideoAnnotation] = dict(utils.gather_object(list(mine.items())))
        scored = [headline_scores(everyone, videos) if accelerator.is_main_process else {}]
        metrics = utils.broadcast_object_list(scored)[0]
        better = metrics[config.select] > self.best
        self.best = max(self.best, metrics[config.select])
        self._tell({"step": self.step, "epoch": number, "validation": metrics})
        self._save(best=better, predictions=everyone)

    def _save(
        self, *, best: bool = False, predictions: Mapping[str, VideoAnnotation] | None = None
    ) -> None:
        """A step folder, written by the main process; `best`: no other has been as good."""
        self.accelerator.wait_for_everyone()
        if not self.accelerator.is_main_process:
            return
        plain = self.accelerator.unwrap_model(self.model)
        state = {"step": self.step, "best": self.best, "is_best": best}

        def write(folder: Path) -> None:
            self.write_model(folder, plain)
            if predictions is not None:
                text = prediction_file(predictions)
                (folder / PREDICTIONS).write_bytes(text.encode("utf-8", "backslashreplace"))

        folder = self.run.save(self.step, write, state | {"optimiser": self.optimiser.state_dict()})
        if best:
            self.run.mark_best(folder)

    def _prefetched(
        self, planned: Sequence[Sequence[Part]], epoch: int
    ) -> Iterator[tuple[list[Batch], int]]:
        """This process's parts of each global batch, read one ahead, and how many are filled."""
        accelerator, pieces = self.accelerator, self.config.accumulate
        videos, collate = self.task.train, self.task.collate

        def read(batch: Sequence[Part]) -> tuple[list[Batch], int]:
            mine = batch[accelerator.process_index :: accelerator.num_processes]
            parts = [
                collate([videos.part(part) for part in mine[n::pieces] or batch[:1]], epoch=epoch)
                for n in range(pieces)
            ]
            return parts, min(len(mine), pieces)

        with ThreadPoolExecutor(max_workers=1) as reader:
            coming = reader.submit(read, planned[0]) if planned else None
            for following in [*planned[1:], None]:
                assert coming is not None
                parts = coming.result()
                coming = reader.submit(read, following) if following else None
                yield parts

    def _tell(self, line: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            self.run.log(line)
            for board in self.boards:
                board.write(line)
            self.progress(line)

    def _set_rate(self) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate(self.step, self.steps, self.config) * group["scale"]

    def _seed(self, part: int) -> int:
        return (self.config.seed * 1_000_003 + self.step) * 8191 + part

    def _require_one_start(self, state: dict[str, Any] | None) -> None:
        """All processes must see the same folder, or they would train different batches."""
        step = torch.tensor([-1 if state is None else state["step"]])
        seen = self.accelerator.gather(step.to(self.accelerator.device)).tolist()
        if len(set(seen)) > 1:
            raise CheckpointError(
                f"{self.run.folder}: the processes see different saves (steps {seen}); put the "
                "run's folder where all of them can read it"
            )

    def _require_finite(self, total: Tensor, part: Batch) -> None:
        if not bool(total.isfinite()):
            raise StarcError(
                f"step {self.step + 1}: the loss is {float(total.detach())} on the videos "
                f"{', '.join(part.ids)}; the last checkpoint is kept: look at their features, or "
                "lower train.learning_rate"
            )


def _counts(batch: Batch) -> Tensor:
    """What each loss is a mean over: tokens, tokens, videos (twice), frames."""
    highlighted = float(batch.wanted("salient_BT").bool().any(1).sum())
    return torch.tensor(
        [
            float((batch.wanted("target_BL") != PAD).sum()),
            float((batch.wanted("denoising_target_BL") != PAD).sum()),
            highlighted,
            highlighted,
            float(batch.frame_mask_BT.sum()),
        ]
    )


def rate(step: int, steps: int, config: TrainConfig) -> float:
    """Learning rate of a step: linear warm-up over a share of all steps, then the schedule."""
    warm = round(steps * config.warmup)
    if step < warm:
        return config.learning_rate * (step if config.late_schedule else step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    epoch = step * config.epochs // max(1, steps)
    left = {
        "cosine": 0.5 * (1 + math.cos(math.pi * done)),
        "linear": 1 - done,
        "constant": 1.0,
        "halving": 0.5 ** min(max(0, (epoch - 5) // 3), max(0, (config.epochs - 8) // 3)),
    }
    return config.learning_rate * left[config.schedule]


def adam(model: STaRC, config: TrainConfig, fresh: Collection[str] = ()) -> torch.optim.Optimizer:
    """Adam in one fused kernel; with weight decay, AdamW.

    With `relative_rate` a weight's rate is multiplied by its root mean square at the start, as
    Adafactor does: T5's embeddings are some twenty times as large as its matrices. `fresh` names
    the parameters of `fresh_rate`.
    """
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        scale = _size(parameter) if config.relative_rate else 1.0
        if name in fresh and config.fresh_rate is not None:
            scale *= config.fresh_rate / config.learning_rate
        decay = config.weight_decay if parameter.ndim > 1 else 0.0
        alike = (name if config.relative_rate else "", scale, decay)
        group = {"params": [], "scale": scale, "weight_decay": decay}
        groups.setdefault(alike, group)["params"].append(parameter)
    kind = torch.optim.AdamW if config.weight_decay else torch.optim.Adam
    return kind(list(groups.values()), lr=config.learning_rate, betas=config.betas, fused=True)


def _size(parameter: Tensor) -> float:
    return max(float(parameter.detach().square().mean().sqrt()), 1e-3)


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Let the parameters whose names match a pattern stay as they are."""
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"train.freeze: no parameter matches {pattern!r} (one is {names[0]})")
    for name, parameter in model.named_parameters():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
