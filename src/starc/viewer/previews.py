"""Small copies of videos that a browser cannot play (HEVC, AVI): H.264 and AAC in mp4.

A preview is made when the page asks for one, by one thread at a time, from the file that the one
hardened opener reads. It is at most `HEIGHT_PX` high and `LONGEST` seconds long, and lies in the
cache afterwards, where old ones go when together they exceed `MOST_BYTES`.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.container import InputContainer, OutputContainer
from av.video.stream import VideoStream

from starc.errors import StarcError, VideoError
from starc.files.atomic import replacing
from starc.files.cache import cache_folder, key_of_file, make_folder
from starc.media.container import MICROSECONDS, Deadline, MediaLimits, open_container, video_stream
from starc.viewer.security import without_folders

log = logging.getLogger("starc")

HEIGHT_PX = 360
FPS = 15
RATE = 44_100
GAP = 0.2
"""Seconds by which the sound may be off before it is set right."""
LONGEST = 3_600.0
MOST_BYTES = 2 << 30
LIMITS = MediaLimits(wall=1_800.0)


@dataclass(slots=True)
class Preview:
    """A preview and how far it is."""

    path: Path
    done: float = 0.0
    error: str | None = None

    def as_row(self) -> dict[str, Any]:
        ready = self.path.is_file()
        state = "ready" if ready else "failed" if self.error else "making"
        return {"state": state, "done": 1.0 if ready else self.done, "message": self.error}


class Previews:
    """Makes previews, one after another."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._known: dict[Path, Preview] = {}

    def of(self, video: Path, *, start: bool) -> Preview | None:
        """The preview of a video; with `start` its making begins, or begins again."""
        name = key_of_file(video, "preview", str(HEIGHT_PX), str(FPS))
        path = (self._folder or cache_folder("previews")) / f"{name}.mp4"
        with self._lock:
            known = self._known.get(path)
            if path.is_file():
                return Preview(path)
            if start and (known is None or known.error):
                known = self._known[path] = Preview(path)
                threading.Thread(target=self._make, args=(video, known), daemon=True).start()
            return known

    def _make(self, video: Path, preview: Preview) -> None:
        try:
            with self._turn:
                make_folder(preview.path.parent)
                _sweep(preview.path.parent)
                with replacing(preview.path, binary=True) as file:
                    write_preview(video, file, preview)
        except (StarcError, OSError) as error:
            preview.error = without_folders(str(error), [video.parent])
        except Exception as error:
            log.exception("%s: no preview", video)
            preview.error = f"no preview can be made ({type(error).__name__})"


def write_preview(video: Path, file: Any, preview: Preview) -> None:
    """Decode, scale down and encode; `preview.done` grows."""
    with open_container(video, LIMITS) as source:
        options = {"movflags": "faststart"}
        with av.open(file, "w", format="mp4", options=options) as target:
            try:
                _convert(video, source, target, preview)
            except av.FFmpegError as error:
                raise VideoError(f"{video.name}: cannot be decoded ({error.strerror})") from error


def _convert(
    video: Path, source: InputContainer, target: OutputContainer, preview: Preview
) -> None:
    pictures = video_stream(video, source)
    pictures.thread_type = "AUTO"
    pictures.codec_context.options = {"max_pixels": str(LIMITS.pixels)}
    sounds = next((s for s in source.streams.audio if s.codec_context), None)
    small = _small_stream(target, pictures.codec_context.width, pictures.codec_context.height)
    voice = target.add_stream("aac", rate=RATE, layout="stereo") if sounds else None
    resampler = av.AudioResampler("fltp", "stereo", RATE)
    whole = min(LONGEST, (source.duration or 0) / MICROSECONDS) or LONGEST
    origin, deadline = (source.start_time or 0) / MICROSECONDS, Deadline(video, LIMITS)
    last, heard, time = -1, 0, 0.0
    for packet in source.demux([stream for stream in (pictures, sounds) if stream]):
        deadline.check()
        frames: list[Any] = []
        with suppress(av.error.InvalidDataError):  # a damaged piece is left out
            frames = packet.decode()
        for frame in frames:
            time = (frame.time or 0.0) - origin
            if voice is not None and isinstance(frame, av.AudioFrame):
                if abs(time - heard / RATE) > GAP:
                    heard = max(heard, round(time * RATE))
                for part in resampler.resample(frame):
                    part.pts, part.time_base, heard = heard, Fraction(1, RATE), heard + part.samples
                    target.mux(voice.encode(part))
            elif (place := round(time * FPS)) > last:
                picture = frame.reformat(small.width, small.height, format="yuv420p")
                last = picture.pts = place
                picture.time_base, picture.pict_type = Fraction(1, FPS), 0
                target.mux(small.encode(picture))
                preview.done = min(0.99, time / whole)
        if time > LONGEST:
            break
    if last < 0:
        raise VideoError(f"{video.name}: no frame in it")
    for stream in (small, voice):
        target.mux(stream.encode(None) if stream else [])


def _small_stream(target: OutputContainer, width: int, height: int) -> VideoStream:
    options = {"preset": "veryfast", "crf": "30", "g": str(2 * FPS)}
    stream = target.add_stream("libx264", rate=FPS, options=options)
    stream.height = min(HEIGHT_PX, height) // 2 * 2 or 2
    stream.width = max(2, min(4 * HEIGHT_PX, round(width * stream.height / height) // 2 * 2))
    stream.pix_fmt, stream.codec_context.time_base = "yuv420p", Fraction(1, FPS)
    return stream


def _sweep(folder: Path) -> None:
    """The oldest previews go while all together are too large."""
    files = sorted(folder.glob("*.mp4"), key=lambda file: file.stat().st_mtime, reverse=True)
    total = 0
    for file in files:
        total += file.stat().st_size
        if total > MOST_BYTES:
            file.unlink(missing_ok=True)
