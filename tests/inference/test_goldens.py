"""The embedded model says of real videos what it said before, to the last digit that is kept."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from starc.inference.pipeline import Captioner
from support import goldens
from support.goldens import CASES, GOLDEN, SAMPLE, Kept
from support.needs import SHARED, skip
from support.scripts import script

README = Path(__file__).parents[2] / "README.md"
LAST_DIGIT = 1.01e-4
"""Another processor sums in another order, which may turn the fourth digit of a confidence."""
ENDS = ("start", "end")
SHOWN = re.compile(r" *\d+:\d\d - |Against the reference: ")
"""Lines of the demo that say what it found."""
EXACT = ("start", "end", "caption", "times_from", "words_from")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("goldens")


@pytest.fixture(scope="module")
def model(folder: Path) -> Captioner:
    return goldens.captioner(folder)


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest, model: Captioner, folder: Path) -> tuple[str, list[Kept]]:
    """What the model says now."""
    name: str = request.param
    if name == "spoken" and not (SHARED / goldens.SPEECH).is_file():
        skip("no speech of validation videos; set STARC_SHARED to the folder that has it")
    return name, [goldens.kept(one) for one in CASES[name](model, folder)]


def test_events_are_those_of_before(case: tuple[str, list[Kept]]) -> None:
    name, found = case
    wanted = goldens.read()[name]
    assert [one["video"] for one in found] == [one["video"] for one in wanted]
    for ours, before in zip(found, wanted, strict=True):
        assert [[event[key] for key in EXACT] for event in ours["events"]] == [
            [event[key] for key in EXACT] for event in before["events"]
        ], ours["video"]
        for one, two in zip(ours["events"], before["events"], strict=True):
            assert one["confidence"] == pytest.approx(two["confidence"], abs=LAST_DIGIT)


def test_provenance_is_that_of_before(case: tuple[str, list[Kept]]) -> None:
    name, found = case
    for ours, before in zip(found, goldens.read()[name], strict=True):
        assert {**ours, "events": ()} == {**before, "events": ()}


def test_this_machine_sees_what_float32_sees(model: Captioner, folder: Path) -> None:
    """The image encoder may compute in bfloat16: the same events, about as sure."""
    video = goldens.without_sound(SAMPLE, folder / "default.mp4")
    ((before,), found) = goldens.read()["silent"], goldens.kept(model.caption(video))
    for ours, exact in zip(found["events"], before["events"], strict=True):
        assert [ours[key] for key in EXACT] == [exact[key] for key in EXACT]
        assert ours["confidence"] == pytest.approx(exact["confidence"], abs=0.005)


def test_goldens_hold_answers_and_no_speech() -> None:
    """Real events for every case, and no more per video than what `kept` names."""
    known = goldens.read()
    assert list(known) == list(CASES) and len(known["spoken"]) == goldens.VIDEOS
    for one in (one for videos in known.values() for one in videos):
        assert set(one) == {"video", "reason", "events", "provenance"} and one["events"]
        for event in one["events"]:
            assert 0 <= event["start"] < event["end"] and 0 < event["confidence"] < 1
    said = known["long"][0]
    assert said["events"][-1]["end"] > goldens.LONG - 130 and len(said["events"]) > 60


def test_the_goldens_are_written_as_the_command_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "golden" / GOLDEN.name
    monkeypatch.setattr(goldens, "GOLDEN", copy)
    known = json.loads(GOLDEN.read_text("utf-8"))
    goldens.write(known)
    assert copy.read_bytes() == GOLDEN.read_bytes()


def test_what_the_model_is_unsure_of_is_shown_by_force_only(model: Captioner, folder: Path) -> None:
    """Of the sample's pictures it is not sure; of its speech it is."""
    silent = goldens.without_sound(SAMPLE, folder / "unsure.mp4")
    unsure, sure = (model.caption(video, force=False) for video in (silent, SAMPLE))
    assert not unsure.events and unsure.reason and "forced" not in unsure.provenance
    assert sure.events and not sure.reason


def test_the_readme_shows_what_the_demo_prints(
    model: Captioner,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Lines of events and scores; each event is that of the golden."""
    block = re.search(r"\$ make demo\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert block is not None
    model.caption(SAMPLE)  # the demo finds it in the cache
    (tmp_path / "starc").symlink_to(model.options.cache or folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["demo.py"])
    script("demo").main()
    printed, shown = (
        [line for line in text.splitlines() if SHOWN.match(line)]
        for text in (capsys.readouterr().out, block[1])
    )
    assert shown == printed and shown[-1].startswith("Against the reference: F1 ")
    for line, event in zip(shown[:-1], goldens.read()["sample"][0]["events"], strict=True):
        times, caption, sure = re.split(r" {2,}", line.strip())
        wanted = " - ".join(f"{int(event[at]) // 60}:{int(event[at]) % 60:02}" for at in ENDS)
        assert (times, caption) == (wanted, event["caption"])
        assert sure == f"{event['confidence']:.0%} sure"
