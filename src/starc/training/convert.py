"""Annotation files of others as ours, with what they leave to the videos: durations and names.

ViTT's own file tells when sections start, under ids of YouTube-8M; how long a video is, what it is
called and to which split it belongs stand elsewhere. `convert` brings them together as VidChapters
does: accounts that are empty, run backwards or reach beyond the video are left out and counted.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from starc.errors import AnnotationError, VideoError
from starc.media.video import probe
from starc_eval.annotations import VideoAnnotation, read_references, video_id
from starc_eval.reading import read_text

log = logging.getLogger("starc")


@dataclass(frozen=True, slots=True)
class Converted:
    """Annotations with durations, and why some are missing."""

    annotations: dict[str, VideoAnnotation]
    left_out: Counter[str]
    """Accounts by reason."""


def convert(
    path: Path,
    *,
    durations: Path | None = None,
    videos: Iterable[Path] = (),
    names: Path | None = None,
    only: Path | None = None,
    subset: str | None = None,
) -> Converted:
    """Read annotations; `durations` is a table of seconds by video, `videos` the files themselves.

    `names` maps the file's ids to those of the videos (JSON), `only` lists the ids that are wanted,
    one a line. What is not in them is left out.
    """
    renamed = _table(names, str) if names else None
    wanted = {video_id(line) for line in _text(only).split()} if only else None
    table = _table(durations, float) if durations else {}
    files = {video_id(file.name): file for file in videos}
    annotations, left_out = {}, Counter[str]()
    for key, each in read_references(path, subset=subset, open_ended=True).items():
        video = each.video or key
        name = video if renamed is None else renamed.get(video)
        duration = each.duration or table.get(str(name)) or table.get(video)
        if wanted is not None and not {video, name} & wanted:
            left_out[f"are not listed in {only}"] += 1
        elif name is None:
            left_out[f"have no name in {names}"] += 1
        elif duration is None and not (duration := _probed(files.get(name))):
            left_out["have no duration and no video that tells it"] += 1
        elif each.duration is None and _unfit(each := _completed(each, duration)):
            left_out["are empty, run backwards or reach beyond the video"] += 1
        else:
            owned = replace(each, video=name) if each.video else each
            annotations[key.removesuffix(video) + name] = owned
    if not annotations:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise AnnotationError(f"{path}: nothing is left of it ({reasons}); give other files")
    return Converted(annotations, left_out)


def _completed(annotation: VideoAnnotation, duration: float) -> VideoAnnotation:
    """With its duration, until which an open last section lasts."""
    spans = annotation.spans
    if spans and spans[-1][0] == spans[-1][1]:
        spans = (*spans[:-1], (spans[-1][0], duration))
    return replace(annotation, spans=spans, duration=duration)


def _unfit(annotation: VideoAnnotation) -> bool:
    beyond = any(end > (annotation.duration or math.inf) for _, end in annotation.spans)
    empty = not annotation.spans or not all(text.strip() for text in annotation.sentences)
    return beyond or empty or annotation.backwards > 0


def _probed(video: Path | None) -> float | None:
    """Seconds of a video; None if it is missing or cannot be read."""
    try:
        return probe(video).duration if video else None
    except VideoError as error:
        log.warning("%s", error)
        return None


Value = TypeVar("Value", str, float)


def _table(path: Path, kind: Callable[[Any], Value]) -> dict[str, Value]:
    """Values by video: a JSON object, or lines of a video and its value."""
    text = _text(path)
    try:
        rows: Any = json.loads(text).items()
    except (ValueError, AttributeError):
        rows = [re.split(r"[,;\t ]+", line.strip(), maxsplit=1) for line in text.splitlines()]
    try:
        return {video_id(str(name)): kind(value) for name, value in rows}
    except (TypeError, ValueError):
        raise AnnotationError(
            f"{path}: expected a JSON object or lines of a video and its {kind.__name__}"
        ) from None


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise AnnotationError(f"{path}: cannot be read as text ({error}); check the path") from None
