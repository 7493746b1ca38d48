"""Temporary folders: private, gone when their block ends; those of the dead go with the next."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from starc.files import scratch
from starc.files.scratch import in_scratch, scratch_folder, sweep_scratch

HOLD = """
import sys
from starc.files.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "stdin").write_bytes(bytes(1000))
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$TMPDIR for a test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def holder() -> tuple[subprocess.Popen[str], Path]:
    """Another process with a folder of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], *, kill: bool) -> None:
    if kill:
        process.kill()
    process.communicate()


def test_a_folder_is_private_and_goes(place: Path) -> None:
    with pytest.raises(KeyboardInterrupt), scratch_folder() as folder:
        assert folder.parent == place and folder.stat().st_mode & 0o077 == 0
        (folder / "deep").mkdir()
        assert in_scratch(folder / "deep" / "a.mp4") and not in_scratch(place / "starc-talk" / "a")
        raise KeyboardInterrupt
    assert not list(place.iterdir())


def test_the_folder_of_a_killed_process_goes_with_the_next(place: Path) -> None:
    (living, theirs), (killed, left) = holder(), holder()
    end(killed, kill=True)
    assert (left / "stdin").stat().st_size == 1000
    with scratch_folder() as ours:
        assert sorted(place.iterdir()) == sorted([theirs, ours])
        assert (theirs / "stdin").exists()
    end(living, kill=False)
    assert not list(place.iterdir())


def test_nothing_but_ours_is_swept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thesis = place / "thesis"
    thesis.mkdir()
    for name, mark in (
        ("starc-abcd1234", None),  # of the user, by such a name
        ("starc-abcd1235", ""),  # made a moment ago, and not locked yet
        ("starc-abcd1236", "mine\n"),
        ("starc-notes", scratch.WORDS),
        ("other-abcd1234", scratch.WORDS),
    ):
        (place / name).mkdir()
        if mark is not None:
            (place / name / scratch.MARK).write_text(mark)
    (thesis / scratch.MARK).write_text(scratch.WORDS)
    (place / "starc-abcd1237").symlink_to(thesis)
    (place / "starc-abcd1238").write_text("a file")
    before = sorted(place.rglob("*"))
    sweep_scratch()
    assert sorted(place.rglob("*")) == before
    dead = place / "starc-abcd1239"
    dead.mkdir()
    (dead / scratch.MARK).write_text(scratch.WORDS)
    (dead / "link").symlink_to(thesis)
    monkeypatch.setattr(os, "getuid", lambda: dead.stat().st_uid + 1)
    sweep_scratch()
    assert dead.exists(), "it is another user's"
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    sweep_scratch()
    assert sorted(place.rglob("*")) == before


def test_a_full_disk_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(os, "write", full)
    with scratch_folder() as folder:
        assert folder.is_dir()
    assert not list(place.iterdir())
