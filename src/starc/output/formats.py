"""From a captioned video to files that other programs read.

`write` picks the format by the file's ending or by name, chooses events or chapters, and replaces
the file in one step. Captions are text everywhere: each format escapes what it would otherwise
take for markup. `FORMATS` lists what there is; `render` gives the text formats as a string.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from starc.errors import ConfigError
from starc.files.annotations import prediction_file
from starc.files.atomic import replacing
from starc.output import chapters, mp4, page
from starc.output.timecodes import clock, plain, span, stamp
from starc.types import Captioned

Mode = Literal["events", "chapters"]


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file."""

    ending: str
    """Of the file's name, by which the format is recognised; a video keeps its own."""
    about: str
    render: Callable[[Captioned], str] | None = None
    """Text of the file; None where the file is a video."""
    mode: Mode = "events"
    """What it holds unless the caller chooses."""
    only_chapters: bool = False


def render(
    captioned: Captioned, *, format: str, mode: Mode | None = None, granularity: float = 1.0
) -> tuple[str, tuple[str, ...]]:
    """The text of a file, and notes on what had to be repaired."""
    chosen = FORMATS[check_format(format, mode)]
    if chosen.render is None:
        raise ConfigError(f"{format}: is a video file, not text; name a file to write")
    if format == "youtube":
        repaired = chapters.for_youtube(captioned, granularity=granularity)
        return chosen.render(replace(captioned, events=repaired.chapters)), repaired.notes
    return chosen.render(_in_mode(captioned, mode or chosen.mode, granularity)), ()


def write(
    captioned: Captioned,
    path: str | Path,
    *,
    format: str | None = None,
    mode: Mode | None = None,
    granularity: float = 1.0,
    source: Path | None = None,
) -> tuple[str, ...]:
    """Write one file; returns notes on what had to be repaired or left out.

    `source` is the video itself, needed only where chapters go into a copy of it.
    """
    path = Path(path)
    format = check_format(format or infer(path), mode)
    if format == "video":
        if source is None:
            raise ValueError("chapters in a video need `source`, the video itself")
        found = _in_mode(captioned, "chapters", granularity)
        return mp4.embed_chapters(source, path, found.events)
    text, notes = render(captioned, format=format, mode=mode, granularity=granularity)
    with replacing(path) as file:
        file.write(text)
    return notes


def write_predictions(videos: Mapping[str, Captioned], path: str | Path) -> None:
    """Many videos, by the names annotation files know them by, in the papers' format."""
    with replacing(path) as file:
        file.write(_predictions(videos))


def infer(path: str | Path) -> str:
    """The format that a file's name asks for; of two endings that fit, the longer one."""
    name = Path(path).name.lower()
    if name.endswith(tuple(mp4.CONTAINERS)):
        return "video"
    endings = {key: format.ending for key, format in FORMATS.items() if format.ending}
    fitting = [key for key, ending in endings.items() if name.endswith(ending)]
    if not fitting:
        raise ConfigError(
            f"{path}: no format ends like this; use --format, or one of "
            f"{', '.join(endings.values())}"
        )
    return max(fitting, key=lambda key: len(FORMATS[key].ending))


def check_format(format: str, mode: Mode | None) -> str:
    """The format's name, if there is such a format and it can hold that mode."""
    if format not in FORMATS:
        raise ConfigError(f"--format {format}: unknown; known: {', '.join(FORMATS)}")
    if mode == "events" and FORMATS[format].only_chapters:
        raise ConfigError(f"--mode events: {format} holds only chapters; leave out --mode")
    return format


def _in_mode(captioned: Captioned, mode: Mode, granularity: float) -> Captioned:
    if mode == "chapters":
        return replace(captioned, events=chapters.chapters(captioned, granularity=granularity))
    return replace(captioned, events=chapters.regroup(captioned, granularity))


# Each function below makes the text of one format.


def _json(captioned: Captioned) -> str:
    return _dump(captioned.to_json())


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _predictions(videos: Mapping[str, Captioned]) -> str:
    return prediction_file(
        {
            name: [(event.start, event.end, plain(event.caption)) for event in video.events]
            for name, video in videos.items()
        }
    )


