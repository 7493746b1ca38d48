"""From subtitles and transcripts to sentences.

A file (SRT, VTT, ASS and what else pysubs2 reads, Whisper's JSON, ours, or the published
{video: {start, end, text}} as JSON or pickle) or the subtitle stream inside a video goes in; a list
of `Sentence`, sorted by time, comes out. Markup, positions and word timings are removed, and the
rolling lines of automatic captions, where each line is shown two or three times, are said once.
"""

from __future__ import annotations

import html
import json
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pysubs2
from av.container import InputContainer
from av.stream import Disposition
from av.subtitles.stream import SubtitleStream

from starc.errors import SpeechError
from starc.files import pickles
from starc.media.container import MICROSECONDS, ignore_other_streams
from starc.types import Sentence
from starc_eval.annotations import LONGEST, video_id
from starc_eval.reading import read_bytes

SUFFIXES = (".srt", ".vtt", ".ass", ".ssa")
"""Of side-car files, best first."""
FOLDER_SUFFIXES = (".json", *SUFFIXES, ".pkl", ".pickle")
"""Of files in a folder of speech, best first: Whisper writes several of each video."""
TEXT_CODECS = frozenset({"mov_text", "subrip", "srt", "ass", "ssa", "webvtt", "text"})
"""Embedded subtitles that are text; the others (DVD, Blu-ray) are pictures of text."""
COLUMNS = ("start", "end", "text")
SHORTEST = 0.1
"""Seconds given to a cue that ends where, or before, it starts."""
TOUCHING = 0.05
"""Seconds between two cues that follow each other without a pause."""
VTT_MARK = "NOTE Captions by starc"
SRT_MARK = " \t \t \t"
"""By which our own captions are known and not taken for speech. SRT has no comments: there it is
white space after the times of the first cue, which no reader takes for words; a file without cues
is this line alone, and so did files of earlier versions end."""

_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})(?:[.,](\d{1,3}))?"
_TIMING = re.compile(rf"^\s*{_TIME}\s*-->\s*{_TIME}")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<\d+:[\d:.]+>|\{\\[^{}]*\}|\{[A-Za-z]:[^{}]*\}")
_LONG_NUMBER = re.compile(r"&#(\d{8,})")
"""Python refuses to convert a number of thousands of digits."""
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


class Cue(NamedTuple):
    """What stands on the screen for a while."""

    start: float
    end: float
    lines: tuple[str, ...]


def read_sentences(path: Path, *, video: str | None = None) -> list[Sentence]:
    """The sentences of one video from any speech or subtitle file.

    A published file holds many videos: `video`, a file name or an id, says which; not needed where
    there is only one.
    """
    path = Path(path)
    if path.suffix.lower() in {".json", ".pkl", ".pickle"}:
        return _from_data(path, _data(path), video)
    text = _text(path)
    kind = path.suffix.lower()
    if kind in {".srt", ".vtt"} or text.lstrip().startswith("WEBVTT"):
        cues = list(_timed_blocks(text))
    else:
        cues = _by_pysubs2(path, text)
    if not cues and text.strip() and "-->" not in text and kind == ".srt":
        raise SpeechError(f"{path}: no subtitles in it; is it really {kind[1:].upper()}?")
    return said_once(cues)


def read_transcripts(path: Path) -> dict[str, list[Sentence]]:
    """All videos of a published speech file, {video: {start, end, text}}, JSON or pickle.

    Or of a folder with a file for each video: Whisper's or WhisperX's JSON, SRT, VTT, ASS, pickle.
    """
    path = Path(path)
    if path.is_dir():
        return {video: read_sentences(file) for video, file in _by_video(path).items()}
    data = _data(path)
    if not _is_published(data):
        raise SpeechError(
            f"{path}: not a speech file of many videos (found {type(data).__name__}); "
            "expected {video: {start, end, text}}"
        )
    return {
        video_id(str(key)): _from_columns(f"{path}: {key}", value) for key, value in data.items()
    }


def _by_video(folder: Path) -> dict[str, Path]:
    """The speech file of each video: name.json before name.srt, name.srt before name.en.srt."""
    ranked: dict[str, list[tuple[bool, int, str, Path]]] = {}
    for path in folder.iterdir():
        kind, stem = path.suffix.lower(), path.name.removesuffix(path.suffix)
        if kind in FOLDER_SUFFIXES and path.is_file() and not path.name.startswith("."):
            name, _, language = stem.rpartition(".")
            if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z]+)?", language) or not name:
                name, language = stem, ""
            rank = language not in ("", "en"), FOLDER_SUFFIXES.index(kind), language, path
            ranked.setdefault(video_id(name), []).append(rank)
    if not ranked:
        raise SpeechError(f"{folder}: no speech files in it ({', '.join(FOLDER_SUFFIXES)})")
    return {video: min(files)[-1] for video, files in sorted(ranked.items())}


