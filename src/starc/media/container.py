"""Opening a media file that may be anything: the only place that opens media for reading.

A path goes in, an open PyAV container comes out; whatever is wrong with the file is one
`VideoError` line. The file is never trusted: only regular files are read, only demuxers of real
media formats may look at it (a playlist named .mp4 cannot make us open other files or hosts), and
`MediaLimits` bounds its size, its pictures, its length and the time we spend on it.
"""

from __future__ import annotations

import math
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import av
from av.container import InputContainer
from av.stream import Discard, Disposition, Stream
from av.video.stream import VideoStream

from starc.errors import ConfigError, VideoError

FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,live_flv,f4v,mpegts,mpeg,mpegvideo,m4v,h264,hevc,"
    "av1,obu,ivf,vvc,asf,ogg,gif,apng,mxf,rm,wtv,nut,dv,nsv,gxf,yuv4mpegpipe,roq,smk,bink,amv,"
    "mp3,wav,w64,flac,aac,ac3,eac3,amr,aiff,caf,ape,wv,tta,mpc,au,dts,truehd,loas"
)
MICROSECONDS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaLimits:
    """What one file may cost; `--limit NAME=VALUE` lets a larger file through."""

    file_bytes: int = 64 * 2**30
    """Size of the file."""
    pixels: int = 36_000_000
    """Width times height of a picture; 8K (7680 x 4320) passes."""
    duration: float = 86_400.0
    """Seconds of video."""
    wall: float = 21_600.0
    """Seconds that decoding may take."""

    @classmethod
    def parse(cls, texts: Iterable[str]) -> MediaLimits:
        """Limits from texts such as "pixels=100000000"; those not named keep their default."""
        kinds = {"file_bytes": int, "pixels": int, "duration": float, "wall": float}
        values = {}
        for text in texts:
            name, _, value = text.partition("=")
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if name not in kinds or not 0 < number < math.inf:
                raise ConfigError(
                    f"--limit {text}: not a limit; give NAME=NUMBER, with {', '.join(kinds)}"
                )
            values[name] = kinds[name](number)
        return cls(**values)

    def check(
        self, path: Path, name: str, value: float, what: str, *, enough: float | None = None
    ) -> None:
        """A VideoError about `what` if `value` exceeds the limit; it says which value is enough."""
        limit = getattr(self, name)
        if value > limit:
            raise VideoError(
                f"{path}: {what} (limit: {name} = {limit:.15g}); "
                f"use a smaller file or --limit {name}={math.ceil(enough or value)}"
            )


@dataclass(frozen=True, slots=True)
class Deadline:
    """The wall-clock limit of one passage through a file."""

    path: Path
    limits: MediaLimits
    start: float = field(default_factory=time.monotonic)

    def check(self) -> None:
        seconds, enough = time.monotonic() - self.start, 2 * self.limits.wall
        self.limits.check(self.path, "wall", seconds, "takes too long to decode", enough=enough)


@contextmanager
def open_container(path: Path, limits: MediaLimits | None = None) -> Iterator[InputContainer]:
    """Open a media file for reading, within `limits`; every failure is a VideoError."""
    path, limits = Path(path), limits or MediaLimits()
    try:
        status = path.stat()
        size = status.st_size
        if stat.S_ISDIR(status.st_mode):
            raise VideoError(f"{path}: is a directory; name a video file in it")
        if not stat.S_ISREG(status.st_mode):
            raise VideoError(f"{path}: not a regular file; save the video to disk first")
        if size == 0:
            raise VideoError(f"{path}: empty file (0 bytes); was the download interrupted?")
        limits.check(path, "file_bytes", size, f"file too large ({size} bytes)")
        container = av.open(
            # Without the prefix a name such as "concat:a" would be read as a protocol.
            f"file:{path}",
            options={"protocol_whitelist": "file", "format_whitelist": FORMATS},
            metadata_errors="replace",
            timeout=limits.wall,
        )
    except UnicodeEncodeError as error:
        raise VideoError(f"{str(path)!r}: name is not valid UTF-8; rename the file") from error
    except (av.FFmpegError, OSError, ValueError) as error:
        raise _unusable(path, error) from error
    with container:
        try:
            seconds = (container.duration or 0) / MICROSECONDS
            limits.check(path, "duration", seconds, f"{seconds:.0f} s are too long")
            for stream in container.streams.video:
                if context := stream.codec_context:  # None where the codec is unknown
                    size = context.width * context.height
                    what = f"picture too large ({context.width} x {context.height})"
                    limits.check(path, "pixels", size, what)
            yield container
        except (av.FFmpegError, MemoryError) as error:
            raise _unusable(path, error) from error


def _unusable(path: Path, error: BaseException) -> VideoError:
    """The one-line VideoError for what FFmpeg or the system said about a file."""
    if isinstance(error, FileNotFoundError):
        return VideoError(f"{path}: no such file; check the path")
    if isinstance(error, PermissionError):
        return VideoError(f"{path}: no permission to read it; check the file's mode")
    if isinstance(error, av.ExitError):
        return VideoError(
            f"{path}: takes too long to read (limit: wall); is the disk slow? --limit wall=SECONDS"
        )
    if isinstance(error, av.ArgumentError):  # the demuxer that knows it is not among FORMATS
        return VideoError(f"{path}: not a media file; name a video")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    reason = " ".join(str(reason).split())
    return VideoError(f"{path}: not a video, or a damaged one ({reason}); is it complete?")


def video_stream(path: Path, container: InputContainer) -> VideoStream:
    """The stream that ffmpeg's command line would pick: the default one, then the largest.

    A cover picture is not a video, so an album track counts as audio only.
    """
    cover = Disposition.attached_pic
    candidates = [s for s in container.streams.video if not s.disposition & cover]
    if not candidates:
        kinds = ["cover picture" if s.type == "video" else s.type for s in container.streams]
        held = ", ".join(dict.fromkeys(kinds)) or "nothing"
        raise VideoError(f"{path}: no video stream (found: {held}); is this an audio file?")
    candidates = [stream for stream in candidates if stream.codec_context]
    if not candidates:
        raise VideoError(f"{path}: video of an unknown kind; convert it to H.264 in mp4")

    return max(
        candidates,
        key=lambda stream: (
            stream.codec_context.width * stream.codec_context.height
            + 5_000_000 * bool(stream.disposition & Disposition.default)
        ),
    )


def ignore_other_streams(container: InputContainer, kept: Stream) -> None:
    """Tell the demuxer not to read what nobody will decode."""
    for stream in container.streams:
        if stream.index != kept.index:
            stream.discard = Discard.all
