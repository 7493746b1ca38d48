"""Kitchens told from other places: what the embedded model would and would not caption unasked.

    python benchmarks/familiarity.py [--quick]

Frames are three of each YouCook2 validation video, and all of clips that show no kitchen. Speech is
that of validation videos, whole or three sentences of it, and, for want of transcripts, sentences
that describe ActivityNet's videos: all without food or tools, those with make-up, long jumps.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from measure import row, shared
from PIL import Image

from starc.inference.models import frame_distance, speech_likeness
from starc.inference.pipeline import Captioner
from starc.types import Frame, Sentence

ELSEWHERE = ("manifesto.mp4", "nasa_13013.mp4", "subsai_test1.webm")
KITCHENS = ("flipping_a_pancake.mkv", "making_cake.mp4", "pllava_cooking.mp4", "stllm_cooking.mp4")
FOOD = "cook|kitchen|bowl|food|pan|kni|drink|pour|sauce|fruit|bread|dish|egg|coffee|plate|salad|cut"
ABOUT = {"make-up": "makeup|make up|mascara|lipstick|eyeliner", "long jumps": "long jump|sand pit"}


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="a tenth of it")
    share = 10 if arguments.parse_args().quick else 1
    data, captioner = shared("data"), Captioner()
    inputs = captioner.loaded.config.inputs
    validation = json.loads((data / "yc2/vid2seq_val.json").read_text("utf-8"))
    row(["", "videos", "familiar", "5 %", "50 %", "95 %"])
    row(["---", *["---:"] * 5])

    seen = _frames_of(data, captioner, {*validation}, share)
    _line("frames: YouCook2", seen, [far <= inputs.familiar_frames for far in seen])
    for name, clips in (("other kitchens", KITCHENS), ("elsewhere", ELSEWHERE)):
        seen = [_frames_of_clip(data / "videos" / clip, captioner) for clip in clips]
        _line(f"frames: {name}", seen, [far <= inputs.familiar_frames for far in seen])
    for name, texts in _speech(data, {*validation}, share):
        heard = [_likeness(captioner, lines) for lines in texts]
        _line(f"speech: {name}", heard, [near >= inputs.familiar_speech for near in heard])


def _line(name: str, values: Sequence[float], familiar: Sequence[bool]) -> None:
    quantiles = [f"{value:.2f}" for value in np.quantile(values, [0.05, 0.5, 0.95])]
    row([name, str(len(values)), f"{np.mean(familiar):.1%}", *quantiles])


def _frames_of(data: Path, captioner: Captioner, wanted: set[str], share: int) -> list[float]:
    frames: dict[str, list[Frame]] = {}
    size = captioner.encoder.size
    with tarfile.open(data / "frames/yc2_600videos_1800frames_224px.tar") as tar:
        for member in tar.getmembers():
            video = Path(member.name).parent.name
            begun = video in frames or len(frames) < 1000 // share
            if member.name.endswith(".jpg") and video in wanted and begun:
                file = tar.extractfile(member)
                assert file is not None
                picture = Image.open(io.BytesIO(file.read())).convert("RGB")
                left, top = (picture.width - size) // 2, (picture.height - size) // 2
                square = picture.crop((left, top, left + size, top + size))
                frames.setdefault(video, []).append(Frame(0.0, np.array(square)))
    return [_distance(captioner, taken) for taken in frames.values()]


def _distance(captioner: Captioner, frames: list[Frame]) -> float:
    assert captioner.loaded.joint is not None
    return frame_distance(captioner.loaded.joint, captioner.encoder.encode(frames)) or 0.0


def _frames_of_clip(clip: Path, captioner: Captioner) -> float:
    assert captioner.loaded.joint is not None
    features_TI = captioner.read_frames(clip).features_TD
    return frame_distance(captioner.loaded.joint, features_TI) or 0.0


def _likeness(captioner: Captioner, lines: Sequence[str]) -> float:
    sentences = [Sentence(float(n), n + 1.0, text) for n, text in enumerate(lines)]
    return speech_likeness(captioner.loaded, sentences) or 0.0


def _speech(data: Path, wanted: set[str], share: int) -> Iterator[tuple[str, list[list[str]]]]:
    said: dict[str, list[str]] = {}
    table = data / "asr/yc2_timed_asr_353videos_Video_data_all.csv"
    with table.open(encoding="utf-8", errors="replace") as file:
        for line in csv.DictReader(file):
            video = line["VideoUrl"].split("v=")[-1]
            if video in wanted:
                said.setdefault(video, []).append(line["Sentence"])
    whole, chance = [*said.values()][::share], random.Random(0)
    yield "YouCook2, whole", whole
    starts = [(lines, chance.randrange(max(1, len(lines) - 3))) for lines in whole for _ in "12345"]
    yield "YouCook2, three sentences", [lines[start : start + 3] for lines, start in starts]
    described = json.loads((data / "anet/val_2.json").read_text("utf-8"))
    texts = [video["sentences"] for video in described.values()]
    others = [lines for lines in texts if not re.search(FOOD, " ".join(lines).lower())]
    yield "ActivityNet, no food", chance.sample(others, 600 // share)
    for name, words in ABOUT.items():
        yield (
            f"ActivityNet, {name}",
            [lines for lines in texts if re.search(words, " ".join(lines).lower())],
        )


if __name__ == "__main__":
    main()
