"""Speech in another language than English is said to be so, and not captioned as English."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from starc.inference.models import why_unfamiliar
from starc.inference.pipeline import Captioner, Options
from starc.media import speech
from starc.media.speech import Heard, Recogniser
from starc.types import Sentence
from support.clips import colour_clip, write_clip

RUSSIAN = "Сначала нарежьте свёклу и морковь тонкой соломкой, затем обжарьте лук."
GERMAN = "Zuerst schneiden wir die Rüben und das Gemüse, dann kommt der Topf auf den Herd."
ENGLISH = "First we cut the beets and the carrots, and then the pot goes on the stove."


def srt(path: Path, text: str) -> Path:
    path.write_text(f"1\n00:00:00,000 --> 00:00:05,000\n{text}\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Captioner:
    return Captioner(options=Options(cache=tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize(
    ("text", "why"),
    [(RUSSIAN, "written in Cyrillic letters"), (GERMAN, "German words"), (ENGLISH, None)],
)
def test_subtitles(captioner: Captioner, tmp_path: Path, text: str, why: str | None) -> None:
    video = write_clip(tmp_path / "a.mp4")
    given = srt(tmp_path / "a.srt", text)
    beside = captioner.read_speech(video)
    handed = captioner.read_speech(video, options=Options(transcript=given))
    assert bool(beside.sentences) == bool(handed.sentences) == (why is None)
    if why is not None:
        assert beside.provenance.startswith(f"none: not English: subtitles a.srt, {why}; ")
        assert handed.provenance.startswith(f"none: not English: handed in a.srt, {why}; ")
    forced = captioner.read_speech(video, options=Options(language="en"))
    assert [one.text for one in forced.sentences] == [text]
    assert [one.text for one in speech.transcribe(video).sentences] == [text]  # what is said stays


def test_a_recogniser_of_other_languages(
    captioner: Captioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ears = Recogniser("ears", lambda sound: Heard((Sentence(0.0, 1.0, RUSSIAN),)))
    monkeypatch.setitem(speech._RECOGNISERS, "whisper", lambda language, model: ears)
    video = write_clip(tmp_path / "a.mp4", audio="aac")
    found = captioner.read_speech(video, options=Options(cache=tmp_path, engine="whisper"))
    assert found.provenance.startswith("none: not English: ears, written in Cyrillic letters")


def test_a_video_that_is_not_captioned_for_it_says_so(captioner: Captioner, tmp_path: Path) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=4)
    srt(tmp_path / "a.srt", RUSSIAN)
    made = captioner.caption(video)
    assert made.events == () and made.sentences == ()
    assert "not English: subtitles a.srt, written in Cyrillic letters" in made.reason
    assert "--" not in made.reason and "--language en" in made.provenance["speech"]


def test_words_that_the_model_does_not_know_are_out_of_domain(captioner: Captioner) -> None:
    unlike = why_unfamiliar(captioner.loaded, torch.zeros(3, 0), [Sentence(0, 5, RUSSIAN)])
    assert unlike is not None and "0.00" in unlike
