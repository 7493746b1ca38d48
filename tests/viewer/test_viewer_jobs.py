"""Captioning from the page: uploads, the queue, progress, cancelling."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from starc.errors import SpeechError
from starc.inference.pipeline import Captioner
from starc.types import Captioned, Event
from starc.viewer import edits
from starc.viewer.jobs import JobQueue, QueueFull
from starc.viewer.library import NOTHING_FOUND, Library
from starc.viewer.server import ServerLimits, create_app
from support.viewer_browser import running
from support.viewer_sample import write_clip, write_record

BASE = "http://127.0.0.1:8350"
OURS = {"Origin": BASE}
Progress = Callable[[str, float], None]


def wait(condition: Callable[[], object], seconds: float = 10.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.005)


def quick(path: Path, progress: Progress, _: Callable[[], bool]) -> Captioned:
    for stage in ("frames", "captions"):
        progress(stage, 0.5)
        progress(stage, 1.0)
    return Captioned("whatever", 4.0, (Event(0, 2, f"found in {path.suffix}"),))


class Slow:
    """Waits to be let go; counts how many run at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.running = self.most = 0
        self.order: list[str] = []

    def __call__(self, path: Path, progress: Progress, cancelled: Callable[[], bool]) -> Captioned:
        self.running += 1
        self.most = max(self.most, self.running)
        self.order.append(path.name)
        try:
            while not self.go.is_set():
                progress("frames", 0.3)
                time.sleep(0.005)
            return quick(path, progress, cancelled)
        finally:
            self.running -= 1


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_clip(tmp_path_factory.mktemp("clip") / "a.mp4", 2.0).read_bytes()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(create_app([tmp_path], caption=quick), base_url=BASE, headers=OURS) as client:
        yield client


def finish(client: TestClient) -> list[dict[str, object]]:
    """Follow the events until nothing is active; the last thing they said."""
    text = client.get("/api/jobs/events").text
    last = json.loads(text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["idle"] is True
    return list(last["jobs"])


def test_an_upload_becomes_a_video_of_the_library(
    client: TestClient, tmp_path: Path, clip: bytes
) -> None:
    answer = client.post("/api/uploads", params={"name": "../My <b>soup</b>.mp4"}, content=clip)
    assert answer.status_code == 202
    (job,) = finish(client)
    assert job["state"] == "done" and job["error"] is None
    assert [stage["name"] for stage in job["stages"]] == ["frames", "captions"]
    (video,) = client.get("/api/library").json()["videos"]
    assert video["id"] == job["video"] and video["title"] == job["title"]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2 and all(name.startswith("upload-") for name in names)
    opened = client.get(f"/api/videos/{video['id']}").json()
    assert opened["record"]["events"][0]["caption"] == "found in .mp4"
    assert client.get(f"/api/videos/{video['id']}/media").content == clip


@pytest.mark.parametrize(
    "name",
    ["../../x.mp4", "/etc/passwd", "C:\\x.mp4", "a\0b.mp4", "", ".", "..", "x" * 400,
     "\u202egpj.mp4", "<img src=x onerror=alert(1)>.mp4", "%2e%2e%2fx.mp4",
     "upload.mp4\r\nX: y", "nul.mp4"],
)  # fmt: skip
def test_a_name_is_never_a_path(tmp_path: Path, clip: bytes, name: str) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    with TestClient(create_app([folder], caption=quick), base_url=BASE, headers=OURS) as client:
        assert client.post("/api/uploads", params={"name": name}, content=clip).status_code == 202
        assert finish(client)[0]["state"] == "done"
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert all(path.name.startswith("upload-") for path in folder.iterdir())


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 415), (b"x", 415), (b"<html><script>alert(1)</script></html>" * 10, 415),
        (b"#!/bin/sh\nrm -rf /\n" * 10, 415), (b"\x7fELF" + b"\0" * 200, 415),
        (b"\0\0\0\x20ftypisom" + b"\0" * 500, 415), (b"\x1a\x45\xdf\xa3" + b"webm" * 50, 415),
        (b"\0\0\0\x20ftypisom" + b"\0" * 70_000, 413),
    ],
)  # fmt: skip
def test_what_is_no_video_or_too_large_leaves_nothing(
    tmp_path: Path, content: bytes, status: int
) -> None:
    limits = ServerLimits(upload=60_000)
    app = create_app([tmp_path], caption=quick, limits=limits)
    with TestClient(app, base_url=BASE, headers=OURS) as client:
        for body in (content, iter([content[:10], content[10:]])):  # with a length and without
            answer = client.post("/api/uploads?name=x.mp4", content=body)
            assert answer.status_code == status and answer.json()["message"]
        assert client.get("/api/jobs").json() == {"jobs": []}
    assert list(tmp_path.iterdir()) == []


