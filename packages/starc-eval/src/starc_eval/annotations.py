"""Annotation and prediction files, in every format people have, as events per video.

In: YouCook2's `database`, ActivityNet / VidChapters / PDVC, ViTT, the papers' `results`, our own
JSON and JSON Lines, CSV (docs/data.md). Out: `{video id: VideoAnnotation}` with ids stripped of
`v_` and of a file ending, so that files of different projects meet.

Where several annotators of a video are in one file, each is an entry of its own, `0_<id>`, `1_<id>`
as in VidChapters' ViTT, whose `VideoAnnotation.video` is the id.

A file is checked as it is read; an AnnotationError names file, video and event. Times that run
backwards are kept (published evaluators score them 0): `VideoAnnotation.backwards` counts them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from starc_eval.atomic import replacing
from starc_eval.errors import AnnotationError, StarcError
from starc_eval.reading import read_text

__all__ = [
    "AnnotatedEvent",
    "VideoAnnotation",
    "annotations_by_video",
    "read_annotations",
    "read_predictions",
    "read_proposals",
    "read_references",
    "video_id",
    "write_annotations",
    "write_predictions",
]

LONGEST = 1e12
"""Seconds; a time beyond is no time."""
Json = Mapping[str, Any]
JsonValue = TypeVar("JsonValue", dict[str, Any], list[Any])
Record = tuple[str, "VideoAnnotation"]
# fmt: off
VIDEO_ENDINGS = frozenset({
    ".3g2", ".3gp", ".asf", ".avi", ".divx", ".f4v", ".flv", ".m2ts", ".m2v", ".m4v", ".mkv",
    ".mov", ".mp4", ".mpe", ".mpeg", ".mpg", ".mts", ".mxf", ".nut", ".ogm", ".ogv", ".rm",
    ".rmvb", ".vob", ".webm", ".wmv", ".y4m",
})
# fmt: on
"""Endings of files that are taken for videos. Not .ts, which is also a programming language's."""


class TimedCaption(Protocol):
    """An event that can be written."""

    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def caption(self) -> str: ...


class AnnotatedEvent(NamedTuple):
    """An event as a file gives it; it may run backwards."""

    start: float
    end: float
    caption: str


@dataclass(frozen=True, slots=True)
class VideoAnnotation:
    """The events of one video as a file gives them; a span may run backwards."""

    spans: tuple[tuple[float, float], ...]
    sentences: tuple[str, ...]
    duration: float | None = None
    subset: str | None = None
    video: str | None = None
    """The video, where this is by one of several annotators and its key is another."""

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
    first = len(name) - len(os.path.basename(name).lstrip("."))  # a hidden file has no ending
    start, end = 0, len(name)
    while (dot := name.rfind(".", first + 1, end)) >= 0 and name[dot:end].lower() in VIDEO_ENDINGS:
        end = dot
    while name.startswith("v_", start, end) and end > start + 2:
        start += 2
    return name[start:end]


def read_annotations(path: str | Path, *, subset: str | None = None) -> dict[str, VideoAnnotation]:
    """Events per video from a file of any known format; `subset` keeps one split of YouCook2's."""
    path = Path(path)
    kind, content = _parse(path)
    return _collect(path, _FORMATS[kind](path, content), subset)


def annotations_by_video(
    files: Sequence[Mapping[str, VideoAnnotation]],
) -> dict[str, list[VideoAnnotation]]:
    """All annotations of each video, from one file or several."""
    by_video: dict[str, list[VideoAnnotation]] = {}
    for file in files:
        for key, annotation in file.items():
            by_video.setdefault(annotation.video or key, []).append(annotation)
    return by_video


def read_predictions(path: str | Path) -> dict[str, VideoAnnotation]:
    """What a system predicted: `results`, our JSON, JSON Lines, or any annotation format."""
    return read_annotations(path)


def read_proposals(path: str | Path) -> dict[str, VideoAnnotation]:
    """Where a system places events: the same files, but sentences may be missing.

    ActivityNet's proposals call the span `segment`.
    """
    path = Path(path)
    kind, content = _parse(path)
    if kind in ("results", "bare"):
        videos = _by_video(path, content, "results") if kind == "results" else content
        kind, content = (
            "bare",
            {
                video: [
                    {"timestamp": one.get("segment"), "sentence": "", **one}
                    if isinstance(one, dict)
                    else one
                    for one in (events if isinstance(events, list) else [events])
                ]
                for video, events in videos.items()
            },
        )
    return _collect(path, _FORMATS[kind](path, content), None)


