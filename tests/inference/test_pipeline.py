"""A real file through the real model at tiny size: everything is there, cached, and the same."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from av.stream import Disposition

import starc
from starc import config
from starc.config import BeamSearch, Windowing
from starc.errors import CheckpointError, VideoError
from starc.inference import batch
from starc.inference.jobs import Manifest, find_videos, make_jobs
from starc.inference.pipeline import Captioner, Options, ReadVideo
from starc.media import speech
from starc.media.features import Stopped
from starc.model import checkpoint
from starc.model.checkpoint import Loaded
from starc.model.joint_space import JointSpace
from starc.model.starc import STaRC
from starc.output import formats
from starc.retrieval.datastore import CaptionStore
from starc.types import Captioned, Sentence
from support.clips import colour_clip, write_clip, write_sound
from support.tiny import WIDTH, ColourEncoder, words_tokenizer


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    captions = [f"caption {k}" for k in range(30)]
    store = CaptionStore(captions, torch.randn(30, WIDTH, generator=generator), encoder="colours")
    model = STaRC(config.tiny()).eval()
    return Loaded(model, words_tokenizer(), store, Path("tiny"), fingerprint="tiny")


@pytest.fixture
def options(tmp_path: Path) -> Options:
    search = BeamSearch(beams=2, max_tokens=24, grammar=True)
    return Options(decoding=search, cache=tmp_path / "cache")


def caption(video: Path, loaded: Loaded, options: Options, **more: Any) -> Captioned:
    return Captioner(loaded, options, **{"encoder": ColourEncoder(), **more}).caption(video)


def windowed(loaded: Loaded, windowing: Windowing | None) -> Loaded:
    """The same weights with other windows."""
    model = STaRC(dataclasses.replace(loaded.config, windowing=windowing)).eval()
    model.load_state_dict(loaded.model.state_dict())
    return dataclasses.replace(loaded, model=model, fingerprint=f"tiny {windowing}")


SHORT_WINDOWS = Windowing(seconds=100.0, longest=200.0)
SUBTITLES = "1\n00:00:01,000 --> 00:00:03,000\nw1 w2 w3\n\n2\n00:00:05,500 --> 00:00:08,000\nw4\n"


def test_a_video_end_to_end(loaded: Loaded, options: Options, tmp_path: Path) -> None:
    video = colour_clip(tmp_path / "ten secönds.mp4", seconds=10)
    video.with_suffix(".srt").write_text(SUBTITLES)
    captioned = caption(video, loaded, options)
    assert captioned.video == video.name and captioned.duration == pytest.approx(10, abs=0.6)
    assert captioned.events and all(e.end <= captioned.duration + 1e-6 for e in captioned.events)
    assert all(0 <= (e.confidence or 0) <= 1 and e.caption for e in captioned.events)
    assert [said.text for said in captioned.sentences] == ["w1 w2 w3", "w4"]
    assert len(captioned.frame_times) == len(captioned.saliency) == 10
    assert captioned.frame_times == tuple(map(float, range(10)))
    assert all(0 <= value <= 1 for value in captioned.saliency)
    assert captioned.segments[0].first == 0 and captioned.segments[-1].stop == 10
    kept = [segment for segment in captioned.segments if segment.kept]
    assert kept and all(len(segment.captions) == 10 for segment in kept)
    assert captioned.provenance["encoder"] == "colours" and captioned.provenance["windows"] == "1"
    assert captioned.provenance["speech"] == "subtitles ten secönds.srt"
    for name in ("json", "vtt", "srt", "html", "chapters", "csv", "markdown", "predictions"):
        assert formats.render(captioned, format=name)[0]
    assert formats.render(captioned, format="transcript") == ("00:01 w1 w2 w3\n00:05 w4\n", ())
    assert Captioned.from_json(json.loads(json.dumps(captioned.to_json()))) == captioned


@pytest.mark.parametrize("engine", ["auto", "none"])
def test_an_address_is_one_clear_error(
    loaded: Loaded, options: Options, tmp_path: Path, engine: str
) -> None:
    captioner = Captioner(loaded, options, encoder=ColourEncoder())
    for address in ("https://a.org/talk.mp4", Path("https://a.org/talk.mp4")):
        with pytest.raises(VideoError, match=r"^https://a\.org/talk\.mp4: is an address") as caught:
            captioner.caption(address, speech=engine)
        assert "\n" not in str(caught.value)
        with pytest.raises(VideoError, match="is an address"):
            list(captioner.caption_all(address))
    with pytest.raises(VideoError, match="no such file"):
        captioner.caption(tmp_path / "nowhere" / "a.mp4", speech=engine)
    with pytest.raises(CheckpointError, match="/model: no such folder; give a model"):
        starc.load("https://a.org/model")


def test_stages_and_frames_are_told(loaded: Loaded, options: Options, tmp_path: Path) -> None:
    video, told = colour_clip(tmp_path / "a.mp4", seconds=6), list[tuple[str, float, float]]()
    captioner = Captioner(loaded, options, encoder=ColourEncoder())
    captioner.caption(video, on_progress=lambda *given: told.append(given))
    stages = [stage for stage, _, _ in told if stage != "listening"]
    assert stages == ["watching"] * 7 + ["captioning"] * 2
    assert [done for stage, done, total in told if stage == "watching" and total == 6] == [
        1, 2, 3, 4, 5, 6
    ]  # fmt: skip


def test_what_is_heard_is_told(
    loaded: Loaded, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = write_clip(tmp_path / "a.mkv", seconds=4, codec="mpeg4", audio="flac")
    heard = threading.Event()

    def listen(sound: speech.Sound) -> Any:
        assert len(list(sound(2.0))) >= 2
        heard.wait(10)
        return speech.Heard((Sentence(0, 1, "w1"),))

    recogniser = speech.Recogniser("mock", listen)
    monkeypatch.setitem(speech._RECOGNISERS, "whisper", lambda *_: recogniser)
    told: list[tuple[float, float]] = []

    def on_progress(stage: str, done: float, total: float) -> None:
        if stage == "listening":
            told.append((done, total))
            if done > 3:
                heard.set()

    captioner = Captioner(loaded, options, encoder=ColourEncoder())
    captioned = captioner.caption(video, speech="whisper", on_progress=on_progress)
    assert captioned.sentences[0].text == "w1" and heard.is_set()
    assert told[-1] == (pytest.approx(4, abs=0.2), pytest.approx(4, abs=0.2))


def test_speech_and_language_of_one_call(loaded: Loaded, options: Options, tmp_path: Path) -> None:
    video, said = colour_clip(tmp_path / "a.mp4", seconds=6), tmp_path / "talk.srt"
    said.write_text(SUBTITLES)
    for code in ("de", "fr"):
        (tmp_path / f"a.{code}.srt").write_text(SUBTITLES)
    captioner = Captioner(loaded, options, encoder=ColourEncoder())
    assert captioner.caption(video, speech=said).provenance["speech"] == "handed in talk.srt"
    assert captioner.caption(video, speech="none").provenance["speech"] == "none: not asked for"
    assert captioner.caption(video).provenance["speech"] == "subtitles a.de.srt"
    assert captioner.caption(video, language="fr").provenance["speech"] == "subtitles a.fr.srt"
    handed = Captioner(
        loaded, dataclasses.replace(options, transcript=said), encoder=ColourEncoder()
    )
    assert handed.caption(video, speech="none").sentences == ()


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mp3", "mp3"), ("a.m4a", "aac"), ("a.wav", "pcm_s16le"), ("a.aac", "aac")],
)
@pytest.mark.parametrize("with_joint", [True, False])
def test_a_sound_file_is_captioned_by_its_speech(
    loaded: Loaded, options: Options, tmp_path: Path, name: str, codec: str, with_joint: bool
) -> None:
    sound = write_sound(tmp_path / name, seconds=8, codec=codec)
    captioner = Captioner(loaded, options, encoder=ColourEncoder())
    if with_joint:
        joint = JointSpace(
            words_tokenizer(), torch.randn(1000, WIDTH), *torch.ones(2, WIDTH), torch.eye(WIDTH)
        )
        joined = dataclasses.replace(loaded, joint=joint, fingerprint="joint")
        captioner = Captioner(joined, options, encoder=ColourEncoder())
    with pytest.raises(VideoError, match="no pictures, and no speech was found"):
        captioner.caption(sound, speech="none")
    (tmp_path / "a.srt").write_text(SUBTITLES)
    captioned = captioner.caption(sound)
    assert captioned.duration == pytest.approx(8, abs=0.3) and captioned.events
    assert captioned.provenance["frames"] == "none: sound only"
    assert "no pictures" in batch.warnings(captioned)[0]
    assert captioner.caption(sound) == captioned


def test_a_cover_is_no_video(loaded: Loaded, options: Options, tmp_path: Path) -> None:
    sound = tmp_path / "a.m4a"
    with av.open(str(sound), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=16_000, layout="mono")
        cover = container.add_stream("mjpeg")
        cover.width, cover.height, cover.pix_fmt = 16, 16, "yuvj420p"
        cover.disposition = Disposition.attached_pic
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 48000), np.float32), "fltp", "mono")
        silence.sample_rate = 16_000
        container.mux(stream.encode(silence))
        container.mux(stream.encode())
        grey = av.VideoFrame.from_ndarray(np.full((16, 16, 3), 90, np.uint8), format="rgb24")
        container.mux(cover.encode(grey.reformat(format="yuvj420p")))
    (tmp_path / "a.srt").write_text(SUBTITLES)
    assert caption(sound, loaded, options).provenance["frames"] == "none: sound only"


def test_a_single_picture_is_one_event(loaded: Loaded, options: Options, tmp_path: Path) -> None:
    class Talkative(STaRC):
        def generate(self, *given: Any, **more: Any) -> Any:
            (one,) = super().generate(*given, **more)
            (decoded,), bin_0 = one.decoded, self.config.t5.text_vocabulary
            ids = (bin_0 + 20, bin_0 + 40, 5, bin_0 + 60, bin_0 + 80, 6, 1)
            said = dataclasses.replace(
                decoded, ids=ids, log_probabilities=(-0.5,) * 3 + (-0.1,) * 4
            )
            return [one._replace(decoded=[said])]

    talkative = Talkative(loaded.config).eval()
    talkative.load_state_dict(loaded.model.state_dict())
    video = write_clip(tmp_path / "a.mp4", seconds=0.04, fps=25, codec="mpeg4")
    for _ in range(2):
        (event,) = caption(video, dataclasses.replace(loaded, model=talkative), options).events
        assert (event.start, event.end) == (0.0, 0.04) and event.caption == "w3"


def test_nothing_is_done_twice(loaded: Loaded, options: Options, tmp_path: Path) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=6)
    encoder = ColourEncoder()
    first = caption(video, loaded, options, encoder=encoder)
    copy = tmp_path / "copy.mp4"
    copy.write_bytes(video.read_bytes())

    class Asleep(STaRC):
        def encode(self, *_: object, **__: object) -> Any:
            raise AssertionError("the cache should have known")

    asleep = Asleep(loaded.config).eval()
    asleep.load_state_dict(loaded.model.state_dict())
    again = caption(copy, dataclasses.replace(loaded, model=asleep), options, encoder=encoder)
    assert again == dataclasses.replace(first, video="copy.mp4") and encoder.seen == 6

    copy.with_suffix(".srt").write_text(SUBTITLES)
    with pytest.raises(AssertionError, match="cache"):
        caption(copy, dataclasses.replace(loaded, model=asleep), options, encoder=encoder)


def test_a_kept_answer_is_found_without_listening(
    loaded: Loaded, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = write_clip(tmp_path / "a.mkv", seconds=4, codec="mpeg4", audio="flac")
    heard = []

    def listen(sound: speech.Sound) -> Any:
        heard.append(len(list(sound(2.0))))
        return speech.Heard((Sentence(0, 1, "w1"),))

    recogniser = speech.Recogniser("mock", listen)
    monkeypatch.setitem(speech._RECOGNISERS, "whisper", lambda *_: recogniser)
    captioner = Captioner(loaded, options, encoder=ColourEncoder())
    assert captioner.kept(video) is None and not heard
    captioned = captioner.caption(video)
    assert captioner.kept(video) == captioned and len(heard) == 1
    assert captioner.kept(tmp_path / "absent.mkv") is None
    (tmp_path / "a.srt").write_text(SUBTITLES)
    assert captioner.kept(video) is None, "other words, another answer"
    memory = dataclasses.replace(loaded, fingerprint=None)
    assert Captioner(memory, options, encoder=ColourEncoder()).kept(video) is None


def test_a_damaged_cache_is_no_cache(loaded: Loaded, options: Options, tmp_path: Path) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=6)
    first = caption(video, loaded, options)
    assert options.cache is not None
    entries = [path for path in options.cache.rglob("*") if path.is_file()]
    assert {path.parent.name for path in entries} >= {"features", "captions"}
    for path in entries:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert caption(video, loaded, options) == first


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    loaded: Loaded, options: Options, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=3)
    (tmp_path / "file").write_text("")
    blocked = dataclasses.replace(options, cache=tmp_path / "file")
    assert caption(video, loaded, blocked).events
    assert "nothing is cached" in caplog.text


def test_settings_name_all_that_decides_an_answer(loaded: Loaded, options: Options) -> None:
    other = dataclasses.replace(loaded, fingerprint="other")
    settings = {
        Captioner(model, chosen, encoder=ColourEncoder()).settings
        for model in (loaded, other)
        for chosen in (
            options,
            dataclasses.replace(options, engine="none"),
            dataclasses.replace(options, decoding=BeamSearch(beams=1)),
        )
    }
    assert len(settings) == 6


@pytest.mark.parametrize("part", ["weights", "words", "datastore", "settings"])
def test_whatever_changes_in_a_model_folder_is_another_answer(
    loaded: Loaded, tmp_path: Path, part: str
) -> None:
    joint = JointSpace(
        words_tokenizer(), torch.ones(1000, WIDTH), *torch.ones(2, WIDTH), torch.eye(WIDTH)
    )
    assert isinstance(loaded.store, CaptionStore)

    def save(folder: str, model: STaRC, store: CaptionStore, joint: JointSpace) -> str:
        checkpoint.save(
            tmp_path / folder, model, tokenizer=loaded.tokenizer, store=store, joint=joint
        )
        return checkpoint.load(tmp_path / folder).fingerprint or ""

    first = save("a", loaded.model, loaded.store, joint)
    assert first == save("b", loaded.model, loaded.store, joint)
    torch.manual_seed(5)
    model, store = loaded.model, loaded.store
    if part == "weights":
        model = STaRC(config.tiny())
    elif part == "settings":
        model = windowed(loaded, None).model
    elif part == "datastore":
        store = CaptionStore(store.captions, torch.randn(30, WIDTH), encoder="colours")
    else:
        joint = dataclasses.replace(joint, word_VD=joint.word_VD * 2)
    assert first != save("c", model, store, joint)


def test_a_long_video_is_captioned_in_windows(
    loaded: Loaded, options: Options, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    video = colour_clip(tmp_path / "long.mp4", seconds=260, rate=1)
    video.with_suffix(".srt").write_text(SUBTITLES)
    with caplog.at_level(logging.WARNING, "starc"):
        captioned = caption(video, windowed(loaded, SHORT_WINDOWS), options)
    assert "captioned in 4 overlapping windows" in caplog.text
    assert captioned.provenance["windows"] == "4"
    assert len(captioned.frame_times) == len(captioned.saliency) == 260
    assert captioned.events == tuple(sorted(captioned.events, key=lambda e: (e.start, e.end)))
    assert max(event.end for event in captioned.events) > 160
    stops = [segment.stop for segment in captioned.segments]
    assert [segment.first for segment in captioned.segments] == [0, *stops[:-1]]
    assert stops[-1] == 260

    once = caption(video, windowed(loaded, None), options)
    assert len(once.frame_times) == 100 and once.provenance["windows"] == "1"


def test_a_batch_of_real_stages_equals_one_by_one(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    videos = [colour_clip(folder / f"{k}.mp4", seconds=4 + k) for k in range(3)]
    (folder / "bad.mp4").write_text("no video")
    captioner = Captioner(loaded, options, encoder=ColourEncoder())
    jobs = make_jobs(find_videos([folder]), tmp_path / "out", ["json"])
    with Manifest(tmp_path / "out") as manifest:
        counts = batch.run(jobs, captioner, manifest)
        assert (counts.done, counts.failed) == (3, 1)
        assert "bad.mp4" in manifest.rows["bad"].error
        assert batch.run(jobs, captioner, manifest).skipped == 3
    alone = dataclasses.replace(options, cache=tmp_path / "other cache")
    for video in videos:
        text = (tmp_path / "out" / f"{video.stem}.json").read_text()
        expected = caption(video, loaded, alone)
        written = Captioned.from_json(json.loads(text))
        made_of = {**expected.provenance, "source": f"../in/{video.name}"}
        made_of["content"] = written.provenance["content"]
        assert written == dataclasses.replace(expected, provenance=made_of)


def test_videos_together_are_captioned_as_alone(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    short = windowed(loaded, SHORT_WINDOWS)
    chosen = dataclasses.replace(options, engine="subtitles")
    together = Captioner(short, chosen, encoder=ColourEncoder())
    other = dataclasses.replace(chosen, cache=tmp_path / "other")
    alone = Captioner(short, other, encoder=ColourEncoder())
    read = []
    for seconds in (3, 260, 9):
        video = colour_clip(tmp_path / f"{seconds}.mp4", seconds=seconds, rate=1)
        video.with_suffix(".srt").write_text(SUBTITLES * (seconds % 4))
        read.append(ReadVideo(video, together.read_frames(video), together.read_speech(video)))
    together.caption_read(read[2:])  # one of them is known already
    captioned = together.caption_read(read)
    assert [one.provenance["windows"] for one in captioned] == ["1", "4", "1"]
    for one, expected in zip(read, captioned, strict=True):
        assert alone.caption_read([one]) == [expected]


def test_another_speech_file_makes_finished_videos_stale(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    video, said = colour_clip(tmp_path / "a.mp4", seconds=4), tmp_path / "said.srt"
    jobs = make_jobs(find_videos([video]), tmp_path / "out", ["json"])
    handed = dataclasses.replace(options, transcript=said)

    def counts(text: str) -> tuple[int, int]:
        said.write_text(text)
        with Manifest(tmp_path / "out") as manifest:
            captioner = Captioner(loaded, handed, encoder=ColourEncoder())
            found = batch.run(jobs, captioner, manifest)
        return found.done, found.skipped

    assert counts(SUBTITLES) == (1, 0) and counts(SUBTITLES) == (0, 1)
    assert counts(SUBTITLES.replace("w4", "w5")) == (1, 0)
    assert '"w5"' in (tmp_path / "out" / "a.json").read_text()


def test_a_cut_off_file_ends_where_its_pictures_end(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    whole = colour_clip(tmp_path / "whole.mkv", seconds=40).read_bytes()
    (tmp_path / "half.mkv").write_bytes(whole[: len(whole) // 2])
    captioned = caption(tmp_path / "half.mkv", loaded, options)
    assert 10 < captioned.duration < 30
    assert abs(captioned.duration - captioned.frame_times[-1]) <= 2


def test_reading_stops_when_the_run_has_ended(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=3)
    stop = threading.Event()
    stop.set()
    captioner = Captioner(loaded, options, encoder=ColourEncoder())
    for step in (captioner.read_frames, captioner.read_speech):
        with pytest.raises(Stopped):
            step(video, stop)


def test_what_cannot_be_captioned_says_why(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    (tmp_path / "text.mp4").write_text("not a video")
    with pytest.raises(VideoError, match=r"text\.mp4: not a video"):
        caption(tmp_path / "text.mp4", loaded, options)
    with pytest.raises(VideoError, match="absent"):
        caption(tmp_path / "absent.mp4", loaded, options)
    video = colour_clip(tmp_path / "a.mp4", seconds=3)
    wordless = dataclasses.replace(loaded, tokenizer=None)
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        caption(video, wordless, options)


def test_it_can_be_stopped_while_it_writes(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=4)
    options = dataclasses.replace(options, engine="none")
    captioner = Captioner(loaded, options, encoder=ColourEncoder())
    stop = threading.Event()

    def on_progress(stage: str, done: float, total: float) -> None:
        if stage == "captioning":
            stop.set()

    with pytest.raises(Stopped):
        captioner.caption(video, stop=stop, on_progress=on_progress)
    steps: list[int] = []
    read = ReadVideo(video, captioner.read_frames(video), captioner.read_speech(video))
    captioner.caption_read([read], lambda: steps.append(1))
    assert steps  # asked between windows, also by the model itself


def test_the_listener_stops_with_the_caption(
    loaded: Loaded, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recogniser that goes on would keep the next video waiting."""
    listening, ended = threading.Event(), threading.Event()

    def transcribe(*_: Any, listen: bool, on_heard: Any, **__: Any) -> Any:
        if not listen:
            raise speech.Unheard
        try:
            for second in range(10_000):
                on_heard(float(second))
                listening.set()
                time.sleep(0.002)
        finally:
            ended.set()

    monkeypatch.setattr("starc.inference.pipeline.transcribe", transcribe)
    captioner = Captioner(loaded, options, encoder=ColourEncoder())

    def on_progress(stage: str, done: float, total: float) -> None:
        if stage == "listening" and listening.wait(10):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        captioner.caption(colour_clip(tmp_path / "a.mp4", seconds=3), on_progress=on_progress)
    assert ended.wait(10)
