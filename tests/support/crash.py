"""A disk that forgets what was not flushed.

While a block runs, every fsync is recorded: the content of a file, or the names in a folder, as
they were then. A crash leaves of a file what was last flushed (nothing, if it never was), and of a
folder either the names that were flushed or those of the moment: a file system may put a rename on
the disk sooner than it must, but never later than the folder's fsync.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

STEPS = ("fsync", "replace", "rename", "link", "symlink", "unlink", "rmdir")
"""Functions of `os` before and after which the power may fail."""


class Disk:
    """What of the folder `root` is on the disk, and what is only in memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._flushed: dict[int, Any] = {}
        """By inode: the bytes of a file, the {name: inode} of a folder, the target of a link."""
        self._held: dict[int, int] = {}
        """By inode: an open handle, so that no other file gets the number."""
        self.look()
        self._flushed = {inode: _content(handle) for inode, handle in self._held.items()}

    def look(self) -> None:
        """Hold what is new."""
        for path in (self.root, *self.root.rglob("*")):
            link = os.O_PATH | os.O_NOFOLLOW if path.is_symlink() else 0
            handle = os.open(path, os.O_RDONLY | link)
            if self._held.setdefault(os.fstat(handle).st_ino, handle) != handle:
                os.close(handle)

    def flush(self, handle: int) -> None:
        self._flushed[os.fstat(handle).st_ino] = _content(handle)

    def crashes(self, target: Path) -> Iterator[Path]:
        """What a crash now may leave, one after another at `target`: flushed names or all names, in
        the top folder and in those below."""
        for only_flushed in itertools.product((True, False), repeat=2):
            self._restore(self.root.stat().st_ino, target, only_flushed)
            yield target
            shutil.rmtree(target)

    def _restore(self, inode: int, target: Path, only_flushed: tuple[bool, ...]) -> None:
        now, flushed = _content(self._held[inode]), self._flushed.get(inode)
        if isinstance(now, dict):
            target.mkdir()
            for name, child in ((flushed or {}) if only_flushed[0] else now).items():
                self._restore(child, target / name, only_flushed[1:] or only_flushed)
        elif isinstance(now, str):
            os.symlink(now, target)
        else:
            target.write_bytes(flushed or b"")

    def close(self) -> None:
        for handle in self._held.values():
            os.close(handle)


def _content(handle: int) -> dict[str, int] | str | bytes:
    mode, path = os.fstat(handle).st_mode, f"/proc/self/fd/{handle}"
    if stat.S_ISDIR(mode):
        with os.scandir(path) as entries:
            return {entry.name: entry.inode() for entry in entries}
    if stat.S_ISLNK(mode):
        return os.readlink("", dir_fd=handle)
    return Path(path).read_bytes()


@contextmanager
def power_failures(
    root: Path, check: Callable[[Path], None], scratch: Path
) -> Iterator[list[tuple[str, str]]]:
    """Run `check` on all that a crash may leave of `root`, at any step of the block or after it.

    The block gets the list of the steps so far. The disks are made in the folder `scratch`.
    """
    disk, steps, checking = Disk(root), list[tuple[str, str]](), False

    def crash() -> None:
        nonlocal checking
        checking = True
        disk.look()
        for left in disk.crashes(scratch / "left"):
            check(left)
        checking = False

    def recorded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if checking:
                return call(*arguments, **options)
            crash()
            done = call(*arguments, **options)
            where = f"/proc/self/fd/{arguments[0]}"
            steps.append((name, os.readlink(where) if name == "fsync" else str(arguments[-1])))
            if name == "fsync":
                disk.flush(arguments[0])
            crash()
            return done

        return step

    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in STEPS:
                patch.setattr(os, name, recorded(name, getattr(os, name)))
            yield steps
        crash()
    finally:
        disk.close()
