"""The scenes of scrambled_eggs.mp4: each paints its moment u, from 0 to 1, onto a canvas."""

from __future__ import annotations

import functools
import math

import numpy as np
from drawing import WIDTH, Canvas, Colour
from numpy.typing import NDArray

CREAM, WHITE, SHELL = (255, 247, 230), (255, 255, 255), (238, 203, 160)
WALL, TILE, WOOD, DARK_WOOD = (190, 226, 222), (170, 212, 208), (205, 150, 96), (170, 117, 70)
YOLK, EGG, DARK_EGG, BUTTER = (255, 176, 32), (255, 214, 84), (244, 190, 58), (255, 226, 120)
IRON, DARK_IRON, STEEL, GLASS = (66, 70, 82), (44, 47, 57), (176, 184, 194), (225, 242, 248)
RED, GREEN, BROWN, SKIN = (214, 84, 74), (84, 158, 72), (96, 64, 46), (247, 208, 176)
SKY, SUN, GREY = (150, 208, 246), (255, 214, 74), (150, 150, 160)


def eased(u: float, start: float = 0.0, end: float = 1.0) -> float:
    """0 before start, 1 after end, smooth between."""
    part = min(1.0, max(0.0, (u - start) / (end - start)))
    return part * part * (3 - 2 * part)


@functools.cache
def _kitchen() -> NDArray[np.float32]:
    canvas = Canvas()
    canvas.shade(WALL, (214, 238, 232))
    for x in range(0, WIDTH, 64):
        canvas.line(x, 0, x, 250, 1.5, TILE)
    for y in range(26, 250, 56):
        canvas.line(0, y, WIDTH, y, 1.5, TILE)
    canvas.box(30, 84, 190, 94, DARK_WOOD, radius=3)
    for x, colour in ((58, RED), (98, GREEN), (140, (92, 130, 190))):
        canvas.box(x - 15, 46, x + 15, 84, colour, radius=6)
        canvas.box(x - 13, 38, x + 13, 48, CREAM, radius=4)
    canvas.shade(WOOD, DARK_WOOD, 250)
    for y in (272, 300, 332):
        canvas.line(0, y, WIDTH, y + 3, 1.5, DARK_WOOD, alpha=0.6)
    canvas.box(0, 244, WIDTH, 254, (226, 176, 120))
    return canvas.pixels


@functools.cache
def _stove() -> NDArray[np.float32]:
    canvas = Canvas(_kitchen())
    canvas.shade((232, 234, 238), (198, 202, 210), 232)
    canvas.box(0, 226, WIDTH, 236, WHITE)
    for x in (90, 170, 470, 550):
        canvas.ellipse(x, 342, 14, 14, IRON)
        canvas.line(x, 342, x + 6, 332, 3, WHITE)
    return canvas.pixels


def steam(canvas: Canvas, x: float, y: float, u: float, *, alpha: float = 0.5) -> None:
    """Three wavering wisps that rise and fade."""
    for n in range(3):
        for k in range(7):
            rise = (k / 7 + 3 * u + n / 3) % 1
            sway = 9 * math.sin(7 * rise + 2 * n)
            size = 5 + 9 * rise
            at = x + 34 * (n - 1) + sway
            canvas.ellipse(at, y - 90 * rise, size, size, WHITE, alpha=alpha * (1 - rise) / 2)


def whole_egg(canvas: Canvas, x: float, y: float, *, size: float = 24, turn: float = 0) -> None:
    """An egg in its shell."""
    canvas.ellipse(x, y, size, size * 1.28, SHELL, turn=turn)
    canvas.ellipse(x - size * 0.3, y - size * 0.4, size * 0.28, size * 0.4, CREAM, alpha=0.7)


def glass_bowl(canvas: Canvas, x: float, y: float, fill: float, colour: Colour = EGG) -> None:
    """A see-through bowl whose rim is at y, filled up to a part of its depth."""
    canvas.ellipse(x, y + 100, 118, 12, BROWN, alpha=0.25)
    canvas.ellipse(x, y, 130, 104, GLASS, alpha=0.75, below=y)
    level = y + 96 * (1 - fill)
    canvas.ellipse(x, y, 122, 97, colour, below=level)
    if fill > 0:
        half = 122 * math.sqrt(max(0.0, 1 - ((level - y) / 97) ** 2))
        canvas.ellipse(x, level, half, 9, (255, 228, 128))
    canvas.box(x - 134, y - 5, x + 134, y + 3, WHITE, radius=4, alpha=0.9)
    canvas.line(x - 96, y + 30, x - 70, y + 66, 5, WHITE, alpha=0.6)


