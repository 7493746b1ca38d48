"""The model in the package: what is shipped, and that it captions whatever it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

import starc
from starc.inference.pipeline import EMBEDDED, Captioner, Options
from starc.model import checkpoint
from support.clips import write_clip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Captioner:
    return starc.load(options=Options(cache=tmp_path_factory.mktemp("cache")))


def test_it_is_small_and_whole() -> None:
    assert sum(file.stat().st_size for file in EMBEDDED.rglob("*") if file.is_file()) < 95e6
    loaded = checkpoint.load(EMBEDDED, device="cpu")
    assert loaded.tokenizer is not None and loaded.joint is not None and loaded.store is not None
    assert loaded.tokenizer.get_vocab_size() == loaded.config.t5.text_vocabulary
    assert loaded.joint.width == loaded.config.temporal.features
    assert loaded.config.saliency is not None and loaded.config.retrieval is not None


def test_a_silent_video_gets_an_answer(model: Captioner, tmp_path: Path) -> None:
    captioned = model.caption(write_clip(tmp_path / "silent.mp4", seconds=8))
    assert captioned.sentences == () and len(captioned.saliency) == 8
    assert all(0 <= event.start < event.end <= 8.1 for event in captioned.events)


def test_other_languages_and_subjects_get_an_answer(model: Captioner, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=20)
    (tmp_path / "clip.srt").write_text(
        "1\n00:00:01,000 --> 00:00:08,000\nСегодня мы говорим о погоде\n\n"
        "2\n00:00:09,000 --> 00:00:18,000\nthe telescope was launched into orbit\n"
    )
    captioned = model.caption(clip)
    assert len(captioned.sentences) == 2
    assert all(event.confidence is not None for event in captioned.events)
