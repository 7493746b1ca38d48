"""A batch can be killed at any moment and resumed; one bad file stops nobody."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from starc.errors import StarcError, VideoError
from starc.inference import batch
from starc.inference.batch import Counts, Output
from starc.inference.jobs import MANIFEST, Manifest, ManifestRow, find_videos, make_jobs
from starc.types import Captioned, Event
from support.clips import grey_clip
from support.small_batch import BrightnessCaptioner, caption_folder

WORKER = Path(__file__).parents[1] / "support" / "small_batch.py"
ODD_NAMES = ("with space.mp4", 'quo\'te "q".mp4', "ü寿司🍣.mkv", "-dash.mp4", "50% [a]{b}*.mp4")


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty videos, five of which are broken each in its own way."""
    folder = tmp_path_factory.mktemp("clips")
    for name in ODD_NAMES:
        grey_clip(folder / name, shade=len(name))
    for k in range(40):
        grey_clip(folder / f"clip{k:02}.mp4", shade=5 * k, frames=4 + k % 3)
    whole = (folder / "clip00.mp4").read_bytes()
    (folder / "broken_cut.mp4").write_bytes(whole[:200])
    (folder / "broken_empty.mp4").write_bytes(b"")
    (folder / "broken_text.mp4").write_text("I am a text file.\n" * 50)
    (folder / "broken_noise.mkv").write_bytes(bytes(range(256)) * 20)
    (folder / "broken_pipe.mp4").symlink_to(folder / "nowhere")
    return folder


def outputs(out: Path) -> dict[str, str]:
    """All files but the manifest; none may be half a file."""
    found = {str(p.relative_to(out)): p.read_text("utf-8") for p in out.rglob("*") if p.is_file()}
    assert not [name for name in found if name.endswith(".part")]
    return {name: text for name, text in found.items() if name != MANIFEST}


def rows(out: Path) -> dict[str, ManifestRow]:
    with Manifest(out) as manifest:
        return manifest.rows


def count_lines(out: Path) -> int:
    path = out / MANIFEST
    return path.read_bytes().count(b"\n") if path.exists() else 0


def start(clips: Path, out: Path, delay: float) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, WORKER, clips, out, str(delay)], env=environment)


def wait_for_rows(process: subprocess.Popen[bytes], out: Path, number: int) -> None:
    end = time.monotonic() + 60
    while count_lines(out) < number:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.005)


