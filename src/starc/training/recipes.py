"""Whole trainings as Python presets: model, data and optimisation in one dataclass.

A recipe is a function that returns a `Recipe`; a variant is `apply_overrides(recipe,
["train.epochs=3", "model.transport.anchors=10"])`. The resolved recipe is written into the run's
folder and read back when a run is resumed.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypeVar, cast

from starc import config as model_config
from starc.config import (
    BeamSearch,
    Config,
    InputConfig,
    LossConfig,
    T5Config,
    TemporalConfig,
    Windowing,
    added,
)
from starc.errors import ConfigError
from starc.methods import settings as methods


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Optimisation, validation, saving."""

    epochs: int = 10
    """Passes over all training videos."""
    batch: int = 4
    """Videos per optimiser step, over all processes and accumulated parts."""
    accumulate: int = 1
    """Parts a process's share of the batch is cut into: less memory, the same gradient."""
    learning_rate: float = 1e-5
    """Peak rate."""
    relative_rate: bool = False
    """Multiply a weight's rate by its size, as Adafactor does: for training from scratch."""
    fresh_rate: float | None = added(None)
    """Peak rate of the parts that --init did not bring; None: that of all others."""
    schedule: Literal["cosine", "linear", "constant", "halving"] = added("cosine")
    """How the rate goes on after the warm-up: down to 0 by a cosine or a line, not at all, or by
    half after epoch 8 and every third epoch from there (PDVC)."""
    warmup: float = 0.1
    """Share of all steps with a linearly rising rate."""
    betas: tuple[float, float] = added((0.9, 0.999))
    """Adam's memory of gradients and of their squares."""
    weight_decay: float = added(0.0)
    """Of matrices, decoupled from the gradient (AdamW); norms and biases do not decay."""
    late_schedule: bool = False
    """Set the rate after a step instead of before it, so that step 0 runs at the full rate and step
    1 at 0 (published)."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 turns clipping off."""
    freeze: tuple[str, ...] = ()
    """Parameters that stay as they are, by glob: "t5.encoder.*"."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the arithmetic; weights stay in float32."""
    group_by_length: bool = True
    """Videos with equally long speech share a batch: less padding, the same gradient noise."""
    seed: int = 0
    """Of fresh weights, the order of videos, dropout and what is corrupted."""
    save_every: int = 0
    """Steps between two saves of the state besides those at the end of an epoch; 0: none."""
    validate_every: int = 1
    """Epochs between two validations; 0: none."""
    validation_beams: int | None = None
    """Beams of the decoding in validation; None: as the model decodes. 1 is faster."""
    select: Literal["CIDEr", "METEOR", "soda_c", "F1", "Bleu_4"] = "CIDEr"
    """The metric that chooses the best checkpoint."""
    tensorboard: bool = False
    """Write losses and validations for TensorBoard too, into RUN/tensorboard."""
    wandb: str = added("")
    """Send what metrics.jsonl gets to this project of Weights & Biases too; empty: send nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything that a run needs to know besides its files."""

    model: Config = field(default_factory=model_config.paper)
    train: TrainConfig = field(default_factory=TrainConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class SetRecipe:
    """The same for a method of starc.methods; the data decide its features and vocabulary."""

    model: methods.PdvcConfig = field(default_factory=methods.pdvc)
    train: TrainConfig = field(default_factory=TrainConfig)


AnyRecipe = TypeVar("AnyRecipe", Recipe, SetRecipe)
NO_VIDEO = (
    "model.inputs.video=false",
    "model.swsa=none",
    "model.saliency=none",
    "model.retrieval=none",
    "model.prompt=none",
)
"""Settings of a model that only listens."""
NO_SPEECH = ("model.inputs.speech=false", "model.loss.denoising_weight=0")
"""Settings of a model that only watches; there is no speech to denoise."""


def youcook2() -> Recipe:
    """The paper's second stage on YouCook2: λ 6, ten epochs at 1e-5, batch 4."""
    return Recipe()


def vitt() -> Recipe:
    """The paper's second stage on ViTT: λ 2."""
    loss = dataclasses.replace(Recipe().model.loss, saliency_weight=2.0)
    return Recipe(model=dataclasses.replace(Recipe().model, loss=loss))


def activitynet() -> Recipe:
    """The second stage on ActivityNet Captions. Not in the paper: the settings of YouCook2."""
    return Recipe()


# Vid2Seq's own trainings. Sources: [V] README.md and args.py of github.com/antoyang/VidChapters
# (batches there are per GPU, times 8 GPUs); [S] scenic/projects/vid2seq/configs of
# github.com/google-research/scenic. Both: Adam, no weight decay, label smoothing 0.1.


def _vid2seq(**train: Any) -> Recipe:
    # Cosine after 10 % warm-up: --schedule=cosine_with_warmup, --fraction_warmup_steps 0.1 [V].
    # 3e-4: --lr [V], base_learning_rate [S].
    return Recipe(model=model_config.vid2seq(), train=TrainConfig(learning_rate=3e-4, **train))


def pretrain() -> Recipe:
    """Vid2Seq's first stage on narrated videos (HowTo100M): speech from frames, and denoising."""
    recipe = _vid2seq(
        epochs=5,  # --epochs=5 [V]
        batch=64,  # --batch_size=8 [V]
        clip=0.1,  # --clip_max_norm=0.1 [V]
        schedule="constant",  # no --schedule [V], so that --fraction_warmup_steps=0.01 is idle
        warmup=0.0,
    )
    loss = dataclasses.replace(recipe.model.loss, target="speech")
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, loss=loss))


