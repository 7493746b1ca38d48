"""Files and folders that are either whole or not there.

What is written goes to a temporary place beside the target, is flushed to the disk and then takes
the target's name. Ctrl-C, kill -9 and a full disk leave the old one as it was; a failure also
leaves nothing temporary behind, and what a kill left is swept by the next who writes there. A file
is replaced in one step. A folder takes two, since no folder can replace another: the old one steps
aside under a fixed name, and whoever reads or writes the folder next brings it back (`recover`) if
a kill came in between.

A link is written through, a file keeps its mode, and a device or a pipe is never replaced. A folder
is replaced only where every file in it is ours (`require_ours`).
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from starc.errors import StarcError
from starc_eval import atomic as whole
from starc_eval.atomic import UMASK, lock, short
from starc_eval.reading import read_text

__all__ = [
    "UMASK",
    "flush",
    "flush_all",
    "lock",
    "make_folders",
    "partial_file",
    "recover",
    "replacing",
    "replacing_folder",
    "replacing_path",
    "require_ours",
    "sweep",
]

YOUNG = 2.0
"""Seconds."""


@contextmanager
def replacing(path: str | Path, *, binary: bool = False, new: bool = False) -> Iterator[IO[Any]]:
    """An open file that becomes `path` when the block ends without an error; then on the disk."""
    with whole.replacing(path, binary=binary, new=new) as file:
        yield file
    flush(_real_folder(Path(path)))


@contextmanager
def replacing_path(path: str | Path, *, new: bool = False) -> Iterator[Path]:
    """An empty file that becomes `path`, for libraries that open files themselves.

    With `new` it replaces nothing and follows no link: FileExistsError if anything is there.
    """
    with whole.replacing_path(path, new=new) as part:
        yield part
    flush(_real_folder(Path(path)))


def _real_folder(path: Path) -> Path:
    """Where a file lies, which may be behind a link."""
    return Path(os.path.realpath(path)).parent


@contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """An empty file beside `path` that `sweep` knows; gone when the block ends, unless renamed."""
    handle, name = tempfile.mkstemp(prefix=f".{short(path.name)}.", suffix=".part", dir=path.parent)
    try:
        lock(handle)
        yield Path(name)
    finally:
        os.close(handle)
        with suppress(OSError):
            os.unlink(name)


@contextmanager
def replacing_folder(folder: str | Path) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` when the block ends without an error.

    Whoever has files of the old folder open or mapped keeps them.
    """
    folder = recover(folder)
    folder = Path(os.path.realpath(folder)) if folder.is_symlink() else folder
    if folder.name in ("", ".."):
        raise OSError(errno.EINVAL, "name the folder itself", str(folder))
    make_folders(folder.parent)
    sweep([folder])
    fresh = Path(
        tempfile.mkdtemp(prefix=f".{short(folder.name)}.", suffix=".part", dir=folder.parent)
    )
    handle = os.open(fresh, os.O_RDONLY)
    try:
        lock(handle)
        fresh.chmod(0o777 & ~UMASK)
        yield fresh
        flush_all(fresh)
        _swap(fresh, folder)
    finally:
        os.close(handle)
        shutil.rmtree(fresh, ignore_errors=True)


def recover(folder: str | Path) -> Path:
    """`folder`, brought back if a kill has left it aside while it was being replaced."""
    folder = Path(folder)
    aside = folder.parent / f".{short(folder.name)}.old"
    if not folder.exists() and aside.is_dir():
        with suppress(OSError):
            os.replace(aside, folder)
    return folder


def require_ours(
    folder: Path, facts: str, mark: str, files: Callable[[Mapping[str, Any]], Iterable[str]],
    error: type[StarcError],
) -> None:  # fmt: skip
    """An error unless `folder` is new, empty, or holds nothing but files that we wrote.

    It is ours if the JSON file `facts` in it has the key `mark`; `files` names what may lie beside,
    given those facts.
    """
    try:
        held = _held(folder) if folder.exists() else []
    except OSError as problem:
        raise error(
            f"{folder}: not a folder we can read ({problem.strerror}); name another"
        ) from None
    known: set[str] = set()
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        content = json.loads(read_text(folder / facts))
        known = {facts, *files(content)} if mark in content else known
    known |= {str(Path(name).parent) for name in known}
    if foreign := [name for name in held if name not in known]:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise error(f"{folder}: holds files that are not ours ({foreign[0]}{more}); name another")


def _held(folder: Path) -> list[str]:
    """All that lies below a folder, by its name there."""
    names = []
    for path in sorted(folder.iterdir()):
        names.append(path.name)
        if path.is_dir() and not path.is_symlink():
            names += [f"{path.name}/{name}" for name in _held(path)]
    return names


def sweep(paths: Iterable[Path], *, alone: bool = False) -> None:
    """Remove what killed writers of `paths` left; what a living one holds is locked and stays.

    What is young stays too, unless the caller is `alone`: its writer may be about to lock it.
    """
    by_folder: dict[Path, set[str]] = {}
    for path in paths:
        by_folder.setdefault(path.parent, set()).add(short(path.name))
    for folder, names in by_folder.items():
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                match = _PART.fullmatch(entry.name)
                if match and match[1] in names and not entry.is_symlink():
                    _sweep(Path(entry.path), 0.0 if alone else YOUNG)


_PART = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.part", re.DOTALL)


def _sweep(part: Path, age: float) -> None:
    with suppress(OSError):
        handle = os.open(part, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            if time.time() - os.fstat(handle).st_ctime < age:
                return
            lock(handle, wait=False)
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink()
        finally:
            os.close(handle)


def _swap(fresh: Path, folder: Path) -> None:
    if not folder.exists():
        os.replace(fresh, folder)
        flush(folder.parent)
        return
    aside = folder.with_name(f".{short(folder.name)}.old")
    if aside.exists():  # left by a kill after a swap: `folder` is there, this is not the only copy
        flush(folder.parent)
        shutil.rmtree(aside, ignore_errors=True)
    os.replace(folder, aside)
    try:
        os.replace(fresh, folder)
    except BaseException:
        recover(folder)
        raise
    flush(folder.parent)  # before the old one goes
    shutil.rmtree(aside, ignore_errors=True)


def flush(path: Path) -> None:
    """Put a file's content, or the names in a folder, on the disk: a power failure spares them."""
    folder = path.is_dir()
    if folder and sys.platform == "win32":
        return  # a folder cannot be opened there
    try:
        handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    except PermissionError:
        if folder:  # one that may be written to but not listed
            return
        raise
    try:
        os.fsync(handle)
    except OSError as error:
        if not folder or error.errno != errno.EINVAL:  # some network disks flush no folders
            raise
    finally:
        os.close(handle)


def flush_all(folder: Path) -> None:
    """`flush` all that lies below a folder, and the folder itself."""
    for path in folder.rglob("*"):
        if not path.is_symlink() and (path.is_file() or path.is_dir()):
            flush(path)
    flush(folder)


def make_folders(folder: Path) -> None:
    """Make a folder, and those above it that are missing; a power failure spares them."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        flush(path.parent)
