"""Streams that are closed or full, and names that a terminal would obey."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from starc import cli
from starc.cli import progress
from starc.config import BeamSearch
from starc.errors import VideoError
from starc_eval.terminal import visible

HOSTILE = "a\nstarc: done\x1b]0;title\x07\x9b2J\u202egpj.mp4"
SHOWN = r"a\nstarc: done\x1b]0;title\x07\x9b2J\u202egpj.mp4"


def ended(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """The exit code of a command in which an error occurs."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as exit:
        cli.main()
    return int(exit.value.code or 0)


def test_names_are_shown_and_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert visible(HOSTILE) == SHOWN and visible("Käse [1] 炒.mp4") == "Käse [1] 炒.mp4"
    assert ended(monkeypatch, VideoError(f"{HOSTILE}: no such file")) == 1
    assert ended(monkeypatch, FileNotFoundError(2, "No such file", HOSTILE)) == 1
    progress.note(f"{HOSTILE}: skipped")
    progress.tell(HOSTILE)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4 and all(SHOWN in line for line in said)


def test_messages_of_the_library_are_shown_and_not_obeyed() -> None:
    record = logging.LogRecord("starc", logging.WARNING, "", 0, "%s: cut", (HOSTILE,), None)
    assert progress.VisibleFormatter().format(record) == f"{SHOWN}: cut"


@pytest.mark.parametrize("terminal", [True, False])
def test_results_are_as_they_are_unless_a_terminal_shows_them(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress.out, "_force_terminal", terminal)
    progress.say("a\x1b[31mb")
    assert capsys.readouterr().out == ("a\\x1b[31mb\n" if terminal else "a\x1b[31mb\n")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    line = line.replace("starc", f'"{sys.executable}" -m starc')
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("starc --version >&-", 1, "starc: Bad file descriptor; check"),
        ("starc --version <&- 2>&-", 0, ""),
        ("starc --help >&- 2>&-", 1, ""),
        ("starc caption nowhere.mp4 2>&-", 1, ""),
        ("starc caption - <&-", 1, "starc: "),
        ("starc --help >/dev/full", 1, "starc: No space left"),
    ],
)
def test_closed_and_full_streams(line: str, code: int, words: str) -> None:
    done = shell(line)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert (words in done.stderr) if words else done.stderr == ""


def test_notes_that_nobody_can_read_stop_nothing() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    code = "from starc.cli.progress import note; note('a'); print('b', flush=True)"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, text=True, check=True
        )
    assert done.stdout == "b\n"


@pytest.mark.parametrize("command", [["caption", "a.mp4"], ["evaluate", "model", "a.json"]])
def test_more_beams_than_there_may_be_are_a_usage_error(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["starc", *command, "--beams", "3000"])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 2 and "--beams" in capsys.readouterr().err
    with pytest.raises(ValueError, match="at most 64 beams"):
        BeamSearch(beams=3000)
