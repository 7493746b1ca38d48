"""Captioned JSON files, read strictly: what leaves here is safe to draw.

`Captioned.from_json` checks spans and lengths; a file from outside may still hold a number where a
caption belongs, or NaN. Whoever reads a record here gets finite numbers and real text, or an
AnnotationError that names the file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from starc.errors import AnnotationError
from starc.files.annotations import VideoAnnotation, read_annotations
from starc.types import Captioned, Event

LARGEST_RECORD = 64 << 20
"""Bytes; a three-hour video needs under one million."""


# A quote inside a JSON string is escaped, so these can only match real keys.
_NUMBERS = re.compile(rb'"(frame_times|saliency)"\s*:\s*\[[^\]\[{}"]*\]')
_SEGMENTS = re.compile(rb'"segments"\s*:\s*\[.*\]\s*,\s*"provenance"\s*:', re.DOTALL)


def read_json(path: Path, *, outline: bool = False) -> Any:
    """The content of a JSON file that claims to be a captioned video; None if it does not.

    An `outline` leaves out numbers and segments, unread: two thirds of the bytes, and a library
    shows neither.
    """
    try:
        if path.stat().st_size > LARGEST_RECORD:
            return None
        text = path.read_bytes()
        if b'"starc"' not in text:
            return None
        if outline:
            text = _SEGMENTS.sub(b'"segments":[],"provenance":', _NUMBERS.sub(rb'"\1":[]', text))
        return json.loads(text)
    except OSError as error:
        raise AnnotationError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise AnnotationError(
            f"{path}: not valid JSON (was it written completely?); caption the video again"
        ) from None


def read_captioned(path: Path) -> Captioned:
    """One captioned video."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise AnnotationError(f"{path}: not a captioned video; make one with `starc caption`")
    try:
        captioned = Captioned.from_json(content)
        check(captioned)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise AnnotationError(
            f"{path}: not a captioned video ({error}); caption the video again"
        ) from None
    return captioned


def read_many(path: Path) -> dict[str, Captioned]:
    """Captioned videos by id from a file of any known annotation or prediction format."""
    return {
        name: from_annotated(name, annotated)
        for name, annotated in read_annotations(path).items()
        if annotated.duration is not None or events_of(annotated)
    }


def from_annotated(name: str, annotated: VideoAnnotation) -> Captioned:
    """A record with events alone; without a duration the last event ends the video."""
    events = events_of(annotated)
    duration = annotated.duration or max((event.end for event in events), default=1.0)
    return Captioned(name, duration, events)


def events_of(annotated: VideoAnnotation) -> tuple[Event, ...]:
    """The events that can be drawn; spans that run backwards are left out."""
    return tuple(
        Event(start, end, sentence)
        for (start, end), sentence in sorted(
            zip(annotated.spans, annotated.sentences, strict=True), key=lambda pair: pair[0]
        )
        if 0 <= start < end
    )


def check(captioned: Captioned) -> None:
    """Raise TypeError or ValueError unless every text is text and every number is finite."""
    _texts("video", [captioned.video])
    _texts("caption", (event.caption for event in captioned.events))
    _texts("sentence", (sentence.text for sentence in captioned.sentences))
    found = [found for segment in captioned.segments for found in segment.captions]
    _texts("retrieved caption", (one.caption for one in found))
    _texts("provenance", [*captioned.provenance, *captioned.provenance.values()])
    _numbers("duration", [captioned.duration])
    _numbers("time", (time for event in captioned.events for time in (event.start, event.end)))
    _numbers("time", (time for said in captioned.sentences for time in (said.start, said.end)))
    _numbers("frame time", captioned.frame_times)
    _numbers("saliency", captioned.saliency)
    _numbers("similarity", (one.similarity for one in found))
    _numbers("segment", (s for segment in captioned.segments for s in (segment.score,)))
    confidences = (event.confidence for event in captioned.events)
    _numbers("confidence", (one for one in confidences if one is not None))
    for segment in captioned.segments:
        if not all(type(n) is int for n in (segment.first, segment.stop, segment.anchor)):
            raise TypeError(f"segment must be whole frames, got {segment.first!r:.40}")


def _texts(what: str, values: Iterable[Any]) -> None:
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{what} must be text, got {value!r:.40}")


def _numbers(what: str, values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{what} must be a number, got {value!r:.40}")
        if not math.isfinite(value):
            raise ValueError(f"{what} must be finite, got {value}")
