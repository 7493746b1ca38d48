"""Chapters inside a copy of the video: streams are copied packet by packet, nothing is encoded.

All but the chapters stays: languages, titles and flags of the streams, covers, attached files. The
copy appears under its name only when it is whole. Containers that hold chapters are mp4, m4v, mov,
mkv and webm; a stream that the new container cannot hold is left out and named in a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

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
    source: Path, target: Path, chapters: Sequence[Event], *, limits: MediaLimits | None = None
) -> tuple[str, ...]:
    """Write a copy of `source` that carries `chapters`; returns notes on what was left out."""
    container = CONTAINERS[target.suffix.lower()]
    if target.exists() and target.samefile(source):
        raise VideoError(f"{target}: is the video itself; name another file for the copy")
    with open_container(source, limits) as original, replacing(target, binary=True) as file:
        try:
            # Bit-exact: the same video and chapters give the same file, without a random number.
            with av.open(file, "w", format=container, options={"fflags": "+bitexact"}) as copy:
                return _copy(original, copy, chapters)
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


def _copy(
    original: InputContainer, copy: OutputContainer, chapters: Sequence[Event]
) -> tuple[str, ...]:
    notes: list[str] = []
    streams: dict[int, Stream] = {}
    for stream in original.streams:
        try:
            streams[stream.index] = _add_stream(copy, stream)
        except ValueError as error:
            if stream.type == "video":
                raise
            notes.append(f"stream {stream.index} ({stream.type}) left out: {error}")
    copy.metadata.update(original.metadata)
    copy.set_chapters([_chapter(n, chapter) for n, chapter in enumerate(chapters)])
    for packet in original.demux([s for s in original.streams if s.index in streams]):
        cover = packet.stream.disposition & Disposition.attached_pic
        if not packet.size or (packet.dts is None and not cover):
            continue
        packet.stream = streams[packet.stream.index]
        copy.mux(packet)
    return tuple(notes)


def _add_stream(copy: OutputContainer, stream: Stream) -> Stream:
    if stream.type == "attachment" and copy.format.name != "matroska":
        raise ValueError(f"{copy.format.name!r} format does not support attached files")
    if stream.type == "data":  # of an mp4: mostly its old chapters
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
