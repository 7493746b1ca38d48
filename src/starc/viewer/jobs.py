"""Captioning asked for from the page: uploads, a queue, progress and cancelling.

A job is a video in one of our folders. Each worker takes one job at a time; the captioning itself
is a function that is handed in. It reports `progress(stage, fraction)`, which raises `Cancelled`
once somebody has cancelled, so a function that only reports can be stopped as well.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio.to_thread

from starc.errors import StarcError, VideoError
from starc.files.atomic import UMASK, partial_file, replacing, sweep
from starc.media.video import probe
from starc.types import Captioned
from starc.viewer.records import read_captioned, title_file
from starc.viewer.security import sniff, without_folders
from starc_eval.annotations import video_id

log = logging.getLogger("starc")


class Progress(Protocol):
    """How a captioning function says how far it is; `words` are for people ("30 of 90 frames")."""

    def __call__(self, stage: str, fraction: float, words: str = "", /) -> None: ...


Caption = Callable[[Path, Progress, Callable[[], bool]], Captioned]
"""caption(path, progress, cancelled) -> Captioned"""
State = Literal["queued", "running", "done", "failed", "cancelled"]
REMEMBERED = 50
SPARE_DISK = 256 << 20
UPLOAD = "upload"
"""`.upload.….part` is a video that is being received."""
KEPT = ("title", "source", "content")
"""Of the provenance of a record that is replaced: where its video lies, and what it is called."""


class Cancelled(Exception):
    """Raised inside a captioning function by its own `progress`."""


class QueueFull(StarcError):
    status = 429


class UploadRefused(StarcError):
    """What arrived is too large or not a video; `status` is the HTTP status that says so."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


