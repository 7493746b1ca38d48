"""Many videos on one machine: stages overlap across videos, any kill can be resumed.

Reading a video (features, speech) happens in worker threads while the model is busy with others,
several at once where it can, in the calling thread, which also writes the files and then the
manifest row. The number of videos under way is fixed, so memory does not grow with the list. A
video that fails, or for which the model has no captions, gets a row that says why and stops nobody
else; a full disk and Ctrl-C stop the run.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import queue
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from starc.errors import ConfigError, StarcError
from starc.files.atomic import make_folders, sweep
from starc.files.cache import fingerprint, write_text
from starc.inference.jobs import Job, Manifest, ManifestRow
from starc.inference.pipeline import GUESS, Captioner, ReadVideo, can_be_forced
from starc.media.container import MediaLimits
from starc.output import formats
from starc.output.formats import Mode
from starc.types import Captioned, Event
from starc_eval.annotations import prediction_file

log = logging.getLogger("starc")

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
EXPECTED_SILENCE = ("no sound", "not asked for")
"""Why there may be no speech without a warning."""
NOT_CAPTIONED = 4
"""Exit code where nothing failed and no video has captions."""
WORKERS = 2
"""Threads that read videos."""
PATIENCE = 3.0
"""Seconds that Ctrl-C leaves the worker threads to notice it."""


@dataclass(frozen=True, slots=True)
class Output:
    """How results are written."""

    mode: Mode | None = None
    granularity: float = 1.0
    overwrite: bool = False
    """Replace files that we did not write."""
    replace_chapters: bool = False
    """Of a copied video, the chapters that it has already."""
    min_confidence: float = 0.0
    """Events that are less sure are left out."""
    limits: MediaLimits = field(default_factory=MediaLimits)
    """Of a video that is copied with its chapters."""
    picture_options: tuple[str, ...] = ()
    """As given, such as "--beams 8"; they change no event that is made from speech alone."""

    def __post_init__(self) -> None:
        if self.mode not in (None, *get_args(Mode)):
            raise ConfigError(f"--mode {self.mode}: unknown; known: {', '.join(get_args(Mode))}")
        if not (math.isfinite(self.granularity) and self.granularity > 0):
            raise ConfigError(f"--granularity: must be above 0 (found {self.granularity:g})")

    def select(self, captioned: Captioned) -> tuple[Captioned, tuple[str, ...]]:
        """The events that are sure enough, and notes; a reason where there is no event."""
        if not captioned.events:
            return replace(captioned, reason=captioned.reason or "no event was found"), ()
        events = tuple(
            event
            for event in captioned.events
            if event.confidence is None or event.confidence >= self.min_confidence
        )
        fewer, notes = len(captioned.events) - len(events), list(warnings(captioned))
        what = "1 event" if fewer == 1 else f"{fewer} events"
        if not events:
            why = f"{what} found, none with a confidence of {self.min_confidence:.0%} or more"
            return replace(captioned, events=(), reason=why), ()
        if fewer:
            notes.append(f"left out {what} below {self.min_confidence:.0%}")
        if self.picture_options and _sources(events) == {"speech"}:
            notes.append(
                f"{', '.join(self.picture_options)} changed nothing: the events of "
                f"{captioned.video} were made from speech alone"
            )
        return replace(captioned, events=events), tuple(notes)

    def write(self, captioned: Captioned, job: Job) -> Written:
        """Write all files of a job; a format that refuses is left out, but never our JSON.

        Of a video that was not captioned only our JSON is written, for the viewer to say why.
        """
        captioned, selected = self.select(captioned)
        left_out, notes = list[str](), list(selected)
        for format, path in job.outputs.items():
            if captioned.reason and format != "json":
                left_out.append(format)
                notes += [left_as_it_was(path)] if path.exists() else []
                continue
            make_folders(path.parent)
            try:
                notes += formats.write(
                    captioned,
                    path,
                    format=format,
                    mode=None if formats.FORMATS[format].only_chapters else self.mode,
                    granularity=self.granularity,
                    source=job.video,
                    overwrite=self.overwrite,
                    replace_chapters=self.replace_chapters,
                    limits=self.limits,
                )
            except StarcError as error:
                left_out.append(format)
                if format == "json" or len(left_out) == len(job.outputs):
                    raise
                notes.append(f"no {format}: {reason(error)}")
        return Written(tuple(left_out), tuple(dict.fromkeys(notes)), captioned.reason)


class Written(NamedTuple):
    """What became of the files of one video."""

    left_out: tuple[str, ...]
    """Formats."""
    notes: tuple[str, ...]
    reason: str = ""
    """Why the video was not captioned."""


def not_captioned(reason: str) -> str:
    """The line on a video without captions, with what to do where something can be done."""
    advice = "; --force captions it anyway" if can_be_forced(reason) else ""
    return f"not captioned: {reason}{advice}"


def left_as_it_was(path: Path) -> str:
    """A note on an earlier file of a video that is not captioned now."""
    return f"{path.name}: left as it was, from an earlier run"


def _sources(events: Sequence[Event]) -> set[str]:
    """The inputs that the events were made from; empty: unknown."""
    return {source for event in events for source in (*event.times_from, *event.words_from)}


def warnings(captioned: Captioned) -> tuple[str, ...]:
    """What a reader should know before relying on the captions; nothing where there are none."""
    if not captioned.events:
        return ()
    known = [event.confidence for event in captioned.events if event.confidence is not None]
    lines = []
    if captioned.provenance.get("frames") == "none: sound only":
        lines.append("no pictures: the captions are made of the speech alone")
    nothing, _, why = captioned.provenance.get("speech", "").partition(": ")
    if nothing == "none" and why not in EXPECTED_SILENCE:
        lines.append(f"the speech was left out: {why}")
    if "unfamiliar" in captioned.provenance:
        lines.append("captions are likely wrong (out of domain)")
    if known and (median := statistics.median(known)) < GUESS:
        lines.append(f"captions are likely wrong (low confidence): the median is {median:.0%}")
    return tuple(lines)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many videos ended how."""

    done: int = 0
    """Captioned."""
    failed: int = 0
    skipped: int = 0
    """Captioned by an earlier run."""
    without: int = 0
    """Not captioned."""
    skipped_without: int = 0
    """Not captioned by an earlier run."""

    def plus(self, row: ManifestRow) -> Counts:
        if row.finished:
            return self + (Counts(done=1) if row.status == "done" else Counts(without=1))
        return self + Counts(failed=1)

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        before = self.skipped + self.skipped_without
        said = f"{self.done} captioned, {self.without} without captions, {self.failed} failed"
        return said + (f", {before} done before" if before else "")

    @property
    def exit_code(self) -> int:
        """0 captioned, 1 all failed, 3 some failed, NOT_CAPTIONED if no video has captions."""
        captioned, without = self.done + self.skipped, self.without + self.skipped_without
        if self.failed:
            return 3 if captioned or without else 1
        return NOT_CAPTIONED if without and not captioned else 0


