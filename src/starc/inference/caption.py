"""What `starc caption` does: one video to a file or to stdout, or many into a folder.

Everything here is wiring. The work is in pipeline.py (one video), batch.py (many, on this
machine), cluster.py (many machines) and formats.py (files).
"""

from __future__ import annotations

import functools
import os
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch

from starc.errors import ConfigError, StarcError
from starc.inference import batch, cluster
from starc.inference.batch import Counts, OnRow, Output
from starc.inference.manifest import Manifest
from starc.inference.pipeline import Captioner, Options, caption_one
from starc.inference.worklist import LIST_ENDINGS, find_videos, make_jobs
from starc.media.encoders import PUBLISHED_ENCODER, load_image_encoder
from starc.media.speech import Engine
from starc.model import checkpoint
from starc.output import formats as writers
from starc.types import Captioned

EMBEDDED = Path(__file__).parents[1] / "assets" / "tiny-youcook2"
"""The model that comes with the package."""
ENCODERS = {768: PUBLISHED_ENCODER, 1280: "efficientnet-lite0"}
"""Image encoder by width of the model's features, where the user names none."""
UNSURE = 0.25
"""Median confidence of a video's events below which they are called guesses."""
FORMATS = ("json", "vtt")
"""Written for many videos, where the user names none."""
PREDICTIONS = "predictions.json"
ENGINES = ("local", "ray")
WORKERS = 2


class Result(NamedTuple):
    """One captioned video: its text where no file was named, and the writers' notes."""

    text: str
    notes: tuple[str, ...]


def open_captioner(
    model: str | Path, options: Options, *, encoder: str | None = None, device: str = "auto"
) -> Captioner:
    """A captioner of a model folder or hub id; nothing is loaded before it is needed."""

    def eyes() -> Any:
        chosen = "cuda" if torch.cuda.is_available() else "cpu"
        name = encoder or encoder_of(captioner.loaded.image_width)
        return load_image_encoder(name, device=chosen if device == "auto" else device)

    captioner = Captioner(functools.partial(checkpoint.load, model, device=device), eyes, options)
    return captioner


class Starc:
    """A loaded model that captions files: `starc.load(folder).caption("talk.mp4").events`."""

    def __init__(self, captioner: Captioner) -> None:
        self.captioner = captioner

    def caption(self, video: str | Path) -> Captioned:
        """Caption one video."""
        return caption_one(Path(video), self.captioner)


def load(
    model: str | Path = EMBEDDED,
    *,
    encoder: str | None = None,
    device: str = "auto",
    options: Options | None = None,
) -> Starc:
    """The model of a folder or of the hub, or the embedded one, ready to caption."""
    captioner = open_captioner(model, options or Options(), encoder=encoder, device=device)
    captioner.loaded, captioner.encoder  # noqa: B018  a wrong name is said now, not at the first video
    return Starc(captioner)


class _Asked(threading.Event):
    """An event that is set when somebody else says so."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        super().__init__()
        self._cancelled = cancelled

    def is_set(self) -> bool:
        return self._cancelled()


def for_page(
    captioner: Captioner,
) -> Callable[[Path, Callable[[str, float], None], Callable[[], bool]], Captioned]:
    """Captioning as the page wants it: told of each stage, and stopped when it is cancelled."""

    def caption(
        path: Path, progress: Callable[[str, float], None], cancelled: Callable[[], bool]
    ) -> Captioned:
        stop = _Asked(cancelled)
        progress("watching", 0.0)
        sight = captioner.features(path, stop)
        progress("watching", 1.0)
        progress("listening", 0.0)
        speech = captioner.speech(path, stop)
        progress("listening", 1.0)
        progress("captioning", 0.0)
        captioned = captioner.caption(path, sight, speech)
        progress("captioning", 1.0)
        return captioned

    return caption


def encoder_of(width: int) -> str:
    """The usual image encoder of that width."""
    if width not in ENCODERS:
        raise ConfigError(
            f"--encoder: no usual image encoder is {width} wide; name the model's own"
        )
    return ENCODERS[width]


def hearing(speech: str) -> dict[str, Any]:
    """Options for `--speech`: an engine's name, or a file with the speech."""
    if speech in get_args(Engine):
        return {"engine": speech}
    if not Path(speech).is_file():
        known = ", ".join(get_args(Engine))
        raise ConfigError(f"--speech {speech}: neither a file nor one of {known}")
    return {"transcript": Path(speech)}