def pan(canvas: Canvas, *, x: float = 290, y: float = 232) -> None:
    """A frying pan seen from above and in front."""
    canvas.line(x + 170, y - 4, x + 330, y - 34, 26, DARK_IRON)
    canvas.line(x + 210, y - 14, x + 322, y - 34, 16, RED)
    canvas.ellipse(x, y + 16, 206, 84, DARK_IRON)
    canvas.ellipse(x, y, 206, 82, IRON)
    canvas.ellipse(x, y + 4, 186, 70, (86, 91, 105))


def flames(canvas: Canvas, u: float) -> None:
    """Gas under the pan."""
    for n in range(15):
        x = 130 + n * 23
        tall = 16 + 5 * math.sin(60 * u + 2.1 * n)
        canvas.ellipse(x, 318 - tall / 3, 8, tall, (72, 132, 232), alpha=0.85)
        canvas.ellipse(x, 322 - tall / 4, 4, tall / 2, (190, 226, 255), alpha=0.9)


def title(u: float) -> Canvas:
    """The kitchen, a board with the name of the dish, eggs that nod."""
    canvas = Canvas(_kitchen())
    grow = eased(u, 0, 0.12)
    canvas.box(320 - 250 * grow, 62, 320 + 250 * grow, 186, CREAM, radius=18)
    canvas.box(320 - 240 * grow, 72, 320 + 240 * grow, 176, RED, radius=14)
    if grow == 1:
        canvas.letters(320, 102, "SCRAMBLED", 34, WHITE)
        canvas.letters(320, 148, "EGGS", 34, BUTTER)
    canvas.ellipse(320, 306, 150, 16, BROWN, alpha=0.3)
    for n in range(5):
        nod = 0.16 * math.sin(14 * u + n)
        lift = 7 * abs(math.sin(10 * u + 0.9 * n))
        whole_egg(canvas, 212 + 54 * n, 262 - lift, size=25, turn=nod)
    canvas.ellipse(320, 268, 158, 44, DARK_WOOD, below=268)
    for n in range(12):
        canvas.line(182 + 25 * n, 270, 196 + 22 * n, 306, 3, WOOD)
    canvas.box(158, 262, 482, 274, WOOD, radius=6)
    return canvas


def crack(u: float) -> Canvas:
    """Three eggs, one after the other, are cracked on the rim and fall into the bowl."""
    canvas = Canvas(_kitchen())
    for n in range(3):
        if u < n / 3 + 0.02:
            whole_egg(canvas, 80 + 46 * n, 288, size=21)
    now, part = min(2, int(3 * u)), (3 * u) % 1 if u < 1 else 1.0
    glass_bowl(canvas, 390, 196, 0.2 + 0.07 * (now + (part > 0.8)), (250, 244, 222))
    for n in range(now + (part > 0.8)):
        canvas.ellipse(336 + 52 * n, 270 - 7 * (n == 1), 26, 16, YOLK)
        canvas.ellipse(328 + 52 * n, 264 - 7 * (n == 1), 7, 4, WHITE, alpha=0.7)
    if part < 0.45:
        come = eased(part, 0, 0.3)
        tap = 12 * math.sin(60 * part) if part > 0.3 else 0
        whole_egg(canvas, 126 + 262 * come, 288 - 160 * come + tap, turn=0.5)
    else:
        open_ = 34 * eased(part, 0.45, 0.65)
        for side in (-1, 1):
            canvas.ellipse(390 + side * open_, 118, 25, 30, SHELL, turn=side * 0.9, above=124)
        fall = eased(part, 0.5, 0.8)
        if 0 < fall < 1:
            canvas.ellipse(390, 128 + 130 * fall, 17, 22, CREAM, alpha=0.9)
            canvas.ellipse(390, 132 + 130 * fall, 12, 13, YOLK)
    return canvas


