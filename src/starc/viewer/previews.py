"""Small things made of videos when the page first asks for them, and kept in the cache folder.

A preview is a copy of a video that a browser cannot play (HEVC, AVI): H.264 and AAC in mp4, at most
`HEIGHT_PX` high and `LONGEST` seconds long, made by one thread at a time. Old ones go when together
they exceed `MOST_BYTES`. A thumbnail is the key frame before the most salient moment, as JPEG: one
seek and one decoded frame suffice. Peaks say how loud a video is from moment to moment, at most
`MOST_PEAKS` of them. All come from files that the one hardened opener reads.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer, OutputContainer
from av.video.stream import VideoStream

from starc.errors import StarcError, VideoError
from starc.files import cache
from starc.files.atomic import replacing
from starc.media import audio
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
WIDTH_PX = 480
MOST_PACKETS = 2_000
"""Of a video without a key frame to show."""
_DECODERS = threading.BoundedSemaphore(2)
MOST_PEAKS = 12_000
PER_SECOND = 20
PEAK_LIMITS = MediaLimits(wall=180.0)
SOUND_PIECE = 30.0
"""Seconds of sound at a time."""
_READERS = threading.BoundedSemaphore(1)


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
        name = cache.key_of_file(video, "preview", str(HEIGHT_PX), str(FPS))
        path = (self._folder or cache.cache_folder("previews")) / f"{name}.mp4"
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
                cache.make_folder(preview.path.parent)
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


def thumbnail(video: Path, time: float | None, *, folder: Path | None = None) -> bytes:
    """JPEG of the moment `time` (None: a tenth into the video)."""
    name = cache.key_of_file(video, str(time), str(WIDTH_PX))
    kept = (folder or cache.cache_folder("thumbnails")) / f"{name}.jpg"
    with suppress(OSError):
        return kept.read_bytes()
    with _DECODERS:
        picture = _jpeg(_key_frame(video, time))
    with suppress(OSError):  # a full or read-only cache costs time, not the picture
        cache.make_folder(kept.parent)
        with replacing(kept, binary=True) as file:
            file.write(picture)
    return picture


def _key_frame(video: Path, time: float | None) -> av.VideoFrame:
    limits = MediaLimits()
    with open_container(video, limits) as container:
        stream = video_stream(video, container)
        stream.codec_context.skip_frame = "NONKEY"
        stream.codec_context.options = {"max_pixels": str(limits.pixels)}
        wanted = time if time is not None else (container.duration or 0) / av.time_base / 10
        if wanted > 0:
            container.seek(int(wanted * av.time_base))
        for frame in container.decode(stream):
            return frame
        # The only key frame may lie before the edit list, and is never shown: any frame will do.
        stream.codec_context.skip_frame = "DEFAULT"
        container.seek(0)
        for packet in islice(container.demux(stream), MOST_PACKETS):
            for frame in packet.decode():
                return frame
    raise VideoError(f"{video.name}: no frame in it")


def _jpeg(frame: av.VideoFrame) -> bytes:
    width = min(WIDTH_PX, frame.width) // 2 * 2 or 2
    height = max(2, round(frame.height * width / frame.width) // 2 * 2)
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height = width, min(height, 4 * WIDTH_PX)
    encoder.pix_fmt, encoder.time_base = "yuvj420p", Fraction(1, 25)
    encoder.options = {"qmin": "3", "qmax": "5"}
    small = frame.reformat(width, encoder.height, format="yuvj420p", dst_color_range="JPEG")
    small.pts, small.pict_type = 0, 0
    return b"".join(map(bytes, [*encoder.encode(small), *encoder.encode(None)]))


def peaks(video: Path, *, folder: Path | None = None) -> dict[str, object]:
    """{"every": seconds per peak, "peaks": [0 to 255]}; no peaks for a video without sound."""
    name = cache.key_of_file(video, "peaks", str(MOST_PEAKS), str(PER_SECOND))
    entry = (folder or cache.cache_folder("peaks")) / f"{name}.json"
    kept = cache.read(entry)
    if isinstance(kept, dict) and isinstance(kept.get("peaks"), list):
        return kept
    with _READERS:
        made = _peaks(video)
    cache.write(entry, made)
    return made


def _peaks(video: Path) -> dict[str, object]:
    with open_container(video, PEAK_LIMITS) as container:
        seconds = (container.duration or 0) / MICROSECONDS
        step = max(audio.RATE // PER_SECOND, round(seconds * audio.RATE / MOST_PEAKS))
        highest = np.zeros(MOST_PEAKS + 1, np.float32)
        heard = 0
        for window in audio.windows(container, video, seconds=SOUND_PIECE, limits=PEAK_LIMITS):
            places = round(window.start * audio.RATE) + np.arange(len(window.samples))
            places = np.clip(places // step, 0, MOST_PEAKS)
            np.maximum.at(highest, places, np.abs(window.samples))
            heard = max(heard, int(places[-1]) + 1)
    loudest = float(highest.max()) or 1.0
    scaled = np.minimum(255, highest[:heard] / loudest * 255).astype(int)
    return {"every": step / audio.RATE, "peaks": scaled.tolist()}
