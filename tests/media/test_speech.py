"""Speech: subtitles before listening, every road says where its words are from."""

import importlib.machinery
import importlib.util
import logging
import sys
import types
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import av
import numpy as np
import pytest

from starc.errors import ConfigError, MissingExtra, SpeechError, VideoError
from starc.media import audio, moonshine, speech
from starc.media.container import open_container
from starc.media.speech import Transcript, parse_engine, read_transcript, transcribe
from starc.types import Sentence
from support.clips import beep, write_clip, write_sound

SRT = "1\n00:00:01,000 --> 00:00:02,000\nCrack two eggs.\n"
SAID = (Sentence(1.0, 2.0, "Crack two eggs."),)

needs_moonshine = pytest.mark.skipif(
    importlib.util.find_spec("moonshine_voice") is None, reason="moonshine-voice is not installed"
)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "starc" / "speech"


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """No recogniser is installed."""
    find = importlib.util.find_spec
    hidden = {"faster_whisper", "moonshine_voice"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in hidden else find(name)
    )


@pytest.fixture
def whisper(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """A faster-whisper that hears one sentence in every window, and notes how it was called."""
    calls: list[dict[str, object]] = []

    class WhisperModel:
        def __init__(self, model: str) -> None:
            self.model = types.SimpleNamespace(is_multilingual=not model.endswith(".en"))
            if model == "nowhere":
                raise OSError("no connection\nto the hub")

        def detect_language(self, samples: np.ndarray) -> tuple[str, float, list[object]]:
            unsure = not calls and len(samples) < 2.5 * audio.RATE
            return *(("cy", 0.2) if unsure else ("de", 0.9)), []

        def transcribe(self, samples: np.ndarray, **options: object) -> tuple[object, object]:
            assert samples.dtype == np.float32 and samples.ndim == 1
            calls.append({"seconds": len(samples) / 16_000, **options})
            part = types.SimpleNamespace(start=0.5, end=1.0, text=" Hello  there. ")
            return iter([part]), object()

    module = types.ModuleType("faster_whisper")
    module.WhisperModel = WhisperModel  # type: ignore[attr-defined]
    module.__spec__ = importlib.machinery.ModuleSpec("faster_whisper", None)
    monkeypatch.setitem(sys.modules, "faster_whisper", module)
    monkeypatch.setattr(
        speech, "version", lambda name: {"faster-whisper": "9.9"}.get(name, "0.1.0")
    )
    speech._whisper_model.cache_clear()
    return calls


def sound_of(path: Path, seconds: float) -> list[audio.Window]:
    with open_container(path) as container:
        return list(audio.windows(container, path, seconds=seconds))


def test_sidecar_comes_first(tmp_path: Path, whisper: list[dict[str, object]]) -> None:
    path = write_clip(tmp_path / "a.mp4", audio="aac")
    (tmp_path / "a.en.srt").write_text(SRT)
    assert transcribe(path) == Transcript(SAID, "subtitles a.en.srt")
    assert transcribe(path, engine="subtitles") == Transcript(SAID, "subtitles a.en.srt")
    assert not whisper


def test_manifesto_uses_its_subtitles(shared: Path) -> None:
    found = transcribe(shared / "data/videos/manifesto.mp4")
    assert found.provenance == "subtitles manifesto.srt"
    assert len(found.sentences) == 37


def test_subtitles_inside_the_file(shared: Path) -> None:
    found = transcribe(shared / "data/videos/nasa_13013.mp4")
    assert found.provenance == "subtitles inside the file"
    assert len(found.sentences) == 4


def test_bad_sidecar(tmp_path: Path, deaf: None, caplog: pytest.LogCaptureFixture) -> None:
    path = write_clip(tmp_path / "a.mp4", audio="aac")
    (tmp_path / "a.srt").write_text("some words")
    with caplog.at_level(logging.WARNING, "starc"):
        assert transcribe(path).provenance.startswith("none")
    assert "no subtitles in it" in caplog.text
    with pytest.raises(SpeechError, match="no subtitles in it"):
        transcribe(path, engine="subtitles")


def test_nothing_to_hear(tmp_path: Path, deaf: None) -> None:
    silent = write_clip(tmp_path / "silent.mp4")
    assert transcribe(silent) == Transcript((), "none: no sound")
    assert transcribe(silent, engine="none").sentences == ()
    with pytest.raises(SpeechError, match="no subtitles beside or inside it"):
        transcribe(silent, engine="subtitles")


def test_no_recogniser(tmp_path: Path, deaf: None) -> None:
    path = write_clip(tmp_path / "a.mp4", audio="aac")
    found = transcribe(path)
    assert found.sentences == ()
    assert found.provenance.startswith("none: moonshine-voice==0.1.0 is not installed")
    for engine in ("whisper", "moonshine"):
        with pytest.raises(MissingExtra, match="pip install"):
            transcribe(path, engine=engine)
    with pytest.raises(MissingExtra, match="faster-whisper"):
        transcribe(path, model="large-v3")


def test_whisper(
    tmp_path: Path, whisper: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech, "WHISPER_SECONDS", 2.0)
    path = write_clip(tmp_path / "a.mp4", seconds=5, audio="aac")
    found = transcribe(path, model="large-v2")
    assert found.provenance == "faster-whisper 9.9 large-v2, translated from cy, de"
    assert len(whisper) == len(found.sentences) >= 3
    assert sum(call["seconds"] for call in whisper) == pytest.approx(5, abs=0.2)
    # What a window surely speaks is told to the others.
    assert [call["language"] for call in whisper] == ["cy"] + ["de"] * (len(whisper) - 1)
    assert {call["task"] for call in whisper} == {"translate"}
    assert found.sentences[0] == Sentence(0.5, 1.0, "Hello there.")
    starts = [said.start for said in found.sentences]
    assert starts[1] == pytest.approx(whisper[0]["seconds"] + 0.5, abs=0.01)


@pytest.mark.parametrize(
    ("model", "language", "task", "remark"),
    [
        ("small", "en", "transcribe", ""),
        ("small", "fr", "translate", ", translated from fr"),
        ("small.en", None, "transcribe", ""),
    ],
)
def test_whisper_translates_what_is_not_english(
    tmp_path: Path,
    whisper: list[dict[str, object]],
    model: str,
    language: str | None,
    task: str,
    remark: str,
) -> None:
    path = write_clip(tmp_path / "a.mp4", seconds=3, audio="aac")
    found = transcribe(path, engine="whisper", model=model, language=language)
    assert found.provenance == f"faster-whisper 9.9 {model}{remark}"
    assert [(call["task"], call["language"]) for call in whisper] == [(task, language or "en")]


class Ears:
    """A moonshine that hears `said` the first time and `again` the second."""

    hearings: ClassVar[list[str]] = []
    said: ClassVar[list[str]] = []

    def __enter__(self) -> "Ears":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def hear(self, samples: np.ndarray) -> Future[list[moonshine.Line]]:
        text = self.said[len(self.hearings)]
        self.hearings.append(text)
        heard: Future[list[moonshine.Line]] = Future()
        heard.set_result([(0.0, 2.0, text)])
        return heard


RADISH = "so if the challenge we recapture from the stucco cut the radish"


@pytest.mark.parametrize(
    ("said", "again", "english"),
    [
        ("peel the potatoes and cut them into small pieces", "", True),
        (RADISH, "so in the kitchen lead and coffee for the stick can we", False),
        ("hello there", "halo dare", True),  # too few words to tell
    ],
)
def test_speech_that_is_not_english_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, again: str, english: bool
) -> None:
    monkeypatch.setattr(speech.moonshine, "Listener", Ears)
    monkeypatch.setattr(Ears, "said", [said, again or said, again or said, said])
    monkeypatch.setattr(Ears, "hearings", [])
    path = write_clip(tmp_path / "a.mp4", seconds=3, audio="aac")
    for _ in range(2):  # the second answer is the cache's
        found = transcribe(path)
        assert bool(found.sentences) == english
        assert ("does not sound like English" in found.provenance) == (not english)
    assert len(Ears.hearings) <= 3
    if not english:
        with pytest.raises(SpeechError, match="--language en takes it for English"):
            transcribe(path, engine="moonshine")
        assert transcribe(path, engine="moonshine", language="en").sentences


