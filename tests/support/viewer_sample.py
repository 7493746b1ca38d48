"""A made-up cooking library for the viewer's tests, benchmarks and screenshots.

Clips are drawn with numpy (a pan or a board seen from above) and encoded with PyAV; captions,
speech, saliency and segments are invented here and belong to nobody.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np

from starc.types import Captioned, Event, Retrieved, Segment, Sentence
from support import clips

BOARD, PAN, BOWL, PLATE = range(4)
ALL_INPUTS = ("speech", "pictures", "datastore")


@dataclass(frozen=True)
class Step:
    """A stretch of a recipe: what is seen, what a system says, what the cook says."""

    share: float
    """Of the video."""
    scene: int
    colours: tuple[tuple[int, int, int], ...]
    caption: str
    speech: str
    event: bool = True


CREAM, GREEN, RED, BROWN = (240, 226, 196), (98, 150, 72), (196, 62, 44), (134, 84, 48)
ORANGE, WHITE, YELLOW, PINK = (226, 128, 48), (236, 236, 230), (236, 196, 80), (228, 150, 140)

SOUP = (
    Step(0.07, PLATE, (RED, GREEN), "", "Hello, today we are making a roasted tomato soup.", False),
    Step(0.11, BOARD, (RED, RED, ORANGE), "halve the tomatoes and lay them on a tray",
         "Cut them through the middle and put the cut side up."),
    Step(0.09, BOARD, (CREAM, WHITE), "peel and slice the onion",
         "One big onion, it does not have to be pretty."),
    Step(0.08, BOARD, (WHITE, CREAM), "crush the garlic with the flat of a knife",
         "And four cloves of garlic, just crush them."),
    Step(0.06, PLATE, (GREEN, CREAM), "", "While that heats up, a word about the oven.", False),
    Step(0.12, PAN, (CREAM, YELLOW), "soften the onion in olive oil",
         "Low heat, we want it soft and not brown."),
    Step(0.1, PAN, (RED, CREAM, ORANGE), "add the garlic and the roasted tomatoes to the pot",
         "Now the garlic goes in, and all the tomatoes with their juice."),
    Step(0.13, PAN, (ORANGE, RED), "pour in the stock and let it simmer",
         "Pour in the stock until everything is just covered."),
    Step(0.09, BOWL, (ORANGE, RED), "blend the soup until it is smooth",
         "Careful, it is hot, so hold the lid with a cloth."),
    Step(0.08, BOWL, (ORANGE, GREEN, WHITE), "stir in cream and torn basil leaves",
         "A little cream, and basil right at the end."),
    Step(0.07, PLATE, (ORANGE, GREEN), "", "Thanks for watching, enjoy your soup.", False),
)  # fmt: skip

TITLES = (
    "Roasted tomato soup", "Mushroom risotto", "Lemon garlic chicken", "Handmade tagliatelle",
    "Chickpea curry", "Apple crumble", "Shakshuka for two", "Potato rösti", "Spinach dumplings",
    "Grilled aubergine salad", "Pancakes with berries", "Onion tart",
)  # fmt: skip
VERBS = ("chop", "add", "stir in", "fry", "season", "fold in", "whisk", "roast", "drain", "knead")
THINGS = (
    "the onions", "crushed garlic", "the mushrooms", "a spoon of butter", "the flour and salt",
    "warm stock", "the chickpeas", "grated lemon zest", "the spices", "chopped parsley",
    "the dough", "sliced apples", "the eggs", "grated cheese",
)  # fmt: skip
STORE = (
    "slice the onion thinly", "cook the onions until soft", "chop the tomatoes",
    "add tomatoes and garlic to the pan", "simmer the sauce on low heat",
    "pour stock into the pot", "blend everything until smooth", "season with salt and pepper",
    "crush the garlic", "garnish with basil", "stir cream into the soup", "heat oil in a pan",
)  # fmt: skip


def recipe(seed: int) -> tuple[Step, ...]:
    """The soup, or another dish made up from the seed."""
    if seed == 0:
        return SOUP
    draw = random.Random(seed)
    colours = (CREAM, GREEN, RED, BROWN, ORANGE, WHITE, YELLOW, PINK)
    shares = [draw.uniform(0.6, 1.4) for _ in range(draw.randint(7, 11))]
    steps = []
    for share in shares:
        words = f"{draw.choice(VERBS)} {draw.choice(THINGS)}"
        steps.append(
            Step(
                share / sum(shares),
                draw.choice((BOARD, PAN, PAN, BOWL)),
                tuple(draw.sample(colours, 3)),
                words,
                f"Now we {words}, nice and slow.",
                draw.random() > 0.15,
            )
        )
    return tuple(steps)


def spans(steps: tuple[Step, ...], duration: float) -> list[tuple[float, float]]:
    """Start and end of each step."""
    edges = np.concatenate([[0.0], np.cumsum([step.share for step in steps])])
    edges *= duration / edges[-1]
    return [(float(a), float(b)) for a, b in pairwise(edges)]


def captioned(
    name: str, duration: float, seed: int = 0, *, jitter: float = 0.0, system: str = "starc-demo"
) -> Captioned:
    """What a system might have said of a dish; `jitter` seconds make it a worse system."""
    draw = random.Random(f"{seed}{jitter}")
    steps = recipe(seed)
    events, sentences, segments = [], [], []
    times = np.arange(0.0, duration, 1.0)
    saliency = np.zeros_like(times)
    for place, (step, (start, end)) in enumerate(zip(steps, spans(steps, duration), strict=True)):
        inside = (times >= start) & (times < end)
        swell = np.sin(np.pi * (times[inside] - start) / (end - start)) ** 0.6
        saliency[inside] = (0.78 if step.event else 0.16) * swell + 0.08
        middle = start + (end - start) * 0.1
        said = middle + min(4.0, (end - start) * 0.6)
        sentences.append(Sentence(middle, said, step.speech))
        if end - start > 12:
            sentences.append(Sentence(said + 1, end - 1, "Take your time with this part."))
        if step.event and (jitter == 0 or draw.random() > 0.12):
            start_at = min(max(0.0, start + draw.gauss(0, jitter) + 0.6), duration - 2)
            end_at = min(max(start_at + 1.0, end + draw.gauss(0, jitter) - 0.4), duration)
            text = step.caption if jitter == 0 else _reworded(step.caption, draw)
            confidence = round(draw.uniform(0.55, 0.95), 3)
            event = Event(round(start_at, 2), round(end_at, 2), text, confidence)
            events.append(replace(event, times_from=ALL_INPUTS, words_from=ALL_INPUTS))
        first, stop = math.ceil(start), min(math.ceil(end), len(times))
        for a, b in _pieces(first, stop, draw):
            kept = step.event and b - a >= 3
            segments.append(
                Segment(
                    a, b, (place * 3 + seed) % 8, round(draw.uniform(0.2, 0.95), 3), kept,
                    tuple(_retrieved(draw)) if kept else (),
                )
            )  # fmt: skip
    noise = np.random.default_rng(seed).normal(0, 0.03 + jitter / 40, len(times))
    saliency = np.clip(saliency * (1 if jitter == 0 else 0.8) + noise, 0, 1)
    return Captioned(
        name, duration, tuple(events), tuple(sentences), tuple(float(t) for t in times),
        tuple(round(float(s), 4) for s in saliency), tuple(segments),
        {"model": system, "speech": "made up"},
    )  # fmt: skip


def _pieces(first: int, stop: int, draw: random.Random) -> list[tuple[int, int]]:
    if stop - first < 8 or draw.random() < 0.6:
        return [(first, stop)] if first < stop else []
    cut = draw.randint(first + 2, stop - 2)
    return [(first, cut), (cut, stop)]


def _retrieved(draw: random.Random) -> list[Retrieved]:
    near = sorted((round(draw.uniform(0.18, 0.41), 3) for _ in range(4)), reverse=True)
    return [Retrieved(text, s) for text, s in zip(draw.sample(STORE, 4), near, strict=True)]


def _reworded(caption: str, draw: random.Random) -> str:
    swaps = {"add": "put", "pour": "tip", "halve": "cut", "crush": "chop", "soften": "fry"}
    words = [swaps.get(word, word) for word in caption.split()]
    return " ".join(words[: draw.randint(3, len(words))] if len(words) > 3 else words)


def reference(name: str, duration: float, seed: int = 0) -> dict[str, object]:
    """What an annotator might have written, in ActivityNet's form."""
    draw = random.Random(seed + 100)
    steps = recipe(seed)
    pairs = []
    for step, (a, b) in zip(steps, spans(steps, duration), strict=True):
        off = min(1.2, duration / 150)
        start, end = max(0.0, a + draw.gauss(0, off)), min(duration, b + draw.gauss(0, off))
        if step.event:
            pairs.append(([round(start, 2), round(end, 2)], step.caption))
    return {
        name: {
            "duration": duration,
            "timestamps": [p[0] for p in pairs],
            "sentences": [p[1] for p in pairs],
        }
    }