OnRow = Callable[[ManifestRow], None]


def pending(
    jobs: Sequence[Job],
    manifest: Manifest,
    settings: str,
    *,
    resume: bool,
    overwrite: bool = False,
    on_row: OnRow | None = None,
) -> tuple[list[Job], Counts]:
    """Jobs that are still to do, and a count of the others; clears what a killed run left behind.

    `on_row` hears of those done before.
    """
    todo, before = [], Counts()
    for job in jobs:
        if not (resume and manifest.is_done(job, settings, whole=overwrite)):
            todo.append(job)
            continue
        row = manifest.rows[job.name]
        before += Counts(skipped=1) if row.status == "done" else Counts(skipped_without=1)
        if on_row is not None:
            on_row(row)
    outputs = (path for job in todo for path in job.outputs.values())
    sweep(outputs, alone=True)  # the manifest is locked
    return todo, before


def run(
    jobs: Sequence[Job],
    captioner: Captioner,
    manifest: Manifest,
    *,
    output: Output | None = None,
    resume: bool = True,
    workers: int = WORKERS,
    on_row: OnRow | None = None,
) -> Counts:
    """Caption all jobs; returns how many ended how.

    `workers` threads read videos and one listens; at most `workers` + 1 videos are under way beside
    those that the model takes at once. The outcome of a video depends neither on its neighbours nor
    on the order. `on_row` hears of every row, those of an earlier run first.
    """
    if workers < 1:
        raise ValueError(f"need one worker at least, got {workers = }")
    output = output or Output()
    settings = settings_of(captioner, output)
    todo, counts = pending(
        jobs, manifest, settings, resume=resume, overwrite=output.overwrite, on_row=on_row
    )
    # Closed at once on Ctrl-C: an exception's traceback would keep the threads going.
    with closing(_read_ahead(todo, captioner, workers)) as ready:
        for items in ready:
            for row in _finish(items, captioner, manifest, output, settings):
                record(row, manifest)
                counts = counts.plus(row)
                if on_row is not None:
                    on_row(row)
    return counts