def find_sidecar(video: Path, *, language: str | None = None) -> Path | None:
    """The subtitle file beside a video: name.srt, else name.en.srt and the like.

    With several languages, `language` first, then English, then the alphabet. Captions that we
    wrote are no speech.
    """
    video = Path(video)
    best: tuple[tuple[int, int, str], Path] | None = None
    for path in video.parent.iterdir():
        if path.suffix.lower() not in SUFFIXES or not path.name.startswith(video.stem + "."):
            continue
        middle = path.stem[len(video.stem) + 1 :].lower()
        if middle == video.suffix[1:].lower():
            middle = ""
        if not re.fullmatch(r"([a-z]{2,3}([-_][a-z0-9]+)*)?(\.(auto|sdh|cc|orig|forced))?", middle):
            continue
        spoken = re.split(r"[-_.]", middle)[0]
        wanted = {language: 0, "": 1, "en": 2, "eng": 2}.get(spoken, 3)
        rank = (wanted, SUFFIXES.index(path.suffix.lower()), middle)
        if path.is_file() and (best is None or (rank, path) < best) and not is_captions(path):
            best = (rank, path)
    return best[1] if best else None


def is_captions(path: Path) -> bool:
    """Whether a subtitle file holds captions that we wrote."""
    try:
        text = _text(path)
    except SpeechError:
        return False
    first = next((line for line in text.splitlines() if _TIMING.match(line)), "")
    marked = first.endswith(SRT_MARK) or text.rstrip("\r\n").endswith(f"\n{SRT_MARK}")
    return marked or VTT_MARK in text[:200]


def text_streams(container: InputContainer) -> list[SubtitleStream]:
    """The subtitle streams inside a file that are text."""
    return [
        stream
        for stream in container.streams.subtitles
        if stream.codec_context and stream.codec_context.name in TEXT_CODECS
    ]


def embedded_sentences(container: InputContainer, *, language: str | None = None) -> list[Sentence]:
    """The sentences of a file's own subtitle stream, which is read to its end; [] without one."""

    def rank(stream: SubtitleStream) -> tuple[bool, bool, int]:
        other = language is not None and (stream.language or "")[:2] != language[:2]
        return other, not stream.disposition & Disposition.default, stream.index

    streams = sorted(text_streams(container), key=rank)
    return said_once(_stream_cues(container, streams[0])) if streams else []


def said_once(cues: Iterable[Cue]) -> list[Sentence]:
    """Sentences of cues, sorted; a line that only stays on the screen is not said again.

    Automatic captions roll: each cue repeats the last line of the cue before and adds one. The
    lines with which a cue begins and the touching cue before it ended are left out; a cue that
    adds nothing prolongs the sentence before.
    """
    sentences: list[Sentence] = []
    end_before, lines_before = -1.0, tuple[str, ...]()
    for cue in sorted(cues, key=lambda cue: cue[:2]):
        lines = tuple(filter(None, map(without_markup, cue.lines)))
        if not lines:
            continue
        start, end = _span(cue.start, cue.end)
        touching = start - end_before <= TOUCHING
        repeated = _repeated(lines, lines_before) if touching else 0
        if repeated < len(lines):
            sentences.append(Sentence(start, end, " ".join(lines[repeated:])))
        else:
            last = sentences[-1]
            sentences[-1] = Sentence(last.start, max(last.end, end), last.text)
        end_before, lines_before = end, lines
    return sentences


def _repeated(lines: Sequence[str], before: Sequence[str]) -> int:
    """How many lines `lines` begins with and `before` ended with, at most; Knuth-Morris-Pratt."""
    matched, borders = 0, [0]
    for line in lines[1:]:
        while matched and lines[matched] != line:
            matched = borders[matched - 1]
        matched += lines[matched] == line
        borders.append(matched)
    matched = 0
    for line in before[-len(lines) :]:
        while matched and lines[matched] != line:
            matched = borders[matched - 1]
        matched += lines[matched] == line
    return matched


def _span(start: float, end: float) -> tuple[float, float]:
    start = max(start, 0.0)
    return start, end if end > start else start + SHORTEST


def without_markup(line: str) -> str:
    """A line without tags, overrides, entities and invisible characters."""
    line = _LONG_NUMBER.sub(_shortened, _TAG.sub("", line))
    line = html.unescape(line).replace("\\h", " ")
    return " ".join(_INVISIBLE.sub("", line).split())


def _shortened(reference: re.Match[str]) -> str:
    """Eight digits are more than any character's number has."""
    return "&#" + (reference[1].lstrip("0")[:8] or "0")


def _timed_blocks(text: str) -> Iterator[Cue]:
    """Cues of SRT and VTT: every timing line, with the text up to a blank line or the next cue."""
    lines = text.splitlines()
    timings = {at: match for at, line in enumerate(lines) if (match := _TIMING.match(line))}
    for at, following in pairwise([*timings, len(lines) + 1]):
        body = [*lines[at + 1 : following], ""]
        groups = timings[at].groups()
        yield Cue(_seconds(groups[:4]), _seconds(groups[4:]), tuple(body[: body.index("")]))


