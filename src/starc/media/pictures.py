"""From a decoded picture to [size, size, 3] RGB: turned upright, scaled, cropped, converted.

All of it is done by FFmpeg's own filters with the defaults of its command line (bicubic scaling,
rotation as the display matrix says), because published features were made with that program and
a resampler of our own would give other bytes.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
from av.filter import Graph
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from starc.media.container import MediaLimits, check_pixels

RANGES = {1: "tv", 2: "pc"}


class Scaler:
    """Turns pictures into square RGB arrays; rebuilds its filters when the pictures change."""

    def __init__(self, path: Path, size: int, limits: MediaLimits) -> None:
        self.path, self.size, self.limits = path, size, limits
        self.kind: tuple[object, ...] = ()
        self.graph = Graph()

    def __call__(self, frame: VideoFrame) -> NDArray[np.uint8]:
        matrix = frame.side_data.get("DISPLAYMATRIX")
        turns = upright(bytes(matrix)) if matrix else []  # type: ignore[call-overload]
        kind = (
            frame.width, frame.height, frame.format.name, frame.colorspace, frame.color_range, turns
        )  # fmt: skip
        if kind != self.kind:
            check_pixels(self.path, frame.width, frame.height, self.limits)
            self.kind, self.graph = kind, self._build(frame, turns)
        frame.pts, frame.time_base = 0, Fraction(1, 1)
        self.graph.vpush(frame)
        rgb_HWC: NDArray[np.uint8] = self.graph.vpull().to_ndarray()  # type: ignore[assignment]
        return rgb_HWC

    def _build(self, frame: VideoFrame, turns: list[tuple[str, str]]) -> Graph:
        width, height = frame.width, frame.height
        if any(name == "transpose" for name, _ in turns):
            width, height = height, width
        short = min(width, height)
        # Truncated, not rounded: the published extractor computes int(width * size / height).
        width, height = width * self.size // short, height * self.size // short
        left, top = (width - self.size) // 2, (height - self.size) // 2
        graph = Graph()
        graph.threads = 1
        nodes = [
            graph.add("buffer", _buffer(frame)),
            *(graph.add(name, arguments) for name, arguments in turns),
            graph.add("scale", f"{width}:{height}:flags=bicubic"),
            graph.add("format", "rgb24"),
            graph.add("crop", f"{self.size}:{self.size}:{left}:{top}"),
            graph.add("buffersink"),
        ]
        graph.link_nodes(*nodes).configure()
        return graph


def _buffer(frame: VideoFrame) -> str:
    text = f"video_size={frame.width}x{frame.height}:pix_fmt={frame.format.name}:time_base=1/1"
    text += f":colorspace={int(frame.colorspace)}"
    if frame.color_range in RANGES:
        text += f":range={RANGES[frame.color_range]}"
    return text


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
