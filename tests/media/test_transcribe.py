"""Speech of many videos into one file, and folders of speech files back."""

from __future__ import annotations

import json
import pickle
import wave
from pathlib import Path

import pytest
from typer.testing import CliRunner

from starc.cli import app
from starc.errors import ConfigError, SpeechError
from starc.inference.pipeline import Captioner, Options
from starc.media import speech
from starc.media.subtitles import is_captions, read_transcripts
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


def test_a_json_file_of_others_is_not_replaced(videos: Path, tmp_path: Path) -> None:
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


READ_BACK = {
    "srt": "1\n00:00:01,000 --> 00:00:02,500\nCrack the eggs.\n",
    "vtt": "WEBVTT\n\n1\n00:00:01.000 --> 00:00:02.500\nCrack the eggs.\n",
    "txt": "00:01 Crack the eggs.\n",
}


@pytest.mark.parametrize("kind", READ_BACK)
def test_the_ending_chooses_the_format(videos: Path, tmp_path: Path, kind: str) -> None:
    by_ending, by_name = tmp_path / f"x.{kind.upper()}", tmp_path / "named"
    assert transcribe(videos / "a.mp4", "-o", by_ending)[0] == 0
    assert by_ending.read_text() == READ_BACK[kind]
    assert transcribe(videos / "a.mp4", "-o", by_name, "--format", kind)[0] == 0
    assert by_name.read_text() == READ_BACK[kind]
    if kind != "txt":
        assert speech.read_transcript(by_ending).sentences == tuple(SAID)
        assert not is_captions(by_ending)  # so that it is taken for speech beside its video
    mine = tmp_path / f"mine.{kind}"
    mine.write_text("mine")
    code, _ = transcribe(videos / "a.mp4", "-o", mine)
    assert code != 0 and mine.read_text() == "mine"
    assert transcribe(videos / "a.mp4", "-o", mine, "--overwrite")[0] == 0
    assert mine.read_text() == READ_BACK[kind]


def test_a_folder_holds_a_text_of_each_video(videos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    code, shown = transcribe(videos, "-o", folder, "--format", "srt", "--speech", "subtitles")
    assert code == 3 and "b.mp4" in shown and "broken.mp4" in shown
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a.srt": READ_BACK["srt"]}


def test_what_says_nothing_is_not_written(videos: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.srt"
    code, shown = transcribe(videos / "b.mp4", "-o", target)
    assert code == 1 and "b.mp4: no speech to write (no sound)" in shown
    assert not target.exists() and f"{target}\n" not in shown


def test_a_text_of_one_video_holds_no_more(videos: Path, tmp_path: Path) -> None:
    for target, options, why in (
        (tmp_path / "x.srt", (), "holds one video, and 4 were given"),
        (tmp_path / "x.doc", (), "no transcript ends like this"),
        (tmp_path / "x.srt", ("--format", "doc"), "--format doc: unknown; known: json, srt"),
    ):
        command = ["transcribe", str(videos), "-o", str(target), *options]
        result = CliRunner().invoke(app, command)
        assert isinstance(result.exception, ConfigError) and why in str(result.exception)
        assert not target.exists()


@pytest.mark.parametrize("name", ["talk.wav", "v_talk.mp4", "talk.final.mp4", "talk.mp4.mkv"])
def test_what_transcribe_wrote_is_taken_by_caption(tmp_path: Path, name: str) -> None:
    if name.endswith(".wav"):
        with wave.open(str(tmp_path / name), "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(16000)
            sound.writeframes(bytes(32000))
    else:
        write_clip(tmp_path / name)
    (tmp_path / name).with_suffix(".srt").write_text(SRT)
    other = write_clip(tmp_path / "other.mp4")
    target = tmp_path / "speech.json"
    assert transcribe(tmp_path / name, other, "-o", target)[0] == 0
    captioner = Captioner(options=Options(transcript=target))
    assert captioner.read_speech(tmp_path / name).sentences == tuple(SAID)
    with pytest.raises(SpeechError, match=r"no speech of 'third\.mp4' among its 2 videos"):
        captioner.read_speech(tmp_path / "third.mp4")
