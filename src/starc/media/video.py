"""From a video file to frames: one per second, scaled and cropped as the published features were.

The frames equal, byte for byte, those of ffmpeg's command line with the filters
`fps=1,scale=W:H,crop=224:224` (the shorter side becomes 224, the longer is truncated).
Which pictures those are follows from timestamps (`sampling.py`): files with trustworthy packets
are decoded only where a wanted frame lies, all others from end to end. Both roads give the same
frames. How a picture becomes an array is in `pictures.py`.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TypeVar

import av
import numpy as np
from av.container import InputContainer
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
    VideoInfo,
    ignore_other_streams,
    open_container,
    probe,
    stated_duration,
    video_stream,
)
from starc.media.pictures import Scaler
from starc.media.sampling import Run, Schedule, Shown, on_ticks
from starc.types import Frame

__all__ = ["MediaLimits", "VideoInfo", "count_frames", "probe", "sample_frames", "spread"]

log = logging.getLogger("starc")
Item = TypeVar("Item")

BROKEN_IN_A_ROW = 8
"""Undecodable packets in a row that are skipped; one more and the file is given up."""
THREADS = 4
"""Decoder threads at most: each holds several pictures, which at 8K are 50 MB apiece."""
WORTH_SEEKING = 250
"""Packets; a shorter gap is read through."""


class _Unexpected(Exception):
    """Something is wrong with a file that is being read the fast way."""


def spread(frames: int, most: int = 100) -> list[int]:
    """Indices of at most `most` frames, as published: (j * frames) // most for j < most."""
    return [j * frames // most for j in range(most)] if frames > most else list(range(frames))


def count_frames(path: Path, *, fps: float = 1.0, limits: MediaLimits | None = None) -> int:
    """How many frames `sample_frames` gives; decodes only where packets cannot be trusted."""
    path, limits, rate = Path(path), limits or MediaLimits(), _exact(fps)
    with _reading(path, limits) as reading:
        plan = reading.plan(rate, None)
    if plan is not None:
        return plan.count
    return sum(1 for _ in _fast_then_careful(path, limits, lambda reading: reading.ticks(rate)))


def sample_frames(
    path: Path,
    *,
    fps: float = 1.0,
    size: int = 224,
    indices: Sequence[int] | None = None,
    limits: MediaLimits | None = None,
) -> Iterator[Frame]:
    """Frames at `fps` per second, [size, size, 3], with true times; lazily, in constant memory.

    `indices` (ascending) keeps only those of the frames: `spread(count_frames(path))` is the
    published choice of 100. ffmpeg's rule takes for second k the last picture shown before
    k + 0.5 s, so `Frame.time` is k when that picture is on the screen at k, else when it appears.
    A clip too short for the rule, where ffmpeg gives nothing, gives its last picture.
    """
    if indices is not None and any(b <= a for a, b in pairwise(indices)):
        raise ValueError("indices must be ascending and without repetition")
    if size < 1:
        raise ValueError(f"size must be positive, got {size = }")
    return _sample(Path(path), _exact(fps), size, indices, limits or MediaLimits())


def _exact(fps: float) -> Fraction:
    if not (math.isfinite(fps) and fps > 0):
        raise ValueError(f"fps must be positive, got {fps = }")
    return Fraction(fps).limit_denominator(100_000)


def _sample(
    path: Path, fps: Fraction, size: int, indices: Sequence[int] | None, limits: MediaLimits
) -> Iterator[Frame]:
    with _reading(path, limits) as reading:
        plan = reading.plan(fps, indices)

    def road(reading: _Reading) -> Iterator[Frame]:
        if plan is not None and not reading.careful:
            chosen = reading.planned(plan)
        else:
            chosen = _only(path, reading.ticks(fps), indices, promised=plan is not None)
        return reading.frames(chosen, fps, size)

    yield from _fast_then_careful(path, limits, road)


def _fast_then_careful(
    path: Path, limits: MediaLimits, road: Callable[[_Reading], Iterator[Item]]
) -> Iterator[Item]:
    """Go a road in the fast way; where that fails, begin again in the careful way and go on.

    A careful reading decodes everything, one picture after the other: PyAV loses good pictures
    beside a broken one when several threads decode different pictures.
    """
    done = 0
    for careful in (False, True):
        try:
            with _reading(path, limits, careful=careful) as reading:
                for item in islice(road(reading), done, None):
                    yield item
                    done += 1
            return
        except _Unexpected as reason:
            log.info("%s: %s; decoding it carefully", path, reason)


def _only(
    path: Path,
    chosen: Iterator[tuple[int, Shown]],
    indices: Sequence[int] | None,
    *,
    promised: bool,
) -> Iterator[tuple[int, Shown]]:
    """The chosen at `indices`; those that only a damaged file `promised` are left out."""
    if indices is None:
        yield from chosen
        return
    wanted, count = deque(indices), 0
    for count, pair in enumerate(chosen, 1):
        if not wanted:
            return
        if wanted[0] == count - 1:
            wanted.popleft()
            yield pair
    if wanted and promised:
        log.warning("%s: %d frames at its end are damaged", path, len(wanted))
    elif wanted:
        sampling.check_indices(indices, count)


@contextmanager
def _reading(path: Path, limits: MediaLimits, *, careful: bool = False) -> Iterator[_Reading]:
    with open_container(path, limits) as container:
        yield _Reading(path, container, limits, careful)


class _Reading:
    """One passage through the video stream of an open file."""

    def __init__(
        self, path: Path, container: InputContainer, limits: MediaLimits, careful: bool
    ) -> None:
        self.path, self.container, self.limits, self.careful = path, container, limits, careful
        self.stream: VideoStream = video_stream(path, container)
        ignore_other_streams(container, self.stream)
        self.context = self.stream.codec_context
        self.context.thread_type = "SLICE" if careful else "AUTO"
        self.context.thread_count = min(THREADS, os.cpu_count() or 1)
        self.context.options = {"max_pixels": str(limits.pixels)}
        self.deadline = Deadline(path, limits)
        self.time_base: Fraction = self.stream.time_base or Fraction(1, MICROSECONDS)
        # ffmpeg counts from the first packet of any stream, not from zero.
        self.origin = round(Fraction(container.start_time or 0, MICROSECONDS) / self.time_base)

    def frames(
        self, chosen: Iterable[tuple[int, Shown]], fps: Fraction, size: int
    ) -> Iterator[Frame]:
        """Convert the chosen pictures; one that serves several ticks is converted once."""
        scale = Scaler(self.path, size, self.limits)
        last: VideoFrame | None = None
        rgb_HWC: NDArray[np.uint8] | None = None
        for tick, shown in chosen:
            assert shown.frame is not None
            if rgb_HWC is None or shown.frame is not last:
                last, rgb_HWC = shown.frame, scale(shown.frame)
            time, start = tick / fps, shown.start * self.time_base
            yield Frame(float(start if time < start <= time + 1 / (2 * fps) else time), rgb_HWC)

    # The road from end to end.

    def packets(self) -> Iterator[Packet[VideoStream]]:
        """Packets of the stream; a damaged end is an end."""
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
                yield packet

    def ticks(self, fps: Fraction) -> Iterator[tuple[int, Shown]]:
        """The picture of every tick, from decoding them all."""
        return on_ticks(self.pictures(), fps * self.time_base)

    def pictures(self) -> Iterator[Shown]:
        """Every picture in the order of showing; broken ones are skipped and counted."""
        usual = round(1 / (self.stream.guessed_rate or Fraction(25)) / self.time_base)
        end = pictures = 0
        for frame in self.decoded():
            start = end if frame.pts is None else frame.pts - self.origin
            end, pictures = start + (frame.duration or usual), pictures + 1
            self.check_time(end)
            yield Shown(start, end, frame)
        if not pictures:
            raise VideoError(f"{self.path}: no picture can be decoded; is the file complete?")
        self.warn_if_short(end)

    def decoded(self) -> Iterator[VideoFrame]:
        broken = in_a_row = 0
        for packet in chain(self.packets(), [None]):
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

    # The road by plan.

    def plan(self, fps: Fraction, indices: Sequence[int] | None) -> Schedule | None:
        """Where the wanted pictures are, from the packets alone; None if these will not do."""
        found = sampling.read(self.stream, self.packets(), self.origin)
        if found is None:
            return None
        self.check_time(found.end)
        self.warn_if_short(found.end)
        return sampling.make(found, fps * self.time_base, indices)

    def planned(self, plan: Schedule) -> Iterator[tuple[int, Shown]]:
        """The pictures of a plan, in order; anything unexpected ends in _Unexpected."""
        waiting = deque(plan.wanted)
        wanted = {shown.start for _, shown in plan.wanted}
        for frame in self.decoded_runs(plan.runs, wanted):
            if frame.pts is None or frame.is_corrupt:
                raise _Unexpected("a damaged picture")
            start = frame.pts - self.origin
            while waiting and waiting[0][1].start == start:
                tick, shown = waiting.popleft()
                yield tick, shown._replace(frame=frame)
        if waiting:
            raise _Unexpected(f"no picture at {float(waiting[0][1].start * self.time_base):.3f} s")

    def decoded_runs(self, runs: Sequence[Run], wanted: set[int]) -> Iterator[VideoFrame]:
        position, packets = 0, self.packets()
        for run in runs:
            try:
                if run.first - position > WORTH_SEEKING:
                    self.container.seek(run.dts, stream=self.stream)
                    packets = self.from_key_frame(run)
                else:
                    deque(islice(packets, run.first - position), maxlen=0)
                position = run.stop
                for packet in islice(packets, run.stop - run.first):
                    self.skip_unless(packet.pts is None or packet.pts - self.origin in wanted)
                    yield from self.context.decode(packet)
                yield from self.context.decode(None)
            except av.FFmpegError as error:
                raise _Unexpected(f"a broken frame ({error.strerror})") from error
            self.context.flush_buffers()

    def from_key_frame(self, run: Run) -> Iterator[Packet[VideoStream]]:
        """Packets from the key frame of a run on, wherever before it the seek has landed."""
        packets = self.packets()
        for packet in packets:
            if packet.pts == run.pts and packet.is_keyframe:
                yield packet
                yield from packets
                return
            if packet.dts is not None and packet.dts > run.dts:
                break
        raise _Unexpected(f"no key frame found at {float(run.pts * self.time_base):.3f} s")

    def skip_unless(self, wanted: bool) -> None:
        """Leave out an unwanted picture on which, by H.264's own mark, no other picture leans."""
        if self.context.name == "h264":
            self.context.skip_frame = "DEFAULT" if wanted else "NONREF"

    # Checks of both.

    def check_time(self, end: int) -> None:
        if end * self.time_base > self.limits.duration:
            raise VideoError(
                f"{self.path}: too long ({float(end * self.time_base):.0f} s, limit: duration = "
                f"{self.limits.duration:g} s); raise the limit or cut the file"
            )

    def warn_if_short(self, end: int) -> None:
        """Say so when pictures end well before the file says they do, as in a cut-off download."""
        stated, found = stated_duration(self.container, self.stream), float(end * self.time_base)
        if stated - found > max(2.0, 0.05 * stated):
            log.warning("%s: pictures end at %.1f s of %.1f s; cut off?", self.path, found, stated)
