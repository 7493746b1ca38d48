"""Corrections: checked, versioned, never lost, and ready to train on."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from starc.types import Captioned, Event
from starc.viewer import edits
from starc.viewer.library import Item, Library, read_item
from starc.viewer.server import create_app
from starc_eval.annotations import read_annotations
from support.crash import power_failures
from support.viewer_sample import captioned, write_clip, write_record

BASE = "http://127.0.0.1:8350"
OURS = {"Origin": BASE}
SOUP = [(0.0, 4.0, "chop the onion"), (5.0, 9.5, "add garlic")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    events = (Event(0, 4, "chop the onion", 0.9), Event(5, 9, "add garlik", 0.4, True))
    write_record(tmp_path / "soup.json", replace(captioned("soup.mp4", 20.0), events=events))
    return tmp_path


def the_item(folder: Path) -> Item:
    return Library([folder]).refresh()[0]


def test_a_save_is_a_new_version_beside_the_old(folder: Path) -> None:
    before = (folder / "soup.json").read_bytes()
    assert edits.save(the_item(folder), SOUP, seen=0) == 1
    assert edits.save(the_item(folder), SOUP[:1], seen=1) == 2
    assert (folder / "soup.json").read_bytes() == before
    assert sorted(path.name for path in (folder / "soup.edits").iterdir()) == [
        "0001.json",
        "0002.json",
    ]
    item = the_item(folder)
    assert item.versions == (1, 2) and item.summary.events == 1
    first, newest = read_item(item, 1), read_item(item)
    assert first is not None and newest is not None
    assert [event.caption for event in first.events] == ["chop the onion", "add garlic"]
    # An untouched event keeps its confidence, a rewritten one is no longer the model's.
    assert [event.confidence for event in first.events] == [0.9, None]
    assert newest.saliency == first.saliency and newest.provenance["version"] == "2"
    assert read_item(item, 7) is None


SPEECH, PERSON = ("speech",), ("person",)


@pytest.mark.parametrize(
    ("edited", "times", "words"),
    [
        ((1.0, 4.0, "peel"), SPEECH, SPEECH),
        ((1.0004, 3.9996, "peel"), SPEECH, SPEECH),  # as subtitles keep it
        ((1.0, 4.0, "peel it"), SPEECH, PERSON),
        ((1.5, 4.0, "peel"), PERSON, SPEECH),
        ((12.0, 14.0, "wash the hands"), PERSON, PERSON),
        (edits.Edited(12.0, 14.0, "wash", (), ()), (), ()),  # read from a file
        (edits.Edited(1.0, 4.0, "slice", PERSON, PERSON), PERSON, PERSON),
        (
            edits.Edited(12.0, 14.0, "wash", SPEECH, ("datastore",)),
            PERSON,
            PERSON,
        ),  # not believed
    ],
)
def test_what_a_person_changed_is_by_a_person(
    edited: tuple[float, float, str] | edits.Edited, times: tuple[str], words: tuple[str]
) -> None:
    known = (
        Event(1, 4, "peel", 0.9, times_from=SPEECH, words_from=SPEECH),
        Event(5, 9, "slice", 0.4, times_from=SPEECH, words_from=SPEECH),
    )
    (event,) = edits.checked([edited], duration=20.0, known=known)
    assert (event.times_from, event.words_from) == (times, words)
    assert event.confidence == (0.9 if event == known[0] else None)


def test_an_event_written_by_hand_ends_the_reason(tmp_path: Path) -> None:
    write_record(tmp_path / "talk.json", Captioned("talk.mp4", 9.0, (), reason="out of domain"))
    assert the_item(tmp_path).summary.reason == "out of domain"
    edits.save(the_item(tmp_path), [(1.0, 2.0, "greet")], seen=0)
    item = the_item(tmp_path)
    newest = read_item(item)
    assert newest is not None and newest.reason == item.summary.reason == ""
    assert newest.events[0].words_from == newest.events[0].times_from == PERSON


def test_an_older_version_can_be_made_the_newest(folder: Path) -> None:
    edits.save(the_item(folder), SOUP, seen=0)
    edits.save(the_item(folder), [], seen=1)
    older = read_item(the_item(folder), 1)
    assert older is not None
    spans = [(event.start, event.end, event.caption) for event in older.events]
    assert edits.save(the_item(folder), spans, seen=2) == 3
    newest = read_item(the_item(folder))
    assert newest is not None and newest.events == older.events


def test_nobody_overwrites_anybody(folder: Path) -> None:
    item = the_item(folder)
    edits.save(item, SOUP, seen=0)
    with pytest.raises(edits.EditConflict, match="version 1"):
        edits.save(item, [], seen=0)
    results: list[object] = []

    def save() -> None:
        try:
            results.append(edits.save(item, SOUP, seen=1))
        except edits.EditConflict:
            results.append("conflict")

    threads = [threading.Thread(target=save) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, results)) == ["2"] + ["conflict"] * 7
    assert {path.name for path in item.edits.iterdir()} == {"0001.json", "0002.json"}


def test_of_two_who_save_at_once_the_one_who_is_told_saved_is_saved(folder: Path) -> None:
    item = the_item(folder)
    for version in range(1, 30):
        told: list[str] = []
        start = threading.Barrier(4)

        def save(name: str, version: int = version, told: list[str] = told) -> None:
            start.wait()  # noqa: B023
            with suppress(edits.EditConflict):
                edits.save(item, [(0.0, 4.0, name)], seen=version - 1)
                told.append(name)

        threads = [threading.Thread(target=save, args=(f"editor {n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kept = read_item(the_item(folder), version)
        assert kept is not None and [event.caption for event in kept.events] == told


def test_a_failed_save_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(edits.json, "dump", full)
    with pytest.raises(OSError):
        edits.save(the_item(folder), SOUP, seen=0)
    assert list((folder / "soup.edits").iterdir()) == []


def test_who_is_told_saved_is_shown(folder: Path) -> None:
    """Whatever lies among the versions: a save that succeeds is the newest when looked for."""
    versions = folder / "soup.edits"
    assert edits.save(the_item(folder), SOUP, seen=0) == 1
    text = (versions / "0001.json").read_text()
    for name in (
        "00002.json",
        "0000.json",
        "٣٣٣٣.json",
        "999999999.json",
        "1.json",
        "0003.json.json",
    ):
        (versions / name).write_text(text)
    assert the_item(folder).versions == (1,)
    (versions / "99999997.json").write_text(text)
    for seen in (99_999_997, 99_999_998):
        assert edits.save(the_item(folder), SOUP[:1], seen=seen) == seen + 1
        assert the_item(folder).newest == seen + 1
        assert len(getattr(read_item(the_item(folder)), "events", ())) == 1
    before = sorted(versions.iterdir())
    with pytest.raises(edits.EditRefused, match=r"99999999\.json is the last version"):
        edits.save(the_item(folder), SOUP, seen=99_999_999)
    assert sorted(versions.iterdir()) == before


@pytest.mark.skipif(sys.platform != "linux", reason="the recorder reads /proc")
def test_a_power_failure_costs_no_save(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    saved = 0

    def check(left: Path) -> None:
        item = the_item(left)
        assert item.newest in (saved, saved + 1)
        found = read_item(item)
        assert found is not None and len(found.events) == 2

    with power_failures(folder, check, tmp_path_factory.mktemp("scratch")):
        for seen in (0, 1):
            saved = edits.save(the_item(folder), SOUP, seen=seen)


def test_a_file_system_without_links(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", none)
    assert edits.save(the_item(folder), SOUP, seen=0) == 1
    assert [path.name for path in (folder / "soup.edits").iterdir()] == ["0001.json"]


def test_versions_are_not_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "soup.edits").symlink_to(outside)
    with pytest.raises(edits.EditRefused, match="link"):
        edits.save(the_item(folder), SOUP, seen=0)
    (folder / "soup.edits").unlink()
    (folder / "soup.edits").mkdir()
    (folder / "soup.edits/0001.json").symlink_to(outside / "planted.json")
    with pytest.raises(edits.EditConflict):
        edits.save(the_item(folder), SOUP, seen=0)
    assert not list(outside.iterdir())


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ((3.0, 3.0, "x"), "start before it ends"), ((4.0, 3.0, "x"), "start before it ends"),
        ((-1.0, 3.0, "x"), "start before it ends"), ((1.0, 21.0, "x"), "after the video"),
        ((math.nan, 3.0, "x"), "must be numbers"), ((0.0, math.inf, "x"), "must be numbers"),
        ((0.0, 1.0, "  \n"), "no caption"), ((0.0, 1.0, "\ud800"), "no caption"),
        ((0.0, 1.0, "x" * 2001), "2001 characters"),
    ],
)  # fmt: skip
def test_bad_events_are_named(folder: Path, event: tuple[float, float, str], words: str) -> None:
    with pytest.raises(edits.EditRefused, match=words) as refused:
        edits.save(the_item(folder), [SOUP[0], event], seen=0)
    assert refused.value.details["problems"][0]["event"] == 1
    assert not (folder / "soup.edits").exists()


def test_too_many_events() -> None:
    with pytest.raises(edits.EditRefused, match="at most"):
        edits.checked([(0.0, 1.0, "x")] * 5001, duration=5.0)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.floats(-1, 30), st.floats(-1, 30), st.text(st.characters(codec=None), max_size=20)
        ),
        max_size=6,
    )
)
def test_what_passes_the_check_can_be_written_and_read(
    events: list[tuple[float, float, str]],
) -> None:
    try:
        sound = edits.checked(events, duration=20.0)
    except edits.EditRefused as refused:
        assert refused.details["problems"]
        return
    made = Captioned("x", 20.0, sound)
    text = json.dumps(made.to_json(), ensure_ascii=False).encode()
    assert Captioned.from_json(json.loads(text)) == made
    assert list(sound) == sorted(sound, key=lambda event: (event.start, event.end))


def test_a_video_nobody_captioned_can_be_annotated(tmp_path: Path) -> None:
    write_clip(tmp_path / "new.mp4", 4.0)
    item = the_item(tmp_path)
    assert edits.save(item, [(0.0, 2.0, "boil water")], seen=0) == 1
    item = the_item(tmp_path)
    assert item.edits.name == "new.mp4.edits" and item.summary.events == 1
    # Captioned later by other means, the corrections stay on top.
    write_record(tmp_path / "new.json", captioned("new.mp4", 4.0))
    item = the_item(tmp_path)
    assert item.record is not None and item.summary.events == 1


def test_one_video_of_a_prediction_file(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    events = [{"timestamp": [0, 5], "sentence": "chop"}]
    path.write_text(json.dumps({"results": {"../one": events, "two": events}}))
    items = {item.key: item for item in Library([path]).refresh()}
    edits.save(items["../one"], [(1.0, 2.0, "chop finely")], seen=0)
    again = {item.key: item for item in Library([path]).refresh()}
    assert again["../one"].versions == (1,) and again["two"].versions == ()
    assert all(path.is_relative_to(tmp_path) for path in tmp_path.rglob("*.json"))
    assert not (tmp_path.parent / "one").exists()


def test_training_annotations_come_back(folder: Path, tmp_path: Path) -> None:
    edits.save(the_item(folder), SOUP, seen=0)
    client = TestClient(create_app([folder]), base_url=BASE)
    answer = client.get("/api/export/training")
    assert answer.headers["content-disposition"] == 'attachment; filename="corrected.jsonl"'
    path = tmp_path / "corrected.jsonl"
    path.write_bytes(answer.content)
    assert json.loads(answer.text) == {
        "video": "soup.mp4",
        "duration": 20.0,
        "events": [{"start": a, "end": b, "caption": text} for a, b, text in SOUP],
    }
    annotated = read_annotations(path)["soup"]
    assert annotated.spans == ((0.0, 4.0), (5.0, 9.5)) and annotated.duration == 20.0


def test_exports_go_through_the_caller(folder: Path) -> None:
    endings = {"vtt": "vtt", "srt": "srt", "chapters": "chapters.vtt"}
    exports = {
        name: edits.Export(ending, lambda made, name=name: f"{name}:{len(made.events)}")
        for name, ending in endings.items()
    }
    app = create_app([folder], exports=exports)
    client = TestClient(app, base_url=BASE)
    id = client.get("/api/library").json()["videos"][0]["id"]
    assert client.get(f"/api/videos/{id}/export/vtt").text == "vtt:2"
    edits.save(the_item(folder), [], seen=0)  # by another process
    assert client.get(f"/api/videos/{id}/export/vtt").text == "vtt:0"
    answer = client.get(f"/api/videos/{id}/export/srt?version=0")
    assert answer.text == "srt:2"
    assert answer.headers["content-disposition"] == 'attachment; filename="soup.srt"'
    name = client.get(f"/api/videos/{id}/export/chapters").headers["content-disposition"]
    assert name == 'attachment; filename="soup.chapters.vtt"'
    assert client.get(f"/api/videos/{id}/export/exe").status_code == 404
    assert client.get(f"/api/videos/{id}/export/srt?version=9").status_code == 404
    assert client.get(f"/api/videos/{id}/export/json?version=0").json()["starc"] == 1


def test_saving_over_http(folder: Path) -> None:
    client = TestClient(create_app([folder]), base_url=BASE, headers=OURS)
    id = client.get("/api/library").json()["videos"][0]["id"]
    url = f"/api/videos/{id}/versions"
    body = {"seen": 0, "events": [{"start": 0, "end": 4, "caption": "chop <b>the</b> onion"}]}
    assert client.post(url, json=body).json() == {"version": 1}
    opened = client.get(f"/api/videos/{id}").json()
    assert opened["version"] == opened["newest"] == 1 and len(opened["saved"]) == 1
    assert opened["dates"] == [opened["record"]["provenance"]["corrected"]]
    assert opened["record"]["events"][0]["caption"] == "chop <b>the</b> onion"
    original = client.get(f"/api/videos/{id}?version=0").json()
    assert original["version"] == 0 and len(original["record"]["events"]) == 2
    conflict = client.post(url, json=body)
    assert conflict.status_code == 409 and conflict.json()["newest"] == 1
    body = {"seen": 1, "events": [{"start": 5, "end": 4, "caption": "x"}]}
    refused = client.post(url, json=body)
    assert refused.status_code == 422 and refused.json()["problems"][0]["event"] == 0
    assert client.get("/api/library").json()["videos"][0]["versions"] == 1


def test_a_disk_that_refuses_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    client = TestClient(create_app([folder]), base_url=BASE, headers=OURS)
    id = client.get("/api/library").json()["videos"][0]["id"]
    monkeypatch.setattr(edits, "replacing", refuse)
    answer = client.post(f"/api/videos/{id}/versions", json={"seen": 0, "events": []})
    assert answer.status_code == 507 and "Permission denied" in answer.json()["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'{"seen": 0}', b'{"seen": -1, "events": []}', b"\xff\xfe",
        b'{"seen": 0, "events": [{"start": NaN, "end": 1, "caption": "x"}]}',
        b'{"seen": 0, "events": [{"start": 0, "end": Infinity, "caption": "x"}]}',
        b'{"seen": 0, "events": [{"start": 0, "end": 1e999, "caption": "x"}]}',
        b'{"seen": 0, "events": [{"start": "0", "end": [], "caption": {}}]}',
        b'{"seen": 0, "events": [{"start": 0, "end": 1, "caption": "x", "more": "\\ud800"}]}',
        b'{"seen": 0, "events": [{"start": 0, "end": 1, "caption": "\\ud800"}]}',
        b'{"seen": 0, "events": 7, "\\ud800": NaN}', b"[" * 100_000, b'{"seen": 1e400}',
    ],
)  # fmt: skip
def test_no_body_breaks_the_server(folder: Path, body: bytes) -> None:
    client = TestClient(create_app([folder]), base_url=BASE, headers=OURS)
    id = client.get("/api/library").json()["videos"][0]["id"]
    headers = {"Content-Type": "application/json"}
    answer = client.post(f"/api/videos/{id}/versions", content=body, headers=headers)
    assert answer.status_code in (400, 422) and answer.json()["message"]
