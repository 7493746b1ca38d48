"""A real file through the real model at tiny size: everything is there, cached, and the same."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from starc import config
from starc.decoder.beam_search import BeamSearch
from starc.errors import CheckpointError, VideoError
from starc.inference import batch, pipeline
from starc.inference.long_videos import Windowing
from starc.inference.manifest import Manifest
from starc.inference.pipeline import Captioner, Options, caption_one, caption_video
from starc.inference.worklist import find_videos, make_jobs
from starc.model.checkpoint import Loaded
from starc.model.starc import STaRC
from starc.output import formats
from starc.retrieval.datastore import CaptionStore
from starc.types import Captioned
from support.clips import colour_clip
from support.tiny import WIDTH, ColourEncoder, words_tokenizer


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    captions = [f"caption {k}" for k in range(30)]
    store = CaptionStore(captions, torch.randn(30, WIDTH, generator=generator), encoder="colours")
    model = STaRC(config.tiny()).eval()
    return Loaded(model=model, tokenizer=words_tokenizer(), store=store, folder=Path("tiny"))


@pytest.fixture
def options(tmp_path: Path) -> Options:
    search = BeamSearch(beams=2, max_tokens=24, grammar=True)
    return Options(search=search, cache=tmp_path / "cache")


SUBTITLES = "1\n00:00:01,000 --> 00:00:03,000\nw1 w2 w3\n\n2\n00:00:05,500 --> 00:00:08,000\nw4\n"


def test_a_video_end_to_end(loaded: Loaded, options: Options, tmp_path: Path) -> None:
    video = colour_clip(tmp_path / "ten secönds.mp4", seconds=10)
    video.with_suffix(".srt").write_text(SUBTITLES)
    captioned = caption_video(video, loaded, encoder=ColourEncoder(), options=options)
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
    assert Captioned.from_json(json.loads(json.dumps(captioned.to_json()))) == captioned


def test_nothing_is_done_twice(loaded: Loaded, options: Options, tmp_path: Path) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=6)
    encoder = ColourEncoder()
    first = caption_video(video, loaded, encoder=encoder, options=options)
    copy = tmp_path / "copy.mp4"
    copy.write_bytes(video.read_bytes())

    class Asleep(STaRC):
        def encode(self, *_: object, **__: object) -> Any:
            raise AssertionError("the cache should have known")

    asleep = Asleep(loaded.config).eval()
    asleep.load_state_dict(loaded.model.state_dict())
    again = caption_video(
        copy, dataclasses.replace(loaded, model=asleep), encoder=encoder, options=options
    )
    assert again == dataclasses.replace(first, video="copy.mp4") and encoder.seen == 6

    copy.with_suffix(".srt").write_text(SUBTITLES)
    with pytest.raises(AssertionError, match="cache"):
        caption_video(
            copy, dataclasses.replace(loaded, model=asleep), encoder=encoder, options=options
        )


def test_a_damaged_cache_is_no_cache(loaded: Loaded, options: Options, tmp_path: Path) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=6)
    first = caption_video(video, loaded, encoder=ColourEncoder(), options=options)
    assert options.cache is not None
    entries = [path for path in options.cache.rglob("*") if path.is_file()]
    assert {path.parent.name for path in entries} >= {"features", "captions"}
    for path in entries:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert caption_video(video, loaded, encoder=ColourEncoder(), options=options) == first


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    loaded: Loaded, options: Options, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=3)
    (tmp_path / "file").write_text("")
    blocked = dataclasses.replace(options, cache=tmp_path / "file")
    assert caption_video(video, loaded, encoder=ColourEncoder(), options=blocked).events
    assert "nothing is cached" in caplog.text


def test_other_weights_are_another_result(loaded: Loaded, options: Options, tmp_path: Path) -> None:
    torch.manual_seed(5)
    other = dataclasses.replace(loaded, model=STaRC(config.tiny()).eval())
    assert pipeline.model_key(loaded) == pipeline.model_key(loaded)
    assert pipeline.model_key(loaded) != pipeline.model_key(other)
    settings = {
        Captioner(functools.partial(lambda one: one, model), ColourEncoder, chosen).settings
        for model in (loaded, other)
        for chosen in (options, dataclasses.replace(options, engine="none"))
    }
    assert len(settings) == 4


def test_a_long_video_is_captioned_in_windows(
    loaded: Loaded, options: Options, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    video = colour_clip(tmp_path / "long.mp4", seconds=260, rate=1)
    video.with_suffix(".srt").write_text(SUBTITLES)
    long = dataclasses.replace(options, long=Windowing(widest=2.0, spacing=1.0))
    with caplog.at_level(logging.WARNING, "starc"):
        captioned = caption_video(video, loaded, encoder=ColourEncoder(), options=long)
    assert "captioned in 4 overlapping windows of about 100 s" in caplog.text
    assert captioned.provenance["windows"] == "4"
    assert len(captioned.frame_times) == len(captioned.saliency) == 260
    assert captioned.events == tuple(sorted(captioned.events, key=lambda e: (e.start, e.end)))
    assert max(event.end for event in captioned.events) > 160
    stops = [segment.stop for segment in captioned.segments]
    assert [segment.first for segment in captioned.segments] == [0, *stops[:-1]]
    assert stops[-1] == 260

    once = caption_video(
        video, loaded, encoder=ColourEncoder(), options=dataclasses.replace(options, long=None)
    )
    assert len(once.frame_times) == 100 and once.provenance["windows"] == "1"


def test_a_batch_of_real_stages_equals_one_by_one(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    videos = [colour_clip(folder / f"{k}.mp4", seconds=4 + k) for k in range(3)]
    (folder / "bad.mp4").write_text("no video")
    captioner = Captioner(lambda: loaded, ColourEncoder, options)
    jobs = make_jobs(find_videos([folder]), tmp_path / "out", ["json"])
    with Manifest(tmp_path / "out") as manifest:
        counts = batch.run(jobs, captioner, manifest)
        assert (counts.done, counts.failed) == (3, 1)
        assert "bad.mp4" in manifest.rows["bad"].error
        assert batch.run(jobs, captioner, manifest).skipped == 3
    alone = dataclasses.replace(options, cache=tmp_path / "other cache")
    for video in videos:
        text = (tmp_path / "out" / f"{video.stem}.json").read_text()
        expected = caption_one(video, Captioner(lambda: loaded, ColourEncoder, alone))
        assert Captioned.from_json(json.loads(text)) == expected


def test_videos_together_are_captioned_as_alone(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    long = dataclasses.replace(options, long=Windowing(widest=2.0, spacing=1.0), engine="subtitles")
    together = Captioner(lambda: loaded, ColourEncoder, long)
    alone = Captioner(
        lambda: loaded, ColourEncoder, dataclasses.replace(long, cache=tmp_path / "other")
    )
    read = []
    for seconds in (3, 260, 9):
        video = colour_clip(tmp_path / f"{seconds}.mp4", seconds=seconds, rate=1)
        video.with_suffix(".srt").write_text(SUBTITLES * (seconds % 4))
        read.append((video, together.features(video), together.speech(video)))
    together.caption(*read[2])  # one of them is known already
    found = together.captions(read)
    assert [one.provenance["windows"] for one in found] == ["1", "4", "1"]
    for one, captioned in zip(read, found, strict=True):
        assert alone.caption(*one) == captioned


def test_another_speech_file_makes_finished_videos_stale(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    video, said = colour_clip(tmp_path / "a.mp4", seconds=4), tmp_path / "said.srt"
    jobs = make_jobs(find_videos([video]), tmp_path / "out", ["json"])
    handed = dataclasses.replace(options, transcript=said)

    def counts(text: str) -> tuple[int, int]:
        said.write_text(text)
        with Manifest(tmp_path / "out") as manifest:
            found = batch.run(jobs, Captioner(lambda: loaded, ColourEncoder, handed), manifest)
        return found.done, found.skipped

    assert counts(SUBTITLES) == (1, 0) and counts(SUBTITLES) == (0, 1)
    assert counts(SUBTITLES.replace("w4", "w5")) == (1, 0)
    assert '"w5"' in (tmp_path / "out" / "a.json").read_text()


def test_a_cut_off_file_ends_where_its_pictures_end(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    whole = colour_clip(tmp_path / "whole.mkv", seconds=40).read_bytes()
    (tmp_path / "half.mkv").write_bytes(whole[: len(whole) // 2])
    captioned = caption_video(
        tmp_path / "half.mkv", loaded, encoder=ColourEncoder(), options=options
    )
    assert 10 < captioned.duration < 30
    assert abs(captioned.duration - captioned.frame_times[-1]) <= 2


def test_reading_stops_when_the_run_has_ended(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=3)
    stop = threading.Event()
    stop.set()
    captioner = Captioner(lambda: loaded, ColourEncoder, options)
    for step in (captioner.features, captioner.speech):
        with pytest.raises(pipeline.Stopped):
            step(video, stop)


def test_what_cannot_be_captioned_says_why(
    loaded: Loaded, options: Options, tmp_path: Path
) -> None:
    (tmp_path / "text.mp4").write_text("not a video")
    with pytest.raises(VideoError, match=r"text\.mp4: not a video"):
        caption_video(tmp_path / "text.mp4", loaded, encoder=ColourEncoder(), options=options)
    with pytest.raises(VideoError, match="absent"):
        caption_video(tmp_path / "absent.mp4", loaded, encoder=ColourEncoder(), options=options)
    video = colour_clip(tmp_path / "a.mp4", seconds=3)
    wordless = dataclasses.replace(loaded, tokenizer=None)
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        caption_video(video, wordless, encoder=ColourEncoder(), options=options)
