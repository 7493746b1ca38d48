"""Make scrambled_eggs.mp4, a minute of narrated cooking, and its reference annotation.

    apt-get install espeak-ng
    python examples/make_scrambled_eggs.py

Pictures are drawn by scenes.py, the words are spoken by espeak-ng. A scene lasts as long as its
words and a little more, so the times of the annotation are those of the finished video.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
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
RATE = 22_050
"""Of espeak-ng's sound."""
VOICE = ("-v", "en-gb+f3", "-s", "155", "-g", "1")
BEFORE, AFTER = 0.8, 1.2
"""Seconds of a scene before and after its words."""


@dataclass(frozen=True)
class Scene:
    """A picture that moves, the words spoken over it and, if it is a step, its caption."""

    paint: Callable[[float], Canvas]
    words: str
    caption: str | None = None
    longer: float = 0.0
    """Seconds that the action needs beyond its words."""


STORY = (
    Scene(
        scenes.title,
        "Hello, and welcome to my kitchen. "
        "Today I am making scrambled eggs, the breakfast I like best.",
    ),
    Scene(
        scenes.crack,
        "First, I crack three eggs into a bowl.",
        "crack three eggs into a bowl",
        2.0,
    ),
    Scene(
        scenes.whisk,
        "Next, add some milk, salt and pepper, and whisk the eggs.",
        "add milk salt and pepper and whisk the eggs",
        2.0,
    ),
    Scene(scenes.cat, "It is a sunny morning, and my cat is sleeping in the window."),
    Scene(
        scenes.melt,
        "Now melt some butter in a pan, over low heat.",
        "melt some butter in a pan over low heat",
        1.0,
    ),
    Scene(scenes.pour, "Then pour the eggs into the pan.", "pour the eggs into the pan", 1.0),
    Scene(
        scenes.stir,
        "Keep stirring the eggs slowly, until they are soft and creamy.",
        "stir the eggs slowly until they are softly set",
        2.0,
    ),
    Scene(
        scenes.grandmother,
        "That smells wonderful. My grandmother made them like this every Sunday.",
    ),
    Scene(
        scenes.plate,
        "Now put the eggs on a plate, and garnish with chives.",
        "place the eggs on a plate and garnish with chives",
        2.0,
    ),
    Scene(scenes.goodbye, "It is time for breakfast. Thank you for watching, and goodbye."),
)


def spoken(words: str) -> NDArray[np.int16]:
    """The words as samples, without the silence around them."""
    done = subprocess.run(["espeak-ng", *VOICE, "--stdout", words], capture_output=True, check=True)
    # To a pipe, espeak-ng writes a header that states no true length.
    with wave.open(io.BytesIO(done.stdout)) as file:
        if file.getframerate() != RATE:
            raise SystemExit(f"espeak-ng speaks at {file.getframerate()} Hz, not {RATE}; set RATE")
    samples = np.frombuffer(done.stdout[44:], np.int16)
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > 300)
    return samples[loud[0] : loud[-1] + 1]


def timed() -> Iterator[tuple[Scene, int, NDArray[np.int16]]]:
    """Each scene, how many pictures it has, and its sound from first picture to last."""
    for scene in STORY:
        voice = spoken(scene.words)
        seconds = BEFORE + len(voice) / RATE + scene.longer + AFTER
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
    if shutil.which("espeak-ng") is None:
        raise SystemExit("espeak-ng is not installed; apt-get install espeak-ng")
    plan = list(timed())
    write_video(asked.out / f"{NAME}.mp4", plan)
    text = json.dumps(annotation(plan)) + "\n"
    (asked.out / f"{NAME}.json").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
