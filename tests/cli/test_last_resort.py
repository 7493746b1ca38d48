"""Whatever happens, a person reads one line; what nobody foresaw is told as a bug of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from starc import cli


def ended(monkeypatch: pytest.MonkeyPatch, error: BaseException, *arguments: str) -> int:
    """The exit code of a command in which an error occurs."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "argv", ["starc", *arguments])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    return int(exit.value.code or 0)


def test_a_bug_is_told_as_one_and_its_traceback_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ended(monkeypatch, IndexError("no such\nrow"), "score", "a b.json") == 70
    said = capsys.readouterr().err
    assert said.startswith("starc: this is a bug (IndexError: no such row); please report it at")
    assert said.count("\n") == 1 and "/issues" in said
    (kept,) = (tmp_path / "starc/bugs").iterdir()
    assert str(kept) in said
    text = kept.read_text()
    assert "starc score 'a b.json'" in text and "Traceback" in text and "in fail" in text
    assert (tmp_path / "starc").stat().st_mode & 0o077 == 0


def test_a_bug_without_a_place_for_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert ended(monkeypatch, TypeError("odd")) == 70
    assert "--debug" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "/root/a.json"), "/root/a.json: Permission"),
        (OSError(28, "No space left on device"), "starc: No space left on device"),
        (OSError(36, "File name too long", "\udcff" * 3), "\\udcff"),
        (MemoryError(), "out of memory"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
    words: str,
) -> None:
    assert ended(monkeypatch, error) == 1
    said = capfd.readouterr().err
    assert words in said and said.count("\n") == 1


def test_a_full_disk_behind_stdout() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "starc", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("starc: No space left on device") and done.stderr.count("\n") == 1
