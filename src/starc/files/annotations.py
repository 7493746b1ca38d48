"""Annotation and prediction files, in every format people have, as events per video.

In: YouCook2's `database`, ActivityNet / VidChapters / PDVC, ViTT, the papers' `results`, our own
JSON and JSON Lines (docs/data.md). Out: `{video id: VideoAnnotation}` with ids stripped of `v_`
and of a file ending, so that files of different projects meet.

A file is checked as it is read; an AnnotationError names file, video and event. Times that run
backwards are kept (published evaluators score them 0): `VideoAnnotation.backwards` counts them.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from starc.errors import AnnotationError, StarcError
from starc.files.atomic import replacing
from starc.types import Event

__all__ = [
    "AnnotatedEvent",
    "VideoAnnotation",
    "read_annotations",
    "read_predictions",
    "read_references",
    "video_id",
    "write_predictions",
]

log = logging.getLogger("starc")

Record = tuple[str, "VideoAnnotation"]
_ENDINGS = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v")


class AnnotatedEvent(NamedTuple):
    """An event as a file gives it; unlike `Event`, it may run backwards."""

    start: float
    end: float
    caption: str


@dataclass(frozen=True, slots=True)
class VideoAnnotation:
    """The events of one video as a file gives them; unlike `Event`, a span may run backwards."""

    spans: tuple[tuple[float, float], ...]
    sentences: tuple[str, ...]
    duration: float | None = None
    subset: str | None = None

    def __post_init__(self) -> None:
        if len(self.spans) != len(self.sentences):
            raise ValueError(
                f"one sentence per span, got {len(self.spans) = }, {len(self.sentences) = }"
            )

    def __iter__(self) -> Iterator[AnnotatedEvent]:
        """Its events, as `write_predictions` takes them."""
        for (start, end), caption in zip(self.spans, self.sentences, strict=True):
            yield AnnotatedEvent(start, end, caption)

    @property
    def backwards(self) -> int:
        """Events that end where they start, or before: they overlap nothing."""
        return sum(end <= start for start, end in self.spans)


def video_id(name: str) -> str:
    """The id by which files of different projects meet: no `v_`, no `.mp4`."""
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    while name.startswith("v_"):
        name = name[2:]
    return name


def read_annotations(path: str | Path, *, subset: str | None = None) -> dict[str, VideoAnnotation]:
    """Events per video from a file of any known format; `subset` keeps one split of YouCook2's."""
    path = Path(path)
    kind, content = _parse(path)
    return _collect(path, _FORMATS[kind](path, content), subset)


def read_predictions(path: str | Path) -> dict[str, VideoAnnotation]:
    """What a system predicted: `results`, our JSON, JSON Lines, or any annotation format."""
    return read_annotations(path)


