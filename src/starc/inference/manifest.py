"""The manifest of a batch: a row per video, in a file that only grows.

JSON Lines; each row reaches the disk before the next video counts as finished, so a run killed at
any moment has lost nothing but the videos under way. The last row of a video holds. A half-written
last line, left by a kill, is ignored. Only one run at a time may write to a manifest.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from starc.errors import StarcError
from starc.files.cache import fingerprint
from starc.inference.worklist import Job

if sys.platform != "win32":
    import fcntl

FILE = "manifest.jsonl"


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one video."""

    name: str
    """Of the job."""
    video: str
    status: Literal["done", "failed"]
    seconds: float
    """Time spent on it."""
    settings: str
    """Of the run: another model or another search makes a finished row stale."""
    size: int = -1
    mtime_ns: int = -1
    hash: str = ""
    """Of the video's content."""
    outputs: tuple[str, ...] = ()
    """Files written, relative to the manifest."""
    notes: tuple[str, ...] = ()
    error: str = ""


class Manifest:
    """The open manifest of a folder, locked for this run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.file: IO[bytes] = self.path.open("a+b")
        except OSError as error:
            raise StarcError(
                f"{folder}: cannot be written ({error.strerror}); choose another folder"
            ) from error
        try:
            self._lock()
            self.rows = self._read()
        except BaseException:
            self.file.close()
            raise

    def __enter__(self) -> Manifest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.close()

    def _lock(self) -> None:
        if sys.platform == "win32":
            return  # no lock there; all else works
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise StarcError(
                    f"{self.path}: another run is writing here; wait for it, or choose another "
                    "folder"
                ) from None
            # Some network disks know no locks; running there without one is better than not at all.

    def _read(self) -> dict[str, Row]:
        """The last row of each video. Lines that are no rows were cut off by a kill."""
        self.file.seek(0)
        text = self.file.read()
        if text and not text.endswith(b"\n"):
            self.file.write(b"\n")
        rows = {}
        for line in text.splitlines():
            with suppress(ValueError, TypeError):
                data = json.loads(line)
                row = Row(
                    **{**data, "outputs": tuple(data["outputs"]), "notes": tuple(data["notes"])}
                )
                rows[row.name] = row
        return rows

    def append(self, row: Row) -> None:
        """Add a row; when this returns, it is on the disk."""
        end = self.file.seek(0, os.SEEK_END)
        line = json.dumps(asdict(row), ensure_ascii=False) + "\n"
        try:
            self.file.write(line.encode("utf-8", "surrogateescape"))
            self.file.flush()
            os.fsync(self.file.fileno())
        except OSError:
            # A full disk may have taken half a line.
            with suppress(OSError):
                self.file.truncate(end)
            raise
        self.rows[row.name] = row

    def is_done(self, job: Job, settings: str) -> bool:
        """Whether a finished row still holds: same settings, same video, all files there."""
        row = self.rows.get(job.name)
        if row is None or row.status != "done" or row.settings != settings:
            return False
        expected = self.relative(job.outputs)
        if not set(expected) <= set(row.outputs):
            return False
        if not all((self.folder / name).is_file() for name in expected):
            return False
        try:
            status = job.video.stat()
            if (row.size, row.mtime_ns) == (status.st_size, status.st_mtime_ns):
                return True
            return row.size == status.st_size and row.hash == fingerprint(job.video)
        except (OSError, StarcError):
            return False

    def relative(self, outputs: Mapping[str, Path]) -> tuple[str, ...]:
        """Names of output files as rows hold them."""
        return tuple(os.path.relpath(path, self.folder) for path in outputs.values())