class Picture:
    """A canvas of floats, two units high, its origin in the middle."""

    def __init__(self, width: int, height: int) -> None:
        self.unit = height / 2
        y, x = np.mgrid[0:height, 0:width].astype(np.float32)
        self.x, self.y = (x - width / 2) / self.unit, (y - height / 2) / self.unit
        self.image = np.zeros((height, width, 3), np.float32)

    def blend(self, alpha: np.ndarray, colour: object, window: object = np.s_[:, :]) -> None:
        part = self.image[window]
        self.image[window] = part + (np.asarray(colour, np.float32) - part) * alpha[..., None]

    def disc(
        self, at: tuple[float, float], r: float, colour: object, *,
        squash: float = 1.0, angle: float = 0.0, alpha: float = 1.0,
    ) -> None:  # fmt: skip
        """An ellipse with a soft edge; only the pixels around it are touched."""
        height, width, _ = self.image.shape
        cx, cy, reach = at[0] * self.unit + width / 2, at[1] * self.unit + height / 2, r * self.unit
        rows = slice(max(0, int(cy - reach - 2)), max(0, int(cy + reach + 3)))
        columns = slice(max(0, int(cx - reach - 2)), max(0, int(cx + reach + 3)))
        x, y = self.x[rows, columns] - at[0], self.y[rows, columns] - at[1]
        u = x * math.cos(angle) + y * math.sin(angle)
        v = y * math.cos(angle) - x * math.sin(angle)
        cover = np.clip((r - np.hypot(u, v / squash)) * self.unit + 0.5, 0, 1)
        self.blend(cover * alpha, colour, (rows, columns))