def test_whisper_without_its_model(tmp_path: Path, whisper: list[dict[str, object]]) -> None:
    path = write_clip(tmp_path / "a.mp4", audio="aac")
    with pytest.raises(SpeechError, match=r"'nowhere' cannot be loaded .*name a folder") as caught:
        transcribe(path, model="nowhere")
    assert "\n" not in str(caught.value)


def test_auto_goes_on_when_whisper_cannot_be_loaded(
    tmp_path: Path, whisper: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech, "WHISPER_MODEL", "nowhere")
    path = write_clip(tmp_path / "a.mp4", audio="aac")
    assert not transcribe(path, language="en").provenance.startswith("faster-whisper")


@pytest.mark.parametrize("broken", ["loading", "listening"])
def test_a_whisper_that_fails_is_named(
    tmp_path: Path,
    whisper: list[dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    def fail(*given: object, **options: object) -> None:
        raise RuntimeError("out of memory")

    if broken == "loading":
        monkeypatch.setattr(speech, "WHISPER_MODEL", "nowhere")
    else:
        monkeypatch.setattr(sys.modules["faster_whisper"].WhisperModel, "transcribe", fail)
    ears = speech.Recogniser(
        "ears", lambda sound: speech.Heard((Sentence(0.0, 1.0, f"fry it {len([*sound(30)])}"),))
    )
    monkeypatch.setitem(speech._RECOGNISERS, "moonshine", lambda language, model: ears)
    found = transcribe(write_clip(tmp_path / "a.mp4", audio="aac"), language="en")
    assert found.sentences and found.provenance.startswith("ears (instead of faster-whisper: ")
    assert "a.mp4: ears (instead of faster-whisper: " in caplog.text


def said(*texts: str, seconds: float = 2.0) -> tuple[Sentence, ...]:
    return tuple(Sentence(n * seconds, (n + 1) * seconds, text) for n, text in enumerate(texts))


@pytest.mark.parametrize(
    ("sentences", "duration", "why"),
    [
        (said("Thank you."), 5, "which recognisers make of noise"),
        (said("Thanks for watching!", "you"), 300, "which recognisers make of noise"),
        (said("Subtitles by the Amara.org community"), 20, "which recognisers make of noise"),
        (said("Crack the eggs."), 60, "only 3 words were recognised in 1.0 minutes"),
        (said(*["We have to see."] * 5), 12, "repeats the same words ('we have to see')"),
        (said("and this is it " * 9), 12, "repeats the same words"),
        (said("Crack the eggs."), 10, None),
        (said("Crack two eggs.", "Thank you."), 20, None),
        (said("Stir.", "Stir.", "Now add salt.", "Then pepper.", "And serve."), 20, None),
        ((), 600, None),
    ],
)
def test_what_is_no_speech_looks_like_none(
    sentences: tuple[Sentence, ...], duration: float, why: str | None
) -> None:
    found = speech.trusted(sentences, duration)
    assert found is None if why is None else why in str(found)


def test_a_result_that_is_none_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ears = speech.Recogniser("ears", lambda sound: speech.Heard(said("Thanks for watching.")))
    monkeypatch.setitem(speech._RECOGNISERS, "moonshine", lambda language, model: ears)
    path = write_clip(tmp_path / "a.mp4", audio="aac")
    assert transcribe(path, engine="moonshine") == speech.Transcript(
        (),
        "none: only 'Thanks for watching.', which recognisers make of noise (ears); "
        "--speech FILE hands speech over",
    )
    path.with_suffix(".srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nThank you.\n")
    assert transcribe(path).sentences  # what a person hands over is taken as it is


def test_cache(tmp_path: Path, empty_cache: Path, whisper: list[dict[str, object]]) -> None:
    path = write_clip(tmp_path / "a.mp4", audio="aac")
    first = transcribe(path, engine="whisper")
    assert len(whisper) == 1
    assert transcribe(path, engine="whisper") == first
    path.rename(tmp_path / "renamed.mp4")
    assert transcribe(tmp_path / "renamed.mp4", engine="whisper") == first
    assert len(whisper) == 1
    transcribe(tmp_path / "renamed.mp4", engine="whisper", model="tiny")
    transcribe(tmp_path / "renamed.mp4", engine="whisper", language="fr")
    other = write_clip(tmp_path / "b.mp4", seconds=4, audio="aac")
    transcribe(other, engine="whisper", cache=tmp_path / "elsewhere")
    assert len(whisper) == 4
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1
    assert len(list(empty_cache.iterdir())) == 3
    for entry in empty_cache.iterdir():
        entry.write_text("{")
    assert transcribe(tmp_path / "renamed.mp4", engine="whisper") == first
    assert len(whisper) == 5


def test_cache_that_cannot_be_written(
    tmp_path: Path, whisper: list[dict[str, object]], caplog: pytest.LogCaptureFixture
) -> None:
    path = write_clip(tmp_path / "a.mp4", audio="aac")
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "starc"):
        found = transcribe(path, engine="whisper", cache=tmp_path / "file" / "cache")
    assert found.sentences
    assert "nothing is cached" in caplog.text


def test_a_file_is_opened_once_for_subtitles_and_sound(
    tmp_path: Path, whisper: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_clip(tmp_path / "a.mp4", audio="aac")
    opened = []
    monkeypatch.setattr(av, "open", lambda *a, open=av.open, **k: opened.append(a) or open(*a, **k))
    assert transcribe(path).sentences and len(opened) == 1


def test_empty_subtitles_do_not_hide_the_sound(
    tmp_path: Path, whisper: list[dict[str, object]]
) -> None:
    (tmp_path / "empty.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\n<i></i>\n\n")
    path = tmp_path / "a.mkv"
    with (
        av.open(str(tmp_path / "empty.srt")) as text,
        av.open(str(write_clip(tmp_path / "b.mkv", audio="flac"))) as sound,
        av.open(str(path), "w") as target,
    ):
        for source in (text, sound):
            for stream in source.streams:
                target.add_stream_from_template(stream)
        for first, source in ((0, text), (1, sound)):
            for packet in source.demux():
                if packet.size:
                    packet.stream = target.streams[first + packet.stream.index]
                    target.mux(packet)
    assert transcribe(path).sentences[0].text == "Hello there."
    assert whisper[0]["seconds"] == pytest.approx(3, abs=0.1)


def test_engines_of_the_command_line() -> None:
    assert parse_engine("auto") == ("auto", None)
    assert parse_engine("whisper:small") == ("whisper", "small")
    assert parse_engine("whisper:/models/a:b") == ("whisper", "/models/a:b")
    for text in ("ears", "whisper:", "moonshine:tiny", "auto:small", ""):
        with pytest.raises(
            ConfigError, match=f"--speech {text}: neither a file nor one of .*whisper:MODEL"
        ):
            parse_engine(text)


def test_handed_in(tmp_path: Path) -> None:
    (tmp_path / "mine.srt").write_text(SRT)
    assert read_transcript(tmp_path / "mine.srt") == Transcript(SAID, "handed in mine.srt")


def test_wrong_calls(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="engine must be one of auto, none"):
        transcribe(tmp_path / "a.mp4", engine="ears")  # type: ignore[arg-type]
    with pytest.raises(VideoError, match="no such file"):
        transcribe(tmp_path / "a.mp4")
    with pytest.raises(VideoError, match="no such file"):
        transcribe(tmp_path / "nowhere" / "a.mp4")
    with pytest.raises(VideoError, match="is an address"):
        transcribe(Path("https://a.org/a.mp4"))


@needs_moonshine
def test_moonshine_understands_only_english(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", audio="aac")
    with pytest.raises(SpeechError, match="understands only English"):
        transcribe(path, engine="moonshine", language="de")
    with pytest.raises(SpeechError, match="has one model"):
        transcribe(path, engine="moonshine", model="large")


@needs_moonshine
def test_moonshine_hears_nasa(shared: Path) -> None:
    found = transcribe(shared / "data/videos/nasa_13013.mp4", engine="moonshine")
    assert found.provenance == "moonshine-voice 0.1.0 tiny-en"
    text = " ".join(said.text for said in found.sentences)
    assert "optical and science segment" in text
    assert "Greenbelt, Maryland" in text
    assert found.sentences[0].start == pytest.approx(0.5, abs=0.3)
    assert found.sentences[-1].end == pytest.approx(12.4, abs=0.5)


@needs_moonshine
def test_moonshine_keeps_time_over_a_gap(shared: Path, tmp_path: Path) -> None:
    (window,) = sound_of(shared / "data/videos/nasa_13013.mp4", 60)
    said = window.samples[: 5 * audio.RATE]
    path = tmp_path / "gap.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=audio.RATE, layout="mono")
        for offset in (0, 20):
            block = av.AudioFrame.from_ndarray((said[None] * 32767).astype(np.int16), "s16", "mono")
            block.sample_rate, block.time_base = audio.RATE, Fraction(1, audio.RATE)
            block.pts = offset * audio.RATE
            container.mux(stream.encode(block))
        container.mux(stream.encode())
    found = transcribe(path, engine="moonshine").sentences
    late = [one for one in found if one.start >= 20]
    assert any("optical" in one.text for one in late)
    assert not [one for one in found if 7 < one.start < 19.5]


def test_a_child_that_dies_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text("import sys; sys.stdin.buffer.read(8); sys.exit('no such thing')")
    monkeypatch.setattr(moonshine, "__file__", str(script))
    with pytest.raises(moonshine.Failed, match="no such thing"), moonshine.Listener() as listener:
        heard = [listener.hear(np.zeros(100_000, np.float32)) for _ in range(50)]
        heard[-1].result()


CHILD = """
import json, sys, os, time
while size := int.from_bytes(sys.stdin.buffer.read(8), "little"):
    time.sleep(0.05)
    piece = sys.stdin.buffer.read(size)
    print(json.dumps([[0, 1, f"{len(piece)} {os.getpid()}"]]), flush=True)
"""


def test_several_processes_share_long_sound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    monkeypatch.setattr(moonshine, "__file__", str(script))
    monkeypatch.setattr(moonshine, "TURN", 20)
    lengths = [9, 11, 5, 17, 18, 20]
    with moonshine.Listener() as listener:
        heard = [listener.hear(np.zeros(length, np.float32)) for length in lengths]
        said = [one.result()[0][2].split() for one in heard]
    assert [int(size) for size, _ in said] == [4 * length for length in lengths]
    first, second = (lane.child for lane in listener.lanes)
    order = [first, first, second, second, first, second]
    assert [int(pid) for _, pid in said] == [child.pid for child in order]
    assert all(child.returncode is not None for child in (first, second))


def test_nobody_listens_to_silence_and_steady_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> None:
        raise AssertionError("a recogniser was started")

    monkeypatch.setattr(moonshine, "_start", start)
    noise = np.random.default_rng(0).normal(0, 0.05, 12 * audio.RATE)
    for name, tone in (("a", np.zeros(12 * audio.RATE)), ("b", noise)):
        path = write_clip(
            tmp_path / f"{name}.mkv", seconds=12, tone=tone.astype(np.float32), audio="flac"
        )
        assert transcribe(path, engine="moonshine").sentences == ()


def test_what_may_be_speech_keeps_its_time() -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(0, 0.001, 30 * audio.RATE).astype(np.float32)
    bursts = np.abs(np.sin(np.arange(3 * audio.RATE) * 2 * np.pi * 3 / audio.RATE))
    for second in (10, 14, 25):
        samples[second * audio.RATE :][: len(bursts)] += rng.normal(0, 0.1, len(bursts)) * bursts
    parts = list(audio.eventful(audio.Window(100.0, samples)))
    spans = [
        (part.start - 100, part.start - 100 + len(part.samples) / audio.RATE) for part in parts
    ]
    # Four steady seconds in a row are left out, but for one at either end; the pause between the
    # first two bursts and the end are too short for that.
    assert np.allclose(spans, [(9, 18), (24, 30)], atol=0.2)
    for part in parts:
        first = round((part.start - 100) * audio.RATE)
        np.testing.assert_array_equal(part.samples, samples[first:][: len(part.samples)])
    short = audio.Window(0.0, samples[: 2 * audio.RATE])
    assert [part is short for part in audio.eventful(short)] == [True]


def test_sound_is_resampled(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "a.wav", seconds=3, codec="pcm_s16le", rate=44_100)
    (window,) = sound_of(path, 60)
    assert window.start == 0 and window.samples.dtype == np.float32
    assert len(window.samples) == pytest.approx(3 * audio.RATE, abs=50)
    spectrum = np.abs(np.fft.rfft(window.samples[: 2 * audio.RATE]))
    assert np.argmax(spectrum) / 2 == pytest.approx(440, abs=1)
    assert np.abs(window.samples).max() == pytest.approx(0.2, abs=0.02)


def test_windows_are_cut_in_pauses(tmp_path: Path) -> None:
    tone = beep(20)
    tone[int(8.6 * 16_000) : int(9.2 * 16_000)] = 0
    path = write_clip(tmp_path / "a.mkv", seconds=20, tone=tone, audio="flac")
    found = sound_of(path, 10)
    assert found[1].start == pytest.approx(8.9, abs=0.3)
    assert all(len(window.samples) <= 10 * audio.RATE for window in found)
    whole = np.concatenate([window.samples for window in found])
    (uncut,) = sound_of(path, 60)
    np.testing.assert_array_equal(whole, uncut.samples)


def test_damaged_sound_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_sound(tmp_path / "a.flac", seconds=10)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 3000] = b"\x55" * 3000
    path.write_bytes(data)
    heard = sum(len(window.samples) for window in sound_of(path, 60))
    assert heard > 5 * audio.RATE