WHY = "out of domain: what is said is unlike the videos that the model was trained on"


def declining(path: Path, *_: object) -> Captioned:
    return Captioned(path.name, 4.0, (), reason=WHY)


def test_a_video_that_was_declined_can_be_captioned_anyway(tmp_path: Path, clip: bytes) -> None:
    (tmp_path / "talk.mp4").write_bytes(clip)
    app = create_app([tmp_path], caption=declining, caption_anyway=quick)
    with TestClient(app, base_url=BASE, headers=OURS) as client:

        def video() -> dict[str, object]:
            (one,) = client.get("/api/library").json()["videos"]
            return dict(one)

        path = f"/api/videos/{video()['id']}/caption"
        assert client.post(path, params={"anyway": True}).status_code == 409  # nobody has tried
        assert client.post(path).status_code == 202
        (job,) = finish(client)
        assert job["state"] == "done" and job["reason"] == WHY and not job["anyway"]
        path = f"/api/videos/{video()['id']}"
        assert video()["reason"] == WHY and video()["events"] == 0 and video()["declined"]
        assert client.get(path).json()["can_caption_anyway"] is True
        record = tmp_path / "talk.json"
        before = json.loads(record.read_text())
        given = {"title": "A talk", "source": "talk.mp4", "content": "1-a", "unfamiliar": "x"}
        record.write_text(json.dumps({**before, "provenance": given}))
        client.get("/api/library")
        assert client.post(f"{path}/caption").status_code == 409
        assert client.post(f"{path}/caption", params={"anyway": True}).status_code == 202
        (job,) = finish(client)
        assert job["state"] == "done" and job["anyway"] and not job["reason"]
        assert video()["events"] == 1 and not video()["declined"] and video()["title"] == "A talk"
        assert client.get(path).json()["can_caption_anyway"] is False
        assert client.post(f"{path}/caption", params={"anyway": True}).status_code == 409
        after = json.loads(record.read_text())["provenance"]
        assert after == {key: given[key] for key in ("title", "source", "content")}


def test_captioning_anyway_never_replaces_captions(tmp_path: Path, clip: bytes) -> None:
    (tmp_path / "talk.mp4").write_bytes(clip)
    record = write_record(tmp_path / "talk.json", declining(tmp_path / "talk.mp4"))
    captions = Captioned("talk.mp4", 4.0, (Event(0, 2, "by somebody else"),))

    def meanwhile(path: Path, *rest: Callable[..., bool]) -> Captioned:
        write_record(record, captions)
        return quick(path, lambda *_: None, lambda: False)

    app = create_app([tmp_path], caption=quick, caption_anyway=meanwhile)
    with TestClient(app, base_url=BASE, headers=OURS) as client:
        (video,) = client.get("/api/library").json()["videos"]
        client.post(f"/api/videos/{video['id']}/caption", params={"anyway": True})
        (job,) = finish(client)
        assert job["state"] == "failed" and "has captions by now" in str(job["error"])
    assert Captioned.from_json(json.loads(record.read_text())) == captions