def settings_of(captioner: Captioner, output: Output) -> str:
    """What rows record as the settings of a run."""
    chosen = f"{captioner.settings} {output.mode or ''} {output.granularity:g}"
    chosen += f" {output.min_confidence:g}" if output.min_confidence else ""
    return chosen + (" replace-chapters" if output.replace_chapters else "")


@dataclass(slots=True)
class _Item:
    """A video under way."""

    job: Job
    read: dict[str, Any] = field(default_factory=dict)
    """Features, or the answer of an earlier time; and speech, as they come in."""
    errors: dict[str, BaseException] = field(default_factory=dict)
    spent: float = 0.0
    """Seconds of the steps so far."""

    @property
    def inputs(self) -> ReadVideo:
        """What the model needs; raises what went wrong before it."""
        for step in _STEPS:
            if step in self.errors:
                raise self.errors[step]
        return ReadVideo(self.job.video, self.read["features"][0], self.read["speech"])


_STEPS: Mapping[str, Callable[[Captioner, Path, threading.Event], Any]] = {
    "features": lambda captioner, video, stop: (
        captioner.kept(video) or captioner.read_frames(video, stop),
        identify(video),
    ),
    "speech": lambda captioner, video, stop: captioner.read_speech(video, stop),
}
"""In the order in which their errors count: a file that is no video has no speech either."""


