"""Which videos to caption, the files that come of them, and what became of each.

Files, folders and lists go in; jobs in a fixed order come out. A folder is searched with its
subfolders for whatever is a video by its ending or by its first bytes; a list is a text file with
a path per line. Files named by the user are taken as they are: if one is no video, its own row in
the manifest says so.

The manifest has a row per video, in a JSON Lines file that only grows; each row reaches the disk
before the next video counts as finished, so a run killed at any moment has lost nothing but the
videos under way. The last row of a video holds. A half-written last line, left by a kill, is
ignored. Only one run at a time may write to a manifest.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Literal

from starc.errors import StarcError, VideoError
from starc.files.atomic import flush, make_folders
from starc.files.cache import fingerprint
from starc.output import mp4
from starc.output.formats import FORMATS
from starc_eval.annotations import VIDEO_ENDINGS, video_id
from starc_eval.reading import read_text

if sys.platform != "win32":
    import fcntl

# fmt: off
OTHER_ENDINGS = frozenset({
    ".m4a", ".mka", ".oga", ".ogg", ".opus", ".heic", ".heif", ".avif", ".cr3",
    ".part", ".crdownload", ".download", ".tmp",
})
# fmt: on
"""Sound, pictures and downloads under way, whose first bytes look like those of a video."""
MAGIC = (
    b"\x1a\x45\xdf\xa3",  # Matroska, WebM
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11",  # ASF, WMV
    b"\x00\x00\x01\xba",  # MPEG programme stream
    b"FLV\x01",
    b"OggS",
)
MANIFEST = "manifest.jsonl"
WATCH_PAUSE = 2.0
"""Seconds between two looks at a watched folder."""
LIST_ENDINGS = frozenset({".txt", ".lst", ".list"})
COPY = ".chapters"
"""Before the ending of a copy with chapters, by which such copies are known and not read again."""


@dataclass(frozen=True, slots=True)
class Job:
    """One video and the files to write for it."""

    name: str
    """Path of its files below the output folder, without ending: unique among the jobs."""
    video: Path
    outputs: Mapping[str, Path]
    """Format: file."""


def find_videos(inputs: Sequence[Path], *, out: Path | None = None) -> list[tuple[Path, Path]]:
    """Videos with the folder their names are relative to, each once, in the order of the inputs.

    What lies in `out` is ours and not searched, unless it is itself an input.
    """
    videos: dict[Path, tuple[Path, Path]] = {}
    for given in inputs:
        for video, root in _expand(Path(given), out):
            videos.setdefault(Path(os.path.abspath(video)), (video, root))
    if not videos:
        raise VideoError(f"{', '.join(map(str, inputs)) or 'nothing'}: no videos to caption")
    return list(videos.values())


def named_videos(paths: Iterable[Path]) -> dict[str, Path]:
    """Videos by the id under which annotations, features and speech meet."""
    named: dict[str, Path] = {}
    for path in paths:
        first = named.setdefault(video_id(path.name), path)
        if first != path:
            raise VideoError(f"{path}: videos go by name, and {first} has the same; rename one")
    return named


def _expand(given: Path, out: Path | None) -> Iterator[tuple[Path, Path]]:
    if os.path.isdir(given):
        videos = [(video, given) for video in _search(given, out)]
        if not videos:
            raise VideoError(f"{given}: no videos in this folder; name a folder that has some")
        yield from videos
    elif given.suffix.lower() in LIST_ENDINGS:
        for line in _lines(given):
            # An absolute path stays what it is; a relative one counts from the list's folder.
            # What cannot be a path is told with its video, and the others are captioned.
            path = given.parent / os.path.expanduser(line)
            yield from _expand(path, out) if os.path.isdir(path) else [(path, path.parent)]
    else:
        yield given, given.parent


def _lines(path: Path) -> list[str]:
    try:
        text = read_text(path)
    except UnicodeDecodeError:
        raise VideoError(f"{path}: not a list of paths (not UTF-8 text)") from None
    except OSError as error:
        raise VideoError(f"{path}: list cannot be read ({error.strerror})") from None
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _search(folder: Path, out: Path | None) -> Iterator[Path]:
    ours = os.path.abspath(out) if out is not None else None

    def refused(error: OSError) -> None:
        if Path(error.filename) == folder:
            raise StarcError(f"{folder}: cannot be read ({error.strerror}); check its mode")

    for parent, folders, files in os.walk(folder, onerror=refused):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.abspath(Path(parent, name)) != ours
        )
        for name in sorted(files):
            if not name.startswith(".") and _is_video(Path(parent, name)):
                yield Path(parent, name)


def _is_video(path: Path) -> bool:
    ending = path.suffix.lower()
    if Path(path.stem).suffix == COPY or ending in OTHER_ENDINGS:
        return False
    return ending in VIDEO_ENDINGS or looks_like_video(path)


def looks_like_video(path: Path) -> bool:
    """Whether the first bytes are those of a video container."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(400)
    except OSError:
        return False
    return (
        head[4:8] == b"ftyp"
        or head.startswith(MAGIC)
        or (head[:4] == b"RIFF" and head[8:12] == b"AVI ")
        or (len(head) > 376 and head[0] == head[188] == head[376] == 0x47)
    )


