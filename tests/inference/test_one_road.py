"""Captioning, evaluation and validation give the same events for the same video and model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from starc.config import BeamSearch, apply_overrides, tiny
from starc.inference.pipeline import Captioner, Options
from starc.media.features import extract, save_features
from starc.model.inputs import Collator
from starc.model.joint_space import JointSpace
from starc.retrieval.datastore import CaptionStore
from starc.training import loop
from starc.training.dataset import Videos
from starc.training.evaluate import evaluate
from starc.training.loop import Task, train
from starc.training.recipes import Recipe, TrainConfig
from starc.training.run import RunFolder
from starc.types import Event
from starc_eval.annotations import VideoAnnotation
from support.clips import colour_clip
from support.tiny import WIDTH, ColourEncoder, words_tokenizer

FEATURES = 32
OVERRIDES = [
    f"temporal.features={FEATURES}",
    "inputs.frames=16",
    "inputs.image_encoder=colours",
    "inputs.joint_space=true",
    "windowing.seconds=16",
    "windowing.longest=20",
]


def spans(events: tuple[Event, ...]) -> list[tuple[float, float, str]]:
    return [(event.start, event.end, event.caption) for event in events]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clips, one of them long enough for windows, with features, speech and annotations."""
    features, speech, annotations = {}, {}, {}
    for name, seconds in (("long", 70), ("short", 9)):
        video = colour_clip(tmp_path / f"{name}.mp4", seconds=seconds)
        lines = [(k, k + 3.5, f"w{k} w{k + 1}") for k in range(1, seconds - 4, 3)]
        video.with_suffix(".srt").write_text(
            "".join(
                f"{n}\n00:{int(a) // 60:02}:{int(a) % 60:02},000 --> "
                f"00:{int(b) // 60:02}:{int(b) % 60:02},500\n{text}\n\n"
                for n, (a, b, text) in enumerate(lines, 1)
            )
        )
        features[name] = extract(video, ColourEncoder())
        starts, ends, texts = zip(*lines, strict=True)
        speech[name] = {"start": starts, "end": ends, "text": texts}
        annotations[name] = {
            "duration": features[name].duration,
            "timestamps": [[1.0, 4.0], [5.0, 8.0]],
            "sentences": ["w1 w2", "w3"],
        }
    save_features(tmp_path / "features.safetensors", features)
    (tmp_path / "speech.json").write_text(json.dumps(speech))
    (tmp_path / "annotations.json").write_text(json.dumps(annotations))
    return tmp_path


def test_caption_evaluate_and_validation_agree(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (folder / "annotations.json", folder / "features.safetensors", folder / "speech.json")
    generator = torch.Generator().manual_seed(2)
    word_VD = torch.randn(1000, FEATURES, generator=generator)
    image_ID = torch.randn(WIDTH, FEATURES, generator=generator)
    joint = JointSpace(
        words_tokenizer(), word_VD.half().float(), torch.zeros(WIDTH), torch.ones(WIDTH),
        image_ID.half().float(),
    )  # fmt: skip
    config = apply_overrides(tiny(), OVERRIDES)
    search = BeamSearch(beams=2, max_tokens=24, grammar=True)
    config = apply_overrides(config, ["decoding.beams=2", "decoding.grammar=true"])
    config = apply_overrides(config, ["decoding.max_tokens=24"])
    assert config.decoding == search
    store = CaptionStore(["w1", "w2 w3", "w4"], torch.randn(3, FEATURES, generator=generator))
    videos = Videos.read(*files, joint=joint)
    task = Task(videos, videos, store, Collator(config, words_tokenizer()), joint)
    validated: dict[str, VideoAnnotation] = {}

    def noted(predictions: dict[str, VideoAnnotation], _: Videos) -> dict[str, float]:
        validated.update(predictions)
        return {"CIDEr": 0.0}

    monkeypatch.setattr(loop, "headline_scores", noted)
    recipe = Recipe(model=config, train=TrainConfig(epochs=1, batch=2, learning_rate=1e-3))
    with RunFolder(folder / "run", resume=False) as run:
        train(recipe, task, run)

    model = folder / "run" / "best"
    evaluated = evaluate(model, *files).predictions
    captioner = Captioner(model, Options(cache=folder / "cache"), encoder=ColourEncoder())
    windows = {}
    for name in ("long", "short"):
        captioned = captioner.caption(folder / f"{name}.mp4")
        windows[name] = captioned.provenance["windows"]
        expected = spans(captioned.events)
        assert expected
        for other in (evaluated[name], validated[name]):
            pairs = zip(other.spans, other.sentences, strict=True)
            assert [(*span, text) for span, text in pairs] == expected
    assert windows["short"] == "1" and int(windows["long"]) > 3