def prediction_file(videos: Mapping[str, Iterable[tuple[float, float, str]]]) -> str:
    """The text that `read_predictions` reads: (start, end, sentence) of every event by video."""
    results = {
        video: [{"sentence": text, "timestamp": [start, end]} for start, end, text in events]
        for video, events in videos.items()
    }
    return json.dumps({"results": results}, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def write_predictions(
    videos: Mapping[str, Iterable[Event | AnnotatedEvent]], path: str | Path
) -> None:
    """The papers' prediction file, whole or not at all: by video its events.

    The events are `Captioned.events` or a `VideoAnnotation` itself.
    """
    text = prediction_file(
        {video: [(e.start, e.end, e.caption) for e in events] for video, events in videos.items()}
    )
    try:
        with replacing(path, binary=True) as file:
            # Half a surrogate pair becomes an escape, which JSON has too.
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise StarcError(f"{path}: cannot be written ({error.strerror}); choose another") from None


def read_references(path: str | Path, *, subset: str | None = None) -> dict[str, VideoAnnotation]:
    """What annotators wrote. A prediction file is refused: its scores would be meaningless."""
    path = Path(path)
    kind, content = _parse(path)
    if kind in ("results", "bare", "captioned"):
        raise AnnotationError(
            f"{path}: this is a prediction file, not a reference; "
            "predictions come first: starc score PREDICTIONS REFERENCE…"
        )
    videos = _collect(path, _FORMATS[kind](path, content), subset)
    if not videos:
        raise AnnotationError(f"{path}: no annotated video in it; give the annotation file")
    return videos


def _parse(path: Path) -> tuple[str, Any]:
    """The content of a JSON or JSON Lines file, and which format it is."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise AnnotationError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise AnnotationError(f"{path}: is a directory; give the JSON file in it") from None
    except OSError as error:
        raise AnnotationError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise AnnotationError(
            f"{path}: not a text file (byte {error.start} is not UTF-8); give a JSON file"
        ) from None
    if not text.strip():
        raise AnnotationError(f"{path}: the file is empty; was it written completely?")
    try:
        content = _loads(path, text)
    except json.JSONDecodeError as error:
        lines = _json_lines(path, text)
        if lines is None:
            raise AnnotationError(
                f"{path}: not valid JSON, line {error.lineno} column {error.colno} "
                f"({error.msg}); was it written completely?"
            ) from None
        content = lines
    return _recognise(path, content), content


def _loads(path: Path, text: str) -> Any:
    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twin = next(name for name in names if names.count(name) > 1)
            raise AnnotationError(f"{path}: the key {twin!r} occurs twice; keep one of them")
        return found

    try:
        return json.loads(text, object_pairs_hook=no_twins)
    except RecursionError:
        raise AnnotationError(f"{path}: JSON nested too deeply to be an annotation file") from None
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError):
            raise
        raise AnnotationError(f"{path}: a number in it cannot be read ({error})") from None


def _json_lines(path: Path, text: str) -> list[Any] | None:
    """The records of a JSON Lines file, or None if its first line is not a record."""
    records: list[Any] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = _loads(path, line)
        except json.JSONDecodeError as error:
            if not records:
                return None
            raise AnnotationError(
                f"{path}: not valid JSON, line {number} column {error.colno} ({error.msg})"
            ) from None
        if not isinstance(record, dict):
            return None
        records.append(record)
    return records


def _recognise(path: Path, content: Any) -> str:
    """Which of `_FORMATS` a parsed file is."""
    if isinstance(content, list) and content and isinstance(content[0], dict):
        if "tag" in str(content[0].get("annotations", ""))[:200]:
            return "vitt"
        if "starc" in content[0]:
            return "captioned"
        return "lines"
    if isinstance(content, dict):
        if "results" in content:
            return "results"
        if "database" in content:
            return "youcook2"
        if "starc" in content:
            return "captioned"
        if "events" in content:
            return "lines"
        if isinstance(content.get("annotations"), list) and "id" in content:
            return "vitt"
        first: Any = next(iter(content.values()), {})
        if isinstance(first, list):
            return "bare"
        if isinstance(first, dict) and (not content or "timestamps" in first):
            return "activitynet"
    raise AnnotationError(
        f"{path}: not a format we know ({_glimpse(content)}); docs/data.md lists them"
    )


def _glimpse(content: Any) -> str:
    if isinstance(content, dict):
        return "an object with " + ", ".join(repr(key)[:40] for key in list(content)[:3])
    if isinstance(content, list):
        return f"a list of {len(content)}"
    return f"{content!r:.40}"


def _collect(
    path: Path, records: Iterator[Record], subset: str | None
) -> dict[str, VideoAnnotation]:
    videos: dict[str, VideoAnnotation] = {}
    splits: set[str] = set()
    for name, annotated in records:
        if subset is not None:
            splits.add(annotated.subset or "none")
            if annotated.subset != subset:
                continue
        key = video_id(name)
        if key in videos:
            raise AnnotationError(f"{path}: video {name!r} occurs twice; keep one of them")
        videos[key] = annotated
    if subset is not None and not videos:
        found = ", ".join(sorted(splits)) or "none"
        raise AnnotationError(f"{path}: no video of subset {subset!r} (found: {found})")
    return videos


class _Where:
    """Builds one video's `VideoAnnotation`, with errors that say where."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.spans: list[tuple[float, float]] = []
        self.sentences: list[str] = []

    def fail(self, what: str) -> AnnotationError:
        return AnnotationError(f"{self.path}: video {self.name!r}, {what}")

    def mapping(self, value: Any, what: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(f"{what}: expected an object, found {_glimpse(value)}")
        return value

    def listing(self, value: Any, what: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.fail(f"{what}: expected a list, found {_glimpse(value)}")
        return value

    def add(self, span: Any, sentence: Any) -> None:
        event = f"event {len(self.spans) + 1}"
        if not isinstance(span, list) or len(span) != 2:
            raise self.fail(f"{event}: expected [start, end] in seconds, found {span!r:.60}")
        start, end = (self._seconds(value, event) for value in span)
        if not isinstance(sentence, str):
            found = "no sentence" if sentence is None else f"{sentence!r:.60}"
            raise self.fail(f"{event}: expected a sentence as text, found {found}")
        self.spans.append((start, end))
        self.sentences.append(sentence)

    def _seconds(self, value: Any, what: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(f"{what}: expected seconds as a number, found {value!r:.60}")
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
        if not math.isfinite(seconds):
            raise self.fail(f"{what}: the time {seconds} is not a finite number of seconds")
        return seconds

    def done(self, *, duration: Any = None, subset: Any = None) -> Record:
        seconds = None if duration is None else self._seconds(duration, "duration")
        split = None if subset is None else str(subset)
        return self.name, VideoAnnotation(tuple(self.spans), tuple(self.sentences), seconds, split)


def _results(path: Path, content: dict[str, Any]) -> Iterator[Record]:
    results = content["results"]
    if not isinstance(results, dict):
        raise AnnotationError(
            f"{path}: 'results' must map video ids to events, found {_glimpse(results)}"
        )
    yield from _bare(path, results)


def _bare(path: Path, content: dict[str, Any]) -> Iterator[Record]:
    for name, events in content.items():
        where = _Where(path, name)
        for event in where.listing(events, "its events"):
            entry = where.mapping(event, f"event {len(where.spans) + 1}")
            where.add(entry.get("timestamp"), entry.get("sentence", entry.get("caption")))
        yield where.done()


def _activitynet(path: Path, content: dict[str, Any]) -> Iterator[Record]:
    for name, value in content.items():
        where = _Where(path, name)
        entry = where.mapping(value, "its annotation")
        spans = where.listing(entry.get("timestamps"), "timestamps")
        sentences = where.listing(entry.get("sentences"), "sentences")
        if len(spans) != len(sentences):
            raise where.fail(f"has {len(spans)} timestamps but {len(sentences)} sentences")
        for span, sentence in zip(spans, sentences, strict=True):
            where.add(span, sentence)
        yield where.done(duration=entry.get("duration"), subset=entry.get("subset"))


def _youcook2(path: Path, content: dict[str, Any]) -> Iterator[Record]:
    database = content["database"]
    if not isinstance(database, dict):
        raise AnnotationError(
            f"{path}: 'database' must map video ids to annotations, found {_glimpse(database)}"
        )
    for name, value in database.items():
        where = _Where(path, name)
        entry = where.mapping(value, "its annotation")
        if "annotations" not in entry:  # the test split comes without
            continue
        for event in where.listing(entry["annotations"], "annotations"):
            found = where.mapping(event, f"event {len(where.spans) + 1}")
            where.add(found.get("segment"), found.get("sentence"))
        yield where.done(duration=entry.get("duration"), subset=entry.get("subset"))


def _vitt(path: Path, content: Any) -> Iterator[Record]:
    """ViTT gives the start of each section in milliseconds; a section lasts until the next."""
    seen: set[str] = set()
    for record in content if isinstance(content, list) else [content]:
        name = str(record.get("id") if isinstance(record, dict) else record)
        where = _Where(path, name)
        entry = where.mapping(record, "its annotation")
        if name in seen:
            log.warning("%s: %s was annotated more than once; the first is used", path, name)
            continue
        seen.add(name)
        if "duration" not in entry:
            raise where.fail('has no duration, so its last section has no end; add "duration"')
        sections = where.listing(entry.get("annotations"), "annotations")
        tags = [where.mapping(section, "a section") for section in sections]
        try:
            starts = [tag["timestamp"] / 1000 for tag in tags]
        except (KeyError, TypeError):
            raise where.fail("a section has no timestamp in milliseconds") from None
        for tag, start, end in zip(tags, starts, [*starts[1:], entry["duration"]], strict=True):
            where.add([start, end], tag.get("tag"))
        yield where.done(duration=entry["duration"])


def _lines(path: Path, content: Any) -> Iterator[Record]:
    """Our own records; a captioned video is one of them with more in it."""
    records = content if isinstance(content, list) else [content]
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict) or not isinstance(record.get("video"), str):
            raise AnnotationError(
                f"{path}: record {number} has no 'video' id (found {_glimpse(record)})"
            )
        where = _Where(path, record["video"])
        for event in where.listing(record.get("events"), "events"):
            found = where.mapping(event, f"event {len(where.spans) + 1}")
            where.add([found.get("start"), found.get("end")], found.get("caption"))
        yield where.done(duration=record.get("duration"), subset=record.get("subset"))


_FORMATS: dict[str, Callable[[Path, Any], Iterator[Record]]] = {
    "results": _results,
    "bare": _bare,
    "activitynet": _activitynet,
    "youcook2": _youcook2,
    "vitt": _vitt,
    "lines": _lines,
    "captioned": _lines,
}