def _seconds(parts: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = parts
    # Through whole milliseconds, so that 1,599 is the float 1.599.
    milliseconds = int((fraction or "0").ljust(3, "0"))
    whole = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return (whole * 1000 + milliseconds) / 1000


def _by_pysubs2(path: Path, text: str) -> list[Cue]:
    try:
        file = pysubs2.SSAFile.from_string(text)
    except Exception as error:  # pysubs2 lets its parsers fail as they may
        reason = " ".join(str(error).split())[:120]
        raise SpeechError(
            f"{path}: not a subtitle file ({reason}); use SRT, VTT, ASS or JSON"
        ) from error
    return [
        Cue(event.start / 1000, event.end / 1000, tuple(re.split(r"\\N|\\n|\n", event.text)))
        for event in file
        if not event.is_comment and not event.is_drawing
    ]


def _stream_cues(container: InputContainer, stream: SubtitleStream) -> Iterator[Cue]:
    ignore_other_streams(container, stream)
    origin = (container.start_time or 0) / MICROSECONDS
    for packet in container.demux(stream):
        if not packet.size or packet.pts is None or stream.time_base is None:
            continue
        decoded = stream.codec_context.decode2(packet)
        start = float(packet.pts * stream.time_base) - origin
        length = float((packet.duration or 0) * stream.time_base) or 2.0
        for part in decoded or ():
            text = getattr(part, "dialogue", b"") or getattr(part, "text", b"")
            lines = re.split(r"\\N|\\n|\r?\n", text.decode("utf-8", "replace"))
            yield Cue(start, start + length, tuple(lines))


def _bytes(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise SpeechError(f"{path}: {str(error.strerror).lower()}; check the path") from None


def _text(path: Path) -> str:
    data = _bytes(path)
    if b"\x00" in data and data[:2] not in {b"\xff\xfe", b"\xfe\xff"}:
        raise SpeechError(f"{path}: not text (it holds zero bytes); use SRT, VTT, ASS or JSON")
    encoding = "utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def _data(path: Path) -> Any:
    try:
        if path.suffix.lower() == ".json":
            return json.loads(_text(path))
        return pickles.load(_bytes(path))
    except pickle.UnpicklingError as error:
        raise SpeechError(f"{path}: not a plain pickle ({error}); convert it to JSON") from error
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise SpeechError(f"{path}: not valid JSON ({reason}); write it again") from error


def _from_data(path: Path, data: Any, video: str | None) -> list[Sentence]:
    if isinstance(data, Mapping):
        for key in ("segments", "sentences"):  # Whisper's, and ours
            if isinstance(data.get(key), list):
                return _from_rows(str(path), data[key])
        if _is_columns(data):
            return _from_columns(str(path), data)
        if _is_published(data):
            if video is None and len(data) == 1:
                (video,) = data
            if (own := _key_of(video, data)) is not None:
                return _from_columns(f"{path}: {own}", data[own])
            raise SpeechError(f"{path}: no speech of {video!r} among its {len(data)} videos")
    if isinstance(data, list) and all(isinstance(row, Mapping) for row in data):
        return _from_rows(str(path), data)
    raise SpeechError(
        f"{path}: no speech in it; expected Whisper's JSON or {{video: {{start, end, text}}}}"
    )


def _key_of(video: str | None, data: Mapping[str, Any]) -> str | None:
    """The key of a video among those of a published file, which may have `v_` or an ending."""
    if video is None:
        return None
    names = (video, video_id(video), Path(video).stem)
    known = {video_id(str(key)): key for key in data} | {key: key for key in data}
    return next((known[name] for name in names if name in known), None)


def _is_columns(data: Any) -> bool:
    return isinstance(data, Mapping) and data.keys() >= {*COLUMNS}


def _is_published(data: Any) -> bool:
    return isinstance(data, Mapping) and all(map(_is_columns, data.values()))


def _from_rows(where: str, rows: Sequence[Any]) -> list[Sentence]:
    if not all(map(_is_columns, rows)):
        raise SpeechError(f"{where}: a sentence without start, end or text; write the file again")
    return _from_columns(where, {key: [row[key] for row in rows] for key in COLUMNS})


def _from_columns(where: str, columns: Mapping[str, Any]) -> list[Sentence]:
    start, end, text = (_column(columns[key]) for key in COLUMNS)
    if not len(start) == len(end) == len(text):
        raise SpeechError(
            f"{where}: {len(start)} starts, {len(end)} ends, {len(text)} texts; "
            "there must be as many of each"
        )
    sentences = [_sentence(where, *row) for row in zip(start, end, text, strict=True)]
    return sorted((s for s in sentences if s.text), key=lambda s: (s.start, s.end))


def _column(values: Any) -> Sequence[Any]:
    values = values.tolist() if hasattr(values, "tolist") else values
    return values if isinstance(values, list | tuple) else [values]


def _sentence(where: str, start: Any, end: Any, text: Any) -> Sentence:
    for value in (start, end):
        if not isinstance(value, int | float | np.number) or not -LONGEST < value < LONGEST:
            raise SpeechError(f"{where}: a time that is no number ({value!r:.60}); mend the file")
    if not isinstance(text, str):
        raise SpeechError(f"{where}: a text that is no text ({text!r:.60}); mend the file")
    return Sentence(*_span(float(start), float(end)), " ".join(text.split()))
