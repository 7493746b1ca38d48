"""Opening a media file that may be anything, and saying what is in it.

A path goes in, an open PyAV container or a `VideoInfo` comes out; whatever is wrong with the file
is one `VideoError` line. The file is never trusted: only regular files are read, only demuxers of
real media formats may look at it (a playlist named .mp4 cannot make us open other files or hosts),
and `MediaLimits` bounds its size, its pictures, its length and the time we spend on it.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import av
from av.container import InputContainer
from av.stream import Discard, Disposition, Stream
from av.video.stream import VideoStream

from starc.errors import VideoError

FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,live_flv,f4v,mpegts,mpeg,mpegvideo,m4v,h264,hevc,"
    "av1,obu,ivf,vvc,asf,ogg,gif,apng,mxf,rm,wtv,nut,dv,nsv,gxf,yuv4mpegpipe,roq,smk,bink,amv,"
    "mp3,wav,w64,flac,aac,ac3,eac3,amr,aiff,caf,ape,wv,tta,mpc,au,dts,truehd,loas"
)
MICROSECONDS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaLimits:
    """What one file may cost. Raise a limit to let a larger file through."""

    file_bytes: int = 64 * 2**30
    """Size of the file."""
    pixels: int = 36_000_000
    """Width times height of a picture; 8K (7680 x 4320) passes."""
    duration: float = 86_400.0
    """Seconds of video."""
    wall: float = 21_600.0
    """Seconds that decoding may take."""

    @classmethod
    def parse(cls, texts: object) -> MediaLimits:
        return cls()


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What a file says about itself, before anything is decoded."""

    duration: float
    """Seconds, of the video stream where it is known."""
    width_px: int
    height_px: int
    """As stored; a rotation is applied when frames are sampled."""
    fps: float
    """Average rate; 0 when unknown."""
    codec: str
    has_audio: bool
    streams: tuple[str, ...]
    """Kind of every stream, in the order of the file."""
    subtitles: tuple[str, ...]
    """Language of every embedded subtitle stream, "" when it has none."""


class Deadline:
    """The wall-clock limit of one job."""

    def __init__(self, path: Path, limits: MediaLimits) -> None:
        self.path, self.seconds = path, limits.wall
        self.end = time.monotonic() + limits.wall

    def check(self) -> None:
        if time.monotonic() > self.end:
            raise VideoError(
                f"{self.path}: still decoding after {self.seconds:g} s (limit: wall); "
                "raise the limit or cut the file"
            )


@contextmanager
def open_container(path: Path, limits: MediaLimits | None = None) -> Iterator[InputContainer]:
    """Open a media file for reading, within `limits`; every failure is a VideoError."""
    limits = limits or MediaLimits()
    _check_file(path, limits)
    try:
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
        raise unusable(path, error) from error
    with container:
        try:
            _check_streams(path, container, limits)
            yield container
        except (av.FFmpegError, MemoryError) as error:
            raise unusable(path, error) from error


def unusable(path: Path, error: BaseException) -> VideoError:
    """The one-line VideoError for what FFmpeg said about a file."""
    if isinstance(error, PermissionError):
        return VideoError(f"{path}: no permission to read it; check the file's mode")
    if isinstance(error, av.ExitError):
        return VideoError(f"{path}: reading takes too long (limit: wall); raise the limit")
    if isinstance(error, av.ArgumentError):  # the demuxer that knows it is not among FORMATS
        return VideoError(f"{path}: not a media file; name a video")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    reason = " ".join(str(reason).split())
    return VideoError(f"{path}: not a video, or a damaged one ({reason}); is it complete?")


def _check_file(path: Path, limits: MediaLimits) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        raise VideoError(f"{path}: no such file; check the path") from None
    except (OSError, ValueError) as error:
        raise unusable(path, error) from error
    if stat.S_ISDIR(status.st_mode):
        raise VideoError(f"{path}: is a directory; name a video file in it")
    if not stat.S_ISREG(status.st_mode):
        raise VideoError(f"{path}: not a regular file; save the video to disk first")
    if status.st_size == 0:
        raise VideoError(f"{path}: empty file (0 bytes); was the download interrupted?")
    if status.st_size > limits.file_bytes:
        raise VideoError(
            f"{path}: file too large ({status.st_size} bytes, limit: file_bytes = "
            f"{limits.file_bytes}); raise the limit or cut the file"
        )


