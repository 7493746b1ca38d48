"""SIGTERM and SIGHUP clean up as Ctrl-C does; what kill -9 leaves goes with the next command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# A shell without job control starts what it puts in the background with Ctrl-C ignored.
MAIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from starc.cli import main
main()
"""
IGNORED = f"import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n{MAIN}"


def caption(place: Path, code: str = MAIN) -> subprocess.Popen[bytes]:
    """`starc caption -`, which has copied 3 MB and waits for more."""
    environment = {**os.environ, "TMPDIR": str(place)}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "caption", "-q", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdin is not None
    process.stdin.write(bytes(3_000_000))
    process.stdin.flush()
    while not any(file.stat().st_size > 2_000_000 for file in place.glob("*/stdin")):
        assert process.poll() is None
        time.sleep(0.02)
    return process


@pytest.mark.parametrize(
    ("sent", "code", "words"),
    [
        (signal.SIGINT, 130, b"starc: interrupted\n"),
        (signal.SIGTERM, 143, b"starc: terminated\n"),
        (signal.SIGHUP, 143, b"starc: terminated\n"),
    ],
)
def test_a_signal_cleans_up(tmp_path: Path, sent: int, code: int, words: bytes) -> None:
    process = caption(tmp_path)
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (code, words)
    assert not list(tmp_path.iterdir())


def test_what_a_kill_left_goes_with_the_next_command(tmp_path: Path) -> None:
    killed = caption(tmp_path)
    killed.kill()
    killed.communicate()
    (left,) = tmp_path.iterdir()
    following = caption(tmp_path)
    (ours,) = tmp_path.iterdir()
    assert ours != left
    following.terminate()
    following.communicate(timeout=60)
    assert not list(tmp_path.iterdir())


def test_nohup_is_respected(tmp_path: Path) -> None:
    process = caption(tmp_path, IGNORED)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143 and not list(tmp_path.iterdir())
