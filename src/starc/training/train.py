"""What `starc train` and `starc analyse` do: read files, see that they fit, run, draw."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import cast

import torch

from starc.decoder.beam_search import SEARCH
from starc.errors import CheckpointError, ConfigError, DatastoreError
from starc.files import cache
from starc.files.atomic import replacing
from starc.model import checkpoint
from starc.model.checkpoint import SavedDatastore
from starc.model.collate import Collator
from starc.model.starc import STaRC
from starc.retrieval import datastore
from starc.retrieval.storage import digest_of
from starc.training import analysis, board, figures, recipes
from starc.training.dataset import Videos
from starc.training.evaluate import opened
from starc.training.loop import Progress, Task
from starc.training.loop import train as train_loop
from starc.training.recipes import Recipe
from starc.training.run import MANIFEST, RECIPE, Run
from starc.training.validation import predict, validate

_DECODED = 8
"""Videos decoded together."""


@dataclass(frozen=True, slots=True)
class Files:
    """What a run reads."""

    annotations: Path
    features: Path
    speech: Path | None
    validation: Path | None
    datastore: Path | None
    tokenizer: Path
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
    if resume:
        if overrides:
            raise ConfigError("--set: a resumed run keeps its recipe; start a new run to change it")
        with Run(place, resume=True) as run:
            chosen = recipes.from_dict(run.read(RECIPE))
            train_loop(chosen, _task(chosen, files), run, progress=progress)
        return
    # Everything that can be wrong is found before the folder exists.
    chosen = recipes.apply_overrides(recipes.recipe(name), overrides)
    if chosen.train.tensorboard:
        board.require()
    task = _task(chosen, files)
    model = started_from(files.init, chosen) if files.init else None
    with Run(place, resume=False) as run:
        run.write(MANIFEST, manifest(name, files, chosen))
        run.write(RECIPE, recipes.to_dict(chosen))
        train_loop(chosen, task, run, model=model, progress=progress)


def started_from(folder: Path, chosen: Recipe) -> STaRC:
    """A model of the recipe with the weights of another; its own parts start fresh.

    A weight of another shape is an error: the second stage must have the first one's sizes.
    """
    theirs = checkpoint.load(folder, device="cpu").model.state_dict()
    torch.manual_seed(chosen.train.seed)
    model = STaRC(chosen.model)
    ours = model.state_dict()
    for name in ours:
        if name in theirs and theirs[name].shape != ours[name].shape:
            raise CheckpointError(
                f"{folder}: {name} is {tuple(theirs[name].shape)}, the recipe needs "
                f"{tuple(ours[name].shape)}; choose the sizes of the first stage"
            )
    model.load_state_dict({name: theirs.get(name, value) for name, value in ours.items()})
    return model


def manifest(name: str, files: Files, chosen: Recipe) -> dict[str, object]:
    """What made a run: recipe, files with their hashes, versions, seed."""
    paths = {spec.name: getattr(files, spec.name) for spec in fields(files)}
    return {
        "recipe": name,
        "seed": chosen.train.seed,
        "files": {
            key: {"path": str(path), "content": _digest(path)}
            for key, path in paths.items()
            if isinstance(path, Path)
        },
        "versions": {package: version(package) for package in ("starc", "torch", "accelerate")}
        | {"python": platform.python_version()},
    }


def draw(
    model: Path,
    annotations: Path,
    features: Path,
    speech: Path | None,
    target: Path,
    *,
    videos: int,
) -> list[Path]:
    """The paper's figures of a model or run folder."""
    loaded, collate = opened(model)
    found = Videos.read(annotations, features, speech)
    chosen = [found[index] for index in range(min(videos, len(found)))]
    analysed_videos = list(analysis.analyse(loaded.model, loaded.store, collate, chosen))
    target.mkdir(parents=True, exist_ok=True)
    drawn = [figures.transition_sharpness(analysed_videos, target / "sharpness.png")]
    if loaded.config.saliency is not None:
        drawn.append(figures.saliency_over_time(analysed_videos, target / "saliency.png"))
    if any(analysed.anchor_T is not None for analysed in analysed_videos):
        drawn.append(figures.anchors_over_time(analysed_videos, target / "anchors.png"))
    for analysed in analysed_videos:
        if analysed.segments:
            drawn.append(figures.segmentations(analysed, target / f"segments-{analysed.video}.png"))
    return drawn


def correlate(
    models: Sequence[Path],
    annotations: Path,
    features: Path,
    speech: Path | None,
    target: Path,
    *,
    videos: int | None,
) -> list[Path]:
    """Segment quality of several models against their CIDEr and METEOR: a figure and a table."""
    found = Videos.read(annotations, features, speech)
    found = replace(found, ids=found.ids[:videos])
    rows = {name: _qualities(model, found) for name, model in _names(models).items()}
    target.mkdir(parents=True, exist_ok=True)
    columns = (*analysis.INDICATORS, "CIDEr", "METEOR")
    with replacing(target / "correlation.csv") as file:
        writer = csv.writer(file)
        writer.writerow(["model", *columns])
        for name, values in rows.items():
            writer.writerow([name, *(values[column] for column in columns)])
    drawn = figures.quality_against_captions(rows, target / "correlation.png")
    return [drawn, target / "correlation.csv"]


def _qualities(model: Path, videos: Videos) -> dict[str, float]:
    loaded, collate = opened(model)
    if loaded.config.retrieval is None:
        raise ConfigError(f"{model}: retrieves nothing, so it has no segments; leave it out")
    segments = analysis.retrieving_segments(loaded.model, loaded.store, collate, videos)
    predictions = predict(
        loaded.model,
        videos,
        range(len(videos)),
        collate,
        loaded.store,
        batch=_DECODED,
        search=SEARCH,
    )
    return analysis.segment_quality(segments, videos) | validate(predictions, videos)


def _names(models: Sequence[Path]) -> dict[str, Path]:
    """A short name for each folder: a run's own, and whole paths where those are not enough."""
    short = {(path.parent if path.name in ("best", "last") else path).name: path for path in models}
    return short if len(short) == len(models) else {str(path): path for path in models}


def _task(chosen: Recipe, files: Files) -> Task:
    store = None
    if files.datastore:
        store = cast(SavedDatastore, datastore.load(files.datastore))  # all kinds save themselves
    if chosen.model.retrieval is not None and store is None:
        raise DatastoreError(
            "--datastore: this recipe retrieves captions; build one (starc datastore build), or "
            "--set model.retrieval=none"
        )
    tokenizer = checkpoint.read_tokenizer(files.tokenizer)
    data = chosen.data
    collate = Collator(
        chosen.model,
        tokenizer,
        frames=data.frames,
        speech_tokens=data.speech_tokens,
        target_tokens=data.target_tokens,
        corruption=data.corruption,
        span=data.span,
        seed=chosen.train.seed,
    )
    validation = None
    if files.validation:
        validation = Videos.read(files.validation, files.features, files.speech)
    return Task(
        Videos.read(files.annotations, files.features, files.speech, subset=files.subset),
        validation,
        store,
        collate,
    )


def _digest(path: Path) -> str:
    """A name for the content of a file, or of all files in a folder."""
    if not path.is_dir():
        return digest_of(path)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return cache.key(*(f"{file.relative_to(path)} {digest_of(file)}" for file in files))
