"""Files that are either whole or not there.

What is written goes to a temporary place beside the target, is flushed to the disk and then takes
the target's name in one step. Ctrl-C, kill -9 and a full disk leave the old file as it was; a
failure also leaves nothing temporary behind.

A link is written through, a file keeps its mode, and a device or a pipe is never replaced.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

if sys.platform != "win32":
    import fcntl

UMASK = os.umask(0o077)
os.umask(UMASK)  # asked once: between two such calls another thread's files would be wrong

ROOMY = 200
"""Bytes of a name to which something can be added."""


@contextmanager
def replacing(path: str | Path, *, binary: bool = False, new: bool = False) -> Iterator[IO[Any]]:
    """An open file that becomes `path` when the block ends without an error."""
    # A name may hold bytes that are no text: they are shown as such.
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "newline": ""}
    with (
        replacing_path(path, new=new) as part,
        part.open("wb" if binary else "w", **({} if binary else how)) as file,
    ):
        yield file


@contextmanager
def replacing_path(path: str | Path, *, new: bool = False) -> Iterator[Path]:
    """An empty file that becomes `path`, for libraries that open files themselves.

    With `new` it replaces nothing and follows no link: FileExistsError if anything is there.
    """
    path = Path(path) if new else _target(Path(path))
    kept = not new and path.exists()
    mode = stat.S_IMODE(path.stat().st_mode) if kept else 0o666 & ~UMASK
    handle, name = tempfile.mkstemp(prefix=f".{short(path.name)}.", suffix=".part", dir=path.parent)
    part = Path(name)
    try:
        lock(handle)
        yield part
        flush(part)
        part.chmod(mode)
        if new:
            _give(part, path)
        else:
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    finally:
        os.close(handle)


def short(name: str) -> str:
    """A name that has room for more: one of 255 bytes, the longest there is, by its hash."""
    data = os.fsencode(name)
    return name if len(data) <= ROOMY else hashlib.sha256(data).hexdigest()


def _target(path: Path) -> Path:
    """Where a file is to be written: what a link leads to, and nothing but a file."""
    real = Path(os.path.realpath(path)) if path.is_symlink() else path
    if real.is_symlink():
        raise OSError(errno.ELOOP, "is a link to itself", str(path))
    if real.exists() and not real.is_file():
        what = "is a folder" if real.is_dir() else "is a device or a pipe, not a file"
        raise OSError(errno.EINVAL, what, str(path))
    return real


def _give(part: Path, path: Path) -> None:
    """Let `part` have the name `path` if nobody has it: a link fails where a rename would not."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        os.replace(part, path)
    else:
        part.unlink()


def lock(handle: int, *, wait: bool = True) -> None:
    """Hold what is being written until it is closed: by this the living are known."""
    if sys.platform == "win32":
        if not wait:
            raise OSError(errno.ENOLCK, "no locks")
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        if not wait:  # some network disks know no locks: there nothing is swept
            raise


def flush(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
