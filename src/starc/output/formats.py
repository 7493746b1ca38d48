"""From a captioned video to files that other programs read.

`write` picks the format by the file's ending or by name, chooses events or chapters, and replaces
the file in one step. It replaces only what it has written itself and nobody has changed since:
what was written is remembered in the cache, by content. Captions are text everywhere: each format
escapes what it would otherwise take for markup. `FORMATS` lists what there is; `render` gives the
text formats as a string.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from starc.errors import ConfigError, VideoError
from starc.files.cache import check_target, content_name, remember, write_text
from starc.files.scratch import in_scratch
from starc.media.container import MediaLimits
from starc.media.subtitles import SRT_MARK, VTT_MARK
from starc.output import chapters, html, mp4, origin, transcripts
from starc.output.chapters import clock, one_line, span_ms, stamp
from starc.types import Captioned
from starc_eval.annotations import cell, prediction_file

Mode = Literal["events", "chapters"]


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file."""

    ending: str
    """Of the file's name, by which the format is recognised; a video keeps its own."""
    render: Callable[[Captioned], str] | None
    """Text of the file; None where the file is a video."""
    only_chapters: bool = False
    """It holds chapters; the others hold events unless the caller chooses."""


def render(
    captioned: Captioned,
    *,
    format: str,
    mode: Mode | None = None,
    granularity: float = 1.0,
    video: str | None = None,
) -> tuple[str, tuple[str, ...]]:
    """The text of a file, and notes on what had to be repaired.

    `video` is the address of the video, for a page that plays it.
    """
    format = check_format(format, mode)
    chosen = FORMATS[format]
    if chosen.render is None:
        raise ConfigError(f"{format}: is a video file, not text; name a file to write")
    if format == "youtube":
        repaired = chapters.for_youtube(captioned, granularity)
        notes = (*repaired.notes, *_too_fine(captioned, granularity))
        return chosen.render(replace(captioned, events=repaired.chapters)), notes
    chapters_wanted = chosen.only_chapters or mode == "chapters"
    regroup = chapters.chapters if chapters_wanted else chapters.regroup
    notes = _too_fine(captioned, granularity)
    captioned = replace(captioned, events=regroup(captioned, granularity))
    return html.render(captioned, video) if format == "html" else chosen.render(captioned), notes


def _too_fine(captioned: Captioned, granularity: float) -> tuple[str, ...]:
    if granularity <= 1:
        return ()
    return (f"granularity {granularity:g}: the model found {len(captioned.events)} and no more",)


def write(
    captioned: Captioned,
    path: str | Path,
    *,
    format: str | None = None,
    mode: Mode | None = None,
    granularity: float = 1.0,
    source: str | Path | None = None,
    overwrite: bool = False,
    replace_chapters: bool = False,
    limits: MediaLimits | None = None,
) -> tuple[str, ...]:
    """Write one file; returns notes on what had to be repaired or left out.

    `source` is the video itself: chapters go into a copy of it, an HTML page plays it, and our
    JSON says where it lies and what it holds, so that `starc view` finds it. A file that
    we did not write is replaced only with `overwrite`, and the chapters that a video has already
    only with `replace_chapters`; `limits` are those of the video.
    """
    path, source = Path(path), None if source is None else Path(source)
    format = check_format(format or infer(path), mode, path)
    if format == "video":
        if source is None:
            raise ValueError("chapters in a video need `source`, the video itself")
        check_target(path, overwrite=overwrite)
        chosen = chapters.chapters(captioned, granularity)
        notes = mp4.embed_chapters(
            source, path, chosen, replace_chapters=replace_chapters, limits=limits
        )
        remember(path)
        return (*notes, *_too_fine(captioned, granularity))
    if format == "json" and source is not None:
        made_of = {**captioned.provenance, **_origin(Path(source), path)}
        captioned = replace(captioned, provenance=made_of)
    text, notes = render(
        captioned, format=format, mode=mode, granularity=granularity, video=_link(source, path)
    )
    write_text(path, text, overwrite=overwrite)
    return notes


def _link(source: Path | None, page: Path) -> str | None:
    """The way from a page to the video; none to one that was fetched for a while only."""
    if source is None or in_scratch(source):
        return None
    try:
        return quote(os.fsencode(Path(os.path.relpath(source, page.parent)).as_posix()))
    except ValueError:  # another drive of Windows
        return None


def _origin(source: Path, record: Path) -> dict[str, str]:
    """Where a record's video lies, seen from the record, and what it holds."""
    origin = {}
    with suppress(VideoError, OSError):  # gone meanwhile
        origin["content"] = content_name(source)
        if not in_scratch(source):
            with suppress(ValueError):  # another drive of Windows
                way = Path(os.path.relpath(source, record.parent)).as_posix()
                origin["source"] = way.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return origin


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


def is_file_name(path: Path) -> bool:
    """Whether a name ends as a file of ours does."""
    try:
        return bool(infer(path))
    except ConfigError:
        return False


def check_format(format: str, mode: Mode | None, path: Path | None = None) -> str:
    """The format's name, if there is such a format and it, and the file, can hold that mode."""
    format = ALIASES.get(format, format)
    if format not in FORMATS:
        raise ConfigError(f"--format {format}: unknown; known: {', '.join(FORMATS)}")
    if mode == "events" and FORMATS[format].only_chapters:
        raise ConfigError(f"--mode events: {format} holds only chapters; leave out --mode")
    if format == "video" and path is not None and path.suffix.lower() not in mp4.CONTAINERS:
        known = ", ".join(mp4.CONTAINERS)
        raise ConfigError(f"{path}: such a video holds no chapters; name one of {known}")
    return format