@pytest.mark.parametrize(
    ("reason", "versions", "can"),
    [(WHY, 0, True), (WHY, 1, False), ("", 0, False), ("no event was found", 0, False)],
)
def test_only_withheld_captions_can_be_asked_for(
    tmp_path: Path, clip: bytes, reason: str, versions: int, can: bool
) -> None:
    (tmp_path / "talk.mp4").write_bytes(clip)
    write_record(tmp_path / "talk.json", Captioned("talk.mp4", 4.0, (), reason=reason))
    if versions:
        edits.save(Library([tmp_path]).refresh()[0], [(0.0, 2.0, "greet")], seen=0)
    for anyway in (quick, None):
        app = create_app([tmp_path], caption=quick, caption_anyway=anyway)
        with TestClient(app, base_url=BASE, headers=OURS) as client:
            (video,) = client.get("/api/library").json()["videos"]
            opened = client.get(f"/api/videos/{video['id']}").json()
            assert opened["can_caption_anyway"] is (can and anyway is not None)


def test_the_page_knows_a_reason_for_which_nothing_was_withheld() -> None:
    nothing = Captioned("talk.mp4", 4.0, (), provenance={"speech": "none: no sound"})
    assert Captioner()._why_not(nothing).startswith(NOTHING_FOUND)


def test_an_upload_that_breaks_off_leaves_nothing(tmp_path: Path, clip: bytes) -> None:
    with running(create_app([tmp_path], caption=quick)) as site:
        host = site.removeprefix("http://")
        name, port = host.split(":")
        with socket.create_connection((name, int(port))) as line:
            head = f"POST /api/uploads HTTP/1.1\r\nHost: {host}\r\nOrigin: {site}\r\n"
            line.sendall(head.encode() + b"Content-Length: 99999\r\n\r\n" + clip[:900])
            wait(lambda: [path.suffix for path in tmp_path.iterdir()] == [".part"])
        wait(lambda: not list(tmp_path.iterdir()))


def test_a_full_disk_is_told(
    client: TestClient, clip: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=1000)
    monkeypatch.setattr("starc.viewer.jobs.shutil.disk_usage", lambda _: usage)
    answer = client.post("/api/uploads", content=clip)
    assert answer.status_code == 507 and "full" in answer.json()["message"]


def test_one_job_at_a_time_in_order(tmp_path: Path) -> None:
    slow = Slow()
    queue = JobQueue(slow)
    paths = [tmp_path / f"{name}.mp4" for name in "abc"]
    jobs = [queue.submit(path, title=path.stem, uploaded=False) for path in paths]
    wait(lambda: jobs[0].state == "running")
    time.sleep(0.05)
    assert [job.state for job in jobs] == ["running", "queued", "queued"]
    slow.go.set()
    wait(lambda: not queue.busy)
    assert slow.most == 1 and slow.order == ["a.mp4", "b.mp4", "c.mp4"]
    assert all((tmp_path / f"{name}.json").exists() for name in "abc")
    queue.close()


def test_two_workers_take_two(tmp_path: Path) -> None:
    slow = Slow()
    queue = JobQueue(slow, workers=2)
    for name in "abc":
        queue.submit(tmp_path / f"{name}.mp4", title=name, uploaded=False)
    wait(lambda: slow.running == 2)
    slow.go.set()
    wait(lambda: not queue.busy)
    assert slow.most == 2
    queue.close()


def test_cancel_a_running_and_a_waiting_job(tmp_path: Path, clip: bytes) -> None:
    slow = Slow()
    with TestClient(create_app([tmp_path], caption=slow), base_url=BASE, headers=OURS) as client:
        first, second = (
            client.post(f"/api/uploads?name={name}.mp4", content=clip).json() for name in "ab"
        )
        wait(lambda: slow.running == 1)
        assert client.delete(f"/api/jobs/{second['id']}").json()["state"] == "cancelled"
        assert client.delete(f"/api/jobs/{first['id']}").status_code == 200
        jobs = finish(client)
        assert [job["state"] for job in jobs] == ["cancelled", "cancelled"]
        assert list(tmp_path.iterdir()) == []  # both uploads are gone
        slow.go.set()
        client.post("/api/uploads?name=c.mp4", content=clip)
        assert finish(client)[-1]["state"] == "done"  # and the queue still works
        assert client.delete("/api/jobs/" + "0" * 16).status_code == 404


