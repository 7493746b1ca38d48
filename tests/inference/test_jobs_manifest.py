"""Rows reach the disk or leave no trace; half a line is no row; only one run may write."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from starc.errors import StarcError
from starc.files.cache import fingerprint
from starc.inference.batch import Written, done_row, identify
from starc.inference.jobs import MANIFEST, Job, Manifest, ManifestRow


def row(name: str, **more: object) -> ManifestRow:
    values = {"video": f"/v/{name}.mp4", "status": "done", "seconds": 1.0, "settings": "s"}
    return ManifestRow(name, **{**values, **more})  # type: ignore[arg-type]


def test_rows_come_back_and_the_last_one_holds(tmp_path: Path) -> None:
    with Manifest(tmp_path) as manifest:
        manifest.append(row("a", status="failed", error="x"))
        manifest.append(row('ü "q"', outputs=("a.vtt",), notes=("n",)))
        manifest.append(row("a"))
    with Manifest(tmp_path) as manifest:
        assert manifest.rows == {
            "a": row("a"),
            'ü "q"': row('ü "q"', outputs=("a.vtt",), notes=("n",)),
        }
    lines = (tmp_path / MANIFEST).read_text("utf-8").splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["failed", "done", "done"]


def test_a_line_cut_off_by_a_kill_is_ignored(tmp_path: Path) -> None:
    with Manifest(tmp_path) as manifest:
        manifest.append(row("a"))
    whole = (tmp_path / MANIFEST).read_bytes()
    for cut in (1, len(whole) // 2, len(whole) - 2):
        (tmp_path / MANIFEST).write_bytes(whole + whole[:cut])
        with Manifest(tmp_path) as manifest:
            assert list(manifest.rows) == ["a"]
            manifest.append(row("b"))
        with Manifest(tmp_path) as manifest:
            assert list(manifest.rows) == ["a", "b"]


def test_a_full_disk_leaves_no_half_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Manifest(tmp_path) as manifest:
        manifest.append(row("a"))
        with monkeypatch.context() as patched:
            patched.setattr("starc.inference.jobs.os.fsync", full)
            with pytest.raises(OSError, match="No space"):
                manifest.append(row("b"))
        manifest.append(row("c"))
    with Manifest(tmp_path) as manifest:
        assert list(manifest.rows) == ["a", "c"]


def test_a_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StarcError, match="cannot be written"):
        Manifest(tmp_path / "file")


def test_only_one_run_at_a_time(tmp_path: Path) -> None:
    with Manifest(tmp_path), pytest.raises(StarcError, match="another run is writing here"):
        Manifest(tmp_path)
    Manifest(tmp_path).file.close()


def test_done_means_same_video_same_settings_all_files(tmp_path: Path) -> None:
    video, output = tmp_path / "a.mp4", tmp_path / "a.vtt"
    video.write_bytes(b"one")
    output.write_text("WEBVTT")
    job = Job("a", video, {"vtt": output})
    status = video.stat()
    finished = row(
        "a",
        outputs=("a.vtt",),
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        hash=fingerprint(video),
    )
    with Manifest(tmp_path) as manifest:
        assert not manifest.is_done(job, "s")
        manifest.append(finished)
        assert manifest.is_done(job, "s") and not manifest.is_done(job, "other")
        assert not manifest.is_done(Job("a", video, {"srt": tmp_path / "a.srt"}), "s")
        os.utime(video, ns=(1, 1))
        assert manifest.is_done(job, "s"), "same content, only copied"
        video.write_bytes(b"two")
        assert not manifest.is_done(job, "s")
        video.write_bytes(b"one")
        output.unlink()
        assert not manifest.is_done(job, "s")
        video.unlink()
        assert not manifest.is_done(job, "s")


@pytest.mark.parametrize(
    "line",
    [b"[1]", b"5", b"null", b'"x"', b'{"name": 5}', b"[" * 100_000, b"\xff\xfe", b"{}"]
    + [
        json.dumps({**asdict(ManifestRow("a", "a.mp4", "done", 1.0, "s")), key: value}).encode()
        for key, value in (("name", None), ("video", 7), ("outputs", None), ("notes", [5]))
    ],
)
def test_a_damaged_row_is_no_row(tmp_path: Path, line: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(line + b"\n")
    with Manifest(tmp_path) as manifest:
        assert manifest.rows == {}


def test_an_empty_output_is_not_done(tmp_path: Path) -> None:
    video, target = tmp_path / "a.mp4", tmp_path / "out/a.json"
    video.write_bytes(b"x")
    job = Job("a", video, {"json": target})
    with Manifest(tmp_path / "out") as manifest:
        written = Written((), ())
        manifest.append(done_row(job, manifest, identify(video), written, 1.0, "s"))
        target.write_text("{}")
        assert manifest.is_done(job, "s")
        target.write_text("")
        assert not manifest.is_done(job, "s")
