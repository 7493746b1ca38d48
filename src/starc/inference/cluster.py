"""Many videos on many machines: the stages of batch.py on Ray Data (extra `ray`).

Workers read videos (CPUs) and run the model (GPUs where there are any); what travels between them
is paths, features and captions, never frames. Files and the manifest are written by the calling
process, as in a local run, so both give the same. All machines must see the videos under the same
paths and have starc installed. A worker that dies is replaced and its videos are read again; a
video that kills its worker every time becomes a failed row.
"""

from __future__ import annotations

import importlib
import json
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from starc.errors import MissingExtra, StarcError
from starc.inference.batch import (
    Counts,
    OnRow,
    Output,
    done_row,
    failed_row,
    identify,
    pending,
    reason,
    record,
)
from starc.inference.jobs import Job, Manifest, ManifestRow
from starc.inference.pipeline import Captioner, ReadVideo
from starc.types import Captioned

WAVE = 1000
"""Videos handed to Ray at once; each is a block of its own, so that results come one by one."""
TRIES = 3
"""Times that a video may lose its worker before it counts as failed."""


def run(
    jobs: Sequence[Job],
    make_captioner: Callable[[], Captioner],
    manifest: Manifest,
    *,
    settings: str,
    output: Output | None = None,
    resume: bool = True,
    on_row: OnRow | None = None,
) -> Counts:
    """Caption all jobs on the Ray cluster of RAY_ADDRESS, or on one started here.

    `make_captioner` is called once in each worker and must be picklable; `settings` is what
    `batch.settings_of` says of such a captioner.
    """
    ray = _ray()
    output = output or Output()
    todo, counts = pending(
        jobs, manifest, settings, resume=resume, overwrite=output.overwrite, on_row=on_row
    )
    for first in range(0, len(todo), WAVE):
        missing = dict(enumerate(todo[first : first + WAVE]))
        for _ in range(TRIES):
            for result in _results(ray, missing, make_captioner):
                row = _write(missing.pop(result["index"]), result, manifest, output, settings)
                counts = _record(row, manifest, counts, on_row)
        for job in missing.values():
            lost = StarcError(f"{job.video}: its worker died {TRIES} times; is the file hostile?")
            counts = _record(failed_row(job, lost, 0.0, settings), manifest, counts, on_row)
    return counts


def _record(row: ManifestRow, manifest: Manifest, counts: Counts, on_row: OnRow | None) -> Counts:
    record(row, manifest)
    if on_row is not None:
        on_row(row)
    return counts.plus(row)


def _write(
    job: Job, result: dict[str, Any], manifest: Manifest, output: Output, settings: str
) -> ManifestRow:
    began, seconds = time.monotonic(), result["seconds"]
    try:
        if result["error"]:
            raise StarcError(result["error"])
        written = output.write(Captioned.from_json(json.loads(result["captioned"])), job)
    except Exception as error:
        return failed_row(job, error, seconds + time.monotonic() - began, settings)
    seconds += time.monotonic() - began
    return done_row(job, manifest, json.loads(result["identity"]), written, seconds, settings)


def _ray() -> Any:
    """Ray, connected to a cluster."""
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.data")
    except ImportError:
        raise MissingExtra("Ray", "ray") from None
    if not ray.is_initialized():
        try:
            ray.init(logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
        except Exception as error:
            why = " ".join(str(error).split())[:160]
            raise StarcError(
                f"--engine ray: no cluster answers ({why}); check RAY_ADDRESS, or use local"
            ) from error
    return ray


def _results(
    ray: Any, jobs: Mapping[int, Job], make_captioner: Callable[[], Captioner]
) -> Iterator[dict[str, Any]]:
    """A result per video in the order in which they finish; those of dead workers are missing."""
    if not jobs:
        return
    # A dead worker costs the one video it was at: Ray starts another worker, but leaves the video
    # to us. Its own retries would either run out before it has noticed that a machine is gone, or
    # try a file that kills its worker for ever.
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = -1
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    resources = ray.cluster_resources()
    most, gpus = max(1, int(resources.get("CPU", 1)) // 2), int(resources.get("GPU", 0))
    rows = [{"index": n, "video": str(job.video.absolute())} for n, job in jobs.items()]
    common = {"fn_constructor_args": (make_captioner,), "max_restarts": -1, "max_task_retries": 0}

    def pool(most: int) -> Any:
        return ray.data.ActorPoolStrategy(
            min_size=1, max_size=most, max_tasks_in_flight_per_actor=1
        )

    videos = ray.data.from_items(rows, override_num_blocks=len(rows))
    read = videos.map(_Read, compute=pool(most), num_cpus=1, **common)
    model = {"num_cpus": 0, "num_gpus": 1} if gpus else {"num_cpus": 1}
    yield from read.map(_Predict, compute=pool(gpus or most), **model, **common).iter_rows()


class _Read:
    """A worker that decodes, extracts features and listens."""

    def __init__(self, make_captioner: Callable[[], Captioner]) -> None:
        self.captioner, self.stop = make_captioner(), threading.Event()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        began, video = time.monotonic(), Path(row["video"])
        read, identity, error = b"", "", ""
        try:
            features = self.captioner.read_frames(video, self.stop)
            identity = json.dumps(identify(video))
            read = pickle.dumps((features, self.captioner.read_speech(video, self.stop)))
        except Exception as caught:
            error = reason(caught)
        seconds = time.monotonic() - began
        return {**row, "read": read, "identity": identity, "error": error, "seconds": seconds}


class _Predict:
    """A worker that runs the model."""

    def __init__(self, make_captioner: Callable[[], Captioner]) -> None:
        self.captioner = make_captioner()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        began, pickled = time.monotonic(), row.pop("read")
        row["captioned"] = ""
        if not row["error"]:
            try:
                read = pickle.loads(pickled)  # made by _Read, in this very run
                (captioned,) = self.captioner.caption_read([ReadVideo(Path(row["video"]), *read)])
                row["captioned"] = json.dumps(captioned.to_json())
            except Exception as caught:
                row["error"] = reason(caught)
        row["seconds"] += time.monotonic() - began
        return row
