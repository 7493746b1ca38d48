"""The library: what is listed, how it is paired, searched and pictured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from starc.errors import AnnotationError, VideoError
from starc.media.container import MediaLimits
from starc.types import Captioned, Event, Sentence
from starc.viewer import previews
from starc.viewer.comparison import Comparison
from starc.viewer.library import Library, read_item
from starc.viewer.previews import thumbnail
from starc.viewer.records import read_captioned
from starc.viewer.search import search, stem, words_of
from support.viewer_sample import captioned, make_library, write_clip, write_record


def record(video: str, *captions: str, speech: tuple[str, ...] = ()) -> Captioned:
    events = tuple(Event(float(n), n + 1.0, text) for n, text in enumerate(captions))
    said = tuple(Sentence(float(n), n + 1.0, text) for n, text in enumerate(speech))
    return Captioned(video, 60.0, events, said)


def test_records_find_their_videos(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.mp4", "b.mp4", "deep/c.mp4", "alone.mp4"):
        (tmp_path / name).write_bytes(b"\0\0\0\x20ftypisom")
    write_record(tmp_path / "x.json", record("a.mp4", "by the name in the record"))
    write_record(tmp_path / "b.json", record("unknown", "by the name of the file"))
    write_record(tmp_path / "y.json", record("/data/v_c.mp4", "by the id, in another folder"))
    write_record(tmp_path / "z.json", record("missing", "no video"))
    (tmp_path / "other.json").write_text('{"results": {}}')
    (tmp_path / ".hidden.json").write_text("{")
    items = Library([tmp_path]).refresh()
    videos = {item.record.name if item.record else None: item.video for item in items}
    names = {record: video.name if video else None for record, video in videos.items()}
    assert names == {
        "x.json": "a.mp4", "b.json": "b.mp4", "y.json": "c.mp4", "z.json": None, None: "alone.mp4",
    }  # fmt: skip
    assert [item.captioned for item in items if item.record is None] == [False]


def test_one_file_opens_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.mp4").write_bytes(b"\0\0\0\x20ftypisom")
        write_record(tmp_path / f"{name}.json", record(f"{name}.mp4", "x"))
    for given in ("a.json", "a.mp4"):
        (item,) = Library([tmp_path / given]).refresh()
        assert item.record == tmp_path / "a.json" and item.video == tmp_path / "a.mp4"


def test_a_prediction_file_of_another_format_opens_too(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    events = [{"timestamp": [0, 5], "sentence": "chop"}, {"timestamp": [7, 6], "sentence": "back"}]
    path.write_text(json.dumps({"results": {"v_one": events, "two": events}}))
    items = Library([path]).refresh()
    assert [item.key for item in items] == ["one", "two"]
    opened = read_item(items[0])
    assert opened is not None and [event.caption for event in opened.events] == ["chop"]


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_record(tmp_path / "a.json", record("a", "one"))
    write_record(tmp_path / "b.json", record("b", "one"))
    library = Library([tmp_path])
    library.refresh()
    import starc.viewer.library as module

    read, real = [], module.read_json
    monkeypatch.setattr(module, "read_json", lambda p, **how: read.append(p) or real(p, **how))
    assert [item.summary.events for item in library.refresh()] == [1, 1] and not read
    write_record(path, record("a", "one", "two"))
    assert [item.summary.events for item in library.refresh()] == [2, 1] and read == [path]
    path.unlink()
    assert len(library.refresh()) == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"starc": 1', '{"starc": 1}', "", "{", "\0\1",
        '{"starc": 2, "video": "x"}', "[" * 2000 + '"starc"',
        '{"starc": 1, "video": 3, "duration": 1, "events": [], "sentences": [], "frame_times": [],'
        ' "saliency": [], "segments": [], "provenance": {}}',
        '{"starc": 1, "video": "x", "duration": "1", "events": 3}',
    ],
)  # fmt: skip
def test_a_damaged_record_is_shown_as_such(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    write_record(tmp_path / "good.json", record("good", "x"))
    items = {item.summary.title: item for item in Library([tmp_path]).refresh()}
    assert items["bad"].summary.problem and not items["good"].summary.problem
    with pytest.raises(AnnotationError, match=r"bad\.json"):
        read_captioned(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("saliency", [float("nan")]), ("saliency", ["x"]), ("duration", 10**310), ("video", 5),
        ("events", [{"start": 0, "end": 1, "caption": 7}]), ("provenance", {"a": 1}),
        ("events", [{"start": 0, "end": 1, "caption": "x", "confidence": float("inf")}]),
        ("sentences", [{"start": 0, "end": 1, "text": None}]), ("frame_times", [True]),
        ("segments", [{"first": 0.5, "stop": 1, "anchor": 0, "score": 0, "captions": []}]),
        ("segments", [{"first": 0, "stop": 1, "anchor": 0, "score": None, "captions": []}]),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(tmp_path: Path, field: str, value: object) -> None:
    content = Captioned("x", 5.0, (), frame_times=(0.0,), saliency=(0.5,)).to_json()
    content[field] = value
    path = tmp_path / "x.json"
    path.write_text(json.dumps(content))
    with pytest.raises(AnnotationError):
        read_captioned(path)
    Library([tmp_path]).refresh()


def test_the_order_of_a_records_keys_does_not_matter(tmp_path: Path) -> None:
    content = captioned('x "saliency": [1], "segments": [', 30.0).to_json()
    path = tmp_path / "x.json"
    path.write_text(json.dumps(dict(reversed(content.items()))))
    (item,) = Library([tmp_path]).refresh()
    assert item.summary.events == len(content["events"]) and not item.summary.problem


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"reason": "low confidence"}, "low confidence"),
        ({"provenance": {"unfamiliar": "frames 2.76 away"}}, "out of domain"),  # of version 0.2
        ({"events": [{"start": 0, "end": 1, "caption": "a"}], "reason": "low confidence"}, ""),
        ({}, ""),
    ],
)
def test_why_a_video_was_not_captioned(
    tmp_path: Path, more: dict[str, object], reason: str
) -> None:
    record = replace(captioned("a.mp4", 9.0), events=()).to_json()
    del record["reason"]
    (tmp_path / "a.json").write_text(json.dumps(record | more))
    (item,) = Library([tmp_path]).refresh()
    assert item.as_row()["reason"] == reason and item.declined is bool(reason)
    (tmp_path / "a.json").write_text(json.dumps(record | {"reason": 3}))
    (item,) = Library([tmp_path]).refresh()
    assert item.summary.problem


def test_pipes_and_huge_records_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    os.mkfifo(tmp_path / "pipe.mp4")
    with (tmp_path / "sparse.json").open("wb") as file:
        file.truncate(2 << 30)
    write_record(tmp_path / "good.json", record("good", "x"))
    assert [item.summary.title for item in Library([tmp_path]).refresh()] == ["good"]


def test_a_library_needs_a_place(tmp_path: Path) -> None:
    with pytest.raises(AnnotationError, match="no such file or folder"):
        Library([tmp_path / "none"])
    with pytest.raises(ValueError):
        Library([])
    assert Library([tmp_path]).refresh() == []


def test_names_with_broken_bytes_do_no_harm(tmp_path: Path) -> None:
    if os.name == "nt":
        pytest.skip("names are text there")
    name = os.fsdecode(b"caf\xe9.mp4")
    try:
        (tmp_path / name).write_bytes(b"\0\0\0\x20ftypisom")
    except OSError:
        pytest.skip("this file system wants text")
    (item,) = Library([tmp_path]).refresh()
    json.dumps(item.as_row()).encode()


def test_a_question_finds_the_moment(tmp_path: Path) -> None:
    write_record(
        tmp_path / "soup.json",
        record("soup", "chop the onion", "adding garlic to the pan", speech=("now some garlic",)),
    )
    write_record(tmp_path / "cake.json", record("cake", "add the flour", "whisk the eggs"))
    items = Library([tmp_path]).refresh()
    moments, total = search(items, "Where do they add garlic?", limit=10)
    assert moments[0].passage.text == "adding garlic to the pan" and moments[0].passage.start == 1.0
    assert total == 3 and {one.passage.text for one in moments} >= {
        "now some garlic",
        "add the flour",
    }
    assert search(items, "whisked egg", limit=10)[0][0].passage.text == "whisk the eggs"
    assert search(items, "", limit=10) == ([], 0)
    assert search(items, "zebra (", limit=10) == ([], 0)
    assert len(search(items, "the", limit=2)[0]) == 2
    every, total = search(items, "the", limit=100)
    assert [*search(items, "the", limit=2)[0], *search(items, "the", limit=98, skip=2)[0]] == every
    assert search(items, "the", limit=2, skip=total) == ([], total)


def test_words_and_stems() -> None:
    assert words_of("Where do they add the garlic?") == ["add", "garlic"]
    assert words_of("where is it") == ["wher", "is", "it"]
    for forms in (("chop", "chops", "chopped", "chopping"), ("add", "adds", "added", "adding")):
        assert len({stem(word) for word in forms}) == 1
    assert stem("grill") == "grill" and stem("press") == "pres"


def test_thumbnails_are_made_once(tmp_path: Path) -> None:
    video = write_clip(tmp_path / "a.mp4", 4.0)
    picture = thumbnail(video, 2.0, folder=tmp_path / "cache")
    assert picture[:3] == b"\xff\xd8\xff" and picture[-2:] == b"\xff\xd9"
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(b"kept")
    assert thumbnail(video, 2.0, folder=tmp_path / "cache") == b"kept"
    assert thumbnail(video, None, folder=tmp_path / "cache")[:3] == b"\xff\xd8\xff"
    # A cache that cannot be written costs time, not the picture.
    (tmp_path / "file").write_text("")
    assert thumbnail(video, 99.0, folder=tmp_path / "file")[:3] == b"\xff\xd8\xff"


def test_what_is_no_video_has_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"\0\0\0\x20ftypisom" + b"x" * 200)
    with pytest.raises(VideoError):
        thumbnail(path, None, folder=tmp_path / "cache")


def test_a_playlist_named_as_a_video_has_no_picture(tmp_path: Path) -> None:
    write_clip(tmp_path / "inner.mp4", 4.0)
    (tmp_path / "list.mp4").write_text("ffconcat version 1.0\nfile inner.mp4\n")
    with pytest.raises(VideoError, match="not a media file"):
        thumbnail(tmp_path / "list.mp4", None, folder=tmp_path / "cache")


def test_a_picture_beyond_the_limit_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = write_clip(tmp_path / "a.mp4", 4.0)
    monkeypatch.setattr(previews, "MediaLimits", lambda: MediaLimits(pixels=100))
    with pytest.raises(VideoError, match="picture too large"):
        thumbnail(video, None, folder=tmp_path / "cache")


def test_reference_and_second_system_meet_by_id(tmp_path: Path) -> None:
    library = make_library(tmp_path, duration=12.0, dishes=2)
    item = next(i for i in Library([library]).refresh() if "tomato" in i.summary.title)
    reference = Comparison(tmp_path / "reference.json")
    annotated = reference.captioned(item.names)
    assert annotated is not None and len(annotated.events) == 8
    assert reference.name == "reference" and reference.captioned(["nobody"]) is None
    other = Comparison(tmp_path / "baseline")
    predicted = other.captioned(item.names)
    assert other.name == "baseline"
    assert predicted is not None and predicted.video.startswith("roasted")
    assert other.captioned(["nobody"]) is None
    predictions = tmp_path / "predictions.json"
    content = {"results": {"roasted-tomato-soup": [{"timestamp": [0, 2], "sentence": "x"}]}}
    predictions.write_text(json.dumps(content))
    from_file = Comparison(predictions).captioned(item.names)
    assert from_file is not None and from_file.events[0].caption == "x"


def test_the_sample_is_what_a_system_leaves() -> None:
    made = captioned("a.mp4", 60.0)
    assert Captioned.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_scripts_without_spaces_and_letters_with_marks_are_found(tmp_path: Path) -> None:
    texts = [
        "先把大蒜切碎然后加入锅中",
        "にんにくを加えて炒める",
        "ใส่กระเทียมลงในกระทะ",
        "लहसुन डालें",
        "ajouter l\u2019ail e\u0301mince\u0301",
    ]
    write_record(tmp_path / "a.json", record("a", *texts))
    items = Library([tmp_path]).refresh()

    def first(query: str) -> str | None:
        moments, _ = search(items, query, limit=9)
        return moments[0].passage.text if moments else None

    assert first("大蒜") == texts[0] and first("在哪里加入大蒜?") == texts[0]
    assert first("炒める") == texts[1]
    assert first("กระเทียม") == texts[2] and first("ใส่กระเทียมตอนไหน") == texts[2]
    assert first("लहसुन") == texts[3] and first("हसुन") is None
    assert first("émincé") == texts[4]
    assert first("x") is None


def test_a_picture_of_a_video_whose_only_key_frame_is_cut_off(tmp_path: Path) -> None:
    """Its edit list begins after the key frame, which is therefore never shown."""
    whole, cut = write_clip(tmp_path / "whole.mp4", 8.0, fps=4), tmp_path / "cut.mp4"
    command = ["ffmpeg", "-v", "error", "-i", str(whole), "-g", "99", "-c:v", "libx264"]
    if shutil.which("ffmpeg") is None:
        pytest.skip("no ffmpeg here: apt-get install ffmpeg")
    subprocess.run([*command, str(tmp_path / "one.mp4")], check=True)
    trim = ["ffmpeg", "-v", "error", "-ss", "3", "-i", str(tmp_path / "one.mp4"), "-c", "copy"]
    subprocess.run([*trim, str(cut)], check=True)
    assert thumbnail(cut, 1.0, folder=tmp_path / "cache")[:2] == b"\xff\xd8"
    assert thumbnail(cut, None, folder=tmp_path / "cache")[:2] == b"\xff\xd8"
