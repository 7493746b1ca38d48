"""From an open media file to the samples of a speech recogniser: 16 kHz, one channel, float32.

The sound comes in windows with true start times, cut where it is quiet, so that files of any
length take the same memory and a gap in the sound does not shift what follows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from numpy.typing import NDArray

from starc.media.container import MICROSECONDS, Deadline, MediaLimits, ignore_other_streams

log = logging.getLogger("starc")

RATE = 16_000
PAUSE = RATE // 5
"""Samples of the pause that is looked for when a window must end."""
GAP = 0.2
"""Seconds without sound after which a new window begins."""
STEP = 512
"""Samples over which loudness is measured; also of recognisers, so that cuts change no words."""
SILENCE = -70.0
"""Decibels; whatever is softer counts as that."""
STEADY = 3.0
"""Decibels by which the loudness of a second without speech varies at most."""
SECOND = RATE // STEP
"""Steps; a steady stretch is left out from four seconds on, but for one at either end."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of sound."""

    start: float
    samples: NDArray[np.float32]


def windows(
    container: InputContainer,
    path: Path,
    *,
    seconds: float,
    language: str | None = None,
    limits: MediaLimits | None = None,
) -> Iterator[Window]:
    """The sound of an open file, in windows of at most `seconds`; nothing where there is none.

    Damaged packets are left out; when reading ends early, what was heard so far is given.
    """
    streams = [stream for stream in container.streams.audio if stream.codec_context]
    best = container.streams.best("audio")
    chosen = [s for s in streams if language and s.language == language]
    if not (chosen := chosen or [s for s in streams if s == best]):
        return
    longest = round(seconds * RATE)
    start, held = 0.0, np.empty(0, np.float32)
    for time, samples in _blocks(container, chosen[0], Deadline(path, limits or MediaLimits())):
        if abs(time - start - len(held) / RATE) > GAP:
            if len(held):
                yield Window(start, held)
            start, held = time, np.empty(0, np.float32)
        held = np.concatenate([held, samples])
        while len(held) >= longest:
            cut = _quiet_place(held[:longest])
            yield Window(start, held[:cut])
            start, held = start + cut / RATE, held[cut:]
    if len(held):
        yield Window(start, held)


def eventful(window: Window) -> Iterator[Window]:
    """A window without its long stretches of silence or steady noise: nobody speaks there.

    Speech rises and falls with every syllable, by far more than `STEADY` in a second.
    """
    count = len(window.samples) // STEP
    if count < 4 * SECOND:
        yield window
        return
    flat_N = np.True_
    samples = window.samples[: count * STEP]
    # Differences of neighbours as well: a hiss beside a loud hum.
    for sound in (samples, np.diff(samples, prepend=np.float32(0))):
        power_N = np.square(sound.reshape(count, STEP)).mean(1)
        loudness_N = 10 * np.log10(power_N + 10 ** (SILENCE / 10))
        seconds_NM = np.lib.stride_tricks.sliding_window_view(loudness_N, SECOND)
        flat_N = flat_N & (seconds_NM.max(1) - seconds_NM.min(1) < STEADY)
    steady_N = np.convolve(flat_N, np.ones(SECOND)) > 0.5  # all steps of a flat second
    edges = np.flatnonzero(np.diff(steady_N, prepend=False, append=False)).tolist()
    start = 0
    for first, stop in zip(edges[::2], edges[1::2], strict=True):
        if stop - first < 4 * SECOND:
            continue
        end = 0 if first == 0 else (first + SECOND) * STEP
        if end > start:
            yield Window(window.start + start / RATE, window.samples[start:end])
        start = len(window.samples) if stop == count else (stop - SECOND) * STEP
    if start < len(window.samples):
        yield Window(window.start + start / RATE, window.samples[start:])


def _blocks(
    container: InputContainer, stream: AudioStream, deadline: Deadline
) -> Iterator[tuple[float, NDArray[np.float32]]]:
    """About a second of samples at a time, with the time of the first."""
    origin = (container.start_time or 0) / MICROSECONDS
    resampler = av.AudioResampler("flt", "mono", RATE)
    time, parts, length = 0.0, list[NDArray[np.float32]](), 0
    for frame in _decoded(container, stream, deadline):
        now = time + length / RATE if frame.time is None else frame.time - origin
        if parts and (length >= RATE or abs(now - time - length / RATE) > GAP):
            yield time, np.concatenate(parts)
            parts, length = [], 0
        if not parts:
            time = now
        for resampled in resampler.resample(frame):
            parts.append(resampled.to_ndarray()[0])
            length += len(parts[-1])
    for resampled in resampler.resample(None):
        parts.append(resampled.to_ndarray()[0])
    if parts:
        yield max(time, 0.0), np.concatenate(parts)


def _decoded(
    container: InputContainer, stream: AudioStream, deadline: Deadline
) -> Iterator[AudioFrame]:
    ignore_other_streams(container, stream)
    packets, broken = container.demux(stream), 0
    while True:
        deadline.check()
        try:
            packet = next(packets, None)
            frames = stream.codec_context.decode(packet) if packet else []
        except av.ExitError:
            raise
        except (av.EOFError, StopIteration):
            break
        except av.FFmpegError:
            broken += 1
            if broken > 1000:
                break
            continue
        if packet is None:
            break
        yield from frames
    if broken:
        log.warning("%s: left out %d damaged pieces of its sound", deadline.path, broken)


def _quiet_place(samples: NDArray[np.float32]) -> int:
    """Where to end a window: the middle of the quietest pause in its last quarter."""
    first = len(samples) * 3 // 4
    power = np.cumsum(np.square(samples[first:], dtype=np.float64))
    if len(power) <= PAUSE:
        return len(samples)
    middle = first + int(np.argmin(power[PAUSE:] - power[:-PAUSE])) + PAUSE // 2
    return middle - middle % STEP