def vidchapters() -> Recipe:
    """Vid2Seq on the chapters of VidChapters-7M, as its authors train it."""
    return _vid2seq(
        epochs=10,  # --epochs=10 [V]
        batch=64,  # --batch_size=8 [V]
        clip=0.1,  # --clip_max_norm=0.1 [V]
    )


def vid2seq() -> Recipe:
    """The paper's first stage on YouCook2, and its baseline: Vid2Seq at 3e-4, 40 epochs."""
    # 40: --epochs=40 for YouCook2 [V]. The paper names 3e-4 and a batch of 4; [V] has 16.
    return _vid2seq(epochs=40)


def vid2seq_vitt() -> Recipe:
    """The same on ViTT: 20 epochs."""
    return _vid2seq(epochs=20)  # --epochs=20 for ViTT [V]


def vid2seq_activitynet() -> Recipe:
    """Vid2Seq on ActivityNet Captions, as its authors train it; there is no denoising."""
    recipe = _vid2seq(
        epochs=20,  # num_training_epochs [S]
        batch=32,  # batch_size [S]
        clip=1.0,  # max_grad_norm [S]
    )
    loss = dataclasses.replace(recipe.model.loss, denoising_weight=0.0)  # corrupt_coef [S]
    # Beams 4, lengths to the power of 0.6: num_decodes, alpha [S].
    decoding = dataclasses.replace(recipe.model.decoding, length_penalty=0.6)
    model = dataclasses.replace(recipe.model, loss=loss, decoding=decoding)
    return dataclasses.replace(recipe, model=model)


def published() -> Recipe:
    """The second stage as the authors' code runs it, once its first step does not stop it."""
    train = TrainConfig(late_schedule=True, group_by_length=False)
    return Recipe(model=model_config.published(), train=train)


def tiny() -> Recipe:
    """A small model from scratch: minutes on a CPU."""
    model = Config(
        inputs=InputConfig(speech_tokens=256),
        decoding=BeamSearch(max_tokens=192),
        temporal=TemporalConfig(features=384, depth=2, heads=4, feed_forward=512),
        t5=T5Config(
            width=128,
            head_width=32,
            feed_forward=512,
            layers=2,
            decoder_layers=2,
            heads=4,
            text_vocabulary=4100,
        ),
        loss=LossConfig(saliency_weight=2.0),
    )
    return Recipe(model=model, train=TrainConfig(epochs=4, batch=8, learning_rate=1e-3))


def tiny_youcook2() -> Recipe:
    """The embedded model: the paper's at a small size, on windows of 100 s, from scratch."""
    model = Config(
        inputs=InputConfig(
            speech_tokens=512,
            image_encoder="efficientnet-lite0",
            text_encoder="minilm",
            joint_space=True,
        ),
        windowing=Windowing(seconds=100.0, longest=120.0, in_training=True),
        # Chosen on YouCook2's first 100 validation videos.
        decoding=BeamSearch(
            max_tokens=192,
            grammar=True,
            token_type_first=True,
            quantiles=(0.5, 0.64),
            max_repeated_words=5,
        ),
        temporal=TemporalConfig(features=384, depth=2, heads=4, feed_forward=512),
        t5=T5Config(
            width=256,
            head_width=64,
            feed_forward=768,
            layers=3,
            decoder_layers=3,
            heads=4,
            text_vocabulary=5053,
            attention_dropout=0.0,
        ),
        loss=LossConfig(saliency_weight=1.0, denoising_weight=0.0),
        decoder_video="plain",
    )
    train = TrainConfig(
        epochs=3,
        batch=8,
        learning_rate=4e-3,
        relative_rate=True,
        clip=2.0,
        validate_every=3,
        validation_beams=1,
    )
    return Recipe(model=model, train=train)


RECIPES = {
    recipe.__name__: recipe
    for recipe in (
        youcook2,
        vitt,
        activitynet,
        pretrain,
        vidchapters,
        vid2seq,
        vid2seq_vitt,
        vid2seq_activitynet,
        published,
        tiny,
        tiny_youcook2,
    )
}


