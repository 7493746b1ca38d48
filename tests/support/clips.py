"""Small videos for the tests, made with PyAV."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

MILLISECONDS = Fraction(1, 1000)


def picture(index: int, width: int, height: int) -> np.ndarray:
    """A textured picture that differs from its neighbours everywhere."""
    return np.roll(_texture(width, height), 3 * index, axis=1) + np.uint8(index % 256)


@functools.cache
def _texture(width: int, height: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    coarse = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    return coarse.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]


def write_clip(
    path: Path,
    *,
    seconds: float = 3.0,
    fps: int = 10,
    size: tuple[int, int] = (64, 48),
    codec: str = "libx264",
    pixels: str = "yuv420p",
    times: Sequence[float] | None = None,
    audio: str | None = None,
    tone: np.ndarray | None = None,
    options: dict[str, str] | None = None,
    start: float = 0.0,
    pictures: Iterable[np.ndarray] | None = None,
    time_base: Fraction = MILLISECONDS,
    container: str | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Write a clip; `times` (seconds of each picture) makes its frame rate variable.

    `pictures` replaces the textured ones, and the `container` that of the path's ending.
    """
    if pictures is None:
        count = round(seconds * fps) if times is None else len(times)
        pictures = (picture(index, *size) for index in range(count))
    with av.open(str(path), "w", format=container, options=container_options or {}) as file:
        stream = file.add_stream(codec, rate=fps, options=options or {})
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        stream.time_base = stream.codec_context.time_base = time_base
        sound = file.add_stream(audio, rate=16_000, layout="mono") if audio else None
        for index, rgb_HWC in enumerate(pictures):
            time = index / fps if times is None else times[index]
            frame = av.VideoFrame.from_ndarray(rgb_HWC, format="rgb24").reformat(format=pixels)
            frame.pts, frame.time_base = round((start + time) / time_base), time_base
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
        if sound is not None:
            for block in _blocks(beep(seconds) if tone is None else tone):
                file.mux(sound.encode(block))
            file.mux(sound.encode())
    return path


def grey_clip(path: Path, *, shade: int, frames: int = 4) -> Path:
    """A few grey frames at two per second; the container is the path's ending, else mp4."""
    greys = (np.full((32, 32, 3), (shade + 3 * k) % 256, np.uint8) for k in range(frames))
    kind = None if path.suffix in (".mp4", ".mkv") else "mp4"
    return write_clip(
        path, pictures=greys, fps=2, size=(32, 32), codec="mpeg4",
        time_base=Fraction(1, 2), container=kind,
    )  # fmt: skip


def colour_clip(path: Path, *, seconds: int, rate: int = 2) -> Path:
    """Colours that change every few seconds."""
    shades = np.random.default_rng(3).integers(0, 255, (seconds // 3 + 1, 3), dtype=np.uint8)
    colours = (np.tile(shades[k // rate // 3], (48, 64, 1)) for k in range(seconds * rate))
    return write_clip(path, pictures=colours, fps=rate, codec="mpeg4", time_base=Fraction(1, rate))


def write_sound(
    path: Path, *, seconds: float = 1.0, codec: str = "flac", rate: int = 16_000
) -> Path:
    """Write a file that has sound and no picture."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        for block in _blocks(beep(seconds, rate), rate):
            container.mux(stream.encode(block))
        container.mux(stream.encode())
    return path


def beep(seconds: float, rate: int = 16_000) -> np.ndarray:
    return 0.2 * np.sin(2 * math.pi * 440 * np.arange(round(seconds * rate)) / rate)


def _blocks(samples: np.ndarray, rate: int = 16_000) -> Iterator[av.AudioFrame]:
    whole = (samples * 32767).astype(np.int16)
    for first in range(0, len(whole), 1024):
        block = av.AudioFrame.from_ndarray(whole[None, first : first + 1024], "s16", "mono")
        block.sample_rate, block.pts, block.time_base = rate, first, Fraction(1, rate)
        yield block


def turn(path: Path, degrees: int, *, mirrored: bool = False) -> Path:
    """Write a rotation into the track header of an mp4, as a phone does."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44
    a, b = round(math.cos(math.radians(degrees))), round(math.sin(math.radians(degrees)))
    rows = [-a if mirrored else a, -b if mirrored else b, 0, -b, a, 0, 0, 0]
    matrix = b"".join((value * 65536 % 2**32).to_bytes(4, "big") for value in rows)
    data[at : at + 36] = matrix + (1 << 30).to_bytes(4, "big")
    path.write_bytes(data)
    return path


def command_line_frames(path: Path, size: int, *, fps: float = 1) -> np.ndarray:
    """What ffmpeg's own command line makes of a file with the published filters, [n, s, s, 3]."""
    import subprocess

    longer = f"'if(gt(iw,ih),trunc(iw*{size}/ih),{size})'"
    taller = f"'if(gt(iw,ih),{size},trunc(ih*{size}/iw))'"
    filters = (
        f"fps={fps},scale={longer}:{taller},"
        f"crop={size}:{size}:trunc((iw-{size})/2):trunc((ih-{size})/2)"
    )
    command = ["ffmpeg", "-v", "quiet", "-i", str(path), "-an", "-sn", "-vf", filters]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, dtype=np.uint8).reshape(-1, size, size, 3)
