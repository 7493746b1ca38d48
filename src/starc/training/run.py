"""The folder of a run: what was asked, what happened, and the models it left.

    recipe.json  manifest.json     what was asked, of which files, with which versions
    metrics.jsonl                  a line per step and per validation
    step-000120/                   a whole model folder, with training.pt to go on from and, where
                                   it was validated, predictions.json as starc score reads it;
                                   checksums.json is compared with the files on resume
    last, best                     links to such folders, moved in one step
    lock                           says that the folder is a run's

A step folder is complete before a link points to it, so a run can be killed at any moment and
resumed. One job at a time: its main process locks the folder, its other processes only read.
Nothing that others put here is replaced or removed.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from starc.errors import CheckpointError, ConfigError, MissingExtra
from starc.files.atomic import flush, flush_all, make_folders, replacing, sweep
from starc.model.checkpoint import require_own
from starc.retrieval.captions import digest_of

RECIPE, MANIFEST, METRICS, STATE = "recipe.json", "manifest.json", "metrics.jsonl", "training.pt"
PREDICTIONS, CHECKSUMS = "predictions.json", "checksums.json"
LOCK, TENSORBOARD, WANDB = "lock", "tensorboard", "wandb.json"
"""Inside the run's folder."""
MARK = "A run of starc train; empty or gone, the folder is not known as one.\n"
_STEP, _HALF = re.compile(r"step-\d{6,}"), re.compile(r"\.{1,2}half-\d{6,}(\.\w{8}\.part)?")
_NOT_DRAWN = {"step", "steps", "epoch", "validation"}


class RunFolder:
    """One run's folder, held by the main process of one job."""

    def __init__(self, folder: Path, *, resume: bool, main: bool = True) -> None:
        self.folder, self.main = Path(folder), main
        self._metrics: IO[str] | None = None
        self._lock: IO[str] | None = None
        if main:
            self._hold(resume)

    def _hold(self, resume: bool) -> None:
        if resume and not (self.folder / RECIPE).is_file():
            raise ConfigError(f"{self.folder}: nothing to resume (no {RECIPE}); leave --resume out")
        if not resume and (self.folder / RECIPE).exists():
            raise ConfigError(
                f"{self.folder}: holds a run already; --resume goes on with it, or choose another"
            )
        if not resume and (taken := self._taken()):
            raise ConfigError(
                f"{self.folder}: holds {taken}, which is not of a run; choose another folder"
            )
        make_folders(self.folder)
        self._lock = (self.folder / LOCK).open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ConfigError(
                f"{self.folder}: another process is training here; wait for it or choose another"
            ) from None
        if self._lock.tell() == 0:
            self._lock.write(MARK)
            self._lock.flush()
        for half in self.folder.iterdir():
            if _HALF.fullmatch(half.name):  # left by a kill
                shutil.rmtree(half, ignore_errors=True)
        sweep((self.folder / name for name in (RECIPE, MANIFEST, METRICS)), alone=True)
        if resume and (last := self.linked("last")):
            try:
                check_checksums(last)
            except CheckpointError:
                self.close()
                raise

    def _taken(self) -> str | None:
        """A name in the folder that a run would use, unless a run of ours was begun here."""
        lock = self.folder / LOCK
        with suppress(OSError, ValueError):
            if lock.is_file() and lock.read_text("utf-8") == MARK:
                return None
        names = (MANIFEST, METRICS, TENSORBOARD, WANDB, "last", "best")
        steps = self.folder.glob("step-*")
        others = [*(self.folder / name for name in names), *sorted(steps)]
        if lock.exists() and not (lock.is_file() and lock.stat().st_size == 0):
            others.append(lock)
        return next((path.name for path in others if os.path.lexists(path)), None)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        if self._metrics:
            self._metrics.close()
        if self._lock:
            self._lock.close()

    def write(self, name: str, value: Any) -> None:
        """A JSON file of the run, whole or not at all, by the main process."""
        if not self.main:
            return
        with replacing(self.folder / name) as file:
            json.dump(value, file, indent=1)
            file.write("\n")

    def read(self, name: str) -> Any:
        """A JSON file of the run."""
        path = self.folder / name
        try:
            return json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read ({error}); start a new run") from None

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        if self._metrics is None:
            self._metrics = (self.folder / METRICS).open("a", encoding="utf-8")
        self._metrics.write(json.dumps(line) + "\n")
        self._metrics.flush()

    def forget_after(self, step: int) -> None:
        """Drop the lines of steps that will be run again."""
        path = self.folder / METRICS
        if not path.exists():
            return
        kept = []
        for line in path.read_text("utf-8").splitlines(keepends=True):
            with suppress(ValueError):  # the last line may be half written
                if json.loads(line)["step"] <= step:
                    kept.append(line)
        with replacing(path) as file:
            file.writelines(kept)

    def save(self, step: int, write: Callable[[Path], None], state: Mapping[str, Any]) -> Path:
        """A step folder: `write` makes the model folder, `state` is what training goes on from."""
        target = self.folder / f"step-{step:06d}"
        if not target.exists():
            half = self.folder / f".half-{step:06d}"
            shutil.rmtree(half, ignore_errors=True)
            try:
                write(half)
                torch.save(dict(state), half / STATE)
                write_checksums(half)
                flush_all(half)
                os.replace(half, target)
            except BaseException as error:
                shutil.rmtree(half, ignore_errors=True)
                if not isinstance(error, OSError | RuntimeError):  # torch's words for a full disk
                    raise
                last = self.linked("last")
                kept = f"; {last} is still whole" if last else ""
                raise CheckpointError(f"{target}: cannot be saved ({error}){kept}") from None
        self._link("last", target)
        return target

    def mark_best(self, folder: Path) -> None:
        """Let `best` point to a step folder."""
        self._link("best", folder)

    def linked(self, name: str) -> Path | None:
        """The step folder that `last` or `best` points to."""
        link = self.folder / name
        return self.folder / os.readlink(link) if link.is_symlink() else None

    def state(self) -> dict[str, Any] | None:
        """What the last save left to go on from."""
        folder = self.linked("last")
        if folder is None:
            return None
        try:
            state: dict[str, Any] = torch.load(folder / STATE, weights_only=True)
        except Exception as error:
            raise CheckpointError(f"{folder / STATE}: cannot be read ({error})") from None
        return state

    def _link(self, name: str, target: Path) -> None:
        fresh = self.folder / f".{name}.part"
        fresh.unlink(missing_ok=True)
        os.symlink(target.name, fresh)
        os.replace(fresh, self.folder / name)
        flush(self.folder)  # before the old one goes
        wanted = {self.linked("last"), self.linked("best")}
        for old in self.folder.glob("step-*"):
            if old not in wanted and _STEP.fullmatch(old.name) and not old.is_symlink():
                with suppress(CheckpointError):  # somebody keeps a file there
                    require_own(old, STATE, PREDICTIONS, CHECKSUMS)
                    shutil.rmtree(old, ignore_errors=True)