def _vtt(captioned: Captioned) -> str:
    cues = ["WEBVTT\n"]
    for n, event in enumerate(captioned.events, 1):
        start, end = span(event.start, event.end)
        cues.append(f"{n}\n{stamp(start)} --> {stamp(end)}\n{_escaped(plain(event.caption))}\n")
    return "\n".join(cues)


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


def _srt(captioned: Captioned) -> str:
    """SRT has no escapes: angle brackets would start a tag and braces a style, so both go."""
    cues = []
    for n, event in enumerate(captioned.events, 1):
        start, end = span(event.start, event.end)
        text = plain(event.caption).translate(_SRT_SAFE) or "…"
        cues.append(f"{n}\n{stamp(start, point=',')} --> {stamp(end, point=',')}\n{text}\n")
    return "\n".join(cues)


_SRT_SAFE = str.maketrans({"<": "‹", ">": "›", "{": "(", "}": ")"})


def _youtube(captioned: Captioned) -> str:
    lines = []
    for n, chapter in enumerate(captioned.events, 1):
        # YouTube refuses a description that holds angle brackets.
        title = plain(chapter.caption).translate(_SRT_SAFE) or f"Chapter {n}"
        lines.append(f"{clock(chapter.start)} {title}\n")
    return "".join(lines)


def _ffmetadata(captioned: Captioned) -> str:
    parts = [";FFMETADATA1\n"]
    for chapter in captioned.events:
        start, end = span(chapter.start, chapter.end)
        title = re.sub(r"[=;#\\\n]", r"\\\g<0>", plain(chapter.caption))
        parts.append(f"\n[CHAPTER]\nTIMEBASE=1/1000\nSTART={start}\nEND={end}\ntitle={title}\n")
    return "".join(parts)


def _csv(captioned: Captioned) -> str:
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["video", "start", "end", "caption", "confidence", "repeated"])
    for event in captioned.events:
        confidence = "" if event.confidence is None else f"{event.confidence:.4f}"
        rows.writerow(
            [
                plain(captioned.video),
                f"{event.start:.3f}",
                f"{event.end:.3f}",
                plain(event.caption),
                confidence,
                str(event.repeated).lower(),
            ]
        )
    return table.getvalue()


def _markdown(captioned: Captioned) -> str:
    lines = [f"# {_md(captioned.video)}\n\n", "| from | to | what happens |\n", "|---|---|---|\n"]
    lines += [
        f"| {clock(event.start)} | {clock(event.end)} | {_md(event.caption)} |\n"
        for event in captioned.events
    ]
    return "".join(lines)


def _md(text: str) -> str:
    text = re.sub(r"[\\`*_{}\[\]#|~!]", r"\\\g<0>", plain(text))
    return _escaped(text)


FORMATS: Mapping[str, Format] = {
    "json": Format(".json", "all we know, versioned: the viewer reads this", _json),
    "predictions": Format(
        ".predictions.json",
        "the papers' prediction file",
        lambda captioned: _predictions({Path(captioned.video).stem: captioned}),
    ),
    "vtt": Format(".vtt", "WebVTT captions", _vtt),
    "chapters": Format(".chapters.vtt", "WebVTT chapters", _vtt, "chapters", only_chapters=True),
    "srt": Format(".srt", "SubRip captions", _srt),
    "youtube": Format(
        ".txt", "chapters for a YouTube description", _youtube, "chapters", only_chapters=True
    ),
    "ffmetadata": Format(
        ".ffmetadata", "chapters for ffmpeg -i", _ffmetadata, "chapters", only_chapters=True
    ),
    "csv": Format(".csv", "a table", _csv),
    "markdown": Format(".md", "a table to read", _markdown),
    "html": Format(".html", "a page that needs nothing else", page.render),
    "video": Format(
        "", "a copy of the video with chapters (mp4, mkv, mov, webm)", None, "chapters", True
    ),
}
