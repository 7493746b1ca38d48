"""From a video file to frames: one per second, scaled and cropped as the published features were.

The frames equal, byte for byte, those of ffmpeg's command line with the filters
`fps=1,scale=W:H,crop=224:224` (the shorter side becomes 224, the longer is truncated).
Which pictures those are follows from timestamps (`sampling.py`): files with trustworthy packets
are decoded only where a wanted frame lies, all others from end to end. Both ways give the same
frames. `open_video` opens the file once for all questions about it; `probe`, `count_frames` and
`sample_frames` ask one.
"""

from __future__ import annotations

import functools
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TypeVar

import av
import numpy as np
from av.filter import Graph
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from starc.errors import VideoError
from starc.media import sampling
from starc.media.container import (
    MICROSECONDS,
    Deadline,
    MediaLimits,
    ignore_other_streams,
    open_container,
    video_stream,
)
from starc.media.sampling import Packets, Schedule, Shown, on_ticks
from starc.types import Frame

log = logging.getLogger("starc")
Item = TypeVar("Item")

BROKEN_IN_A_ROW = 8
"""Undecodable packets in a row that are skipped; one more and the file is given up."""
THREADS = 4
"""Decoder threads at most: each holds several pictures, which at 8K are 50 MB apiece."""
WORTH_SEEKING = 250
"""Packets; a shorter gap is read through."""
COLOR_RANGES = {1: "tv", 2: "pc"}


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


def probe(path: Path, *, limits: MediaLimits | None = None) -> VideoInfo:
    """What is in a video file. Decodes nothing; reads through only a file that hides its length."""
    with open_video(path, limits) as video:
        return video.info


def frame_rate(path: Path, *, limits: MediaLimits | None = None) -> float:
    """Average pictures per second, 0 when unknown. Reads the header only."""
    with open_container(path, limits) as container:
        return _rate(video_stream(path, container))


def count_frames(path: Path, *, fps: float = 1.0, limits: MediaLimits | None = None) -> int:
    """How many frames `sample_frames` gives; decodes only where packets cannot be trusted."""
    with open_video(path, limits) as video:
        return video.count(fps)


def sample_frames(
    path: Path,
    *,
    fps: float = 1.0,
    size: int = 224,
    indices: Sequence[int] | None = None,
    limits: MediaLimits | None = None,
) -> Iterator[Frame]:
    """Frames of a video; see `Video.frames`."""
    with open_video(path, limits) as video:
        yield from video.frames(fps, size, indices)


@contextmanager
def open_video(path: Path, limits: MediaLimits | None = None) -> Iterator[Video]:
    """Open a video for all questions about it; every failure is a VideoError."""
    with ExitStack() as stack:
        yield Video(Path(path), limits or MediaLimits(), stack)


class _Unexpected(Exception):
    """Something is wrong with a file that is being read the fast way."""