def write_checksums(folder: Path) -> None:
    """Keep the SHA-256 of what training goes on from; a datastore has its own."""
    files = [path for path in folder.iterdir() if path.is_file() and path.name != PREDICTIONS]
    sums = {path.name: digest_of(path) for path in files}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", "utf-8")


def check_checksums(folder: Path) -> None:
    """An error if a file is not as it was saved; steps of earlier versions have no checksums."""
    path = folder / CHECKSUMS
    if not path.exists():
        return
    try:
        for name, saved in json.loads(path.read_text("utf-8")).items():
            if digest_of(folder / name) != saved:
                raise CheckpointError(
                    f"{folder / name}: damaged or edited (its checksum differs); copy it back, or "
                    "start a new run"
                )
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: cannot be compared ({error}); start a new run") from None


def wait_until_free(folder: Path) -> None:
    """Return when no process trains in the folder."""
    with suppress(FileNotFoundError), (folder / LOCK).open("r") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


class TensorBoard:
    """Writes what the loop tells as scalars: `train/loss`, `validation/CIDEr` and the like."""

    def __init__(self, run: Path, *, step: int) -> None:
        """`step` is where the run goes on: what an earlier process wrote after it is hidden."""
        self._writer = summary_writer()(str(run / TENSORBOARD), purge_step=step + 1)

    def write(self, line: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        for name, value in _scalars(line).items():
            self._writer.add_scalar(name, value, line["step"])

    def close(self) -> None:
        """Write what is waiting."""
        self._writer.close()


class WandB:
    """The same scalars, and the recipe, in a project of Weights & Biases.

    A resumed run goes on where it is; offline (WANDB_MODE) it writes into the run's folder.
    """

    def __init__(self, run: RunFolder, project: str, recipe: Mapping[str, Any]) -> None:
        if not (run.folder / WANDB).exists():
            run.write(WANDB, {"id": uuid.uuid4().hex})
        self._run = wandb().init(
            project=project,
            id=run.read(WANDB)["id"],
            resume="allow",
            name=run.folder.name,
            dir=str(run.folder),
            config=dict(recipe),
        )

    def write(self, line: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        self._run.log(_scalars(line), step=line["step"])

    def close(self) -> None:
        """Send what is waiting."""
        self._run.finish()


def _scalars(line: Mapping[str, Any]) -> dict[str, float]:
    drawn = {f"train/{name}": value for name, value in line.items() if name not in _NOT_DRAWN}
    return drawn | {f"validation/{n}": value for n, value in line.get("validation", {}).items()}


def summary_writer() -> Any:
    """The class that writes, or an error that says what to install."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard, which train.tensorboard needs,", "tensorboard") from None
    return SummaryWriter


def wandb() -> Any:
    """The module, or an error that says what to install."""
    try:
        return importlib.import_module("wandb")
    except ImportError:
        raise MissingExtra("wandb, which train.wandb needs,", "wandb") from None
