"""Captioned JSON files, read strictly: what leaves here is safe to draw.

Whoever reads a record here gets finite numbers and real text, or an AnnotationError that names the
file. `Summary` is what the library shows and searches of a record.
"""

from __future__ import annotations

import json
import logging
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from starc.errors import AnnotationError
from starc.types import Captioned, Event
from starc.viewer.security import display_name
from starc_eval.annotations import read_annotations, video_id
from starc_eval.reading import read_bytes

log = logging.getLogger("starc")

LARGEST_RECORD = 16 << 20
"""Bytes; a three-hour video needs under one million."""
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading JSON of another shape may raise."""


class Passage(NamedTuple):
    """A caption or a spoken sentence, as search sees it (a tuple: a library has 100,000)."""

    start: float
    end: float
    text: str
    spoken: bool


@dataclass(frozen=True, slots=True)
class Summary:
    name: str
    """The video as the record names it, without folders."""
    title: str
    duration: float | None = None
    events: int = 0
    sentences: int = 0
    passages: tuple[Passage, ...] = ()
    problem: str | None = None
    confidence: float | None = None
    """Median of its events."""
    source: str | None = None
    """The file it was made from, as a way from the record's folder."""
    content: str | None = None
    """What that file holds: `starc.files.cache.content_name`."""
    reason: str = ""
    """Why the video was not captioned; empty where it was."""

    @property
    def size(self) -> int:
        """Bytes of the video, as `content` has it."""
        digits = (self.content or "").partition("-")[0]
        return int(digits) if digits.isdecimal() and len(digits) < 19 else -1


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file that claims to be a captioned video; None if it does not."""
    try:
        if path.stat().st_size > LARGEST_RECORD:
            return None
        content = json.loads(read_bytes(path, most=LARGEST_RECORD))
    except OSError as error:
        raise AnnotationError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise AnnotationError(
            f"{path}: not valid JSON (was it written completely?); caption the video again"
        ) from None
    return content if isinstance(content, dict) and "starc" in content else None


def read_captioned(path: Path) -> Captioned:
    content = read_json(path)
    if content is None:
        raise AnnotationError(f"{path}: not a captioned video; make one with `starc caption`")
    try:
        return Captioned.from_json(content)
    except MALFORMED as error:
        raise AnnotationError(
            f"{path}: not a captioned video ({error}); caption the video again"
        ) from None


def read_many(path: Path) -> dict[str, Captioned]:
    """Captioned videos by id from a file of any known annotation or prediction format.

    Spans that run backwards are left out; without a duration the last event ends the video. Of
    several annotators the first is shown.
    """
    videos = {}
    for name, annotation in read_annotations(path).items():
        pairs = zip(annotation.spans, annotation.sentences, strict=True)
        ordered = sorted(pairs, key=lambda pair: pair[0])
        events = tuple(Event(*span, text) for span, text in ordered if 0 <= span[0] < span[1])
        stated = max(annotation.duration or 0.0, 0.0)
        duration = stated or max((event.end for event in events), default=1.0)
        name = annotation.video or name
        if name not in videos and (events or annotation.duration is not None):
            videos[name] = Captioned(name, duration, events)
    return videos


def summarise(content: dict[str, Any], stem: str) -> Summary:
    """Summary of a captioned JSON; checked only as far as it is shown."""
    try:
        name = re.split(r"[/\\]", content["video"])[-1] or stem
        title = content["provenance"].get("title") or video_id(name)
        events, sentences = content["events"], content["sentences"]
        passages = [
            Passage(float(one["start"]), float(one["end"]), one[key] + "", key == "text")
            for key, spans in (("caption", events), ("text", sentences))
            for one in spans
        ]
        duration = float(content["duration"])
        if not math.isfinite(duration + sum(one.start + one.end for one in passages)):
            raise ValueError("a time in it is not finite")
        known = [float(one["confidence"]) for one in events if one.get("confidence") is not None]
        made_of = {key: content["provenance"].get(key) for key in ("source", "content")}
        return Summary(
            name,
            display_name(title),
            duration,
            len(events),
            len(sentences),
            tuple(passages),
            confidence=statistics.median(known) if known else None,
            reason="" if events else _reason(content),
            **{key: text for key, text in made_of.items() if isinstance(text, str)},
        )
    except MALFORMED as error:
        log.warning("%s: not a captioned video (%r)", stem, error)
        return bare_summary(stem, problem="not a captioned video of this version")


def _reason(content: dict[str, Any]) -> str:
    """Why a record has no events; those of earlier versions say it in their provenance only."""
    before = "out of domain" if "unfamiliar" in content["provenance"] else ""
    return str(content.get("reason", "") + "" or before)


def bare_summary(name: str, problem: str | None = None, title: str | None = None) -> Summary:
    """All that can be said of a video without a record, or with one that cannot be read."""
    return Summary(name, display_name(title or video_id(name)), problem=problem)


def title_file(video: Path) -> Path:
    """Where the title of an upload is kept until there is a record."""
    return video.with_name(f".{video.name}.title")


def kept_title(video: Path) -> str | None:
    """The title under which a video was uploaded, while nobody has captioned it."""
    if not video.name.startswith("upload-"):
        return None
    try:
        return read_bytes(title_file(video), most=2_000).decode("utf-8", "replace")
    except OSError:
        return None