def prediction_file(videos: Mapping[str, Iterable[tuple[float, float, str]]]) -> str:
    """The text that `read_predictions` reads: (start, end, sentence) of every event by video."""
    results = {
        video: [{"sentence": text, "timestamp": [start, end]} for start, end, text in events]
        for video, events in videos.items()
    }
    return json.dumps({"results": results}, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def cell(text: str) -> str:
    """Text for a cell of a table, which a spreadsheet would otherwise take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def write_predictions(videos: Mapping[str, Iterable[TimedCaption]], path: str | Path) -> None:
    """The papers' prediction file, whole or not at all: by video its events.

    The events are a `VideoAnnotation`, or starc's `Captioned.events`.
    """
    text = prediction_file(
        {video: [(e.start, e.end, e.caption) for e in events] for video, events in videos.items()}
    )
    _write(path, text)


def write_annotations(annotations: Mapping[str, VideoAnnotation], path: str | Path) -> None:
    """Our own JSON Lines, a line per video and annotator, whole or not at all."""
    lines = []
    for key, each in annotations.items():
        record = {"video": each.video or key, "duration": each.duration, "subset": each.subset}
        record |= {"annotator": key.partition("_")[0]} if each.video else {}
        events = [{"start": start, "end": end, "caption": text} for start, end, text in each]
        lines.append(json.dumps({k: v for k, v in record.items() if v} | {"events": events}) + "\n")
    _write(path, "".join(lines))


def _write(path: str | Path, text: str) -> None:
    try:
        with replacing(path, binary=True) as file:
            # Half a surrogate pair becomes an escape, which JSON has too.
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise StarcError(f"{path}: cannot be written ({error.strerror}); choose another") from None


def read_references(
    path: str | Path, *, subset: str | None = None, open_ended: bool = False
) -> dict[str, VideoAnnotation]:
    """What annotators wrote. A prediction file is refused: its scores would be meaningless.

    `open_ended` takes ViTT's file as it is, without durations: the last section of a video then
    ends where it starts.
    """
    path = Path(path)
    kind, content = _parse(path)
    if kind in ("results", "bare", "captioned", "captioned csv"):
        raise AnnotationError(
            f"{path}: this is a prediction file, not a reference; "
            "predictions come first, then references"
        )
    read = partial(_vitt, open_ended=open_ended) if kind == "vitt" else _FORMATS[kind]
    videos = _collect(path, read(path, content), subset)
    if not videos:
        raise AnnotationError(f"{path}: no annotated video in it; give the annotation file")
    return videos


def _parse(path: Path) -> tuple[str, Any]:
    """The content of a JSON or JSON Lines file, and which format it is."""
    try:
        text = read_text(path)
    except OSError as error:
        raise AnnotationError(f"{path}: {str(error.strerror).lower()}; check the path") from None
    except UnicodeDecodeError as error:
        raise AnnotationError(
            f"{path}: not a text file (byte {error.start} is not UTF-8); give a JSON file"
        ) from None
    if not text.strip():
        raise AnnotationError(f"{path}: the file is empty; was it written completely?")
    try:
        content = _loads(path, text)
    except json.JSONDecodeError as error:
        content = _json_lines(path, text)
        if content is None and {*_CSV_COLUMNS} <= {*_heading(text)}:
            return "captioned csv" if "confidence" in _heading(text) else "csv", text
        if content is None:
            raise AnnotationError(
                f"{path}: not valid JSON, line {error.lineno} column {error.colno} "
                f"({error.msg}); was it written completely?"
            ) from None
    return _recognise(path, content), content


def _loads(path: Path, text: str) -> Any:
    def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        unique = dict(pairs)
        if len(unique) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            twin = next(name for name, count in counts.items() if count > 1)
            raise AnnotationError(f"{path}: the key {twin!r} occurs twice; keep one of them")
        return unique

    try:
        return json.loads(text, object_pairs_hook=without_twins)
    except RecursionError:
        raise AnnotationError(f"{path}: JSON nested too deeply to be an annotation file") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
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
        return "captioned" if "starc" in content[0] else "lines"
    if isinstance(content, dict):
        for key, kind in _KEYS.items():
            if key in content:
                return kind
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
    subsets: set[str] = set()
    for name, annotation in records:
        subsets.add(annotation.subset or "none")
        if subset is not None and annotation.subset != subset:
            continue
        key = video_id(name)
        if annotation.video is not None:
            video = video_id(annotation.video)
            key = name.removesuffix(annotation.video) + video
            annotation = replace(annotation, video=video)
        if key in videos:
            raise AnnotationError(f"{path}: video {name!r} occurs twice; keep one of them")
        videos[key] = annotation
    if subset is not None and not videos:
        known = ", ".join(sorted(subsets)) or "none"
        raise AnnotationError(f"{path}: no video of subset {subset!r} (found: {known})")
    return videos


class _EventReader:
    """Checks and collects the events of one video; its errors name file, video and event."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.spans: list[tuple[float, float]] = []
        self.sentences: list[str] = []

    def error(self, what: str) -> AnnotationError:
        return AnnotationError(f"{self.path}: video {self.name!r}, {what}")

    def expect(self, kind: type[JsonValue], value: Any, what: str) -> JsonValue:
        """`value`, if it is of that kind (dict or list)."""
        if not isinstance(value, kind):
            wanted = "an object" if kind is dict else "a list"
            raise self.error(f"{what}: expected {wanted}, found {_glimpse(value)}")
        return value

    @property
    def event(self) -> str:
        """The event that is being read."""
        return f"event {len(self.spans) + 1}"

    def add(self, span: Any, sentence: Any) -> None:
        if not isinstance(span, list) or len(span) != 2:
            raise self.error(f"{self.event}: expected [start, end] in seconds, found {span!r:.60}")
        start, end = span
        if not (type(start) is type(end) is float and -LONGEST <= start <= end <= LONGEST):
            start, end = self._seconds(start, self.event), self._seconds(end, self.event)
        if not isinstance(sentence, str):
            value = "no sentence" if sentence is None else f"{sentence!r:.60}"
            raise self.error(f"{self.event}: expected a sentence as text, found {value}")
        self.spans.append((start, end))
        self.sentences.append(sentence)

    def add_objects(self, events: Any, what: str, times: list[str], texts: list[str]) -> None:
        """Add a list of objects: `times` is the key of the span or the keys of start and end,
        `texts` the keys of which the first that is there holds the sentence."""
        for value in self.expect(list, events, what):
            event = value if isinstance(value, dict) else self.expect(dict, value, self.event)
            span = event.get(times[0]) if len(times) == 1 else [event.get(key) for key in times]
            self.add(span, next((event[key] for key in texts if key in event), None))

    def _seconds(self, value: Any, what: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{what}: expected seconds as a number, found {value!r:.60}")
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
        if not abs(seconds) <= LONGEST:
            raise self.error(f"{what}: the time {seconds} is not a finite number of seconds")
        return seconds

    def record(self, entry: Json | None = None, *, video: str | None = None) -> Record:
        """What was collected, with duration and subset as `entry` gives them."""
        entry = entry or {}
        duration, subset = entry.get("duration"), entry.get("subset")
        return self.name, VideoAnnotation(
            tuple(self.spans),
            tuple(self.sentences),
            None if duration is None else self._seconds(duration, "duration"),
            None if subset is None else str(subset),
            video,
        )


def _by_video(path: Path, content: Json, key: str) -> Json:
    """The object under `key`, which maps videos to what is known of them."""
    value = content[key]
    if not isinstance(value, dict):
        raise AnnotationError(f"{path}: {key!r} must map video ids, found {_glimpse(value)}")
    return value


def _bare(path: Path, content: Json) -> Iterator[Record]:
    for name, events in content.items():
        reader = _EventReader(path, name)
        reader.add_objects(events, "its events", ["timestamp"], ["sentence", "caption"])
        yield reader.record()


def _activitynet(path: Path, content: Json) -> Iterator[Record]:
    # ViTT as VidChapters prepares it: the annotator's number, then YouTube's 11 characters.
    several = bool(content) and all(re.fullmatch(r"\d_.{11}", name) for name in content)
    for name, value in content.items():
        reader = _EventReader(path, name)
        entry = reader.expect(dict, value, "its annotation")
        spans = reader.expect(list, entry.get("timestamps"), "timestamps")
        sentences = reader.expect(list, entry.get("sentences"), "sentences")
        if len(spans) != len(sentences):
            raise reader.error(f"has {len(spans)} timestamps but {len(sentences)} sentences")
        for span, sentence in zip(spans, sentences, strict=True):
            reader.add(span, sentence)
        yield reader.record(entry, video=name[2:] if several else None)


def _youcook2(path: Path, content: Json) -> Iterator[Record]:
    for name, value in _by_video(path, content, "database").items():
        reader = _EventReader(path, name)
        entry = reader.expect(dict, value, "its annotation")
        if "annotations" in entry:  # the test split comes without
            reader.add_objects(entry["annotations"], "annotations", ["segment"], ["sentence"])
            yield reader.record(entry)


def _vitt(path: Path, content: Any, *, open_ended: bool = False) -> Iterator[Record]:
    """ViTT gives the start of each section in milliseconds; a section lasts until the next."""
    records = _as_list(content)
    names = [str(value.get("id") if isinstance(value, dict) else value) for value in records]
    for key, name, value in zip(_keys(names), names, records, strict=True):
        reader = _EventReader(path, key)
        entry = reader.expect(dict, value, "its annotation")
        duration = entry.get("duration")
        if duration is None and not open_ended:
            raise reader.error(
                "has no duration, so its last section has no end; take it from the videos: "
                f"starc data convert {path.name} --videos FOLDER -o OUT.jsonl"
            )
        sections = [
            reader.expect(dict, section, "a section")
            for section in reader.expect(list, entry.get("annotations"), "annotations")
        ]
        try:
            starts = [section["timestamp"] / 1000 for section in sections]
        except (KeyError, TypeError, OverflowError):
            raise reader.error("a section has no timestamp in milliseconds") from None
        ends = [*starts[1:], *(starts[-1:] if duration is None else [duration])]
        for section, start, end in zip(sections, starts, ends, strict=False):
            reader.add([start, end], section.get("tag"))
        yield reader.record({"duration": duration}, video=None if key == name else name)


def _as_list(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [content]


def _keys(names: Sequence[str]) -> Iterator[str]:
    """The names, and where one occurs more than once, its annotator before it."""
    occurs, seen = Counter(names), Counter[str]()
    for name in names:
        yield f"{seen[name]}_{name}" if occurs[name] > 1 else name
        seen[name] += 1


def _lines(path: Path, content: Any) -> Iterator[Record]:
    """Our own records; a captioned video is one of them with more in it."""
    for number, entry in enumerate(_as_list(content), start=1):
        if not isinstance(entry, dict) or not isinstance(entry.get("video"), str):
            raise AnnotationError(
                f"{path}: record {number} has no 'video' id (found {_glimpse(entry)})"
            )
        name, annotator = entry["video"], entry.get("annotator")
        reader = _EventReader(path, name if annotator is None else f"{annotator}_{name}")
        reader.add_objects(entry.get("events"), "events", ["start", "end"], ["caption"])
        yield reader.record(entry, video=None if annotator is None else name)


_CSV_COLUMNS = ("video", "start", "end", "caption")


def _heading(text: str) -> list[str]:
    first = text.split("\n", 1)[0].lower().replace('"', "")
    return [column.strip() for column in re.split(r"[,;\t]", first)]


def _csv(path: Path, content: str) -> Iterator[Record]:
    """A table with a row per event: video, start, end, caption, and perhaps duration, subset."""
    delimiter = next(mark for mark in ",;\t" if mark in content.split("\n", 1)[0])
    columns, rows = _heading(content), csv.reader(io.StringIO(content), delimiter=delimiter)
    next(rows)
    readers: dict[str, tuple[_EventReader, dict[str, Any]]] = {}
    for values in rows:
        if not any(values):
            continue
        row = dict(zip(columns, map(str.strip, values), strict=False))
        try:
            numbers = {key: float(row[key]) for key in ("start", "end", "duration") if row.get(key)}
            event = [numbers["start"], numbers["end"]], row["caption"]
            reader, entry = readers.setdefault(row["video"], (_EventReader(path, row["video"]), {}))
        except (KeyError, ValueError):
            raise AnnotationError(
                f"{path}: line {rows.line_num} has no video, caption, and start and end in seconds "
                f"(found {delimiter.join(values):.60})"
            ) from None
        reader.add(*event)
        entry |= {key: value for key, value in numbers.items() if key == "duration"}
        entry |= {"subset": row["subset"]} if row.get("subset") else {}
    for reader, entry in readers.values():
        yield reader.record(entry)


_KEYS = {"results": "results", "database": "youcook2", "starc": "captioned", "events": "lines"}
"""Keys by which a file of one object is known."""
_FORMATS: dict[str, Callable[[Path, Any], Iterator[Record]]] = {
    "results": lambda path, content: _bare(path, _by_video(path, content, "results")),
    "bare": _bare,
    "activitynet": _activitynet,
    "youcook2": _youcook2,
    "vitt": _vitt,
    "lines": _lines,
    "captioned": _lines,
    "csv": _csv,
    "captioned csv": _csv,
}