def _check_streams(path: Path, container: InputContainer, limits: MediaLimits) -> None:
    seconds = (container.duration or 0) / MICROSECONDS
    if seconds > limits.duration:
        raise VideoError(
            f"{path}: too long ({seconds:.0f} s, limit: duration = {limits.duration:g} s); "
            "raise the limit or cut the file"
        )
    for stream in container.streams.video:
        if _has_decoder(stream):
            check_pixels(path, stream.codec_context.width, stream.codec_context.height, limits)


def check_pixels(path: Path, width: int, height: int, limits: MediaLimits) -> None:
    if width * height > limits.pixels:
        raise VideoError(
            f"{path}: picture too large ({width} x {height}, limit: pixels = {limits.pixels}); "
            "raise the limit or scale the video down"
        )


def video_stream(path: Path, container: InputContainer) -> VideoStream:
    """The stream that ffmpeg's command line would pick: the default one, then the largest.

    A cover picture is not a video, so an album track counts as audio only.
    """
    candidates = [stream for stream in container.streams.video if not _is_cover(stream)]
    if not candidates:
        kinds = ", ".join(dict.fromkeys(_kinds(container))) or "nothing"
        raise VideoError(f"{path}: no video stream (found: {kinds}); is this an audio file?")

    candidates = [stream for stream in candidates if _has_decoder(stream)]
    if not candidates:
        raise VideoError(f"{path}: video of an unknown kind; convert it to H.264 in mp4")

    def score(stream: VideoStream) -> int:
        area = stream.codec_context.width * stream.codec_context.height
        return area + 5_000_000 * bool(stream.disposition & Disposition.default)

    return max(candidates, key=score)


def ignore_other_streams(container: InputContainer, kept: Stream) -> None:
    """Tell the demuxer not to read what nobody will decode."""
    for stream in container.streams:
        if stream.index != kept.index:
            stream.discard = Discard.all


def probe(path: Path, *, limits: MediaLimits | None = None) -> VideoInfo:
    """What is in a video file. Decodes nothing; reads through only a file that hides its length."""
    with open_container(path, limits) as container:
        stream = video_stream(path, container)
        context = stream.codec_context
        info = VideoInfo(
            duration=stated_duration(container, stream) or _measured_duration(container, stream),
            width_px=context.width,
            height_px=context.height,
            fps=float(stream.average_rate or stream.guessed_rate or 0),
            codec=context.name,
            has_audio=bool(container.streams.audio),
            streams=tuple(_kinds(container)),
            subtitles=tuple(stream.language or "" for stream in container.streams.subtitles),
        )
    if info.duration <= 0:
        raise VideoError(f"{path}: video stream without any picture; is the file complete?")
    return info


def stated_duration(container: InputContainer, stream: VideoStream) -> float:
    """Seconds according to the headers, of the stream if these say; 0 when unknown."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / MICROSECONDS


def _measured_duration(container: InputContainer, stream: VideoStream) -> float:
    ignore_other_streams(container, stream)
    packets, first, end = 0, None, 0
    for packet in container.demux(stream):
        packets += packet.size > 0
        if packet.pts is not None:
            first = packet.pts if first is None else min(first, packet.pts)
            end = max(end, packet.pts + (packet.duration or 1))
    if first is None or not stream.time_base:
        return float(packets / (stream.guessed_rate or 25))
    return float((end - first) * stream.time_base)


def _kinds(container: InputContainer) -> list[str]:
    return [
        "cover picture" if stream.type == "video" and _is_cover(stream) else stream.type
        for stream in container.streams
    ]


def _has_decoder(stream: VideoStream) -> bool:
    # The stubs of PyAV promise a context, but a stream of an unknown codec has None.
    context: object = stream.codec_context
    return context is not None


def _is_cover(stream: Stream) -> bool:
    return bool(stream.disposition & Disposition.attached_pic)
