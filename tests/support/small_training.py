"""A training that takes a second: eight made-up videos, a model of a few thousand weights.

Also a program, for tests that kill it or start it in several processes:
    python tests/small_training.py RUN [--resume] [--steps N] [--set key=value …]
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from starc.config import BeamSearch, Config, InputConfig, T5Config, TemporalConfig
from starc.model.inputs import Collator
from starc.retrieval.datastore import CaptionStore
from starc.training.dataset import Videos
from starc.training.loop import Task, train
from starc.training.recipes import (
    Recipe,
    TrainConfig,
    apply_overrides,
    from_dict,
    to_dict,
)
from starc.training.run import RECIPE, RunFolder
from starc.training.train import Files
from starc.types import Sentence
from starc_eval.annotations import VideoAnnotation

WIDTH = 16
STEPS = ["crack the eggs", "whisk the eggs", "heat the pan", "melt the butter", "serve it hot"]


def tokenizer() -> Tokenizer:
    """Whole words of STEPS, capitals and full stops included."""
    words = {word for step in STEPS for word in (step.capitalize() + " .").split()}
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2}
    vocabulary |= {word: n for n, word in enumerate(sorted(words), start=3)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def videos(count: int = 8) -> Videos:
    """Each step of a video looks like its own direction in feature space."""
    generator = torch.Generator().manual_seed(0)
    look = torch.randn(len(STEPS), WIDTH, generator=generator)
    annotations, features, speech = {}, {}, {}
    for n in range(count):
        chosen = [(n + k) % len(STEPS) for k in range(3)]
        spans = tuple((8.0 * k, 8.0 * k + 6.0) for k in range(3))
        annotations[f"video{n}"] = VideoAnnotation(spans, tuple(STEPS[c] for c in chosen), 24.0)
        rows = torch.stack([look[chosen[t // 8]] for t in range(24)])
        features[f"video{n}"] = rows + 0.1 * torch.randn(24, WIDTH, generator=generator)
        said = [Sentence(8.0 * k, 8.0 * k + 4, STEPS[c]) for k, c in enumerate(chosen)]
        speech[f"video{n}"] = said[: 1 + n % 3]
    return Videos.of(annotations, features, speech)


def recipe(**train_settings: object) -> Recipe:
    """Everything on, at the smallest size."""
    model = Config(
        inputs=InputConfig(frames=24, speech_tokens=40),
        decoding=BeamSearch(beams=1, max_tokens=40),
        temporal=TemporalConfig(features=WIDTH, depth=1, heads=2, feed_forward=32, dropout=0.1),
        t5=T5Config(
            width=WIDTH,
            head_width=8,
            feed_forward=32,
            layers=1,
            decoder_layers=1,
            heads=2,
            text_vocabulary=140,
            bins=25,
        ),
    )
    settings = {"epochs": 2, "batch": 4, "learning_rate": 1e-3, "validate_every": 0}
    return Recipe(
        model=model,
        train=TrainConfig(**{**settings, **train_settings}),  # type: ignore[arg-type]
    )


def task(chosen: Recipe, *, validation: bool = False, count: int = 8) -> Task:
    """The videos, a datastore of their captions, and how they become batches."""
    found = videos(count)
    generator = torch.Generator().manual_seed(1)
    captions = [(video, text) for video in found.ids for text in found.annotations[video].sentences]
    store = CaptionStore(
        [text for _, text in captions],
        torch.randn(len(captions), WIDTH, generator=generator),
        videos=[video for video, _ in captions],
    )
    collate = Collator(
        chosen.model,
        tokenizer(),
        seed=chosen.train.seed,
    )
    return Task(found, videos(3) if validation else None, store, collate)


def files(folder: Path) -> list[str]:
    """Eight videos as files, three more for validation, and `starc train`'s arguments for them."""
    chosen, found = task(recipe()), videos(11)
    folder.mkdir(parents=True, exist_ok=True)
    annotations = {
        video: {
            "duration": found.annotations[video].duration,
            "timestamps": [list(span) for span in found.annotations[video].spans],
            "sentences": list(found.annotations[video].sentences),
        }
        for video in found.ids
    }
    speech = {
        video: {
            "start": [sentence.start for sentence in found.speech[video]],
            "end": [sentence.end for sentence in found.speech[video]],
            "text": [sentence.text for sentence in found.speech[video]],
        }
        for video in found.ids
    }
    held_out = {
        video: annotations.pop(video) for video in sorted({*found.ids} - {*chosen.train.ids})
    }
    (folder / "annotations.json").write_text(json.dumps(annotations))
    (folder / "validation.json").write_text(json.dumps(held_out))
    (folder / "speech.json").write_text(json.dumps(speech))
    torch.save({video: found.features[video] for video in found.ids}, folder / "features.pth")
    tokenizer().save(str(folder / "tokenizer.json"))
    assert chosen.store is not None
    chosen.store.save(folder / "datastore")
    arguments = [
        *("--annotations", folder / "annotations.json", "--features", folder / "features.pth"),
        *("--speech", folder / "speech.json", "--validation", folder / "validation.json"),
        *("--tokenizer", folder / "tokenizer.json"),
    ]
    return [str(argument) for argument in arguments]


def given(folder: Path, **more: Any) -> Files:
    """What `files` wrote, as a training takes it; without validation."""
    chosen = Files(
        folder / "annotations.json",
        folder / "features.pth",
        folder / "speech.json",
        None,
        folder / "datastore",
        folder / "tokenizer.json",
    )
    return replace(chosen, **more)


SMALL = [
    "model.temporal.features=16",
    "model.temporal.depth=1",
    "model.temporal.heads=2",
    "model.temporal.feed_forward=32",
    "model.t5.width=16",
    "model.t5.head_width=8",
    "model.t5.feed_forward=32",
    "model.t5.layers=1",
    "model.t5.decoder_layers=1",
    "model.t5.heads=2",
    "model.t5.text_vocabulary=140",
    "model.t5.bins=25",
    "model.inputs.frames=24",
    "model.inputs.speech_tokens=40",
    "model.decoding.max_tokens=24",
    "train.epochs=1",
    "train.batch=4",
    "train.validation_beams=1",
]
"""Overrides that make any recipe this small."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--videos", type=int, default=8)
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = apply_overrides(recipe(), arguments.set)
    main_process = os.environ.get("RANK", "0") == "0"
    run = RunFolder(arguments.run, resume=arguments.resume, main=main_process)
    if arguments.resume:
        chosen = from_dict(run.read(RECIPE))
    else:
        run.write(RECIPE, to_dict(chosen))
    train(chosen, task(chosen, count=arguments.videos), run, stop_after=arguments.steps)
    run.close()


if __name__ == "__main__":
    main()