@dataclass(slots=True)
class CaptionJob:
    id: str
    title: str
    path: Path
    uploaded: bool
    state: State = "queued"
    stages: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Stage -> fraction done and words about it, in the order they began."""
    error: str | None = None
    result: Path | None = None
    reason: str = ""
    """Why it ended without captions."""
    declined: Path | None = None
    """The record that says so from before: it is captioned anyway, and that record replaced."""
    cancel: threading.Event = field(default_factory=threading.Event)

    @property
    def active(self) -> bool:
        return self.state in ("queued", "running")

    def as_row(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "state": self.state,
            "cancelling": self.active and self.cancel.is_set(),
            "stages": [
                {"name": name, "done": done, "words": words}
                for name, (done, words) in self.stages.copy().items()
            ],
            "error": self.error,
            "reason": self.reason,
            "anyway": self.declined is not None,
        }


class JobQueue:
    """Runs jobs in the order they came; `workers` threads, started with the first job."""

    def __init__(
        self,
        caption: Caption,
        *,
        anyway: Caption | None = None,
        workers: int = 1,
        waiting: int = 20,
    ) -> None:
        self._caption, self._workers, self._waiting = caption, workers, waiting
        self.anyway = anyway
        """Captions also what `caption` declines; None if nothing does."""
        self._threads: list[threading.Thread] = []
        self._jobs: dict[str, CaptionJob] = {}
        self._changed = threading.Condition()
        self._closed = False
        self.turn = 0
        """Grows with every change; whoever watches compares it."""

    def submit(
        self, path: Path, *, title: str, uploaded: bool, declined: Path | None = None
    ) -> CaptionJob:
        """Queue a video; with the record that `declined` it, to caption it anyway."""
        with self._changed:
            if any(job.active and job.path == path for job in self._jobs.values()):
                raise QueueFull(f"{title}: is being captioned already; wait for it")
            if sum(job.state == "queued" for job in self._jobs.values()) >= self._waiting:
                raise QueueFull(f"{self._waiting} videos are waiting already; try again later")
            # Trying again takes the place of what failed.
            self._jobs = {key: old for key, old in self._jobs.items() if old.path != path}
            job = CaptionJob(secrets.token_hex(8), title, path, uploaded, declined=declined)
            if uploaded:
                with suppress(OSError):  # it would be lost if captioning fails
                    title_file(path).write_text(title, encoding="utf-8")
            self._jobs[job.id] = job
            finished = [old for old in self._jobs.values() if not old.active]
            for old in finished[: max(0, len(self._jobs) - REMEMBERED)]:
                del self._jobs[old.id]
            while len(self._threads) < self._workers:
                thread = threading.Thread(target=self._work, name="starc-caption", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._set(job, "queued")
        return job

    def find(self, id: str) -> CaptionJob | None:
        return self._jobs.get(id)

    def cancel(self, job: CaptionJob) -> None:
        """A waiting job is gone at once, a running one at its next report."""
        with self._changed:
            job.cancel.set()
            self._set(job, "cancelled" if job.state == "queued" else job.state)

    def jobs(self) -> list[CaptionJob]:
        """All jobs that are remembered, oldest first."""
        with self._changed:
            return list(self._jobs.values())

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for job in self._jobs.values():
                job.cancel.set()
            self.turn += 1
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=2)

    @property
    def busy(self) -> bool:
        return not self._closed and any(job.active for job in self.jobs())

    def _set(self, job: CaptionJob, state: State) -> None:
        """Change a job, and tell whoever watches or waits."""
        with self._changed:
            job.state = state
            if state == "cancelled" and job.uploaded:
                for path in (job.path, title_file(job.path)):
                    with suppress(OSError):
                        path.unlink()
            self.turn += 1
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                job = next((job for job in self._jobs.values() if job.state == "queued"), None)
                if job is None:
                    self._changed.wait()
                    continue
                self._set(job, "running")
            self._run(job)

    def _run(self, job: CaptionJob) -> None:
        def progress(stage: str, fraction: float, words: str = "") -> None:
            if job.cancel.is_set():
                raise Cancelled
            with self._changed:
                job.stages[str(stage)] = (min(1.0, max(0.0, float(fraction))), str(words))
                self._set(job, job.state)

        state: State = "failed"
        try:
            caption = self.anyway if job.declined and self.anyway else self._caption
            captioned = caption(job.path, progress, job.cancel.is_set)
            if job.cancel.is_set():
                raise Cancelled
            title = {"title": job.title} if job.title != video_id(job.path.name) else {}
            provenance = {**captioned.provenance, **title}
            captioned = replace(captioned, video=job.path.name, provenance=provenance)
            job.result = (
                _replace(captioned, job.declined) if job.declined else _keep(captioned, job.path)
            )
            job.reason, state = captioned.reason, "done"
            title_file(job.path).unlink(missing_ok=True)
        except Cancelled:
            state = "cancelled"
        except StarcError as error:
            job.error = without_folders(str(error), [job.path.parent])
        except Exception as error:
            if not job.cancel.is_set():
                log.exception("%s: captioning failed", job.path)
            reason = without_folders(str(error), [job.path.parent])
            job.error = f"captioning failed ({type(error).__name__}: {reason})"
        if job.cancel.is_set() and state == "failed":  # stopped in the function's own way
            state, job.error = "cancelled", None
        self._set(job, state)


def _keep(captioned: Captioned, video: Path) -> Path:
    """Write the record beside its video, over nobody's file; returns where.

    `talk.mp4` has `talk.json`, unless that is the record of another video or something else.
    """
    for path in (video.with_suffix(".json"), video.with_name(f"{video.name}.json")):
        with suppress(FileExistsError):
            with replacing(path, new=True) as file:
                json.dump(captioned.to_json(), file)
            return path
    raise StarcError(f"{video.name}: its record is there already; rename {path.name}")


def _replace(captioned: Captioned, record: Path) -> Path:
    """Write over a record that gave a reason instead of events, and over no other; returns it."""
    before = read_captioned(record)
    if before.events or not before.reason:
        raise StarcError(f"{record.name}: has captions by now; reload to see them")
    kept = {key: before.provenance[key] for key in KEPT if key in before.provenance}
    captioned = replace(captioned, video=before.video, provenance={**captioned.provenance, **kept})
    with replacing(record) as file:
        json.dump(captioned.to_json(), file)
    return record


def sweep_uploads(folder: Path) -> None:
    """Remove what servers that were killed had received."""
    sweep([folder / UPLOAD])


async def receive_upload(
    chunks: AsyncIterator[bytes], folder: Path, *, limit: int, announced: int | None
) -> Path:
    """Stream a video into `folder` under a name of our own making.

    The first bytes decide whether it is a video and what its ending is; PyAV has the last word.
    Whatever is refused, or breaks off, leaves nothing behind.
    """
    if announced is not None and announced > limit:
        raise UploadRefused(413, f"the video is larger than {limit >> 20} MB")
    if shutil.disk_usage(folder).free < (announced or 0) + SPARE_DISK:
        raise UploadRefused(507, "the disk is full; make room and try again")
    sweep_uploads(folder)
    name = f"upload-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    try:
        with partial_file(folder / UPLOAD) as part:
            with part.open("wb") as file:
                kind = await _store(chunks, file.write, limit)
            await anyio.to_thread.run_sync(probe, part)
            path = folder / (name + kind)
            part.chmod(0o666 & ~UMASK)
            part.rename(path)
    except VideoError:
        raise UploadRefused(415, "this file cannot be read as a video") from None
    return path


async def _store(chunks: AsyncIterator[bytes], write: Callable[[bytes], Any], limit: int) -> str:
    """Write what arrives; the file ending that its first bytes call for.

    The rest of a refused file is read and dropped: a browser that is cut off while it still sends
    shows a network error instead of our words.
    """
    head, size, kind = b"", 0, None
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise UploadRefused(413, f"the video is larger than {limit >> 20} MB")
        if len(head) < 64:
            head += chunk
            if len(head) < 64:
                continue
            chunk, kind = head, sniff(head)
        if kind is not None:
            await anyio.to_thread.run_sync(write, chunk)
    if kind is None:
        raise UploadRefused(415, "this is not a video; mp4, mov, mkv, webm and avi are accepted")
    return kind[0]