def whisk(u: float) -> Canvas:
    """Milk, salt and pepper go in; then the whisk turns."""
    canvas = Canvas(_kitchen())
    milk, salt = eased(u, 0, 0.06) - eased(u, 0.2, 0.27), eased(u, 0.25, 0.3) - eased(u, 0.44, 0.5)
    mixed = eased(u, 0.45, 0.7)
    colour = (255, int(196 + 20 * mixed), int(60 + 38 * mixed))
    if milk > 0.9:
        canvas.line(268, 132, 300, 270, 9, WHITE)
    glass_bowl(canvas, 320, 196, 0.42 + 0.12 * eased(u, 0.05, 0.25), colour)
    if mixed < 1:
        for n in range(3):
            canvas.ellipse(268 + 52 * n, 262, 26, 15, YOLK, alpha=1 - mixed)
    if milk > 0:
        x = 150 + 70 * milk
        canvas.box(x - 34, 74, x + 34, 158, WHITE, radius=10, turn=0.9 * milk)
        canvas.box(x - 26, 100, x + 26, 136, (92, 150, 214), radius=6, turn=0.9 * milk)
    if salt > 0:
        for side, dust in ((-1, WHITE), (1, BROWN)):
            x, y = 320 + side * (250 - 170 * salt), 92 + 6 * math.sin(90 * u)
            canvas.box(x - 15, y - 30, x + 15, y + 22, dust, radius=8, turn=side * -2.6)
            canvas.box(x - 13, y + 12, x + 13, y + 26, STEEL, radius=5)
            for n in range(8):
                drop = (n / 8 + 6 * u) % 1
                canvas.ellipse(x - side * 9 + 4 * (n % 5 - 2), y + 32 + 90 * drop, 2.2, 2.2, dust)
    if u > 0.46:
        angle = 2 * math.pi * 9 * u
        x, y = 320 + 56 * math.cos(angle), 232 + 10 * math.sin(angle)
        top = (x + 74, 66 - 84 * (1 - eased(u, 0.46, 0.54)))
        for n in range(-2, 3):
            canvas.path([(x + 14, y - 74), (x + 10 * n, y - 22), (x - 6, y + 14)], 3, STEEL)
        canvas.line(x + 14, y - 74, top[0], top[1], 11, RED)
    return canvas


def cat(u: float) -> Canvas:
    """A sunny window and the cat that sleeps in it."""
    canvas = Canvas(_kitchen())
    canvas.box(136, 20, 504, 258, WHITE, radius=8)
    canvas.box(150, 34, 490, 244, SKY)
    canvas.ellipse(420, 84, 34 + 2 * math.sin(9 * u), 34 + 2 * math.sin(9 * u), SUN)
    for n in range(3):
        x = 170 + (n * 120 + 90 * u) % 300
        canvas.ellipse(x + 20, 78 + 24 * (n % 2), 32, 12, WHITE, alpha=0.9)
        canvas.ellipse(x + 2, 72 + 24 * (n % 2), 18, 13, WHITE, alpha=0.9)
    canvas.ellipse(240, 254, 90, 60, (126, 190, 110), above=244)
    canvas.ellipse(400, 262, 90, 54, GREEN, above=244)
    canvas.box(316, 34, 324, 244, WHITE)
    canvas.box(120, 240, 520, 258, CREAM, radius=5)
    for x in (136, 504):
        canvas.ellipse(x, 120, 40, 150, (240, 150, 130), above=250)
    breath = 3 * math.sin(11 * u)
    canvas.ellipse(330, 214 - breath / 2, 86, 34 + breath, GREY)
    canvas.path([(408, 226), (436, 238), (420, 250), (380, 246)], 15, GREY)
    for side in (-1, 1):
        canvas.box(258 + 20 * side - 8, 176, 258 + 20 * side + 8, 204, GREY, radius=3, turn=0.7)
    canvas.ellipse(258, 212, 38, 31, (166, 166, 176))
    for side in (-1, 1):
        canvas.path(
            [(258 + 9 * side, 210), (258 + 16 * side, 214), (258 + 23 * side, 209)], 2.5, IRON
        )
    canvas.ellipse(258, 221, 5, 3.5, (240, 150, 150))
    for n in range(3):
        rise = (u * 2 + n / 3) % 1
        x, y, z = 250 - 50 * rise, 170 - 80 * rise, 5 + 6 * rise
        canvas.path([(x, y), (x + z, y), (x, y + z), (x + z, y + z)], 2.5, WHITE)
    return canvas


