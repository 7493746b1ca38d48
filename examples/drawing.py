"""Flat, smooth-edged drawings in numpy: what make_scrambled_eggs.py paints its scenes with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
Floats = NDArray[np.floating]
WIDTH, HEIGHT = 640, 360

LETTERS = {
    # strokes on a grid 4 wide and 6 high, from the top left
    "A": ["06 20 46", "14 34"],
    "B": ["00 06", "00 30 41 42 33 03", "33 44 45 36 06"],
    "C": ["41 30 10 01 05 16 36 45"],
    "D": ["00 06 26 45 41 20 00"],
    "E": ["40 00 06 46", "03 33"],
    "G": ["41 30 10 01 05 16 36 45 43 23"],
    "J": ["40 45 36 16 05"],
    "L": ["00 06 46"],
    "M": ["06 00 23 40 46"],
    "N": ["06 00 46 40"],
    "O": ["10 30 41 45 36 16 05 01 10"],
    "R": ["06 00 30 41 42 33 03", "23 46"],
    "S": ["41 30 10 01 02 13 33 44 45 36 16 05"],
    "Y": ["00 23 40", "23 26"],
}


class Canvas:
    """A picture to paint on, 640 x 360, later shapes over earlier ones."""

    def __init__(self, pixels: NDArray[np.float32] | None = None) -> None:
        blank = np.zeros((HEIGHT, WIDTH, 3), np.float32)
        self.pixels = blank if pixels is None else pixels.copy()

    def picture(self) -> NDArray[np.uint8]:
        """The pixels as bytes [height, width, 3]."""
        picture: NDArray[np.uint8] = np.clip(self.pixels + 0.5, 0, 255).astype(np.uint8)
        return picture

    def shade(self, top: Colour, bottom: Colour, y0: int = 0, y1: int = HEIGHT) -> None:
        """Rows from one colour to another."""
        part = np.linspace(0, 1, y1 - y0, dtype=np.float32)[:, None, None]
        self.pixels[y0:y1] = np.array(top) * (1 - part) + np.array(bottom) * part

    def ellipse(
        self, x: float, y: float, rx: float, ry: float, colour: Colour, *, alpha: float = 1.0,
        turn: float = 0.0, above: float | None = None, below: float | None = None,
    ) -> None:  # fmt: skip
        """A filled ellipse turned by radians; only its part above or below a height if given."""
        if min(rx, ry) <= 0.3:
            return
        xs, ys, where = self._around(x, y, max(rx, ry) + 2)
        c, s = math.cos(turn), math.sin(turn)
        u, v = (xs - x) * c + (ys - y) * s, (ys - y) * c - (xs - x) * s
        near = np.hypot(u / rx, v / ry)
        distance = near * (near - 1) / np.maximum(np.hypot(u / rx**2, v / ry**2), 1e-6)
        if above is not None:
            distance = np.maximum(distance, ys - above)
        if below is not None:
            distance = np.maximum(distance, below - ys)
        self._blend(where, distance, colour, alpha)

    def box(
        self, x0: float, y0: float, x1: float, y1: float, colour: Colour, *, radius: float = 0.0,
        alpha: float = 1.0, turn: float = 0.0,
    ) -> None:  # fmt: skip
        """A rectangle with round corners, turned about its middle."""
        x, y, w, h = (x0 + x1) / 2, (y0 + y1) / 2, abs(x1 - x0) / 2, abs(y1 - y0) / 2
        xs, ys, where = self._around(x, y, math.hypot(w, h) + 2)
        c, s = math.cos(turn), math.sin(turn)
        u = np.abs((xs - x) * c + (ys - y) * s) - w + radius
        v = np.abs((ys - y) * c - (xs - x) * s) - h + radius
        outside = np.hypot(np.maximum(u, 0), np.maximum(v, 0))
        distance = outside + np.minimum(np.maximum(u, v), 0) - radius
        self._blend(where, distance, colour, alpha)

    def line(
        self, x0: float, y0: float, x1: float, y1: float, width: float, colour: Colour, *,
        alpha: float = 1.0,
    ) -> None:  # fmt: skip
        """A stroke with round ends."""
        length = math.hypot(x1 - x0, y1 - y0)
        xs, ys, where = self._around((x0 + x1) / 2, (y0 + y1) / 2, length / 2 + width)
        along = ((xs - x0) * (x1 - x0) + (ys - y0) * (y1 - y0)) / max(length**2, 1e-6)
        along = np.clip(along, 0, 1)
        distance = np.hypot(xs - x0 - along * (x1 - x0), ys - y0 - along * (y1 - y0)) - width / 2
        self._blend(where, distance, colour, alpha)

    def path(self, points: Sequence[tuple[float, float]], width: float, colour: Colour) -> None:
        """Strokes from point to point."""
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            self.line(x0, y0, x1, y1, width, colour)

    def letters(self, x: float, y: float, text: str, size: float, colour: Colour) -> None:
        """A word in capitals, centred on (x, y); `size` is the height of a letter."""
        unit = size / 6
        left = x - (len(text) * 5.6 - 1.6) * unit / 2
        for letter in text:
            for stroke in LETTERS.get(letter, []):
                points = [
                    (left + int(point[0]) * unit, y + (int(point[1]) - 3) * unit)
                    for point in stroke.split()
                ]
                self.path(points, unit * 1.1, colour)
            left += 5.6 * unit

    def _around(
        self, x: float, y: float, reach: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], tuple[slice, slice]]:
        x0, x1 = max(0, math.floor(x - reach)), min(WIDTH, math.ceil(x + reach) + 1)
        y0, y1 = max(0, math.floor(y - reach)), min(HEIGHT, math.ceil(y + reach) + 1)
        x0, y0 = min(x0, WIDTH), min(y0, HEIGHT)
        xs = np.arange(x0, max(x0, x1), dtype=np.float32)[None, :]
        ys = np.arange(y0, max(y0, y1), dtype=np.float32)[:, None]
        return xs, ys, (slice(y0, max(y0, y1)), slice(x0, max(x0, x1)))

    def _blend(
        self, where: tuple[slice, slice], distance: Floats, colour: Colour,
        alpha: float,
    ) -> None:  # fmt: skip
        cover = np.clip(0.5 - distance, 0, 1)[:, :, None] * np.float32(alpha)
        self.pixels[where] += (np.array(colour, np.float32) - self.pixels[where]) * cover
