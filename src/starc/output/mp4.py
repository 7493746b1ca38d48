"""Chapters inside a copy of the video: streams are copied packet by packet, nothing is encoded.

All of the video stays: languages, titles and flags of the streams, covers, attached files, and its
own chapters, which ours replace only on demand. The copy appears under its name only when it is
whole. Containers that hold chapters are mp4, m4v, mov, mkv and webm; a stream that the new
container cannot hold is left out and named in a note.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import IO, TYPE_CHECKING

import av
from av.container import InputContainer, OutputContainer
from av.stream import Disposition, Stream

from starc.errors import VideoError
from starc.files.atomic import replacing
from starc.media.container import MediaLimits, open_container
from starc.output.chapters import one_line, span_ms
from starc.types import Event

if TYPE_CHECKING:
    from av.container.core import Chapter

CONTAINERS: Mapping[str, str] = {
    ".mp4": "mp4",
    ".m4v": "mp4",
    ".mov": "mov",
    ".mkv": "matroska",
    ".webm": "webm",
}
"""Ending of a file: FFmpeg's name of the container."""
MILLISECOND = Fraction(1, 1000)


def embed_chapters(
    source: Path,
    target: Path,
    chapters: Sequence[Event],
    *,
    replace_chapters: bool = False,
    limits: MediaLimits | None = None,
) -> tuple[str, ...]:
    """Write a copy of `source` that carries `chapters`; returns notes on what was left out.

    A video that has chapters keeps them, and `chapters` are left out, unless `replace_chapters`.
    """
    _require_another(source, target)
    with (
        open_container(source, limits) as original,
        replacing(target, binary=True) as file,
        _empty_copy(source, target, file) as copy,
    ):
        ours, notes = _chosen(original, chapters, replace_chapters)
        return (*notes, *_copy(original, copy, ours))


def check_copy(source: Path, target: Path, *, limits: MediaLimits | None = None) -> None:
    """Refuse, before the video is captioned, a copy that could not be written afterwards."""
    _require_another(source, target)
    empty = _empty_copy(source, target, io.BytesIO())
    with open_container(source, limits) as original, empty as copy:
        _add_streams(original, copy)


def _require_another(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        raise VideoError(f"{target}: is the video itself; name another file for the copy")


@contextmanager
def _empty_copy(source: Path, target: Path, file: IO[bytes]) -> Iterator[OutputContainer]:
    container = CONTAINERS[target.suffix.lower()]
    try:
        # Bit-exact: the same video and chapters give the same file, without a random number.
        with av.open(file, "w", format=container, options={"fflags": "+bitexact"}) as copy:
            yield copy
    except (av.FFmpegError, ValueError) as error:
        if (disk := _disk_error(error)) is not None:
            raise disk from None
        raise VideoError(
            f"{source}: cannot be copied into a {target.suffix[1:]} file "
            f"({getattr(error, 'strerror', None) or error}); try .mkv"
        ) from error


def _disk_error(error: BaseException | None) -> OSError | None:
    """What the disk said, where PyAV reports only that writing failed."""
    while error is not None:
        if isinstance(error, OSError) and not isinstance(error, av.FFmpegError):
            return error
        error = error.__context__
    return None


def _chosen(
    original: InputContainer, chapters: Sequence[Event], replace_chapters: bool
) -> tuple[list[Chapter], tuple[str, ...]]:
    """The chapters of the copy, and a note where it cannot have both the video's own and ours."""
    own = original.chapters()
    if own and not replace_chapters:
        return own, (
            f"kept the {len(own)} chapters that the video had and left ours out; "
            "--replace-chapters puts ours in their place",
        )
    notes = (f"replaced the {len(own)} chapters that the video had",) if own else ()
    return [_chapter(n, chapter) for n, chapter in enumerate(chapters)], notes


def _copy(
    original: InputContainer, copy: OutputContainer, chapters: list[Chapter]
) -> tuple[str, ...]:
    streams, notes = _add_streams(original, copy)
    copy.metadata.update(original.metadata)
    copy.set_chapters(chapters)
    for packet in original.demux([s for s in original.streams if s.index in streams]):
        cover = packet.stream.disposition & Disposition.attached_pic
        if not packet.size or (packet.dts is None and not cover):
            continue
        packet.stream = streams[packet.stream.index]
        copy.mux(packet)
    return tuple(notes)


def _add_streams(
    original: InputContainer, copy: OutputContainer
) -> tuple[dict[int, Stream], list[str]]:
    """The streams of the copy by their index in the original, and notes on what was left out."""
    notes: list[str] = []
    streams: dict[int, Stream] = {}
    for stream in original.streams:
        try:
            streams[stream.index] = _add_stream(copy, stream)
        except ValueError as error:
            if stream.type == "video":
                raise
            if stream.type == "data" and original.chapters():
                continue  # an mp4's chapters, which are written as such
            notes.append(f"stream {stream.index} ({stream.type}) left out: {error}")
    return streams, notes


def _add_stream(copy: OutputContainer, stream: Stream) -> Stream:
    if stream.type == "attachment" and copy.format.name != "matroska":
        raise ValueError(f"{copy.format.name!r} format does not support attached files")
    if stream.type == "data":
        raise ValueError("holds neither pictures, sound nor text")
    added = copy.add_stream_from_template(stream)
    added.disposition = stream.disposition
    added.metadata.update(stream.metadata)
    if "name" in stream.metadata:  # an mp4 says so when it is read, and wants "title" when written
        added.metadata.setdefault("title", stream.metadata["name"])
    return added


def _chapter(n: int, chapter: Event) -> Chapter:
    start, end = span_ms(chapter.start, chapter.end)
    return {
        "id": n,
        "start": start,
        "end": end,
        "time_base": MILLISECOND,
        "metadata": {"title": one_line(chapter.caption)},
    }