def melt(u: float) -> Canvas:
    """Butter melts in the pan over a low flame."""
    canvas = Canvas(_stove())
    flames(canvas, u)
    pan(canvas)
    gone = eased(u, 0.2, 1)
    canvas.ellipse(285, 240, 30 + 122 * gone, 12 + 44 * gone, BUTTER, alpha=0.9)
    for n in range(12):
        pop = (n * 0.37 + 5 * u) % 1
        x, y = 285 + 105 * gone * math.cos(2.4 * n), 240 + 36 * gone * math.sin(2.4 * n)
        canvas.ellipse(x, y, 6 * pop, 4 * pop, CREAM, alpha=(1 - pop) * gone)
    size, drop = 1 - 0.82 * gone, 150 * (1 - eased(u, 0, 0.12))
    slide = 16 * math.sin(6 * u)
    x, y = 285 + slide, 230 - drop
    canvas.box(x - 52 * size, y - 8 * size, x + 52 * size, y + 20 * size, (240, 200, 80), radius=4)
    canvas.box(x - 52 * size, y - 26 * size, x + 52 * size, y + 2 * size, (255, 236, 150), radius=4)
    steam(canvas, 285, 190, u, alpha=0.25)
    return canvas


def pour(u: float) -> Canvas:
    """The bowl tips, and the eggs run into the pan."""
    canvas = Canvas(_stove())
    flames(canvas, u)
    pan(canvas)
    canvas.ellipse(285, 240, 152, 56, BUTTER, alpha=0.9)
    full = eased(u, 0.15, 0.95)
    canvas.ellipse(285, 238, 172 * full, 63 * full, EGG)
    canvas.ellipse(270, 228, 110 * full, 32 * full, (255, 228, 128), alpha=0.8)
    tip = eased(u, 0, 0.18)
    if 0.15 < u < 0.93:
        for n in range(10):
            y = 92 + 15 * n
            canvas.ellipse(292 - 1.5 * n + 2 * math.sin(40 * u + n), y, 10, 12, EGG)
        canvas.ellipse(280, 238, 26 + 4 * math.sin(50 * u), 8, WHITE, alpha=0.35)
    x, y = 380, 70
    canvas.ellipse(x, y, 96, 76, GLASS, turn=-0.75 * tip)
    canvas.ellipse(x - 12 * tip, y + 10, 80, 56 - 24 * full, EGG, turn=-0.75 * tip)
    canvas.line(x - 74, y + 40 * tip - 40, x + 40, y - 66 * tip - 26, 8, WHITE)
    canvas.ellipse(x + 84, y - 20, 30, 24, SKIN)
    canvas.line(x + 100, y - 24, WIDTH + 10, y - 60, 40, (92, 130, 190))
    return canvas


def curds(canvas: Canvas, x: float, y: float, amount: float, *, wide: float = 1.0) -> None:
    """A heap of soft pieces of egg."""
    for n in range(26):
        angle, far = 2.399963 * n, math.sqrt(n / 26)
        size = (15 + 7 * math.sin(5.1 * n)) * amount
        cx, cy = x + 126 * wide * far * math.cos(angle), y + 44 * wide * far * math.sin(angle)
        canvas.ellipse(cx, cy + 4, size * 1.35, size, DARK_EGG)
        canvas.ellipse(cx - 2, cy, size * 1.25, size * 0.86, EGG)
        canvas.ellipse(cx - 5, cy - 4, size * 0.5, size * 0.3, (255, 238, 170), alpha=0.8)


def stir(u: float) -> Canvas:
    """A spatula goes to and fro while the eggs set."""
    canvas = Canvas(_stove())
    flames(canvas, u)
    pan(canvas)
    canvas.ellipse(285, 238, 172, 63, EGG, alpha=1 - 0.75 * eased(u, 0.2, 0.9))
    swing = math.sin(2 * math.pi * 5 * u)
    curds(canvas, 285 + 14 * swing, 236, eased(u, -0.15, 0.8))
    x, y = 285 + 110 * swing, 238 + 22 * math.cos(2 * math.pi * 5 * u)
    canvas.line(x + 12, y - 36, x + 90, y - 190, 14, WOOD)
    canvas.box(x - 26, y - 44, x + 28, y + 14, DARK_WOOD, radius=9, turn=0.45)
    steam(canvas, 270, 180, u)
    return canvas


