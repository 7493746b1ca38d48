"""Kills at random moments, and disks that are full: what was there stays, or the new is whole.

Each `Work` begins from one whole state and makes another. A child process does it over and over
and is killed; then the place must hold one of the two, and doing it once more must succeed and
leave nothing behind.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from starc.errors import StarcError
from starc.files import atomic
from starc.media.features import FeatureStore, FrameFeatures, save_features
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.output import formats
from starc.retrieval.datastore import open_datastore
from starc.training.run import RunFolder
from starc.viewer import edits
from starc.viewer.library import Library, read_item
from support import tiny
from support.clips import write_clip
from support.small_batch import caption_folder
from support.viewer_sample import captioned, write_record

MADE = captioned("soup.mp4", 60.0)


class Work(NamedTuple):
    """Something that writes below a folder, and the check that what lies there is whole."""

    write: Callable[[Path, int], object]
    """The number is that of the state to make: 0, 1, 0, 1 …"""
    whole: Callable[[Path], object]
    """Raises if what is there is not whole."""


def _features(form: str) -> Work:
    def write(folder: Path, state: int) -> None:
        some = FrameFeatures(torch.full((200, 64), float(state)), torch.arange(200.0).double())
        save_features(folder / form, {"soup": some})

    def whole(folder: Path) -> None:
        if (folder / form).exists():
            with FeatureStore.open(folder / form) as found:
                assert found["soup"].unique().numel() == 1 and len(found.times("soup")) == 200

    return Work(write, whole)


def _save_edit(folder: Path, state: int) -> None:
    if not (folder / "soup.json").exists():
        write_record(folder / "soup.json", MADE)
    (item,) = Library([folder]).refresh()
    edits.save(item, [(0.0, 1.0 + state, "stir " * 300)], seen=item.newest)


def _edits_whole(folder: Path) -> None:
    if (folder / "soup.json").exists():
        (item,) = Library([folder]).refresh()
        assert not item.summary.problem and list(item.versions) == [*range(1, item.newest + 1)]
        assert all(read_item(item, version) for version in item.versions)


def _caption(folder: Path, _: int) -> None:
    clips = folder.parent / "clips"
    if not clips.exists():
        clips.mkdir()
        for n in range(3):
            write_clip(clips / f"{n}.mp4", seconds=1, fps=2)
    shutil.rmtree(folder / "out", ignore_errors=True)
    assert caption_folder(clips, folder / "out").done == 3


def _captions_whole(folder: Path) -> None:
    for path in (folder / "out").glob("*.json"):
        formats.json.loads(path.read_text())
    if (folder / "out").exists():  # and what is missing is made, nothing twice
        caption_folder(folder.parent / "clips", folder / "out")
        assert len(list((folder / "out").glob("[0-9].*"))) == 6


def _model(folder: Path, state: int) -> None:
    torch.manual_seed(state)
    checkpoint.save(folder / "model", STaRC(tiny.tiny()), store=tiny.store(seed=state))


def _model_whole(folder: Path) -> None:
    if atomic.recover(folder / "model").exists():
        checkpoint.load(folder / "model", device="cpu")


def _store_whole(folder: Path) -> None:
    if atomic.recover(folder / "store").exists():
        assert len(open_datastore(folder / "store")) in (50, 51)


def _run(folder: Path, state: int) -> None:
    begun = (folder / "run/recipe.json").exists()
    with RunFolder(folder / "run", resume=begun) as run:
        run.write("recipe.json", {"state": state})
        step = int(str(run.linked("last") or "-1").rpartition("-")[2]) + 1
        run.log({"step": step})
        run.save(step, lambda half: checkpoint.save(half, STaRC(tiny.tiny())), {"step": step})


def _run_whole(folder: Path) -> None:
    if (folder / "run/last").is_symlink():
        checkpoint.load(folder / "run/last", device="cpu")
        with RunFolder(folder / "run", resume=True) as run:
            assert run.state() is not None
            run.forget_after(10**6)


WORKS: dict[str, Work] = {
    "captions in every format": Work(
        lambda folder, state: [
            formats.write(MADE, folder / f"soup{kind.ending}", format=name, overwrite=True)
            for name, kind in formats.FORMATS.items()
            if kind.render
        ],
        lambda folder: [formats.json.loads(p.read_text()) for p in folder.glob("soup.json")],
    ),
    "captioning a folder": Work(_caption, _captions_whole),
    "saving corrections": Work(_save_edit, _edits_whole),
    "datastores": Work(
        lambda folder, state: tiny.store(50 + state).save(folder / "store"), _store_whole
    ),
    "model folders": Work(_model, _model_whole),
    "steps of a run": Work(_run, _run_whole),
    "features, .safetensors": _features("f.safetensors"),
    "features, .pth": _features("f.pth"),
    "features, .h5": _features("f.h5"),
    "features, folder": _features("features"),
}


def child(work: Callable[[], None]) -> int:
    """The id of a process that does some work: forking saves importing torch for each."""
    made = os.fork()
    if made:
        return made
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open(os.devnull, "w") as silent:
            os.dup2(silent.fileno(), 1)
            os.dup2(silent.fileno(), 2)
        work()
        status = 0
    finally:
        os._exit(status)


def kill(folder: Path, rng: random.Random, name: str) -> str | None:
    """One kill of one work; what was not whole afterwards."""
    work, place = WORKS[name], folder / "place"
    if not place.exists():
        place.mkdir(parents=True)
        work.write(place, 1)

    def forever() -> None:
        state = rng.randrange(2)
        while True:
            state = 1 - state
            work.write(place, state)

    process = child(forever)
    time.sleep(rng.uniform(0.0, 0.6))
    ended = os.waitpid(process, os.WNOHANG)[0]
    os.kill(process, signal.SIGKILL)
    if not ended:
        os.waitpid(process, 0)
    try:
        work.whole(place)
        work.write(place, 0)
        work.whole(place)
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"[:300]
    left = [p.name for p in place.rglob("*") if p.name.endswith((".part", ".old"))]
    left += [p.name for p in place.rglob(".half*")]
    # Corrections and single files are not swept: they are a few kilobytes, and named by their like.
    large = [name for name in left if not name.startswith((".soup", ".0"))]
    return (f"{name}: it had ended by itself" if ended else None) or (
        f"{name}: left behind: {large}" if large else None
    )


def full_disk(folder: Path, rng: random.Random, name: str) -> str | None:
    """A work on a disk with some kilobytes of room: one line, and what was there is whole."""
    work, disk = WORKS[name], folder / "disk"
    disk.mkdir(parents=True, exist_ok=True)
    room = round(2 ** rng.uniform(2, 11))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "starc-attack", str(disk)], capture_output=True
    )
    if mounted.returncode:
        raise PermissionError("no small disk can be mounted here (needs root)")
    said = folder / "said"
    said.unlink(missing_ok=True)
    try:
        place = disk / "place"
        place.mkdir()
        work.write(place, 0)
        free = shutil.disk_usage(disk).free - room * 1024
        (disk / "filler").write_bytes(bytes(max(0, free)))

        def fill() -> None:
            try:
                for n in range(6):
                    work.write(place, 1 - n % 2)
            except (StarcError, OSError) as error:
                said.write_text("ok" if "\n" not in str(error) else repr(error))
            except BaseException as error:
                said.write_text(repr(error)[:300])
            else:
                said.write_text("ok")

        status = os.waitpid(child(fill), 0)[1]
        outcome = said.read_text() if said.exists() else f"died of signal {status & 127}"
        (disk / "filler").unlink(missing_ok=True)
        try:
            work.whole(place)
        except Exception as error:
            return f"{name}: not whole: {type(error).__name__}: {error}"[:300]
        return None if outcome == "ok" else f"{name}: {outcome}"
    finally:
        subprocess.run(["umount", str(disk)], check=False)