def is_one(inputs: Sequence[Path], out: Path | None) -> bool:
    """Whether this is one video for one file or for stdout, and not a batch for a folder."""
    if len(inputs) != 1 or inputs[0].is_dir() or inputs[0].suffix.lower() in LIST_ENDINGS:
        return False
    return out is None or (not out.is_dir() and bool(out.suffix))


def one(
    video: Path,
    captioner: Captioner,
    out: Path | None,
    *,
    formats: Sequence[str] = (),
    output: Output | None = None,
) -> Result:
    """Caption one video; without `out` the text comes back (WebVTT if no format is named)."""
    output = output or Output()
    if len(formats) > 1:
        raise ConfigError(f"--format {', '.join(formats)}: one file has one format; name a folder")
    format = formats[0] if formats else writers.infer(out) if out else "vtt"
    # A wrong format is said before the work, not after it.
    writers.check_format(format, output.mode)
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"-o {out}: there is no folder {out.parent}; make it first")
    captioned = caption_one(video, captioner)
    mode, granularity = output.mode, output.granularity
    if out is None:
        text, notes = writers.render(captioned, format=format, mode=mode, granularity=granularity)
        return Result(text, (*notes, *doubts(captioned)))
    try:
        notes = writers.write(
            captioned, out, format=format, mode=mode, granularity=granularity, source=video
        )
    except OSError as error:
        raise StarcError(f"{out}: cannot be written ({error.strerror})") from error
    return Result("", (*notes, *doubts(captioned)))


def doubts(captioned: Captioned) -> tuple[str, ...]:
    """What a reader should know before believing the captions."""
    known = [event.confidence for event in captioned.events if event.confidence is not None]
    if not captioned.events:
        return ("no event was found",)
    if known and statistics.median(known) < UNSURE:
        return (
            f"low confidence ({statistics.median(known):.0%}): take the captions for guesses; does "
            "the model know such videos?",
        )
    return ()


def many(
    inputs: Sequence[Path],
    model: str | Path,
    out: Path | None,
    options: Options,
    *,
    encoder: str | None = None,
    formats: Sequence[str] = (),
    output: Output | None = None,
    engine: str = "local",
    resume: bool = True,
    on_start: Callable[[int], None] | None = None,
    on_row: OnRow | None = None,
) -> Counts:
    """Caption videos, folders and lists into a folder.

    Our JSON is always among the formats: the viewer and `predictions`, which is one file for all
    videos, are made of it. `on_start` hears how many videos there are.
    """
    output = output or Output()
    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine}: unknown; known: {', '.join(ENGINES)}")
    if out is None:
        raise ConfigError("-o: many videos need a folder for their files; name one")
    chosen = dict.fromkeys(["json", *(formats or FORMATS)])
    for format in chosen:
        writers.check_format(format, output.mode)
    jobs = make_jobs(
        find_videos(inputs, out=out), out, [one for one in chosen if one != "predictions"]
    )
    if on_start is not None:
        on_start(len(jobs))
    captioner = open_captioner(model, options, encoder=encoder)
    with Manifest(out) as manifest:
        common: dict[str, Any] = {"output": output, "resume": resume, "on_row": on_row}
        if engine == "ray":
            name = encoder or captioner.encoder.name
            make = functools.partial(open_captioner, model, options, encoder=name)
            settings = batch.settings_of(captioner, output)
            counts = cluster.run(jobs, make, manifest, settings=settings, **common)
        else:
            with shared_cores(WORKERS):
                counts = batch.run(jobs, captioner, manifest, workers=WORKERS, **common)
        if "predictions" in chosen:
            batch.write_predictions(jobs, manifest, out / PREDICTIONS)
    return counts


@contextmanager
def shared_cores(workers: int) -> Iterator[None]:
    """Leave a fair part of the cores to each thread that computes at the same time."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // (workers + 1)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