# Each function below makes the text of one format.


def _json(captioned: Captioned) -> str:
    return json.dumps(captioned.to_json(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _predictions(captioned: Captioned) -> str:
    events = [(one.start, one.end, one_line(one.caption)) for one in captioned.events]
    return prediction_file({Path(captioned.video).stem: events})


def _lines(captioned: Captioned) -> Iterator[tuple[int, int, str]]:
    """Start and end in milliseconds and the caption in one line, of each event."""
    for event in captioned.events:
        yield *span_ms(event.start, event.end), one_line(event.caption)


def _vtt(captioned: Captioned) -> str:
    cues = [
        f"\n{n}\n{stamp(start)} --> {stamp(end)}\n{escape(text, quote=False)}\n"
        for n, (start, end, text) in enumerate(_lines(captioned), 1)
    ]
    return f"WEBVTT\n\n{VTT_MARK}{_origin_note(captioned)}\n" + "".join(cues)


def _origin_note(captioned: Captioned) -> str:
    """What a note says after its mark, on one line and without the arrow that starts a cue."""
    said = ". " + origin.why_not(captioned) if origin.why_not(captioned) else ""
    if words := origin.of_words(captioned):
        said = f", {words}"
    return one_line(said).replace("-->", "→")


_NO_MARKUP = str.maketrans({"<": "‹", ">": "›", "{": "(", "}": ")"})


def _srt(captioned: Captioned) -> str:
    """SRT has no escapes: angle brackets would start a tag and braces a style, so both go."""
    cues = [
        f"{n}\n{stamp(start, point=',')} --> {stamp(end, point=',')}{SRT_MARK if n == 1 else ''}\n"
        f"{text.translate(_NO_MARKUP) or '…'}\n"
        for n, (start, end, text) in enumerate(_lines(captioned), 1)
    ]
    return "\n".join(cues) if cues else f"\n{SRT_MARK}\n"


def _youtube(captioned: Captioned) -> str:
    """YouTube refuses a description that holds angle brackets."""
    return "".join(
        f"{clock(start / 1000)} {text.translate(_NO_MARKUP) or f'Chapter {n}'}\n"
        for n, (start, _, text) in enumerate(_lines(captioned), 1)
    )


def _ffmetadata(captioned: Captioned) -> str:
    parts = [";FFMETADATA1\n"]
    for start, end, text in _lines(captioned):
        title = re.sub(r"[=;#\\\n]", r"\\\g<0>", text)
        parts.append(f"\n[CHAPTER]\nTIMEBASE=1/1000\nSTART={start}\nEND={end}\ntitle={title}\n")
    return "".join(parts)


def _csv(captioned: Captioned) -> str:
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["video", "start", "end", "caption", "confidence", "repeated"])
    for event in captioned.events:
        times = f"{event.start:.3f}", f"{event.end:.3f}"
        confidence = "" if event.confidence is None else f"{event.confidence:.4f}"
        repeated = str(event.repeated).lower()
        texts = cell(one_line(captioned.video)), cell(one_line(event.caption))
        rows.writerow([texts[0], *times, texts[1], confidence, repeated])
    return table.getvalue()


def _markdown(captioned: Captioned) -> str:
    rows = [
        f"| {clock(event.start)} | {clock(event.end)} | {_md(event.caption)} |\n"
        for event in captioned.events
    ]
    if reason := origin.why_not(captioned):
        return f"# {_md(captioned.video)}\n\n{_md(reason)}\n"
    head = f"# {_md(captioned.video)}\n\n| from | to | what happens |\n|---|---|---|\n"
    return head + "".join(rows)


def _md(text: str) -> str:
    text = re.sub(r"[\\`*_{}\[\]#|~!]", r"\\\g<0>", one_line(text))
    return escape(text, quote=False)


def _transcript(captioned: Captioned) -> str:
    if not captioned.sentences:
        raise VideoError(f"{captioned.video}: nothing is said in it; choose another format")
    return transcripts.TEXTS["txt"](captioned.sentences)


ALIASES = {"md": "markdown"}
FORMATS: Mapping[str, Format] = {
    # All we know, versioned: the viewer reads this.
    "json": Format(".json", _json),
    # The papers' prediction file.
    "predictions": Format(".predictions.json", _predictions),
    "vtt": Format(".vtt", _vtt),
    "chapters": Format(".chapters.vtt", _vtt, only_chapters=True),
    "srt": Format(".srt", _srt),
    # For a video's description.
    "youtube": Format(".txt", _youtube, only_chapters=True),
    # For `ffmpeg -i`.
    "ffmetadata": Format(".ffmetadata", _ffmetadata, only_chapters=True),
    "csv": Format(".csv", _csv),
    "markdown": Format(".md", _markdown),
    # What is said, a line per sentence.
    "transcript": Format(".transcript.txt", _transcript),
    # One page that needs nothing else.
    "html": Format(".html", html.render),
    # A copy of the video with chapters: mp4, m4v, mov, mkv, webm.
    "video": Format("", None, only_chapters=True),
}