def make_jobs(videos: Iterable[tuple[Path, Path]], out: Path, formats: Sequence[str]) -> list[Job]:
    """A job per video: its files lie in `out` as the videos do below their folders.

    Videos that differ only in their ending, or come from different folders, keep their ending or
    get a number; the names depend on the set of videos and not on their order. A name under which
    an earlier run has captioned another video stays that video's.
    """
    owners = _owners(out)
    pairs = sorted((os.path.abspath(video), video, root) for video, root in videos)
    stems = [_stem(_relative(video, root)) for _, video, root in pairs]
    shared = Counter(str(stem).casefold() for stem in stems)
    taken: set[str] = set()
    jobs = {}
    for (absolute, video, root), stem in zip(pairs, stems, strict=True):
        owner = owners.get(str(stem).casefold(), absolute)
        unique = shared[str(stem).casefold()] == 1 and _is_same(owner, absolute)
        name = wanted = str(stem if unique else _relative(video, root))
        number = 2
        while name.casefold() in taken:
            name, number = f"{wanted}-{number}", number + 1
        taken.add(name.casefold())
        outputs = {format: out / f"{name}{_ending(format, video)}" for format in formats}
        jobs[absolute] = Job(name, video, outputs)
    return list(jobs.values())


def _stem(video: Path) -> Path:
    """A path without its ending; `..mp4` has nothing before it and stays."""
    return video.with_suffix("") if video.stem.strip(".") else video


def _owners(out: Path) -> dict[str, str]:
    """By name in lower case, the videos that earlier runs have captioned into a folder."""
    try:
        rows = read_rows((out / MANIFEST).read_bytes())
    except OSError:
        return {}
    return {name.casefold(): row.video for name, row in rows.items() if row.finished}


def _is_same(owner: str, video: str) -> bool:
    """Whether a name is free for a video: its own, or that of one which is no longer there."""
    try:
        return owner == video or os.path.samefile(owner, video)
    except (OSError, ValueError):
        return not os.path.exists(owner)


def find_jobs(inputs: Sequence[Path], out: Path, formats: Sequence[str]) -> list[Job]:
    """The jobs of all videos among the inputs."""
    return make_jobs(find_videos(inputs, out=out), out, formats)


def watched(
    folders: Sequence[Path], out: Path, formats: Sequence[str], *, pause: float = WATCH_PAUSE
) -> Iterator[list[Job]]:
    """Jobs of videos that are new or have changed, as they come into folders; never ends.

    A video counts once it is the same in two looks: until then somebody may be writing it.
    """
    before: set[tuple[str, int, int]] = set()
    given: set[tuple[str, int, int]] = set()
    while True:
        videos = []
        for folder in folders:
            with suppress(VideoError):  # empty as yet
                videos += find_videos([folder], out=out)
        now = {}
        for job in make_jobs(videos, out, formats):
            with suppress(OSError):
                status = job.video.stat()
                now[job.name, status.st_size, status.st_mtime_ns] = job
        settled = [state for state in now if state in before and state not in given]
        if settled:
            given |= set(settled)
            yield [now[state] for state in settled]
        before = set(now)
        time.sleep(pause)


