"""Which pictures of a video are sampled, worked out from timestamps before anything is decoded.

`on_ticks` is the rule of ffmpeg's `fps` filter. `read` collects the timestamps of all packets,
`schedule` applies the rule to them and finds, for each wanted picture, the key frame from which
it can be decoded: a list of runs of packets. Everything between two runs need not be decoded.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

INDEXED_FORMATS = frozenset({"mp4", "matroska"})
"""Containers that carry exact timestamps and can seek."""
INDEXED_CODECS = frozenset({"h264", "hevc", "vp9", "av1", "libdav1d"})
"""Codecs where one packet is one picture and decoding may begin at any key frame."""
SEEKABLE_FORMATS = INDEXED_FORMATS | {"avi"}
"""Containers in which seeking back leads to the very first packet."""
UNORDERED_CODECS = frozenset({"vp8", "mjpeg", "png", "ffv1"})
"""Codecs whose decoders keep nothing of the order of pictures, so that emptied they are as new."""
WORTH_STOPPING = 12
"""Packets; over a shorter gap decoding goes on, since emptying the decoder costs more."""


class Shown(NamedTuple):
    """A picture and when it is on the screen, in units of the stream's time base."""

    start: int
    end: int
    frame: VideoFrame | None = None


@dataclass(frozen=True, slots=True)
class Packets:
    """Timestamps of the packets of a stream, in decoding order."""

    start: NDArray[np.int64]
    """When the picture is shown, counted from the `origin` of the file."""
    dts: NDArray[np.int64]
    key: NDArray[np.bool_]
    hidden: NDArray[np.bool_]
    """Decoded but not shown (before the first edit of an mp4)."""
    end: int
    """When the picture shown last ends."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How to come by the wanted pictures."""

    count: int
    """Sampled pictures in the whole video, wanted or not."""
    wanted: list[tuple[int, Shown]]
    """Tick and picture, in order; one picture may serve several ticks."""
    runs: list[tuple[int, int]]
    """Packets [first, stop) to decode, of which the first is a key frame."""


def nearest(x: int, rate: Fraction) -> int:
    """x * rate rounded to the nearest integer, halves away from zero (av_rescale's default)."""
    twice = 2 * abs(x) * rate.numerator
    rounded = (twice + rate.denominator) // (2 * rate.denominator)
    return rounded if x >= 0 else -rounded


def on_ticks(shown: Iterable[Shown], rate: Fraction) -> Iterator[tuple[int, Shown]]:
    """The picture of every tick, as ffmpeg's `fps` filter chooses it; `rate` is ticks per unit.

    Times are rounded to ticks; tick k gets the last picture with rounded start <= k; the end of
    the last picture, rounded, is the end. Ticks before that get the first picture so chosen, as
    from ffmpeg's command line. Where the rule leaves nothing at all, we give the last picture.
    """
    held: Shown | None = None
    upcoming = first = 0
    for picture in shown:
        tick = max(nearest(picture.start, rate), 0)
        if held is None:
            first = tick
        elif tick > max(upcoming, first):
            yield from ((skipped, held) for skipped in range(upcoming, tick))
            upcoming = tick
        held = picture
    if held is not None:
        end = max(nearest(held.end, rate), 0 if upcoming else first + 1)
        yield from ((tick, held) for tick in range(upcoming, end))


def read(
    stream: VideoStream, packets: Callable[[], Iterable[Packet[VideoStream]]], origin: int
) -> Packets | None:
    """Timestamps of all packets; None when no schedule can be based on them."""
    formats = stream.container.format.name.split(",")
    if INDEXED_FORMATS.isdisjoint(formats) or stream.codec_context.name not in INDEXED_CODECS:
        return None
    start, dts, key, hidden = array("q"), array("q"), bytearray(), bytearray()
    last = end = -1
    for packet in packets():
        if packet.pts is None or packet.is_corrupt or not packet.duration:
            return None
        start.append(packet.pts - origin)
        dts.append(packet.pts if packet.dts is None else packet.dts)
        key.append(packet.is_keyframe)
        hidden.append(packet.is_discard)
        if start[-1] > last and not packet.is_discard:
            last, end = start[-1], start[-1] + packet.duration
    # Without a key frame in front, or with two pictures at one time, packets cannot be told apart.
    if not start or not key[0] or len(np.unique(start)) < len(start) or all(hidden):
        return None
    return Packets(
        np.array(start, dtype=np.int64),
        np.array(dts, dtype=np.int64),
        np.array(key, dtype=bool),
        np.array(hidden, dtype=bool),
        end,
    )


def schedule(packets: Packets, rate: Fraction, indices: Sequence[int] | None) -> Schedule:
    """Apply `on_ticks` to the packets for the frames `indices` (None: all)."""
    order = np.argsort(packets.start)
    order = order[~packets.hidden[order]]
    start = packets.start[order]
    ends = np.append(start[1:], packets.end)
    pictures = (Shown(a, b) for a, b in zip(start.tolist(), ends.tolist(), strict=True))
    chosen = list(on_ticks(pictures, rate))
    count = len(chosen)
    if indices is not None:
        if indices and not 0 <= indices[0] <= indices[-1] < count:
            raise ValueError(f"indices must be among the {count} frames of the video")
        chosen = [chosen[index] for index in indices]
    # Position of each wanted picture among the packets, in decoding order.
    starts = np.array([shown.start for _, shown in chosen], dtype=np.int64)
    positions = order[np.searchsorted(start, starts)]
    # The shortest runs from key frames that hold all of them; near ones are joined.
    keys = np.flatnonzero(packets.key)
    runs: list[tuple[int, int]] = []
    for position in np.unique(positions).tolist():
        k = int(np.searchsorted(keys, position, side="right")) - 1
        # A picture shown before its key frame leans on the run before (an open group of pictures).
        while k > 0 and packets.start[keys[k]] > packets.start[position]:
            k -= 1
        first = int(keys[k])
        if runs and first <= runs[-1][1] + WORTH_STOPPING:
            runs[-1] = runs[-1][0], max(runs[-1][1], position + 1)
        else:
            runs.append((first, position + 1))
    return Schedule(count, chosen, runs)
