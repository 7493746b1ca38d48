"""What `starc train` does: read files, see that they fit, run the loop."""

from __future__ import annotations

import os
import platform
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from starc.config import with_sizes_of
from starc.errors import AnnotationError, CheckpointError, ConfigError, DatastoreError
from starc.files import cache
from starc.model import checkpoint, language_models
from starc.model.checkpoint import Loaded
from starc.model.inputs import Collator
from starc.model.joint_space import JointSpace
from starc.model.starc import STaRC
from starc.retrieval.captions import digest_of, same_text
from starc.retrieval.datastore import Datastore, open_datastore
from starc.training import recipes, set_prediction
from starc.training.dataset import Videos
from starc.training.loop import Progress, Task, accelerator, finish, freeze
from starc.training.loop import train as train_loop
from starc.training.recipes import Recipe
from starc.training.run import MANIFEST, RECIPE, RunFolder, summary_writer, wandb

Note = Callable[[str], None]
FROM_SCRATCH = 1e-3
"""Rates below this are for pretrained weights."""
NOT_TAKEN_ALONG = (
    "its caption writer and span head are not taken along; the trained model finds and captions "
    "events with STaRC alone, and its captions may be worse than those of the model it starts from"
)


@dataclass(frozen=True, slots=True)
class Files:
    """What a run reads."""

    annotations: Path | Sequence[Path] | None
    """Several files are several references of their videos; pretraining needs none."""
    features: Path
    speech: Path | None
    validation: Path | Sequence[Path] | None
    datastore: Path | None
    tokenizer: Path | None = None
    init: Path | None = None
    subset: str | None = None
    validation_subset: str | None = None


def run_training(
    name: str,
    files: Files,
    folder: Path,
    overrides: Sequence[str],
    *,
    resume: bool,
    progress: Progress,
    on_note: Note = lambda text: None,
) -> None:
    """Train from files; a resumed run keeps the recipe and the files it began with."""
    main = os.environ.get("RANK", "0") == "0"
    on_note = on_note if main else lambda text: None
    if name in recipes.METHODS:
        return _train_method(name, files, folder, overrides, resume, progress, on_note)
    if resume:
        with RunFolder(folder, resume=True, main=main) as run:
            recipe = recipes.from_dict(run.read(RECIPE))
            _require_same_recipe(recipe, overrides)
            if main:
                _require_same_files(run, files)
            origin = run.linked("last") or files.init
            start = _start(origin, recipe, files) if origin else None
            task, model = _prepared(recipe, files, start, on_note)
            fresh = run.read(MANIFEST).get("fresh", ())
            train_loop(recipe, task, run, model=model, fresh=fresh, progress=progress)
        return
    # Everything that can be wrong is found before the folder exists.
    recipe = recipes.recipe(name)
    start = _start(files.init, recipe, files) if files.init else None
    if start is not None:
        recipe = replace(recipe, model=with_sizes_of(recipe.model, start.config))
    recipe = recipes.apply_overrides(recipe, overrides)
    task, model = _prepared(recipe, files, start, on_note)
    on_note(_origin(name, recipe, start, model))
    if start is not None and start.writer is not None:
        on_note(f"warning: {start.folder}: {NOT_TAKEN_ALONG}")
    fresh = sorted(set(model.state_dict()) - set(start.model.state_dict())) if start else []
    made_by = manifest(name, files, recipe) | {"fresh": fresh} if main else {}
    with RunFolder(folder, resume=False, main=main) as run:
        run.write(MANIFEST, made_by)
        run.write(RECIPE, recipes.to_dict(recipe))
        train_loop(recipe, task, run, model=model, fresh=fresh, progress=progress)


def _train_method(
    name: str,
    files: Files,
    folder: Path,
    overrides: Sequence[str],
    resume: bool,
    progress: Progress,
    on_note: Note,
) -> None:
    """Train a method of starc.methods from scratch."""
    main = os.environ.get("RANK", "0") == "0"
    if files.init is not None:
        raise ConfigError(f"--init: not available for {name}; it trains from scratch")
    if files.annotations is None:
        raise ConfigError("--annotations: this recipe learns annotated events; name their file")
    if files.speech is not None:
        on_note(f"note: {name} takes no speech; --speech is not used")
    train = Videos.read(files.annotations, files.features, None, subset=files.subset)
    recipe, task, model = set_prediction.prepare(
        recipes.apply_overrides(recipes.METHODS[name](), overrides),
        train,
        _validation(files, train),
        vocabulary=files.tokenizer,
        datastore=files.datastore,
    )
    with RunFolder(folder, resume=resume, main=main) as run:
        if resume:
            kept = recipes.set_from_dict(run.read(RECIPE))
            if kept != recipe:
                raise ConfigError(f"{folder}: the run began with other settings or other data")
            if main:
                _require_same_files(run, files)
        elif main:
            run.write(MANIFEST, manifest(name, files, recipe))
            run.write(RECIPE, recipes.to_dict(recipe))
        torch.manual_seed(recipe.train.seed)
        finish(set_prediction.SetTraining(recipe, task, run, model, progress))