def test_a_result_that_comes_after_the_cancel_is_dropped(tmp_path: Path) -> None:
    started, go = threading.Event(), threading.Event()

    def deaf(path: Path, _: Progress, __: Callable[[], bool]) -> Captioned:
        started.set()
        go.wait(5)
        return Captioned("x", 1.0, ())

    queue = JobQueue(deaf)
    job = queue.submit(tmp_path / "a.mp4", title="a", uploaded=False)
    started.wait(5)
    queue.cancel(job)
    assert job.as_row()["cancelling"]
    go.set()
    wait(lambda: not job.active)
    assert job.state == "cancelled" and not list(tmp_path.iterdir())
    queue.close()


def test_a_function_may_stop_in_its_own_way(tmp_path: Path) -> None:
    started = threading.Event()

    def stoppable(path: Path, _: Progress, cancelled: Callable[[], bool]) -> Captioned:
        started.set()
        while not cancelled():
            time.sleep(0.005)
        raise RuntimeError("stopped")

    queue = JobQueue(stoppable)
    job = queue.submit(tmp_path / "a.mp4", title="a", uploaded=False)
    started.wait(5)
    queue.cancel(job)
    wait(lambda: not job.active)
    assert job.state == "cancelled" and job.error is None
    queue.close()


def test_failures_are_told_in_one_line(tmp_path: Path) -> None:
    def fail(path: Path, _: Progress, __: Callable[[], bool]) -> Captioned:
        if path.stem == "a":
            raise SpeechError("a.mp4: no speech; give a subtitle file")
        raise ZeroDivisionError("division by zero")

    queue = JobQueue(fail)
    jobs = [queue.submit(tmp_path / f"{n}.mp4", title=n, uploaded=False) for n in "ab"]
    wait(lambda: not queue.busy)
    assert jobs[0].error == "a.mp4: no speech; give a subtitle file"
    assert jobs[1].error == "captioning failed (ZeroDivisionError: division by zero)"
    assert [job.state for job in jobs] == ["failed", "failed"]
    queue.close()


def test_the_queue_has_an_end(tmp_path: Path) -> None:
    slow = Slow()
    queue = JobQueue(slow, waiting=2)
    queue.submit(tmp_path / "a.mp4", title="a", uploaded=False)
    wait(lambda: slow.running == 1)
    with pytest.raises(QueueFull, match="already"):
        queue.submit(tmp_path / "a.mp4", title="a", uploaded=False)
    for name in "bc":
        queue.submit(tmp_path / f"{name}.mp4", title=name, uploaded=False)
    with pytest.raises(QueueFull, match="2 videos are waiting"):
        queue.submit(tmp_path / "d.mp4", title="d", uploaded=False)
    queue.close()
    assert slow.running == 0


def test_a_video_of_the_library_is_captioned_once(
    client: TestClient, tmp_path: Path, clip: bytes
) -> None:
    (tmp_path / "tart.mp4").write_bytes(clip)
    (video,) = client.get("/api/library").json()["videos"]
    assert not video["captioned"] and client.get(f"/api/videos/{video['id']}").json()["can_caption"]
    assert client.post(f"/api/videos/{video['id']}/caption").status_code == 202
    (job,) = finish(client)
    assert (tmp_path / "tart.json").exists() and job["video"]
    assert client.post(f"/api/videos/{job['video']}/caption").status_code == 409
    assert (tmp_path / "tart.mp4").read_bytes() == clip


