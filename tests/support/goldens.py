"""What the embedded model says of some videos, kept in tests/data/golden/embedded.json.

    python tests/support/goldens.py --write [NAME ...]

writes it again, for a change that is meant to change answers. Every case goes through `Captioner`
as a user's file does. Kept are our own captions and the names of videos, never their speech.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from starc.inference.pipeline import Captioner, Options
from starc.media.encoders import load_image_encoder
from starc.types import Captioned, Sentence
from starc_eval.annotations import read_references
from support.needs import SHARED
from support.scripts import script

SAMPLE = Path(__file__).parents[2] / "examples" / "scrambled_eggs.mp4"
GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "embedded.json"
SPEECH = "data/asr/timechat_yc2_val_gt_with_whisper_asr.json"
LENGTHS = "data/yc2/vid2seq_val.json"
VIDEOS = 20
LONG = 2400.0
"""Seconds of the long video."""
RATE = 1000
"""Of sound that nobody hears."""

PASSING = ("starc", "encoder precision")
"""Parts of the provenance that depend on the version and on the processor."""

Kept = dict[str, Any]


def captioner(folder: Path) -> Captioner:
    """The embedded model; also what it is not sure of is shown."""
    return Captioner(options=Options(cache=folder / "cache", force=True))


def in_float32(model: Captioner) -> Captioner:
    """The same with an image encoder that computes alike on all processors."""
    encoder = load_image_encoder(model.encoder_name, device="cpu", precision="float32")
    return Captioner(options=model.options, encoder=encoder)


def sample(model: Captioner, folder: Path) -> list[Captioned]:
    """The sample video, its speech recognised."""
    return [model.caption(SAMPLE)]


def silent(model: Captioner, folder: Path) -> list[Captioned]:
    """The sample without its sound: captioned from pictures."""
    return [in_float32(model).caption(without_sound(SAMPLE, folder / "silent.mp4"))]


def spoken(model: Captioner, folder: Path) -> list[Captioned]:
    """Validation videos of YouCook2 of which only the speech is known: the shortest of them."""
    youcook2 = script("youcook2_data")
    heard = youcook2.read_whisper(SHARED / SPEECH)
    seconds = {
        video: one.duration or 0.0
        for video, one in read_references(SHARED / LENGTHS).items()
        if len(heard.get(video, ())) > 3
    }
    chosen = sorted(seconds, key=lambda video: (seconds[video], video))[:VIDEOS]
    return [
        heard_only(model, folder / f"{video}.wav", seconds[video],
                   youcook2._stretched(heard[video], seconds[video]))
        for video in chosen
    ]  # fmt: skip


def long(model: Captioner, folder: Path) -> list[Captioned]:
    """What is said in the sample, over and over for 40 minutes."""
    said, lasts = model.read_speech(SAMPLE).sentences, 110.0
    sentences = [
        Sentence(one.start + n * lasts, one.end + n * lasts, one.text)
        for n in range(int(LONG // lasts))
        for one in said
    ]
    return [heard_only(model, folder / "long.wav", LONG, sentences)]


def long_silent(model: Captioner, folder: Path) -> list[Captioned]:
    """The pictures of the sample four times: captioned in overlapping windows."""
    video = without_sound(SAMPLE, folder / "long-silent.mp4", times=4)
    return [in_float32(model).caption(video)]


CASES: dict[str, Callable[[Captioner, Path], list[Captioned]]] = {
    "sample": sample,
    "silent": silent,
    "spoken": spoken,
    "long": long,
    "long-silent": long_silent,
}


def heard_only(
    model: Captioner, path: Path, seconds: float, sentences: Sequence[Sentence]
) -> Captioned:
    """A sound file of this length, captioned by the speech that is handed in."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(RATE)
        file.writeframes(bytes([128]) * round(seconds * RATE))
    columns = ("start", "end", "text")
    said = {name: [getattr(one, name) for one in sentences] for name in columns}
    speech = path.parent / "speech.json"
    speech.write_text(json.dumps({path.stem: said}), "utf-8")
    return model.caption(path, speech=speech)


def without_sound(video: Path, copy: Path, times: int = 1) -> Path:
    """The pictures of a video, so many times in a row, not encoded again."""
    with av.open(str(video)) as source, av.open(str(copy), "w") as target:
        pictures = source.streams.video[0]
        stream = target.add_stream_from_template(pictures)
        for n in range(times):
            source.seek(0)
            for packet in source.demux(pictures):
                if packet.dts is not None:
                    moved = n * (pictures.duration or 0)
                    packet.pts, packet.dts = packet.pts + moved, packet.dts + moved
                    packet.stream = stream
                    target.mux(packet)
    return copy


def kept(captioned: Captioned) -> Kept:
    """What is compared: events and their sources, and what no machine decides of the rest."""
    provenance = {name: text for name, text in captioned.provenance.items() if name not in PASSING}
    if "forced" in provenance:
        provenance["forced"] = "yes"  # the sentence is that of `reason`, tested where it is made
    return {
        "video": captioned.video,
        "reason": captioned.reason,
        "events": [
            {
                "start": event.start,
                "end": event.end,
                "caption": event.caption,
                "confidence": event.confidence,
                "times_from": " ".join(event.times_from),
                "words_from": " ".join(event.words_from),
            }
            for event in captioned.events
        ],
        "provenance": provenance,
    }


def read() -> dict[str, list[Kept]]:
    """The goldens by case."""
    found: dict[str, list[Kept]] = json.loads(GOLDEN.read_text("utf-8"))
    return found


def write(known: dict[str, list[Kept]]) -> None:
    """Keep goldens, in the order of the cases."""
    text = json.dumps({name: known[name] for name in CASES if name in known}, indent=1)
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(text + "\n", "utf-8")


def main() -> None:
    """Write the goldens again."""
    arguments = argparse.ArgumentParser(description="Write the goldens of the embedded model again")
    arguments.add_argument("--write", action="store_true", required=True)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; all")
    options = arguments.parse_args()
    known = read() if GOLDEN.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        model = captioner(Path(folder))
        for name in options.names or CASES:
            known[name] = [kept(one) for one in CASES[name](model, Path(folder))]
            print(f"{name}: {sum(len(one['events']) for one in known[name])} events", flush=True)
    write(known)


if __name__ == "__main__":
    main()
