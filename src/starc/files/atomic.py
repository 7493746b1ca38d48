"""Files and folders that are either whole or not there.

What is written goes to a temporary place beside the target, is flushed to the disk and then takes
the target's name. Ctrl-C, kill -9 and a full disk leave the old one as it was; a failure also
leaves nothing temporary behind. A file is replaced in one step. A folder takes two, since no
folder can replace another: the old one steps aside under a fixed name, and whoever reads or writes
the folder next brings it back (`recover`) if a kill came in between.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(path: str | Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """An open file that becomes `path` when the block ends without an error."""
    encoding, newline = (None, None) if binary else ("utf-8", "")
    with (
        replacing_path(path) as part,
        part.open("wb" if binary else "w", encoding=encoding, newline=newline) as file,
    ):
        yield file


@contextmanager
def replacing_path(path: str | Path) -> Iterator[Path]:
    """An empty file that becomes `path`, for libraries that open files themselves."""
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        _flush(part)
        part.chmod(0o666 & ~_umask())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


@contextmanager
def replacing_folder(folder: str | Path) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` when the block ends without an error.

    Whoever has files of the old folder open or mapped keeps them.
    """
    folder = recover(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        fresh.chmod(0o777 & ~_umask())
        yield fresh
        for file in fresh.rglob("*"):
            if file.is_file():
                _flush(file)
        _swap(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def recover(folder: str | Path) -> Path:
    """`folder`, brought back if a kill has left it aside while it was being replaced."""
    folder = Path(folder)
    aside = folder.with_name(f".{folder.name}.old")
    if not folder.exists() and aside.is_dir():
        with suppress(OSError):
            os.replace(aside, folder)
    return folder


def _swap(fresh: Path, folder: Path) -> None:
    if not folder.exists():
        os.replace(fresh, folder)
        return
    aside = folder.with_name(f".{folder.name}.old")
    # Left by a kill after a swap: `folder` is there, so this is not the only copy.
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(folder, aside)
    try:
        os.replace(fresh, folder)
    except BaseException:
        recover(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _flush(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