def _read_ahead(
    jobs: Sequence[Job], captioner: Captioner, workers: int
) -> Generator[list[_Item], None, None]:
    """Jobs with what their first steps gave, as many as the model wants, a fixed number ahead.

    Speech has a thread of its own: a recogniser serves one video at a time, and workers that wait
    for it would read nothing meanwhile.
    """
    tasks: dict[str, queue.SimpleQueue[_Item | None]] = {
        step: queue.SimpleQueue() for step in _STEPS
    }
    results: queue.SimpleQueue[tuple[_Item, float]] = queue.SimpleQueue()
    stop = threading.Event()

    def work(step: str) -> None:
        while (item := tasks[step].get()) is not None and not stop.is_set():
            began = time.monotonic()
            try:
                if "features" not in item.errors:
                    item.read[step] = _STEPS[step](captioner, item.job.video, stop)
            except BaseException as error:
                item.errors[step] = error
            results.put((item, time.monotonic() - began))

    steps = ["features"] * min(workers, len(jobs)) + ["speech"]
    threads = [threading.Thread(target=work, args=(step,), daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    at_once = captioner.at_once
    waiting, under_way, ready = iter(jobs), 0, list[_Item]()
    finished: Counter[str] = Counter()
    try:
        while True:
            while under_way < workers + 1 + at_once and (job := next(waiting, None)) is not None:
                under_way += 1
                item = _Item(job)
                for step in _STEPS:
                    tasks[step].put(item)
            if not under_way:
                return
            item, spent = results.get()
            item.spent += spent
            finished[item.job.name] += 1
            if finished[item.job.name] == len(_STEPS):
                del finished[item.job.name]
                ready.append(item)
            if len(ready) == min(at_once, under_way):
                yield ready
                under_way, ready = under_way - len(ready), []
    finally:
        stop.set()
        for step in steps:
            tasks[step].put(None)
        end = time.monotonic() + PATIENCE
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


def _finish(
    items: Sequence[_Item], captioner: Captioner, manifest: Manifest, output: Output, settings: str
) -> Iterator[ManifestRow]:
    """The model's part and the files of videos, as rows; only what must end a run is raised."""
    began = time.monotonic()
    together = _caption_together(items, captioner)
    shared = (time.monotonic() - began) / len(items)
    for item in items:
        began, job = time.monotonic() - item.spent - shared, item.job
        try:
            captioned = together.get(job.name) or captioner.caption_read([item.inputs])[0]
            written = output.write(captioned, job)
        except Exception as error:
            yield failed_row(job, error, time.monotonic() - began, settings)
            continue
        identity = item.read["features"][1]
        yield done_row(job, manifest, identity, written, time.monotonic() - began, settings)


def _caption_together(items: Sequence[_Item], captioner: Captioner) -> dict[str, Captioned]:
    """Captions of several videos at once; none where that fails, then each is captioned alone."""
    able = [item for item in items if not item.errors]
    kept = {item.job.name: item.read["features"][0] for item in able}
    kept = {name: answer for name, answer in kept.items() if isinstance(answer, Captioned)}
    able = [item for item in able if item.job.name not in kept]
    if len(able) < 2:
        return kept
    try:
        captioned = captioner.caption_read([item.inputs for item in able])
    except Exception as error:  # whose fault it is shows when each is captioned alone
        log.debug("several videos at once", exc_info=error)
        return kept
    return kept | {item.job.name: one for item, one in zip(able, captioned, strict=True)}


def done_row(
    job: Job,
    manifest: Manifest,
    identity: Mapping[str, Any],
    written: Written,
    seconds: float,
    settings: str,
) -> ManifestRow:
    """The row of a finished video."""
    files = {f: path for f, path in job.outputs.items() if f not in written.left_out}
    return ManifestRow(
        name=job.name,
        video=str(job.video.absolute()),
        status="not captioned" if written.reason else "done",
        seconds=round(seconds, 3),
        settings=settings,
        outputs=manifest.relative(files),
        left_out=written.left_out,
        notes=written.notes,
        reason=written.reason,
        **identity,
    )


def identify(video: Path) -> dict[str, Any]:
    """Size, time and content by which a video is known to be the same."""
    content = fingerprint(video)
    status = video.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "hash": content}


def failed_row(job: Job, error: Exception, seconds: float, settings: str) -> ManifestRow:
    """The row of a video that failed; a full disk is raised instead."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        raise disk_full(next(iter(job.outputs.values())).parent) from error
    if not isinstance(error, StarcError):
        log.debug("%s", job.video, exc_info=error)
    return ManifestRow(
        name=job.name,
        video=str(job.video.absolute()),
        status="failed",
        seconds=round(seconds, 3),
        settings=settings,
        error=reason(error),
    )


def disk_full(folder: Path) -> StarcError:
    """What to tell when no more can be written: going on would lose every further video."""
    return StarcError(f"{folder}: disk full; make room and run again, finished videos are safe")


def record(row: ManifestRow, manifest: Manifest) -> None:
    """Put a row on the disk."""
    try:
        manifest.append(row)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise disk_full(manifest.folder) from error
        raise


def reason(error: BaseException) -> str:
    """One line that says what went wrong."""
    text = " ".join(str(error).split())
    if isinstance(error, StarcError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def write_predictions(
    jobs: Sequence[Job], manifest: Manifest, path: Path, *, overwrite: bool = False
) -> None:
    """All finished videos of a batch in one file of the papers' format, read from their JSON.

    A video that was not captioned has an empty list.
    """
    videos = {}
    for job in jobs:
        row = manifest.rows.get(job.name)
        if row is not None and row.finished:
            text = job.outputs["json"].read_text("utf-8")
            events = Captioned.from_json(json.loads(text)).events
            videos[job.name] = [(one.start, one.end, one.caption) for one in events]
    write_text(path, prediction_file(videos), overwrite=overwrite)


@contextmanager
def shared_cores(workers: int = WORKERS) -> Iterator[None]:
    """Leave a fair part of the cores to each thread that computes at the same time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // (workers + 1)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
