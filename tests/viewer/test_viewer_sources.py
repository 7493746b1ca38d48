"""Captions and videos that lie apart: how they meet, what may be opened, what the page says."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from starc.errors import VideoError
from starc.output import formats
from starc.types import Captioned, Event
from starc.viewer.library import Library
from starc.viewer.server import create_app
from support.viewer_sample import write_clip

BASE = "http://127.0.0.1:8350"


def caption(video: Path, record: Path) -> Path:
    """What `starc caption` leaves of a video."""
    record.parent.mkdir(parents=True, exist_ok=True)
    formats.write(Captioned(video.name, 4.0, (Event(0, 2, "chop"),)), record, source=video)
    return record


@pytest.fixture
def apart(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of captions and a folder of videos."""
    (tmp_path / "src").mkdir()
    video = write_clip(tmp_path / "src" / "talk.mp4", 4.0)
    caption(video, tmp_path / "lib" / "talk.json")
    return tmp_path / "lib", tmp_path / "src"


def only(*roots: Path) -> tuple[Library, object]:
    library = Library(list(roots))
    (item,) = library.refresh()
    return library, item


def test_a_record_knows_where_its_video_lies_and_what_it_holds(apart: tuple[Path, Path]) -> None:
    lib, _ = apart
    kept = json.loads((lib / "talk.json").read_text())["provenance"]
    assert kept["source"] == "../src/talk.mp4"
    assert kept["content"].startswith(f"{(lib.parent / 'src/talk.mp4').stat().st_size}-")


def test_the_video_of_another_folder_plays(apart: tuple[Path, Path]) -> None:
    lib, src = apart
    client = TestClient(create_app([lib]), base_url=BASE)
    (row,) = client.get("/api/library").json()["videos"]
    assert row["video"]
    answer = client.get(f"/api/videos/{row['id']}/media", headers={"Range": "bytes=0-99"})
    assert answer.status_code == 206 and answer.content == (src / "talk.mp4").read_bytes()[:100]
    assert client.get(f"/api/videos/{row['id']}").json()["missing"] is None


def test_captions_and_videos_of_two_folders_are_pairs(apart: tuple[Path, Path]) -> None:
    lib, src = apart
    for roots in ((lib, src), (src, lib), (lib / "talk.json", src)):
        library, item = only(*roots)
        assert item.video == src / "talk.mp4" and library.open_video(item) == item.video
    moved = src.parent / "elsewhere"
    src.rename(moved)
    assert only(lib)[1].video is None
    assert only(lib, moved)[1].video == moved / "talk.mp4"  # by its name
    (moved / "talk.mp4").rename(moved / "renamed.mp4")
    assert only(lib, moved)[1].video == moved / "renamed.mp4"  # by its content


def test_of_two_videos_of_one_name_the_content_decides(apart: tuple[Path, Path]) -> None:
    lib, src = apart
    other = src.parent / "other"
    (other / "a").mkdir(parents=True)
    (other / "b").mkdir()
    write_clip(other / "a" / "talk.mp4", 3.0, seed=1)
    (src / "talk.mp4").rename(other / "b" / "talk.mp4")
    items = {item.video: item.record for item in Library([lib, other]).refresh()}
    assert items == {other / "b/talk.mp4": lib / "talk.json", other / "a/talk.mp4": None}
    # Of the same name, but another video: it is not taken for ours.
    items = {item.video: item.record for item in Library([lib, other / "a"]).refresh()}
    assert items == {None: lib / "talk.json", other / "a/talk.mp4": None}


def test_a_file_outside_is_opened_only_if_the_record_knows_what_is_in_it(
    apart: tuple[Path, Path],
) -> None:
    """Whoever can drop a JSON into a shared folder cannot make the page show other videos."""
    lib, src = apart
    record = json.loads((lib / "talk.json").read_text())
    private = write_clip(src / "private.mp4", 5.0, seed=3)
    for content in ("", f"{private.stat().st_size}-{'0' * 32}", record["provenance"]["content"]):
        record["provenance"] |= {"source": "../src/private.mp4", "content": content}
        (lib / "talk.json").write_text(json.dumps(record))
        library, item = only(lib)
        with pytest.raises(VideoError):
            library.open_video(item)
        client = TestClient(create_app([lib]), base_url=BASE)
        for part in ("media", "thumbnail"):
            assert client.get(f"/api/videos/{item.id}/{part}").status_code == 404
    for source in ("../src/talk.mp4\0", "/etc/passwd", "..", "\ud800"):
        record["provenance"]["source"] = source
        (lib / "talk.json").write_text(json.dumps(record))
        assert only(lib)[1].video is None


def test_the_page_says_which_file_it_wants(apart: tuple[Path, Path]) -> None:
    lib, src = apart
    client = TestClient(create_app([lib]), base_url=BASE)
    (row,) = client.get("/api/library").json()["videos"]
    write_clip(src / "talk.mp4", 3.0, seed=2)
    said = client.get(f"/api/videos/{row['id']}").json()
    assert said["video"] is False and "not the video that was captioned" in said["missing"]
    (src / "talk.mp4").unlink()
    said = client.get(f"/api/videos/{row['id']}").json()
    assert "../src/talk.mp4" in said["missing"] and "starc view" in said["missing"]
    assert str(lib.parent) not in said["missing"]


def test_names_with_accents_meet_in_either_form(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    name = unicodedata.normalize("NFD", "crème brûlée.mp4")
    write_clip(tmp_path / "src" / name, 3.0)
    record = Captioned(unicodedata.normalize("NFC", name), 3.0, ())
    (tmp_path / "lib").mkdir()
    formats.write(record, tmp_path / "lib" / "x.json")
    assert only(tmp_path / "lib", tmp_path / "src")[1].video == tmp_path / "src" / name
