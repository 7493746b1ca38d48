"""Make scrambled_eggs.mp4, two minutes of narrated cooking, and its reference annotation.

    apt-get install flite
    python examples/make_scrambled_eggs.py

Pictures are drawn by scenes.py, the words are spoken by flite. A scene lasts as long as its
words and a little more, so the times of the annotation are those of the finished video.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import scenes
from drawing import HEIGHT, WIDTH, Canvas
from numpy.typing import NDArray

HERE = Path(__file__).parent
NAME = "scrambled_eggs"
FPS = 15
RATE = 16_000
"""Of flite's sound."""
VOICE = ("-voice", "slt", "--setf", "duration_stretch=1.3")
BEFORE, AFTER = 1.0, 3.0
"""Seconds of a scene before and after its words."""


@dataclass(frozen=True)
class Scene:
    """A picture that moves, the words spoken over it and, if it is a step, its caption."""

    paint: Callable[[float], Canvas]
    words: str
    caption: str | None = None


STORY = (
    Scene(
        scenes.title,
        "Hello, and welcome to my kitchen. "
        "Today I am making scrambled eggs, the breakfast I like best.",
    ),
    Scene(
        scenes.crack,
        "First, crack three eggs into a bowl. "
        "Crack them gently on the edge, so that no shell falls into the bowl.",
        "crack three eggs into a bowl",
    ),
    Scene(
        scenes.whisk,
        "Next, add some milk, salt and pepper to the eggs. "
        "Now whisk the eggs with a fork, until everything is mixed well.",
        "add milk salt and pepper and whisk the eggs",
    ),
    Scene(scenes.cat, "It is a sunny morning, and my cat is sleeping in the window."),
    Scene(
        scenes.melt,
        "Now melt some butter in a pan over low heat. "
        "Let the butter melt slowly. It should not turn brown.",
        "melt some butter in a pan over low heat",
    ),
    Scene(
        scenes.pour,
        "Then pour the eggs into the pan. Pour in all of the eggs, and let them set for a moment.",
        "pour the eggs into the pan",
    ),
    Scene(
        scenes.stir,
        "Now stir the eggs slowly with a spatula. "
        "Keep stirring the eggs, until they are soft and creamy. That takes three minutes.",
        "stir the eggs slowly until they are softly set",
    ),
    Scene(
        scenes.grandmother,
        "That smells wonderful. My grandmother made them like this every Sunday.",
    ),
    Scene(
        scenes.plate,
        "Finally, put the eggs on a plate, and garnish with chives. "
        "Sprinkle the chopped chives over the eggs, and serve them hot.",
        "place the eggs on a plate and garnish with chives",
    ),
    Scene(scenes.goodbye, "It is time for breakfast. Thank you for watching, and goodbye."),
)


def spoken(words: str) -> NDArray[np.int16]:
    """The words as samples, without the silence around them."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as sound:
        subprocess.run(["flite", *VOICE, "-t", words, "-o", sound.name], check=True)
        with wave.open(sound.name) as file:
            if file.getframerate() != RATE:
                raise SystemExit(f"flite speaks at {file.getframerate()} Hz, not {RATE}; set RATE")
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > 300)
    return samples[loud[0] : loud[-1] + 1]


def timed() -> Iterator[tuple[Scene, int, NDArray[np.int16]]]:
    """Each scene, how many pictures it has, and its sound from first picture to last."""
    for scene in STORY:
        voice = spoken(scene.words)
        seconds = BEFORE + len(voice) / RATE + AFTER
        pictures = round(seconds * FPS)
        sound = np.zeros(pictures * RATE // FPS, np.int16)
        start = round(BEFORE * RATE)
        sound[start : start + len(voice)] = voice
        yield scene, pictures, sound


def write_video(path: Path, plan: list[tuple[Scene, int, NDArray[np.int16]]]) -> None:
    """Paint, encode and mux."""
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as container:
        quality = {"crf": "27", "preset": "slow", "tune": "animation", "threads": "1"}
        video = container.add_stream("libx264", rate=FPS, options=quality)
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        audio = container.add_stream("aac", rate=RATE, layout="mono")
        audio.bit_rate = 64_000
        count = 0
        for scene, pictures, _ in plan:
            for n in range(pictures):
                picture = scene.paint(n / max(1, pictures - 1)).picture()
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = count, Fraction(1, FPS)
                container.mux(video.encode(frame))
                count += 1
        container.mux(video.encode())
        sound = av.AudioFrame.from_ndarray(
            np.concatenate([sound for *_, sound in plan])[None], format="s16", layout="mono"
        )
        sound.sample_rate, sound.pts = RATE, 0
        container.mux(audio.encode(sound))
        container.mux(audio.encode())


def annotation(plan: list[tuple[Scene, int, NDArray[np.int16]]]) -> dict[str, object]:
    """The reference: when each step is shown."""
    spans, captions, at = [], [], 0
    for scene, pictures, _ in plan:
        if scene.caption:
            spans.append([round(at / FPS, 2), round((at + pictures) / FPS, 2)])
            captions.append(scene.caption)
        at += pictures
    return {NAME: {"duration": round(at / FPS, 2), "timestamps": spans, "sentences": captions}}


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write into")
    asked = parser.parse_args()
    if shutil.which("flite") is None:
        raise SystemExit("flite is not installed; apt-get install flite")
    plan = list(timed())
    write_video(asked.out / f"{NAME}.mp4", plan)
    text = json.dumps(annotation(plan)) + "\n"
    (asked.out / f"{NAME}.json").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
