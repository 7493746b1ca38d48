"""Speech of many videos into one file, and folders of speech files back."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from typer.testing import CliRunner

from starc.cli import app
from starc.errors import SpeechError
from starc.media import speech
from starc.media.subtitles import read_transcripts
from starc.types import Sentence
from support.clips import write_clip

SRT = "1\n00:00:01,000 --> 00:00:02,500\nCrack the eggs.\n"
SAID = [Sentence(1.0, 2.5, "Crack the eggs.")]


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    folder.mkdir()
    write_clip(folder / "a.mp4", audio="aac")
    write_clip(folder / "b.mp4")
    write_clip(folder / "c.mp4", audio="aac")
    (folder / "a.srt").write_text(SRT)
    (folder / "broken.mp4").write_text("not a video")
    return folder


def transcribe(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["transcribe", *map(str, arguments)])
    return result.exit_code, result.output


def test_many_videos(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, listened = tmp_path / "out/speech.json", []

    def listen(language: str | None, model: str | None) -> speech.Recogniser:
        def heard(sound: speech.Sound) -> speech.Heard:
            listened.append(sum(1 for _ in sound(30)))
            if len(listened) == 1:
                raise KeyboardInterrupt
            return speech.Heard((Sentence(0.0, 1.0, f"{language} {model}"),))

        return speech.Recogniser("ears", heard)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(speech._RECOGNISERS, "whisper", listen)
    command = (videos, "-o", target, "--speech", "auto", "--language", "en")
    result = CliRunner().invoke(app, ["transcribe", *map(str, command)])
    assert isinstance(result.exception, KeyboardInterrupt) or result.exit_code == 130
    assert set(json.loads(target.read_text())) == {"a", "b"}  # what was done is kept
    code, shown = transcribe(*command)
    assert code == 3 and "skipped" in shown and "broken.mp4" in shown
    found = read_transcripts(target)
    assert found == {"a": SAID, "b": [], "c": [Sentence(0.0, 1.0, "en None")]}
    sources = {name: one["source"] for name, one in json.loads(target.read_text()).items()}
    assert sources == {"a": "subtitles a.srt", "b": "none: no sound", "c": "ears"}
    before = target.read_bytes()
    assert transcribe(*command)[0] == 3 and len(listened) == 2
    assert target.read_bytes() == before


def test_a_file_of_others_is_not_replaced(videos: Path, tmp_path: Path) -> None:
    for content in ('{"a": {"start": [], "end": [], "text": []}}', "mine", "[]"):
        target = tmp_path / "speech.json"
        target.write_text(content)
        result = CliRunner().invoke(app, ["transcribe", str(videos), "-o", str(target)])
        assert isinstance(result.exception, SpeechError)
        assert target.read_text() == content


def test_a_folder_of_speech_files(tmp_path: Path) -> None:
    """Whisper's and WhisperX's JSON, subtitles of any language, VidChapters' pickles."""
    row = {"start": 1.0, "end": 2.5, "text": " Crack the eggs."}
    aligned = {**row, "words": [{"word": "Crack", "start": 1.0, "end": 1.2, "score": 0.9}]}
    whisper = {"text": "…", "language": "en", "segments": [{"id": 0, "seek": 0, **row}]}
    whisperx = {"segments": [aligned], "word_segments": aligned["words"], "language": "en"}
    (tmp_path / "w.json").write_text(json.dumps(whisper))
    (tmp_path / "w.srt").write_text(SRT.replace("eggs", "nuts"))  # Whisper's, too: the same speech
    (tmp_path / "v_x.mp4.json").write_text(json.dumps(whisperx))
    (tmp_path / "s.de.srt").write_text(SRT.replace("eggs", "Eier"))
    (tmp_path / "s.en.vtt").write_text("WEBVTT\n\n" + SRT.replace(",", "."))
    columns = {key: [row[key]] for key in row}
    (tmp_path / "p.pkl").write_bytes(pickle.dumps(columns))
    (tmp_path / "notes.txt").write_text("nothing")
    found = read_transcripts(tmp_path)
    assert found == {"p": SAID, "s": SAID, "w": SAID, "x": SAID}
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(SpeechError, match=r"bad.json: not valid JSON"):
        read_transcripts(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpeechError, match="no speech files in it"):
        read_transcripts(tmp_path / "empty")
