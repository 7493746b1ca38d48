"""Private temporary folders that do not outlive the process by long.

A folder goes when its block ends: by an error, by Ctrl-C and by SIGTERM too. After kill -9 it stays
until the next process makes one, which removes those of the dead. The living hold a lock on a file
in theirs; that file is filled after it was locked, so what bears our mark and is not locked is ours
and dead.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from starc.files.atomic import lock

PREFIX = "starc-"
MARK, WORDS = ".starc", "A temporary folder of starc; the next starc removes it.\n"
_NAME = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder in $TMPDIR that only its owner can read."""
    sweep_scratch()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    held = os.open(folder / MARK, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    try:
        lock(held)
        with suppress(OSError):  # on a full disk it is only not swept
            os.write(held, WORDS.encode())
        yield folder
    finally:
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)


def in_scratch(path: Path) -> bool:
    """Whether a file lies in such a folder, and will soon be gone."""
    place = Path(tempfile.gettempdir()).absolute()
    return any(
        parent.parent == place and _NAME.fullmatch(parent.name)
        for parent in path.absolute().parents
    )


def sweep_scratch() -> None:
    """Remove the folders of this user's processes that were killed."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError, ValueError):
                    _sweep(Path(entry.path))


def _sweep(folder: Path) -> None:
    mark = os.open(folder / MARK, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with open(mark, encoding="utf-8") as held:
        if hasattr(os, "getuid") and folder.lstat().st_uid != os.getuid():
            return
        lock(held.fileno(), wait=False)
        if held.read(len(WORDS) + 1) == WORDS:
            shutil.rmtree(folder)