def test_killed_twice_resumed_and_complete(clips: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    for enough in (8, 25):
        process = start(clips, out, 0.02)
        wait_for_rows(process, out, enough)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = {name: row for name, row in rows(out).items() if row.status == "done"}
    counts = caption_folder(clips, out)
    assert counts.skipped >= 15 and counts.skipped == len(before)
    assert (counts.done + counts.skipped, counts.failed, counts.exit_code) == (45, 5, 3)
    after = rows(out)
    assert all(after[name] == row for name, row in before.items()), "nothing was done twice"
    assert sorted(name for name, row in after.items() if row.status == "failed") == [
        "broken_cut",
        "broken_empty",
        "broken_noise",
        "broken_pipe",
        "broken_text",
    ]
    assert all(
        row.error and "\n" not in row.error for row in after.values() if row.status == "failed"
    )

    straight = tmp_path / "straight"
    caption_folder(clips, straight)
    assert outputs(out) == outputs(straight) and len(outputs(out)) == 90


def test_the_order_changes_nothing(clips: Path, tmp_path: Path) -> None:
    def run(out: Path, reverse: bool, workers: int) -> dict[str, tuple[str, ...]]:
        jobs = make_jobs(find_videos([clips]), out, ["json"])
        with Manifest(out) as manifest:
            jobs = jobs[::-1] if reverse else jobs
            batch.run(jobs, BrightnessCaptioner(), manifest, workers=workers)
            return {
                name: (row.status, row.hash, row.error, *row.outputs)
                for name, row in manifest.rows.items()
            }

    assert run(tmp_path / "a", False, 1) == run(tmp_path / "b", True, 3)
    assert outputs(tmp_path / "a") == outputs(tmp_path / "b")


def test_ctrl_c_ends_cleanly_and_keeps_what_is_done(clips: Path, tmp_path: Path) -> None:
    process = start(clips, tmp_path, 0.05)
    wait_for_rows(process, tmp_path, 5)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    done = [row for row in rows(tmp_path).values() if row.status == "done"]
    assert 5 <= len(rows(tmp_path)) < 50
    assert {f"{row.name}.vtt" for row in done} <= set(outputs(tmp_path))


class Recording(BrightnessCaptioner):
    """Counts how many videos are under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.under_way, self.most = threading.Lock(), set[Path](), 0
        self.reading, self.captioning, self.overlapped = 0, False, False

    def read_frames(self, video: Path, stop: threading.Event) -> Any:
        with self.lock:
            self.under_way.add(video)
            self.most = max(self.most, len(self.under_way))
            self.reading += 1
            self.overlapped |= self.captioning
        time.sleep(0.01)
        with self.lock:
            self.reading -= 1
        return [1.0]

    def caption(self, video: Path, features: Any, speech: str) -> Captioned:
        self.captioning = True
        time.sleep(0.01)
        with self.lock:
            self.overlapped |= self.reading > 0
            self.under_way.discard(video)
        self.captioning = False
        return super().caption(video, features, speech)


def jobs_of(folder: Path, count: int, out: Path, formats: tuple[str, ...] = ("json",)) -> Any:
    folder.mkdir(exist_ok=True)
    for k in range(count):
        (folder / f"{k:02}.mp4").write_bytes(bytes([k]))
    return make_jobs(find_videos([folder]), out, formats)


def test_stages_overlap_and_few_videos_are_under_way(tmp_path: Path) -> None:
    captioner = Recording()
    with Manifest(tmp_path / "out") as manifest:
        counts = batch.run(jobs_of(tmp_path / "in", 30, tmp_path / "out"), captioner, manifest)
    assert counts == Counts(done=30) and counts.exit_code == 0
    assert captioner.overlapped and captioner.most <= 4


class Several(BrightnessCaptioner):
    """Takes videos three at a time, and cannot take them together with number 04."""

    at_once = 3

    def __init__(self) -> None:
        super().__init__()
        self.together: list[list[str]] = []

    def read_frames(self, video: Path, stop: threading.Event) -> Any:
        if video.stem == "01":
            raise VideoError("01.mp4: no video stream")
        return [1.0]

    def caption(self, video: Path, features: Any, speech: str) -> Captioned:
        if video.stem == "04":
            raise RuntimeError("too much for it")
        return super().caption(video, features, speech)

    def caption_read(self, read: Any) -> list[Captioned]:
        if len(read) > 1:
            self.together.append([video.stem for video, _, _ in read])
        return [self.caption(*one) for one in read]


def test_the_model_gets_several_videos_at_once(tmp_path: Path) -> None:
    captioner, heard = Several(), list[ManifestRow]()
    with Manifest(tmp_path / "out") as manifest:
        jobs = jobs_of(tmp_path / "in", 8, tmp_path / "out")
        counts = batch.run(jobs, captioner, manifest, on_row=heard.append)
        errors = {name: row.error for name, row in manifest.rows.items() if row.error}
    assert (counts.done, counts.failed) == (6, 2) and len(heard) == 8
    assert errors == {"01": "01.mp4: no video stream", "04": "RuntimeError: too much for it"}
    assert all(2 <= len(names) <= 3 and "01" not in names for names in captioner.together)
    assert len({name for names in captioner.together for name in names}) >= 5
    for name, text in outputs(tmp_path / "out").items():
        assert f"speech of {name[:2]}.mp4" in text


class Failing(BrightnessCaptioner):
    """Says of some videos what can go wrong."""

    ERRORS: ClassVar[dict[str, Exception]] = {
        "01": VideoError("01.mp4: no video stream"),
        "02": MemoryError(),
        "03": PermissionError(errno.EACCES, "Permission denied"),
        "04": RuntimeError("a bug\nin two lines"),
    }

    def read_frames(self, video: Path, stop: threading.Event) -> Any:
        if video.stem in ("01", "02"):
            raise self.ERRORS[video.stem]
        return [1.0, 2.0]

    def read_speech(self, video: Path, stop: threading.Event) -> str:
        if video.stem == "03":
            raise self.ERRORS["03"]
        return "said"

    def caption(self, video: Path, features: Any, speech: str) -> Captioned:
        if video.stem == "04":
            raise self.ERRORS["04"]
        return super().caption(video, features, speech)


def test_every_kind_of_failure_is_one_row_and_one_line(tmp_path: Path) -> None:
    heard: list[ManifestRow] = []
    with Manifest(tmp_path / "out") as manifest:
        jobs = jobs_of(tmp_path / "in", 6, tmp_path / "out")
        counts = batch.run(jobs, Failing(), manifest, on_row=heard.append)
        assert (counts.done, counts.failed, counts.exit_code) == (2, 4, 3)
        errors = {name: row.error for name, row in manifest.rows.items() if row.error}
        assert heard == list(manifest.rows.values())
        again = batch.run(jobs, Mended(), manifest)
        assert (again.skipped, again.done) == (2, 4), "failed videos are tried again"
    assert errors == {
        "01": "01.mp4: no video stream",
        "02": "MemoryError",
        "03": "PermissionError: [Errno 13] Permission denied",
        "04": "RuntimeError: a bug in two lines",
    }


class Mended(Failing):
    """Nothing goes wrong any more."""

    def read_frames(self, video: Path, stop: threading.Event) -> Any:
        return [1.0, 2.0]

    def read_speech(self, video: Path, stop: threading.Event) -> str:
        return "said"

    def caption(self, video: Path, features: Any, speech: str) -> Captioned:
        return BrightnessCaptioner.caption(self, video, features, speech)


def test_all_failed_is_exit_1(tmp_path: Path) -> None:
    assert Counts(failed=3).exit_code == 1 and Counts(failed=3, skipped=1).exit_code == 3


def test_a_full_disk_stops_the_run_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, [0]

    def filling(handle: int) -> None:
        calls[0] += 1
        if calls[0] > 12:  # a video has five: two files, the folder after each, and its row
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    out = tmp_path / "out"
    jobs = jobs_of(tmp_path / "in", 10, out, ("json", "vtt"))
    with monkeypatch.context() as patched, Manifest(out) as manifest:
        patched.setattr("os.fsync", filling)
        with pytest.raises(StarcError, match="disk full; make room and run again"):
            batch.run(jobs, Mended(), manifest)
    assert all(json.loads(text) for name, text in outputs(out).items() if name.endswith(".json"))
    with Manifest(out) as manifest:
        counts = batch.run(jobs, Mended(), manifest)
    assert (counts.done, counts.skipped) == (8, 2)


def test_an_output_folder_that_is_a_file_is_a_failure_of_each(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path / "in", 2, tmp_path / "out/deep")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/deep").write_text("a file")
    with Manifest(tmp_path / "out") as manifest:
        assert batch.run(jobs, Mended(), manifest).failed == 2


def test_without_resume_everything_is_done_again(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path / "in", 3, tmp_path / "out")
    with Manifest(tmp_path / "out") as manifest:
        batch.run(jobs, Mended(), manifest)
        assert batch.run(jobs, Mended(), manifest, resume=True).skipped == 3
        assert batch.run(jobs, Mended(), manifest, resume=False).done == 3
        other = Output(granularity=2.0)
        assert batch.run(jobs, Mended(), manifest, output=other).done == 3


def test_rows_of_an_earlier_run_are_heard_first(tmp_path: Path) -> None:
    jobs, heard = jobs_of(tmp_path / "in", 5, tmp_path / "out"), list[ManifestRow]()
    with Manifest(tmp_path / "out") as manifest:
        batch.run(jobs[2:4], Mended(), manifest)
        counts = batch.run(jobs, Mended(), manifest, on_row=heard.append)
    assert (counts.done, counts.skipped) == (3, 2)
    assert [row.name for row in heard[:2]] == ["02", "03"]
    assert sorted(row.name for row in heard) == [f"{k:02}" for k in range(5)]


def test_notes_of_the_writers_are_in_the_row(tmp_path: Path) -> None:
    class Long(Mended):
        def caption(self, video: Path, features: Any, speech: str) -> Captioned:
            return Captioned(video.name, 100.0, (Event(0, 90, "all of it"),))

    jobs = jobs_of(tmp_path / "in", 1, tmp_path / "out", ("youtube",))
    with Manifest(tmp_path / "out") as manifest:
        batch.run(jobs, Long(), manifest)
        assert "only where there are three" in manifest.rows["00"].notes[0]


class Unsure(Mended):
    """A few seconds of which the model says little that is sure."""

    def caption(self, video: Path, features: Any, speech: str) -> Captioned:
        return Captioned(video.name, 20.0, (Event(0, 9, "maybe", 0.1),))


def test_a_format_that_refuses_stops_neither_the_others_nor_the_next_run(tmp_path: Path) -> None:
    formats = ("json", "youtube", "vtt")
    jobs = jobs_of(tmp_path / "in", 2, tmp_path / "out", formats)
    with Manifest(tmp_path / "out") as manifest:
        assert batch.run(jobs, Unsure(), manifest) == Counts(done=2)
        row = manifest.rows["01"]
        assert row.outputs == ("01.json", "01.vtt") and row.left_out == ("youtube",)
        assert any("no youtube: 01.mp4: too short" in note for note in row.notes)
        assert set(outputs(tmp_path / "out")) == {"00.json", "00.vtt", "01.json", "01.vtt"}
        assert batch.run(jobs, Unsure(), manifest) == Counts(skipped=2)
    with Manifest(tmp_path / "out") as manifest:
        assert batch.run(jobs, Unsure(), manifest) == Counts(skipped=2)


def test_warnings_are_in_the_row(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path / "in", 1, tmp_path / "out")
    with Manifest(tmp_path / "out") as manifest:
        batch.run(jobs, Unsure(), manifest)
        (note,) = manifest.rows["00"].notes
    assert note == "captions are likely wrong (low confidence): the median is 10%"


OUT_OF_DOMAIN = "out of domain: the speech is not about cooking"


class Choosy(Failing):
    """Has no captions for 00 (and says why) and 05 (and does not), and fails on four others."""

    def caption(self, video: Path, features: Any, speech: str) -> Captioned:
        found = super().caption(video, features, speech)
        if video.stem not in ("00", "05"):
            return found
        provenance = {"unfamiliar": "frame distance 2.76, at most 1.58", "speech": "none: noise"}
        why = OUT_OF_DOMAIN if video.stem == "00" else ""
        return replace(found, events=(), provenance=provenance, reason=why)


class ChoosyForced(Choosy):
    settings = "small force"

    def caption(self, video: Path, features: Any, speech: str) -> Captioned:
        found = Failing.caption(self, video, features, speech)
        return replace(found, provenance={"unfamiliar": "frame distance 2.76", "forced": "yes"})


def test_not_captioned_is_a_status_of_its_own(tmp_path: Path) -> None:
    out, heard = tmp_path / "out", list[ManifestRow]()
    jobs = jobs_of(tmp_path / "in", 7, out, ("json", "vtt", "html", "csv"))
    with Manifest(out) as manifest:
        counts = batch.run(jobs, Choosy(), manifest)
        assert counts == Counts(done=1, without=2, failed=4) and counts.exit_code == 3
        assert str(counts) == "1 captioned, 2 without captions, 4 failed"
        row = manifest.rows["00"]
        assert (row.status, row.reason, row.notes) == ("not captioned", OUT_OF_DOMAIN, ())
        assert row.outputs == ("00.json",) and row.left_out == ("vtt", "html", "csv")
        assert manifest.rows["05"].reason == "no event was found"
        assert manifest.rows["06"].reason == "" and len(manifest.rows["06"].outputs) == 4
    kept = {"00.json", "05.json", "06.json", "06.vtt", "06.html", "06.csv"}
    assert set(outputs(out)) == kept
    record = Captioned.from_json(json.loads((out / "00.json").read_text()))
    assert record.reason == OUT_OF_DOMAIN and record.events == ()

    with Manifest(out) as manifest:
        # Neither another format nor --overwrite brings captions.
        jobs = jobs_of(tmp_path / "in", 7, out, ("json", "vtt", "html", "csv", "srt"))
        again = batch.run(jobs[:1], Choosy(), manifest, output=Output(overwrite=True))
        assert again == Counts(skipped_without=1) and again.exit_code == 4
        assert str(again) == "0 captioned, 0 without captions, 0 failed, 1 done before"
        forced = batch.run(jobs[:1], ChoosyForced(), manifest)
        assert forced == Counts(done=1) and manifest.rows["00"].status == "done"
        assert manifest.rows["00"].notes == ("captions are likely wrong (out of domain)",)
        batch.run(jobs[:1], Choosy(), manifest, on_row=heard.append)
    (row,) = heard
    assert row.notes[0] == "00.vtt: left as it was, from an earlier run" and len(row.notes) == 4
    assert "-->" in (out / "00.vtt").read_text()


def test_a_json_that_is_gone_is_written_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    jobs = jobs_of(tmp_path / "in", 1, out, ("json", "vtt"))
    with Manifest(out) as manifest:
        assert batch.run(jobs, Choosy(), manifest) == Counts(without=1)
        (out / "00.json").unlink()
        assert batch.run(jobs, Choosy(), manifest) == Counts(without=1)
    assert set(outputs(out)) == {"00.json"}


@pytest.mark.parametrize(
    ("counts", "code"),
    [
        (Counts(), 0),
        (Counts(done=1, without=5), 0),
        (Counts(skipped=1, without=5), 0),
        (Counts(without=5), 4),
        (Counts(skipped_without=5), 4),
        (Counts(without=5, failed=1), 3),
        (Counts(skipped_without=5, failed=1), 3),
        (Counts(failed=1), 1),
    ],
)
def test_exit_codes(counts: Counts, code: int) -> None:
    assert counts.exit_code == code


def test_what_is_not_captioned_is_an_empty_list_of_predictions(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path / "in", 7, tmp_path / "out")
    with Manifest(tmp_path / "out") as manifest:
        batch.run(jobs, Choosy(), manifest)
        batch.write_predictions(jobs, manifest, tmp_path / "p.json")
    results = json.loads((tmp_path / "p.json").read_text())["results"]
    assert {name: len(events) for name, events in results.items()} == {"00": 0, "05": 0, "06": 1}


def test_options_that_changed_nothing_are_named() -> None:
    speech, both = ("speech",), ("pictures", "datastore")
    output = Output(picture_options=("--beams 8", "--datastore d"))

    def notes(*events: Event) -> tuple[str, ...]:
        return output.select(Captioned("talk.mp4", 20.0, events))[1]

    heard = Event(0, 9, "a", times_from=speech, words_from=speech)
    seen = Event(9, 12, "b", times_from=both, words_from=both)
    assert notes(heard) == (
        "--beams 8, --datastore d changed nothing: the events of talk.mp4 were made from speech "
        "alone",
    )
    assert notes(heard, seen) == notes(seen) == notes(Event(0, 9, "unknown")) == ()
    assert Output().select(Captioned("talk.mp4", 20.0, (heard,)))[1] == ()


def test_predictions_of_all_finished_videos_in_one_file(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path / "in", 6, tmp_path / "out")
    with Manifest(tmp_path / "out") as manifest:
        batch.run(jobs, Failing(), manifest)
        batch.write_predictions(jobs, manifest, tmp_path / "p.json")
    results = json.loads((tmp_path / "p.json").read_text())["results"]
    assert list(results) == ["00", "05"] and results["05"][0]["timestamp"] == [0, 2]