def _set_recipe(model: methods.PdvcConfig) -> SetRecipe:
    # cfgs/yc2_tsn_pdvcl.yml and opts.py of github.com/ttengwang/PDVC; CM² has the same.
    train = TrainConfig(
        epochs=30,  # epoch
        batch=1,  # batch_size
        learning_rate=5e-5,  # lr
        schedule="halving",  # learning_rate_decay_start, _every, _rate
        warmup=0.0,
        weight_decay=1e-4,  # weight_decay, added to the gradient (Adam)
        clip=100.0,  # grad_clip
        group_by_length=False,
        select="METEOR",
    )
    return SetRecipe(model=model, train=train)


def pdvc() -> SetRecipe:
    """PDVC with its LSTM-DSA captioner, as published for YouCook2."""
    return _set_recipe(methods.pdvc())


def pdvc_light() -> SetRecipe:
    """PDVC with its light captioner, as published for YouCook2."""
    return _set_recipe(methods.pdvc_light())


def cm2() -> SetRecipe:
    """CM², as published for YouCook2; --datastore is its memory bank."""
    return _set_recipe(methods.cm2())


METHODS = {recipe.__name__: recipe for recipe in (pdvc, pdvc_light, cm2)}


def recipe(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        known = [*RECIPES, *METHODS]
        raise ConfigError(f"recipe {name!r}: unknown; {model_config.suggest(name, known)}")
    return RECIPES[name]()


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that --set can change."""

    name: str
    value: str
    meaning: str


def settings(part: Any, prefix: str = "") -> Iterator[Setting]:
    """Every setting of a recipe, with its value; meanings are the docstrings under the fields."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(type(part))))
    body = cast("ast.ClassDef", tree.body[0]).body
    meanings = {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
    for spec in dataclasses.fields(part):
        value, name = getattr(part, spec.name), prefix + spec.name
        if dataclasses.is_dataclass(value):
            yield from settings(value, f"{name}.")
        else:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            shown = shown.lower() if value is None or isinstance(value, bool) else shown
            yield Setting(name, shown, meanings.get(spec.name, ""))


def to_dict(whole: Recipe | SetRecipe) -> dict[str, Any]:
    """Plain dictionaries, ready for `json.dump`."""
    return model_config.to_dict(whole, training=True)


def from_dict(data: Mapping[str, Any]) -> Recipe:
    """The inverse of `to_dict`; strict."""
    whole: Recipe = model_config.build(Recipe, data, "recipe")
    return _checked(whole)


def set_from_dict(data: Mapping[str, Any]) -> SetRecipe:
    """The inverse of `to_dict` for a method of starc.methods; strict."""
    whole: SetRecipe = model_config.build(SetRecipe, data, "recipe")
    return _checked(whole)


def apply_overrides(whole: AnyRecipe, overrides: Sequence[str]) -> AnyRecipe:
    """The recipe with `key=value` settings applied from left to right.

    `transport.centre=true` means `model.transport.centre=true`.
    """
    for override in overrides:
        named = override.split("=")[0].split(".")[0].strip() in ("model", "train")
        whole = model_config.override(whole, override if named else f"model.{override}")
    return _checked(whole)


def _checked(whole: AnyRecipe) -> AnyRecipe:
    train = whole.train
    if isinstance(whole, Recipe):
        model_config.check(whole.model)
        loss = whole.model.loss
        if not 0 < loss.corruption < 1 or loss.corrupted_span < 1:
            raise ConfigError(
                "model.loss.corruption lies between 0 and 1, model.loss.corrupted_span begins at 1"
            )
    for name, value, least in (
        ("train.epochs", train.epochs, 1),
        ("train.batch", train.batch, 1),
        ("train.accumulate", train.accumulate, 1),
        ("train.save_every", train.save_every, 0),
        ("train.validate_every", train.validate_every, 0),
        ("train.validation_beams", train.validation_beams or 1, 1),
        ("train.learning_rate", train.learning_rate, 0),
        ("train.clip", train.clip, 0),
        ("train.weight_decay", train.weight_decay, 0),
        ("train.fresh_rate", train.fresh_rate or 0, 0),
    ):
        if not least <= value < math.inf:
            raise ConfigError(f"{name}: must be at least {least} (found {value})")
    if train.fresh_rate is not None and not train.learning_rate:
        raise ConfigError("train.fresh_rate: needs train.learning_rate above 0; freeze the others")
    if not all(0 <= beta < 1 for beta in train.betas) or len(train.betas) != 2:
        raise ConfigError(f"train.betas: two numbers from 0 to below 1 (found {train.betas})")
    if not 0 <= train.warmup < 1:
        raise ConfigError(f"train.warmup: lies between 0 and 1 (found {train.warmup})")
    if train.batch % train.accumulate:
        raise ConfigError(
            f"train.accumulate: {train.accumulate} does not divide train.batch {train.batch}"
        )
    return whole
