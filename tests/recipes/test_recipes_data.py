"""The scripts in recipes/ that read YouCook2's raw files."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from starc.types import Sentence
from starc_eval.annotations import VideoAnnotation
from support.scripts import script


@pytest.fixture(scope="module")
def youcook2() -> ModuleType:
    return script("youcook2_data")


def test_sentences_go_to_the_steps_they_sound_like(youcook2: ModuleType) -> None:
    annotated = VideoAnnotation(((10.0, 20.0), (30.0, 40.0)), ("crack eggs", "heat oil"), 50.0)
    sentences = ["hello", "now the eggs", "well", "some oil", "goodbye"]
    likeness = np.zeros((5, 2), dtype=np.float32)
    likeness[1, 0] = likeness[3, 1] = 1
    timed = youcook2.align(sentences, annotated, likeness)
    assert [one.text for one in timed] == sentences
    assert timed[1].start >= 10 and timed[1].end <= 20
    assert timed[3].start >= 30 and timed[3].end <= 40
    times = [time for one in timed for time in (one.start, one.end)]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= 50


def test_a_sentence_lasts_as_long_as_its_words(youcook2: ModuleType) -> None:
    timed = youcook2.until([(0.0, "one two"), (10.0, "three"), (10.5, "four")], 11.0)
    assert [(one.start, one.end) for one in timed] == [(0.0, 2.0), (10.0, 10.5), (10.5, 11.0)]


def test_extracts_keep_the_words_of_captions(youcook2: ModuleType) -> None:
    step = VideoAnnotation(((0.0, 5.0),), ("add the chopped onion to the pan",), 9.0)
    said = [
        Sentence(0, 4, "so i am going to add the chopped onion to the pan right now"),
        Sentence(5, 8, "you know i really love the onion so much my dear friends"),
        Sentence(8, 9, "thank you so much to the friends and the onion"),
    ]
    videos = [f"video{n}" for n in range(30)]
    found = youcook2.extracts(dict.fromkeys(videos, step), dict.fromkeys(videos, said))
    assert set(found) == set(videos)
    assert found["video7"].spans == ((0, 4),)
    assert found["video7"].sentences == ("to add the chopped onion to the pan",)


def test_idle_words_are_frequent_in_speech_only(youcook2: ModuleType) -> None:
    spoken = ["so you add onion"] * 300
    assert youcook2.idle_words(spoken, ["add onion"] * 10) == ["so", "you"]


def test_the_real_files(youcook2: ModuleType, shared: Path) -> None:
    corpus = youcook2.read(shared / "data")
    assert len(corpus.train) == 1236 and youcook2.LEFT_OUT not in corpus.train
    assert len(corpus.validation) == 402
    assert not set(corpus.train) & set(corpus.validation)
    assert len(set(corpus.speech) & set(corpus.train)) == 221
    assert len(corpus.untimed) == 978
    assert all(corpus.speech[video] for video in corpus.validation)
