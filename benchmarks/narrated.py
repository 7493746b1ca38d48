"""Three recipes told in plain words: what the embedded model makes of each step.

    python benchmarks/narrated.py [--model FOLDER] [--voice]

The recipes were written for this file and are in no training data. Speech is taken as exact
subtitles (a word takes .4 s), or with --voice spoken by festival and heard by the embedded
recogniser; without pictures. For each step its words, and the captions of all events that overlap
it by two seconds, are printed to be judged by eye, the one that overlaps it most first: a step is
found if one has the right verb on the right thing. Festival's voice is the one of Debian's that the
recogniser hears best: 30 of 534 words are wrong, 38 with flite's (slt) and 47 (rms).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import wave
from pathlib import Path

from measure import row

from starc.inference.pipeline import EMBEDDED
from starc.inference.predict import VideoInputs, predict
from starc.media.speech import transcribe
from starc.model import checkpoint
from starc.types import Event, Sentence

WORD, PAUSE = 0.4, 1.5
"""Seconds of a word, and between sentences."""
FESTIVAL = ("text2wave", "-eval", "(voice_cmu_us_slt_arctic_hts)")
SHARED = 2.0
"""Seconds that an event and a step have in common, at least."""


def recipes() -> dict[str, list[str]]:
    """The lines of each recipe."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    parts = [part.strip().split("\n") for part in text.split("\n# ")[1:]]
    return {name: lines for name, *lines in parts}


def told(lines: list[str]) -> tuple[list[Sentence], list[tuple[float, float, str]], float]:
    """Timed sentences, the steps among them, and how long it takes."""
    at, sentences, steps = 1.0, list[Sentence](), list[tuple[float, float, str]]()
    for line in lines:
        start = at
        for text in line.removeprefix("* ").split(" | "):
            end = at + WORD * len(text.split())
            sentences.append(Sentence(at, end, text))
            at = end + PAUSE
        if line.startswith("*"):
            steps.append((start, at, line.removeprefix("* ").split(" | ")[0]))
    return sentences, steps, at


def spoken(lines: list[str]) -> tuple[list[Sentence], list[tuple[float, float, str]], float]:
    """The same as `told`, as festival speaks it and the embedded recogniser hears it."""
    sounds, steps, at = list[bytes](), list[tuple[float, float, str]](), 0.0
    with tempfile.TemporaryDirectory() as folder:
        sound = Path(folder) / "sound.wav"
        for line in lines:
            start = at
            for text in line.removeprefix("* ").split(" | "):
                subprocess.run([*FESTIVAL, "-o", sound], input=text.encode(), check=True)
                with wave.open(str(sound)) as file:
                    rate, samples = file.getframerate(), file.readframes(file.getnframes())
                sounds += [samples, bytes(2 * round(PAUSE * rate))]
                at += len(samples) / 2 / rate + PAUSE
            if line.startswith("*"):
                steps.append((start, at, line.removeprefix("* ").split(" | ")[0]))
        with wave.open(str(sound), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", "not compressed"))
            file.writeframes(b"".join(sounds))
        heard = transcribe(sound, engine="moonshine", language="en")
    return list(heard.sentences), steps, at


def overlap(event: Event, start: float, end: float) -> float:
    """Seconds."""
    return min(event.end, end) - max(event.start, start)


def main() -> None:
    """Caption and print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--model", type=Path, default=EMBEDDED)
    arguments.add_argument("--quick", action="store_true", help="one recipe")
    arguments.add_argument("--voice", action="store_true", help="spoken and heard")
    options = arguments.parse_args()
    if options.voice and shutil.which("text2wave") is None:
        raise SystemExit("festival is missing; apt-get install festival festvox-us-slt-hts")
    loaded = checkpoint.load(options.model, device="cpu")
    assert loaded.joint is not None
    for name, lines in list(recipes().items())[: 1 if options.quick else None]:
        sentences, steps, duration = (spoken if options.voice else told)(lines)
        times = tuple(float(second) for second in range(int(duration)))
        features_TD = loaded.joint.combine(None, times, sentences)
        video = VideoInputs(name, features_TD, times, len(times), duration, tuple(sentences))
        (prediction,) = predict(loaded, [video])
        print(f"\n{name}: {len(prediction.events)} events for {len(steps)} steps")
        row(["step", "said", "captions"])
        row(["---"] * 3)
        for start, end, said in steps:
            near = [one for one in prediction.events if overlap(one, start, end) >= SHARED]
            near.sort(key=lambda one: -overlap(one, start, end))
            captions = "; ".join(f"{one.caption} ({one.confidence:.0%})" for one in near)
            row([f"{start:.0f}-{end:.0f} s", said, captions or "-"])


if __name__ == "__main__":
    main()