def _start(origin: Path, recipe: Recipe, files: Files) -> Loaded:
    """The model, or the plain language model, that a training starts from."""
    torch.manual_seed(recipe.train.seed)
    if not str(origin).startswith(language_models.PREFIXES):
        return checkpoint.load(origin, device="cpu")
    tokenizer = checkpoint.read_tokenizer(files.tokenizer) if files.tokenizer else None
    return language_models.load(str(origin), recipe.model, tokenizer)


def _prepared(
    recipe: Recipe, files: Files, start: Loaded | None, on_note: Note
) -> tuple[Task, STaRC]:
    """What the loop needs, tried on a video of each kind."""
    if recipe.train.tensorboard:
        summary_writer()
    if recipe.train.wandb:
        wandb()
    task = _task(recipe, files, start, on_note)
    accelerator(recipe.train)
    torch.manual_seed(recipe.train.seed)
    model = initialised(start, recipe) if start else STaRC(recipe.model)
    freeze(model, recipe.train.freeze)
    model.eval()
    with torch.no_grad():
        for videos in (task.train, task.validation):
            if videos is not None:
                part = videos.parts(0, random.Random(0))[0]
                model(task.collate([videos.part(part)], epoch=0), task.store)
    return task, model


def _require_same_recipe(recipe: Recipe, overrides: Sequence[str]) -> None:
    """Settings may be given again, but not others."""
    if recipes.apply_overrides(recipe, overrides) != recipe:
        other = [one for one in overrides if recipes.apply_overrides(recipe, [one]) != recipe]
        raise ConfigError(
            f"--set {other[0]}: a resumed run keeps its recipe, which says otherwise; leave it "
            "out, or start a new run"
        )


def _require_same_files(run: RunFolder, files: Files) -> None:
    """The files must hold what they held when the run began; `init` is needed no more once saved.

    Only contents are compared: files may have moved.
    """
    before, now = run.read(MANIFEST), _file_facts(files)
    for name in {**before["files"], **now}:
        old, new = before["files"].get(name), now.get(name)
        if name == "init" and new is None and run.linked("last"):
            continue
        if (old or {}).get("content") != (new or {}).get("content"):
            raise ConfigError(
                f"--{name.replace('_', '-')}: the run began with {_shown(old)}, now it is "
                f"{_shown(new)}; give the same, or start a new run"
            )


def _shown(fact: dict[str, str] | None) -> str:
    return f"{fact['path']} ({fact['content'][:8]})" if fact else "none"


def _origin(name: str, recipe: Recipe, start: Loaded | None, model: STaRC) -> str:
    """Where the weights come from, in words."""
    ours, rate = model.state_dict(), recipe.train.learning_rate
    if start is None:
        text = f"{name} without --init: all weights, T5's too, start at random; rate {rate:g}"
        if rate >= FROM_SCRATCH or recipe.train.relative_rate:
            return f"note: {text}"
        return f"warning: {text}, too low for that; --init a pretrained model (see starc import)"
    theirs = start.model.state_dict()
    fresh = list(dict.fromkeys(weight.split(".")[0] for weight in ours if weight not in theirs))
    unused = list(dict.fromkeys(weight.split(".")[0] for weight in theirs if weight not in ours))
    if str(start.folder).startswith(language_models.PREFIXES):
        fresh.append("time tokens")
    taken = sum(weight in theirs for weight in ours)
    return (
        f"note: {taken} of {len(ours)} weights from {start.folder}; start fresh: "
        f"{', '.join(fresh) or 'none'}; left out: {', '.join(unused) or 'none'}"
    )


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


def manifest(name: str, files: Files, recipe: Recipe | recipes.SetRecipe) -> dict[str, object]:
    """What made a run: recipe, files with their hashes, versions, seed."""
    return {
        "recipe": name,
        "seed": recipe.train.seed,
        "files": _file_facts(files),
        "versions": {package: version(package) for package in ("starc", "torch", "accelerate")}
        | {"python": platform.python_version()},
    }