class Video:
    """An open video file, for one passage at a time: what is asked last ends what went before.

    The file is read the fast way first. Where that fails it is opened again and read the careful
    way: everything is decoded, one picture after the other, because PyAV loses good pictures
    beside a broken one when several threads decode different pictures.
    """

    def __init__(self, path: Path, limits: MediaLimits, stack: ExitStack) -> None:
        self.path, self.limits, self._stack = path, limits, stack
        self._open(careful=False)

    def _open(self, *, careful: bool) -> None:
        self._stack.close()
        self.container = self._stack.enter_context(open_container(self.path, self.limits))
        self.stream: VideoStream = video_stream(self.path, self.container)
        ignore_other_streams(self.container, self.stream)
        self.careful, self.deadline = careful, Deadline(self.path, self.limits)
        self.context = self.stream.codec_context
        self.context.thread_type = "SLICE" if careful else "AUTO"
        self.context.thread_count = min(THREADS, os.cpu_count() or 1)
        self.context.options = {"max_pixels": str(self.limits.pixels)}
        self.time_base: Fraction = self.stream.time_base or Fraction(1, MICROSECONDS)
        # ffmpeg counts from the first packet of any stream, not from zero.
        start = Fraction(self.container.start_time or 0, MICROSECONDS)
        self.origin = round(start / self.time_base)
        self._first: tuple[int | None, ...] | None = None

    @functools.cached_property
    def info(self) -> VideoInfo:
        """What the file says about itself; read through only if it hides its length."""
        duration = self._stated_duration() or self._measured_duration()
        if duration <= 0:
            raise VideoError(f"{self.path}: video stream without any picture; is it complete?")
        return VideoInfo(
            duration=duration,
            width_px=self.context.width,
            height_px=self.context.height,
            fps=_rate(self.stream),
            codec=self.context.name,
            has_audio=bool(self.container.streams.audio),
        )

    def count(self, fps: float = 1.0) -> int:
        """How many frames there are at `fps`; decodes only where packets cannot be trusted."""
        rate = _exact(fps)
        if self._packets is not None:
            return sampling.schedule(self._packets, rate * self.time_base, None).count
        return sum(1 for _ in self._fast_then_careful(lambda: self._ticks(rate)))

    def frames(
        self, fps: float = 1.0, size: int = 224, indices: Sequence[int] | None = None
    ) -> Iterator[Frame]:
        """Frames at `fps` per second, [size, size, 3], with true times; in constant memory.

        `indices` (ascending) keeps only those of the frames: `model.inputs.spread` is the
        published choice of 100. ffmpeg's rule takes for second k the last picture shown before
        k + 0.5 s, so `Frame.time` is k when that picture is on the screen at k, else when it
        appears. A clip too short for the rule, where ffmpeg gives nothing, gives its last picture.
        """
        if indices is not None and any(b <= a for a, b in pairwise(indices)):
            raise ValueError("indices must be ascending and without repetition")
        if size < 1:
            raise ValueError(f"size must be positive, got {size = }")
        rate, schedule = _exact(fps), None
        if self._packets is not None:
            schedule = sampling.schedule(self._packets, rate * self.time_base, indices)

        def chosen() -> Iterator[tuple[int, Shown]]:
            if schedule is not None and not self.careful:
                return self._scheduled(schedule)
            ticks = self._ticks(rate)
            if indices is None:
                return ticks
            return self._only(indices, ticks, promised=schedule is not None)

        yield from self._fast_then_careful(lambda: self._scaled(chosen(), rate, size))

    def _fast_then_careful(self, passage: Callable[[], Iterator[Item]]) -> Iterator[Item]:
        """A passage through the file; where it fails, it begins again carefully and goes on."""
        done = 0
        while True:
            try:
                for item in islice(passage(), done, None):
                    yield item
                    done += 1
                return
            except _Unexpected as reason:
                log.info("%s: %s; decoding it carefully", self.path, reason)
                self._open(careful=True)

    def _only(
        self, indices: Sequence[int], ticks: Iterator[tuple[int, Shown]], *, promised: bool
    ) -> Iterator[tuple[int, Shown]]:
        """The ticks at `indices`; those that only a damaged file `promised` are left out."""
        wanted, count = deque(indices), 0
        for count, pair in enumerate(ticks, 1):
            if not wanted:
                return
            if wanted[0] == count - 1:
                wanted.popleft()
                yield pair
        if wanted and promised:
            log.warning("%s: %d frames at its end are damaged", self.path, len(wanted))
        elif wanted:
            raise ValueError(f"indices must be among the {count} frames of the video")

    def _scaled(
        self, chosen: Iterable[tuple[int, Shown]], fps: Fraction, size: int
    ) -> Iterator[Frame]:
        """Frames of the chosen pictures; one that serves several ticks is converted once."""
        scale = Scaler(self.path, size, self.limits)
        last: VideoFrame | None = None
        rgb_HWC: NDArray[np.uint8] | None = None
        for tick, shown in chosen:
            assert shown.frame is not None
            if rgb_HWC is None or shown.frame is not last:
                last, rgb_HWC = shown.frame, scale(shown.frame)
            time, start = tick / fps, shown.start * self.time_base
            yield Frame(float(start if time < start <= time + 1 / (2 * fps) else time), rgb_HWC)

    # Packets.

    def _from_start(self) -> Iterator[Packet[VideoStream]]:
        """All packets; goes back to the first by seeking, else by opening the file again."""
        if self._first is None:
            return self._demux()
        first = self._first
        unused = not self.context.is_open or self.context.name in sampling.UNORDERED_CODECS
        formats = self.container.format.name.split(",")
        if unused and not sampling.SEEKABLE_FORMATS.isdisjoint(formats):
            try:
                self.container.seek(first[0] or 0, stream=self.stream)
                packets = self._demux()
                packet = next(packets, None)
                self.context.flush_buffers()
                if packet is not None and _identity(packet) == first:
                    self.deadline = Deadline(self.path, self.limits)
                    return chain([packet], packets)
            except av.FFmpegError:
                pass
        self._open(careful=self.careful)
        return self._demux()

    def _demux(self) -> Iterator[Packet[VideoStream]]:
        """Packets from where the file stands; a damaged end is an end."""
        packets = self.container.demux(self.stream)
        while True:
            self.deadline.check()
            try:
                packet = next(packets, None)
            except av.ExitError:  # the limit of `open_container`, not the end
                raise
            except av.FFmpegError as error:
                log.warning("%s: cannot be read to its end (%s)", self.path, error.strerror)
                return
            if packet is None:
                return
            if packet.size:
                self._first = self._first or _identity(packet)
                yield packet

    @functools.cached_property
    def _packets(self) -> Packets | None:
        """Timestamps of all packets; None where no schedule can be made of them."""
        packets = sampling.read(self.stream, self._from_start, self.origin)
        if packets is not None:
            self._check_end(packets.end, last=True)
        return packets

    def _stated_duration(self) -> float:
        """Seconds according to the headers, of the stream if these say; 0 when unknown."""
        if self.stream.duration and self.stream.time_base:
            return float(self.stream.duration * self.stream.time_base)
        return (self.container.duration or 0) / MICROSECONDS

    def _measured_duration(self) -> float:
        count, first, end = 0, None, 0
        for packet in self._from_start():
            count += 1
            if packet.pts is not None:
                first = packet.pts if first is None else min(first, packet.pts)
                end = max(end, packet.pts + (packet.duration or 1))
        if first is None or not self.stream.time_base:
            return float(count / (self.stream.guessed_rate or 25))
        return float((end - first) * self.stream.time_base)

    # Decoding from end to end.

    def _ticks(self, fps: Fraction) -> Iterator[tuple[int, Shown]]:
        """The picture of every tick, from decoding them all."""
        return on_ticks(self._pictures(), fps * self.time_base)

    def _pictures(self) -> Iterator[Shown]:
        """Every picture in the order of showing; broken ones are skipped and counted."""
        usual = round(1 / (self.stream.guessed_rate or Fraction(25)) / self.time_base)
        end = pictures = 0
        for frame in self._decoded():
            start = end if frame.pts is None else frame.pts - self.origin
            end, pictures = start + (frame.duration or usual), pictures + 1
            self._check_end(end)
            yield Shown(start, end, frame)
        if not pictures:
            raise VideoError(f"{self.path}: no picture can be decoded; is the file complete?")
        self._check_end(end, last=True)

    def _decoded(self) -> Iterator[VideoFrame]:
        broken = in_a_row = 0
        for packet in chain(self._from_start(), [None]):
            try:
                frames = self.context.decode(packet)
            except av.FFmpegError as error:
                if not self.careful:
                    raise _Unexpected(f"a broken frame ({error.strerror})") from error
                broken, in_a_row = broken + 1, in_a_row + 1
                if in_a_row > BROKEN_IN_A_ROW:
                    raise VideoError(
                        f"{self.path}: {in_a_row} broken frames in a row ({error.strerror}); "
                        "the file is damaged, fetch it again"
                    ) from error
                continue
            in_a_row = 0 if frames else in_a_row
            yield from frames
        if broken:
            log.warning("%s: skipped %d broken frames", self.path, broken)

    # Decoding by schedule.

    def _scheduled(self, schedule: Schedule) -> Iterator[tuple[int, Shown]]:
        """The pictures of a schedule, in order; anything unexpected ends in _Unexpected."""
        waiting = deque(schedule.wanted)
        wanted = {shown.start for _, shown in schedule.wanted}
        for frame in self._decoded_runs(schedule.runs, wanted):
            if frame.pts is None or frame.is_corrupt:
                raise _Unexpected("a damaged picture")
            start = frame.pts - self.origin
            while waiting and waiting[0][1].start == start:
                tick, shown = waiting.popleft()
                yield tick, shown._replace(frame=frame)
        if waiting:
            raise _Unexpected(f"no picture at {float(waiting[0][1].start * self.time_base):.3f} s")

    def _decoded_runs(
        self, runs: Sequence[tuple[int, int]], wanted: set[int]
    ) -> Iterator[VideoFrame]:
        position, packets = 0, self._from_start()
        for first, stop in runs:
            try:
                if first - position > WORTH_SEEKING:
                    packets = self._from_key_frame(first)
                else:
                    deque(islice(packets, first - position), maxlen=0)
                position = stop
                for packet in islice(packets, stop - first):
                    if self.context.name == "h264":
                        # H.264 marks pictures on which no other leans.
                        needed = packet.pts is None or packet.pts - self.origin in wanted
                        self.context.skip_frame = "DEFAULT" if needed else "NONREF"
                    yield from self.context.decode(packet)
                yield from self.context.decode(None)
            except av.FFmpegError as error:
                raise _Unexpected(f"a broken frame ({error.strerror})") from error
            self.context.flush_buffers()

    def _from_key_frame(self, position: int) -> Iterator[Packet[VideoStream]]:
        """Packets from the key frame at a position on, wherever before it the seek lands."""
        assert self._packets is not None
        start, dts = int(self._packets.start[position]), int(self._packets.dts[position])
        self.container.seek(dts, stream=self.stream)
        packets = self._demux()
        for packet in packets:
            if packet.pts == start + self.origin and packet.is_keyframe:
                yield packet
                yield from packets
                return
            if packet.dts is not None and packet.dts > dts:
                break
        raise _Unexpected(f"no key frame at {float(start * self.time_base):.3f} s")

    def _check_end(self, end: int, *, last: bool = False) -> None:
        """Refuse a video that is too long; say so when the last picture ends well before the file
        says that it does, as in a download that was cut off."""
        shown, stated = float(end * self.time_base), self._stated_duration()
        self.limits.check(self.path, "duration", shown, f"{shown:.0f} s are too long")
        if last and stated - shown > max(2.0, 0.05 * stated):
            log.warning("%s: pictures end at %.1f s of %.1f s; cut off?", self.path, shown, stated)