def draw_frame(step: Step, time: float, *, width: int, height: int, seed: int) -> np.ndarray:
    """A dish from above: discs with soft edges on a counter, slowly turning."""
    picture = Picture(width, height)
    x, y = picture.x, picture.y
    tone = np.random.default_rng(seed).uniform(-14, 14, 3)
    counter = np.array([92, 104, 112]) + tone if step.scene != BOARD else np.array([70, 78, 84])
    light = 1.08 - 0.22 * np.hypot(x, y)
    picture.image = (counter * light[..., None] + np.sin(x * 2.2)[..., None] * 5).astype(np.float32)
    if step.scene == BOARD:
        edge = np.maximum(np.abs(x) - 1.25, np.abs(y) - 0.72)
        picture.blend(np.clip(-edge * picture.unit, 0, 1), (186, 140, 92))
        picture.image += (np.sin(y * 26 + np.sin(x * 3)) * 5 * (edge < 0))[..., None]
    else:
        picture.blend(np.clip((0.86 - np.hypot(x - 0.04, y - 0.07)) * 9, 0, 1) * 0.35, (20, 20, 22))
        rims = {PAN: (52, 54, 58), BOWL: (210, 214, 216), PLATE: (232, 232, 228)}
        fills = {PAN: (34, 35, 38), BOWL: step.colours[0], PLATE: (246, 246, 242)}
        picture.disc((0, 0), 0.86, rims[step.scene])
        picture.disc((0, 0), 0.77, fills[step.scene])
    pieces = np.random.default_rng(seed * 31 + len(step.caption))
    turn = time * (0.0 if step.scene in (BOARD, PLATE) else 0.5)
    for number in range(34):
        radius, angle = 0.6 * pieces.uniform() ** 0.5, pieces.uniform(0, 2 * math.pi) + turn
        size, squash = pieces.uniform(0.06, 0.13), pieces.uniform(0.55, 1.0)
        colour = np.array(step.colours[number % len(step.colours)]) + pieces.uniform(-16, 16)
        stretch = 1.7 if step.scene == BOARD else 1.0
        cx, cy = radius * math.cos(angle) * stretch, radius * math.sin(angle)
        shape = {"squash": squash, "angle": angle}
        picture.disc((cx + 0.012, cy + 0.02), size, (10, 10, 10), alpha=0.3, **shape)
        picture.disc((cx, cy), size, colour, **shape)
        picture.disc((cx - 0.02, cy - 0.02), size * 0.4, colour + 40, alpha=0.35, **shape)
    return np.clip(picture.image, 0, 255).astype(np.uint8)


def write_clip(
    path: Path, duration: float, seed: int = 0, *, fps: int = 2, width: int = 96, height: int = 54
) -> Path:
    """An H.264 clip of a dish."""
    steps = recipe(seed)
    edges = spans(steps, duration)
    times = [number / fps for number in range(round(duration * fps))]

    def step(time: float) -> Step:
        return next(s for s, (_, b) in zip(steps, edges, strict=True) if time < b + 1e-6)

    return clips.write_clip(
        path,
        pictures=(draw_frame(step(t), t, width=width, height=height, seed=seed) for t in times),
        fps=fps,
        size=(width, height),
        time_base=Fraction(1, fps),
        options={"preset": "veryfast", "crf": "23", "g": str(fps * 2)},
        container_options={"movflags": "+faststart"},
    )


def write_record(path: Path, record: Captioned) -> Path:
    """A captioned JSON as `starc caption` leaves it."""
    path.write_text(json.dumps(record.to_json()), encoding="utf-8")
    return path


def make_library(folder: Path, *, duration: float = 24.0, dishes: int = 3, **clip: int) -> Path:
    """A folder of dishes with clip and record; a reference and a second system beside it."""
    library, other = folder / "library", folder / "baseline"
    library.mkdir(parents=True)
    other.mkdir()
    references: dict[str, object] = {}
    for seed, title in enumerate(TITLES[:dishes]):
        length = duration if seed == 0 else duration * (0.7 + 0.13 * (seed % 5))
        name = title.lower().replace(" ", "-").replace("ö", "oe")
        write_clip(library / f"{name}.mp4", length, seed, **clip)
        record = captioned(f"{name}.mp4", length, seed)
        provenance = {**record.provenance, "title": title}
        write_record(library / f"{name}.json", replace(record, provenance=provenance))
        references |= reference(name, length, seed)
        worse = captioned(f"{name}.mp4", length, seed, jitter=max(0.5, length / 40))
        write_record(other / f"{name}.json", worse)
    (folder / "reference.json").write_text(json.dumps(references), encoding="utf-8")
    return library