def _relative(video: Path, root: Path) -> Path:
    try:
        return video.relative_to(root)
    except ValueError:
        return Path(video.name)


def _ending(format: str, video: Path) -> str:
    if format != "video":
        return FORMATS[format].ending
    ending = video.suffix.lower()
    return COPY + (ending if ending in mp4.CONTAINERS else ".mkv")


Status = Literal["done", "not captioned", "failed"]


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """What became of one video."""

    name: str
    """Of the job."""
    video: str
    status: Status
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
    left_out: tuple[str, ...] = ()
    """Formats that were not written; `notes` or `reason` say why."""
    notes: tuple[str, ...] = ()
    error: str = ""
    reason: str = ""
    """Why the video was not captioned."""

    @property
    def finished(self) -> bool:
        """Whether there is an answer, which may be that the video gets no captions."""
        return self.status in ("done", "not captioned")


def read_rows(text: bytes) -> dict[str, ManifestRow]:
    """The last row of each video. Lines that are no rows were damaged or cut off by a kill."""
    rows = {}
    for line in text.splitlines():
        with suppress(ValueError, TypeError, AttributeError, RecursionError):
            data = json.loads(line)
            lists = {key: tuple(data.get(key, ())) for key in ("outputs", "left_out", "notes")}
            row = ManifestRow(**{**data, **lists})
            texts = (row.name, row.video, row.status, row.settings, row.hash, row.error, row.reason)
            if all(isinstance(text, str) for text in (*texts, *itertools.chain(*lists.values()))):
                rows[row.name] = row
    return rows


class Manifest:
    """The open manifest of a folder, locked for this run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / MANIFEST
        try:
            make_folders(folder)
            self.file: IO[bytes] = self.path.open("a+b")
            flush(folder)
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

    def __exit__(self, *_: object) -> None:
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

    def _read(self) -> dict[str, ManifestRow]:
        self.file.seek(0)
        text = self.file.read()
        if text and not text.endswith(b"\n"):
            self.file.write(b"\n")
        return read_rows(text)

    def append(self, row: ManifestRow) -> None:
        """Add a row; when this returns, it is on the disk."""
        end = self.file.seek(0, os.SEEK_END)
        # ASCII: a name may hold bytes that are no UTF-8, and must come back as it was.
        line = json.dumps(asdict(row)) + "\n"
        try:
            self.file.write(line.encode())
            self.file.flush()
            os.fsync(self.file.fileno())
        except OSError:
            # A full disk may have taken half a line.
            with suppress(OSError):
                self.file.truncate(end)
            raise
        self.rows[row.name] = row

    def is_done(self, job: Job, settings: str, *, whole: bool = False) -> bool:
        """Whether a finished row still holds: same settings, same video, all files there.

        A format that refused counts as there, unless the row must be `whole`. A video that was not
        captioned has our JSON alone, whatever is asked for.
        """
        row = self.rows.get(job.name)
        if row is None or not row.finished or row.settings != settings:
            return False
        without = row.status == "not captioned"
        refused = job.outputs.keys() - {"json"} if without else () if whole else row.left_out
        expected = self.relative({f: path for f, path in job.outputs.items() if f not in refused})
        if not set(expected) <= set(row.outputs):
            return False
        try:
            # No file of ours is empty: one that is was cut off.
            if not all((self.folder / name).stat().st_size for name in expected):
                return False
            status = job.video.stat()
            if (row.size, row.mtime_ns) == (status.st_size, status.st_mtime_ns):
                return True
            return row.size == status.st_size and row.hash == fingerprint(job.video)
        except (OSError, StarcError):
            return False

    def relative(self, outputs: Mapping[str, Path]) -> tuple[str, ...]:
        """Names of output files as rows hold them."""
        return tuple(os.path.relpath(path, self.folder) for path in outputs.values())
