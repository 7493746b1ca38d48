"""What `starc train` does: read files, see that they fit, run the loop."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path

import torch

from starc.config import with_sizes_of
from starc.errors import CheckpointError, ConfigError, DatastoreError
from starc.files import cache
from starc.model import checkpoint
from starc.model.checkpoint import Loaded
from starc.model.inputs import Collator
from starc.model.starc import STaRC
from starc.retrieval.captions import digest_of
from starc.retrieval.datastore import open_datastore
from starc.training import recipes
from starc.training.dataset import Videos
from starc.training.loop import Progress, Task
from starc.training.loop import train as train_loop
from starc.training.recipes import Recipe
from starc.training.run import MANIFEST, RECIPE, RunFolder, summary_writer


@dataclass(frozen=True, slots=True)
class Files:
    """What a run reads."""

    annotations: Path
    features: Path
    speech: Path | None
    validation: Path | None
    datastore: Path | None
    tokenizer: Path | None = None
    init: Path | None = None
    subset: str | None = None


def run_training(
    name: str,
    files: Files,
    folder: Path,
    overrides: Sequence[str],
    *,
    resume: bool,
    progress: Progress,
) -> None:
    """Train from files; a resumed run keeps the recipe it began with."""
    rank = int(os.environ.get("RANK", "0"))
    place = folder if rank == 0 else folder / f".process-{rank}"
    start = checkpoint.load(files.init, device="cpu") if files.init else None
    if resume:
        if overrides:
            raise ConfigError("--set: a resumed run keeps its recipe; start a new run to change it")
        with RunFolder(place, resume=True) as run:
            recipe = recipes.from_dict(run.read(RECIPE))
            train_loop(recipe, _task(recipe, files, start), run, progress=progress)
        return
    # Everything that can be wrong is found before the folder exists.
    recipe = recipes.recipe(name)
    if start is not None:
        recipe = replace(recipe, model=with_sizes_of(recipe.model, start.config))
    recipe = recipes.apply_overrides(recipe, overrides)
    if recipe.train.tensorboard:
        summary_writer()
    task = _task(recipe, files, start)
    model = initialised(start, recipe) if start else None
    with RunFolder(place, resume=False) as run:
        run.write(MANIFEST, manifest(name, files, recipe))
        run.write(RECIPE, recipes.to_dict(recipe))
        train_loop(recipe, task, run, model=model, progress=progress)


def initialised(start: Loaded, recipe: Recipe) -> STaRC:
    """A model of the recipe with the weights of another; its own parts start fresh.

    A weight of another shape is an error: the second stage must have the first one's sizes.
    """
    theirs = start.model.state_dict()
    torch.manual_seed(recipe.train.seed)
    model = STaRC(recipe.model)
    ours = model.state_dict()
    for name in ours:
        if name in theirs and theirs[name].shape != ours[name].shape:
            raise CheckpointError(
                f"{start.folder}: {name} is {tuple(theirs[name].shape)}, the recipe needs "
                f"{tuple(ours[name].shape)}; choose the sizes of the first stage"
            )
    model.load_state_dict({name: theirs.get(name, value) for name, value in ours.items()})
    return model


def manifest(name: str, files: Files, recipe: Recipe) -> dict[str, object]:
    """What made a run: recipe, files with their hashes, versions, seed."""
    paths = {spec.name: getattr(files, spec.name) for spec in fields(files)}
    return {
        "recipe": name,
        "seed": recipe.train.seed,
        "files": {
            key: {"path": str(path), "content": _digest(path) if path.exists() else None}
            for key, path in paths.items()
            if isinstance(path, Path)
        },
        "versions": {package: version(package) for package in ("starc", "torch", "accelerate")}
        | {"python": platform.python_version()},
    }


def _task(recipe: Recipe, files: Files, start: Loaded | None) -> Task:
    store = open_datastore(str(files.datastore)) if files.datastore else None
    if recipe.model.retrieval is not None and store is None:
        raise DatastoreError(
            "--datastore: this recipe retrieves captions; build one (starc datastore build), or "
            "--set model.retrieval=none"
        )
    tokenizer = start.tokenizer if start else None
    if files.tokenizer is not None:
        tokenizer = checkpoint.read_tokenizer(files.tokenizer)
    if tokenizer is None:
        raise CheckpointError("--tokenizer: name the tokenizer.json of the T5 (or --init a model)")
    joint = start.joint if start else None
    collate = Collator(recipe.model, tokenizer, seed=recipe.train.seed)
    validation = None
    if files.validation:
        validation = Videos.read(files.validation, files.features, files.speech, joint=joint)
    train = Videos.read(
        files.annotations, files.features, files.speech, subset=files.subset, joint=joint
    )
    return Task(train, validation, store, collate, joint)


def _digest(path: Path) -> str:
    """A name for the content of a file, or of all files in a folder."""
    if not path.is_dir():
        return digest_of(path)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return cache.key(*(f"{file.relative_to(path)} {digest_of(file)}" for file in files))