def _rate(stream: VideoStream) -> float:
    return float(stream.average_rate or stream.guessed_rate or 0)


def _exact(fps: float) -> Fraction:
    if not (math.isfinite(fps) and fps > 0):
        raise ValueError(f"fps must be positive, got {fps = }")
    return Fraction(fps).limit_denominator(100_000)


def _identity(packet: Packet[VideoStream]) -> tuple[int | None, ...]:
    return (packet.pts if packet.dts is None else packet.dts), packet.pts, packet.pos, packet.size


@dataclass(slots=True)
class Scaler:
    """Turns pictures into [size, size, 3] RGB: upright, scaled, cropped, converted.

    All of it is done by FFmpeg's own filters with the defaults of its command line (bicubic
    scaling, rotation as the display matrix says), because published features were made with that
    program and a resampler of our own would give other bytes.
    """

    path: Path
    size: int
    limits: MediaLimits
    kind: tuple[object, ...] = ()
    graph: Graph = field(default_factory=Graph)

    def __call__(self, frame: VideoFrame) -> NDArray[np.uint8]:
        matrix = frame.side_data.get("DISPLAYMATRIX")
        turns = upright(bytes(matrix)) if matrix else []  # type: ignore[call-overload]
        kind = (
            frame.width, frame.height, frame.format.name, frame.colorspace, frame.color_range, turns
        )  # fmt: skip
        if kind != self.kind:  # the pictures have changed, and with them the filters
            width, height = frame.width, frame.height
            what = f"picture too large ({width} x {height})"
            self.limits.check(self.path, "pixels", width * height, what)
            source = f"video_size={width}x{height}:pix_fmt={frame.format.name}:time_base=1/1"
            source += f":colorspace={int(frame.colorspace)}"
            if frame.color_range in COLOR_RANGES:
                source += f":range={COLOR_RANGES[frame.color_range]}"
            if any(name == "transpose" for name, _ in turns):
                width, height = height, width
            short = min(width, height)
            # Truncated, not rounded: the published extractor computes int(width * size / height).
            width, height = width * self.size // short, height * self.size // short
            left, top = (width - self.size) // 2, (height - self.size) // 2
            self.kind, self.graph = kind, Graph()
            self.graph.threads = 1
            filters = [
                ("buffer", source),
                *turns,
                ("scale", f"{width}:{height}:flags=bicubic"),
                ("format", "rgb24"),
                ("crop", f"{self.size}:{self.size}:{left}:{top}"),
                ("buffersink", None),
            ]
            nodes = [self.graph.add(name, arguments) for name, arguments in filters]
            self.graph.link_nodes(*nodes).configure()
        frame.pts, frame.time_base = 0, Fraction(1, 1)
        self.graph.vpush(frame)
        rgb_HWC: NDArray[np.uint8] = self.graph.vpull().to_ndarray()  # type: ignore[assignment]
        return rgb_HWC


def upright(matrix: bytes) -> list[tuple[str, str]]:
    """The filters, name and arguments, with which ffmpeg undoes a 3 x 3 display matrix."""
    a, b, _, c, d, *_ = np.frombuffer(matrix, dtype=np.int32, count=9).tolist()
    scale_x, scale_y = math.hypot(a, c), math.hypot(b, d)
    if not (scale_x and scale_y):
        return []
    theta = math.degrees(math.atan2(b / scale_y, a / scale_x)) % 360
    if abs(theta - 90) < 1:
        return [("transpose", "cclock_flip" if c > 0 else "clock")]
    if abs(theta - 180) < 1:
        return [("hflip", "")] * (a < 0) + [("vflip", "")] * (d < 0)
    if abs(theta - 270) < 1:
        return [("transpose", "clock_flip" if c < 0 else "cclock")]
    if 1 < theta < 359:
        return [("rotate", f"{theta}*PI/180")]
    return [("vflip", "")] * (d < 0)
