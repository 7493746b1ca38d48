"""Files, folders and lists become jobs with unique names, whatever the order."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from starc.errors import StarcError, VideoError
from starc.inference.jobs import (
    Manifest,
    ManifestRow,
    find_videos,
    looks_like_video,
    make_jobs,
    watched,
)
from support.clips import grey_clip


def names(pairs: list[tuple[Path, Path]], root: Path) -> list[str]:
    return [str(video.relative_to(root)) for video, _ in pairs]


def test_a_folder_is_searched_by_ending_and_by_content(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "out").mkdir()
    grey_clip(tmp_path / "b.mp4", shade=1)
    grey_clip(tmp_path / "no ending", shade=2)
    grey_clip(tmp_path / "sub" / "q\"uo'te ü.mkv", shade=3)
    grey_clip(tmp_path / "out" / "ours.mp4", shade=4)
    grey_clip(tmp_path / "b.chapters.mp4", shade=5)
    grey_clip(tmp_path / ".hidden.mp4", shade=6)
    (tmp_path / "a.MP4").write_text("text, but called a video")
    (tmp_path / "notes.txt").write_text("b.mp4")
    (tmp_path / "program.ts").write_text("const x = 1;")
    (tmp_path / "sound.m4a").write_bytes(b"\0\0\0\x20ftypM4A ")
    found = find_videos([tmp_path], out=tmp_path / "out")
    assert names(found, tmp_path) == ["a.MP4", "b.mp4", "no ending", "sub/q\"uo'te ü.mkv"]


def test_a_list_names_files_and_folders_from_its_own_place(tmp_path: Path) -> None:
    folder = tmp_path / "lists"
    folder.mkdir()
    grey_clip(tmp_path / "a.mp4", shade=1)
    text = f"# comment\n\n../a.mp4\n  missing.mp4  \n{tmp_path / 'a.mp4'}\n"
    (folder / "all.txt").write_text(text)
    found = [video for video, _ in find_videos([folder / "all.txt"])]
    assert found == [folder / "../a.mp4", folder / "missing.mp4"]


def test_a_folder_without_videos_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("nothing")
    with pytest.raises(VideoError, match="no videos in this folder"):
        find_videos([tmp_path])
    (tmp_path / "list.txt").write_text("# nothing\n")
    with pytest.raises(VideoError, match="no videos to caption"):
        find_videos([tmp_path / "list.txt"])
    (tmp_path / "list.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(VideoError, match="not a list of paths"):
        find_videos([tmp_path / "list.txt"])
    with pytest.raises(VideoError, match="list cannot be read"):
        find_videos([tmp_path / "none.txt"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(StarcError, match="cannot be read"):
        find_videos([tmp_path / "closed"])


def test_names_are_unique_and_do_not_depend_on_the_order(tmp_path: Path) -> None:
    videos = [
        (tmp_path / "x/a.mp4", tmp_path / "x"),
        (tmp_path / "x/a.mkv", tmp_path / "x"),
        (tmp_path / "x/A.webm", tmp_path / "x"),
        (tmp_path / "y/b.mp4", tmp_path / "y"),
        (tmp_path / "z/b.mp4", tmp_path / "z"),
        (tmp_path / "x/deep/c.mp4", tmp_path / "x"),
    ]
    jobs = make_jobs(videos, tmp_path / "out", ["vtt", "video"])
    assert sorted(job.name for job in jobs) == sorted(
        ["A.webm", "a.mkv", "a.mp4", "b.mp4", "b.mp4-2", "deep/c"]
    )
    shuffled = random.Random(1).sample(videos, len(videos))
    assert make_jobs(shuffled, tmp_path / "out", ["vtt", "video"]) == jobs
    deep = next(job for job in jobs if job.name == "deep/c")
    assert deep.outputs["vtt"] == tmp_path / "out/deep/c.vtt"
    assert deep.outputs["video"] == tmp_path / "out/deep/c.chapters.mp4"


def test_first_bytes_tell_a_video(tmp_path: Path) -> None:
    grey_clip(tmp_path / "clip", shade=1)
    (tmp_path / "text").write_text("I am text. " * 50)
    assert looks_like_video(tmp_path / "clip")
    assert not looks_like_video(tmp_path / "text")
    assert not looks_like_video(tmp_path / "absent")
    (tmp_path / "stream").write_bytes((b"\x47" + b"\0" * 187) * 3)
    assert looks_like_video(tmp_path / "stream")


def test_names_that_are_hardly_any(tmp_path: Path) -> None:
    videos = [(tmp_path / name, tmp_path) for name in ("..mp4", ".mp4", "v_.mp4", "...mp4")]
    jobs = make_jobs(videos, tmp_path / "out", ["json"])
    assert len({job.name for job in jobs}) == 4
    assert all(job.outputs["json"].parent == tmp_path / "out" for job in jobs)


def test_a_name_stays_with_the_video_that_had_it_first(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first, second = tmp_path / "pair.mp4", tmp_path / "pair.webm"
    for video in (first, second):
        video.write_bytes(b"x")
    (job,) = make_jobs([(first, tmp_path)], out, ["json"])
    with Manifest(out) as manifest:
        manifest.append(ManifestRow(job.name, str(first), "done", 1.0, "s"))
    assert [make_jobs([(video, tmp_path)], out, ["json"])[0].name for video in (first, second)] == [
        "pair",
        "pair.webm",
    ]
    first.unlink()  # and when it is gone, the name is free
    assert make_jobs([(second, tmp_path)], out, ["json"])[0].name == "pair"


def test_a_watched_folder_gives_a_video_once_it_has_stopped_growing(tmp_path: Path) -> None:
    folder, growing = tmp_path / "in", tmp_path / "in" / "a.mp4"
    folder.mkdir()

    def write() -> Iterator[object]:
        for size in (1, 2, 3):  # a look of the watcher lies between two of these
            growing.write_bytes(b"x" * size)
            (folder / "b.mp4.part").write_bytes(b"\0\0\0\x20ftypisom")
            yield
        os.rename(folder / "b.mp4.part", folder / "b.mp4")
        yield from range(3)
        growing.write_bytes(b"changed")
        yield from range(3)

    writer, seen = write(), list[list[tuple[str, bytes]]]()
    looks = watched([folder], tmp_path, ["json"], pause=0.0)

    def sleep(seconds: float) -> None:
        next(writer)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr("starc.inference.jobs.time.sleep", sleep)
        for jobs in looks:
            seen.append([(job.name, job.video.read_bytes()[:8]) for job in jobs])
    assert seen == [
        [("a", b"xxx")],
        [("b", b"\0\0\0\x20ftyp")],
        [("a", b"changed")],
    ]


def test_what_can_be_no_path_in_a_list_stops_no_other(tmp_path: Path) -> None:
    impossible = ["~nosuchuser/a.mp4", "x" * 5000, "y" * 300 + ".mp4"]
    (tmp_path / "all.txt").write_text("\n".join([*impossible, "ok.mp4"]))
    found = [video.name for video, _ in find_videos([tmp_path / "all.txt"])]
    assert found == ["a.mp4", "x" * 5000, "y" * 300 + ".mp4", "ok.mp4"]