def test_without_a_model_there_is_no_captioning(tmp_path: Path, clip: bytes) -> None:
    (tmp_path / "tart.mp4").write_bytes(clip)
    client = TestClient(create_app([tmp_path]), base_url=BASE, headers=OURS)
    library = client.get("/api/library").json()
    assert not library["can_caption"] and not library["can_upload"]
    assert client.post("/api/uploads", content=clip).status_code == 404
    assert client.post(f"/api/videos/{library['videos'][0]['id']}/caption").status_code == 404
    assert client.get("/api/jobs").json() == {"jobs": []}
    # Opened for one file, the page may caption it but takes no others.
    client = TestClient(
        create_app([tmp_path / "tart.mp4"], caption=quick), base_url=BASE, headers=OURS
    )
    assert client.post("/api/uploads", content=clip).status_code == 404


def test_captioning_writes_over_nobodys_file(tmp_path: Path) -> None:
    for name in ("pair.mp4", "pair.webm", "lone.mp4"):
        write_clip(tmp_path / "clip.mp4", 4.0).rename(tmp_path / name)
    (tmp_path / "lone.json").write_text('{"thesis": 1}')
    queue = JobQueue(quick)
    jobs = [
        queue.submit(tmp_path / name, title=name, uploaded=False)
        for name in ("pair.mp4", "pair.webm", "lone.mp4")
    ]
    wait(lambda: not queue.busy)
    assert [job.result and job.result.name for job in jobs] == [
        "pair.json",
        "pair.webm.json",
        "lone.mp4.json",
    ]
    assert (tmp_path / "lone.json").read_text() == '{"thesis": 1}'
    items = {item.record: item for item in Library([tmp_path]).refresh()}
    for job in jobs:  # and a correction of each hangs on its own video
        assert items[job.result].video == job.path
    assert len({item.edits for item in items.values()}) == 3
    again = queue.submit(tmp_path / "lone.mp4", title="lone", uploaded=False)
    wait(lambda: not queue.busy)
    assert again.state == "failed" and "is there already" in (again.error or "")
    queue.close()


def test_a_failed_upload_keeps_its_title_and_can_be_tried_again(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", 2.0).read_bytes()
    library = tmp_path / "library"
    library.mkdir()
    working = threading.Event()

    def caption(path: Path, progress: Progress, cancelled: Callable[[], bool]) -> Captioned:
        if not working.is_set():
            raise SpeechError(f"{path}: nobody listens; see {path.parent}/log")
        return quick(path, progress, cancelled)

    client = TestClient(create_app([library], caption=caption), base_url=BASE, headers=OURS)
    assert client.post("/api/uploads?name=Onion tart.mp4", content=clip).status_code == 202

    def job() -> dict[str, object]:
        (row,) = client.get("/api/jobs").json()["jobs"]
        return row

    wait(lambda: job()["state"] == "failed")
    assert str(tmp_path) not in str(job()["error"]) and "nobody listens" in str(job()["error"])
    (row,) = client.get("/api/library").json()["videos"]
    assert row["title"] == "Onion tart" and not row["captioned"] and job()["video"] == row["id"]
    working.set()
    assert client.post(f"/api/videos/{row['id']}/caption").status_code == 202
    wait(lambda: job()["state"] == "done")  # one row: it took the place of the other
    (row,) = client.get("/api/library").json()["videos"]
    assert row["title"] == "Onion tart" and row["captioned"]
    assert not list(library.glob(".*"))


def test_words_about_a_stage_reach_the_page(tmp_path: Path) -> None:
    go = threading.Event()

    def caption(path: Path, progress: Callable[..., None], _: Callable[[], bool]) -> Captioned:
        progress("watching", 0.25, "30 of 120 frames seen")
        go.wait(10)
        return Captioned("x", 2.0, ())

    clip = write_clip(tmp_path / "clip.mp4", 2.0)
    queue = JobQueue(caption)
    job = queue.submit(clip, title="clip", uploaded=False)
    wait(lambda: job.stages)
    stage = {"name": "watching", "done": 0.25, "words": "30 of 120 frames seen"}
    assert job.as_row()["stages"] == [stage]
    go.set()
    queue.close()