def grandmother(u: float) -> Canvas:
    """Her picture on the wall, above the steam."""
    canvas = Canvas(_kitchen())
    canvas.box(226, 16, 414, 222, DARK_WOOD, radius=8)
    canvas.box(240, 30, 400, 208, (250, 226, 200), radius=4)
    nod = 3 * math.sin(12 * u)
    canvas.ellipse(320, 220, 66, 50, (150, 96, 160), above=208)
    canvas.ellipse(320, 70 + nod / 2, 26, 22, (214, 214, 222))
    canvas.ellipse(320, 118 + nod / 2, 52, 52, (214, 214, 222))
    canvas.ellipse(320, 126 + nod, 42, 46, SKIN)
    for side in (-1, 1):
        canvas.ellipse(320 + 17 * side, 122 + nod, 13, 12, IRON)
        canvas.ellipse(320 + 17 * side, 122 + nod, 10, 9, WHITE)
        blink = 0.6 if (3 * u) % 1 > 0.92 else 4
        canvas.ellipse(320 + 17 * side, 123 + nod, 4, blink, IRON)
        canvas.ellipse(320 + 26 * side, 140 + nod, 8, 5, (240, 150, 140), alpha=0.6)
    smile = [(320 + 4 * n, 150 + nod - 0.35 * n * n) for n in range(-4, 5)]
    canvas.path(smile, 3, RED)
    canvas.ellipse(150, 302, 118, 30, DARK_IRON)
    canvas.ellipse(150, 296, 118, 28, IRON)
    curds(canvas, 150, 292, 0.7, wide=0.62)
    steam(canvas, 150, 270, u)
    canvas.box(470, 214, 540, 300, RED, radius=10)
    canvas.ellipse(505, 214, 35, 8, (120, 44, 40))
    canvas.path([(540, 236), (562, 240), (562, 270), (540, 278)], 8, RED)
    steam(canvas, 505, 205, u, alpha=0.35)
    return canvas


def plate(u: float) -> Canvas:
    """The eggs slide onto a plate, and chives are sprinkled on them."""
    canvas = Canvas(_kitchen())
    _served(canvas, eased(u, 0.08, 0.4))
    leave = eased(u, 0.42, 0.56)
    x = 430 + 380 * leave
    canvas.line(x + 40, 120, x + 200, 60, 20, RED)
    canvas.ellipse(x - 20, 128, 92, 30, IRON, turn=-0.45)
    if u < 0.42:
        curds(canvas, x - 20, 118, 0.75 * (1 - eased(u, 0.08, 0.4)), wide=0.45)
        for n in range(4):
            drop = (n / 4 + 4 * u) % 1
            canvas.ellipse(350 - 20 * drop, 150 + 90 * drop, 15, 11, EGG)
    if u > 0.52:
        come = eased(u, 0.52, 0.6)
        canvas.line(320, 84 * come - 20, 420, -30, 44, (92, 130, 190))
        canvas.ellipse(308, 84 * come, 28, 22, SKIN)
        for n in range(26):
            fall = min(1.0, max(0.0, (u - 0.58 - 0.011 * n) / 0.1))
            if fall > 0:
                far = math.sqrt(n / 26)
                cx, cy = 320 + 80 * far * math.cos(2.4 * n), 246 + 20 * far * math.sin(2.4 * n)
                y = 100 + (cy - 100) * fall
                lean = 5 * math.sin(3.3 * n)
                canvas.line(cx - 5, y - lean / 2, cx + 5, y + lean / 2, 4, GREEN)
    return canvas


def _served(canvas: Canvas, amount: float) -> None:
    canvas.ellipse(320, 284, 186, 50, BROWN, alpha=0.3)
    canvas.ellipse(320, 270, 186, 56, WHITE)
    canvas.ellipse(320, 268, 150, 42, (232, 240, 246))
    if amount > 0:
        curds(canvas, 320, 254, 0.9 * amount, wide=0.78)


def goodbye(u: float) -> Canvas:
    """The dish, a fork, a cup, and a wish."""
    canvas = Canvas(_kitchen())
    canvas.box(208, 40, 432, 116, CREAM, radius=16)
    canvas.box(216, 48, 424, 108, GREEN, radius=12)
    canvas.letters(320, 78 + 3 * math.sin(16 * u), "ENJOY", 36, WHITE)
    _served(canvas, 1)
    for n in range(26):
        far = math.sqrt(n / 26)
        x, y = 320 + 80 * far * math.cos(2.4 * n), 246 + 20 * far * math.sin(2.4 * n)
        canvas.line(x - 5, y - 2, x + 5, y + 2, 4, GREEN)
    canvas.line(90, 236, 90, 330, 8, STEEL)
    for n in range(-1, 2):
        canvas.line(90 + 10 * n, 186, 90 + 10 * n, 226, 5, STEEL)
    canvas.line(80, 226, 100, 226, 8, STEEL)
    canvas.box(524, 226, 594, 306, RED, radius=10)
    canvas.ellipse(559, 226, 35, 8, (120, 44, 40))
    canvas.path([(594, 246), (614, 250), (614, 276), (594, 284)], 8, RED)
    steam(canvas, 559, 214, u, alpha=0.4)
    steam(canvas, 320, 214, u, alpha=0.35)
    return canvas