def _file_facts(files: Files) -> dict[str, dict[str, str]]:
    """Path and content of each file that is given; a subset, or an address, is its own content."""
    given = {spec.name: getattr(files, spec.name) for spec in fields(files)}
    return {
        name: {
            "path": ", ".join(map(str, _as_list(value))),
            "content": ", ".join(map(_content, _as_list(value))),
        }
        for name, value in given.items()
        if value
    }


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _content(value: Path | str) -> str:
    t5, llama = language_models.PREFIXES
    path = Path(str(value).removeprefix(t5).removeprefix(llama))
    return _digest(path) if isinstance(value, Path) and path.exists() else str(value)


def _task(recipe: Recipe, files: Files, start: Loaded | None, on_note: Note) -> Task:
    tokenizer = start.tokenizer if start else None
    if files.tokenizer is not None:
        tokenizer = checkpoint.read_tokenizer(files.tokenizer)
    if tokenizer is None:
        raise CheckpointError("--tokenizer: name the tokenizer.json of the T5 (or --init a model)")
    where = files.tokenizer or (start.folder if start else "")
    checkpoint.check_tokenizer(tokenizer, recipe.model, f"{where}")
    joint = start.joint if start else None
    collate = Collator(recipe.model, tokenizer, seed=recipe.train.seed)
    speech = files.speech if recipe.model.inputs.speech else None
    if recipe.model.loss.target == "speech" and speech is None:
        raise ConfigError("--speech: this recipe learns what is spoken; name the transcripts")
    if files.annotations is not None:
        train = Videos.read(
            files.annotations, files.features, speech, subset=files.subset, joint=joint
        )
    elif recipe.model.loss.target == "speech" and speech is not None:
        train = Videos.narrated(files.features, speech, joint=joint)
    else:
        raise ConfigError("--annotations: this recipe learns annotated events; name their file")
    store = _store(recipe, files, start, train, on_note)
    return Task(train, _validation(files, train, speech, joint), store, collate, joint)


def _validation(
    files: Files, train: Videos, speech: Path | None = None, joint: JointSpace | None = None
) -> Videos | None:
    """The held-out videos, if any; none of them may be trained on."""
    if not files.validation:
        return None
    subset = files.validation_subset
    validation = Videos.read(files.validation, files.features, speech, subset=subset, joint=joint)
    if both := sorted({*train.ids} & {*validation.ids}):
        raise AnnotationError(
            f"--validation: {len(both)} videos are also trained on (one is {both[0]!r}); "
            "name other files, or --subset and --validation-subset"
        )
    return validation


def _store(
    recipe: Recipe, files: Files, start: Loaded | None, train: Videos, on_note: Note
) -> Datastore | None:
    """The datastore given, or that of the model to start from; captions of the training videos that
    it could not hide are an error."""
    where = files.datastore or (start.folder if start else None)
    store = open_datastore(str(files.datastore)) if files.datastore else None
    store = start.store if store is None and start is not None else store
    retrieval = recipe.model.retrieval
    if retrieval is None:
        return store
    if store is None:
        raise DatastoreError(
            "--datastore: this recipe retrieves captions; build one (starc datastore build), or "
            "--set model.retrieval=none"
        )
    if store.width != recipe.model.temporal.features:
        raise DatastoreError(
            f"{where}: captions are {store.width} wide, the model's features "
            f"{recipe.model.temporal.features}; build it with the model's text encoder"
        )
    listed = store.listing()
    ownerless = [
        caption
        for caption, video in zip(listed.captions, listed.videos, strict=True)
        if video is None
    ]
    if not ownerless or not retrieval.exclude_own:
        return store
    known = {same_text(caption) for caption in ownerless}
    trained = [text for all_ in train.accounts.values() for each in all_ for text in each.sentences]
    if own := [text for text in trained if same_text(text) in known]:
        raise DatastoreError(
            f"{where}: {len(own)} captions of training videos stand in it without their "
            f"video ({own[0]!r}), so a video would find its own; build it from the annotations "
            "(starc datastore build ANNOTATIONS), or --set model.retrieval.exclude_own=false"
        )
    on_note(
        f"note: {where}: {len(ownerless)} captions name no video; none of them equals a "
        "training caption, so nothing is hidden from any video"
    )
    return store


def _digest(path: Path) -> str:
    """A name for the content of a file, or of all files in a folder."""
    if not path.is_dir():
        return digest_of(path)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return cache.key(*(f"{file.relative_to(path)} {digest_of(file)}" for file in files))
