"""`starc view` as a process: what others on the machine can see of it, and what its end leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from starc.files import atomic
from starc.viewer.server import create_app
from support.viewer_sample import write_clip

MAIN = "from starc.cli import main\nmain()\n"
BROWSER = """#!{python}
import json, os, sys, time
from pathlib import Path
from urllib.parse import unquote, urlsplit
page = Path(unquote(urlsplit(sys.argv[1]).path))
seen = dict(
    commands=[Path("/proc", str(id), "cmdline").read_text() for id in (os.getpid(), os.getppid())],
    modes=[page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777],
    page=page.read_text(),
)
Path({out!r} + ".part").write_text(json.dumps(seen))
os.rename({out!r} + ".part", {out!r})
"""
Start = Callable[..., tuple["subprocess.Popen[str]", str]]


def wait(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    folder.mkdir()
    return folder


@pytest.fixture
def start(tmp_path: Path, folder: Path) -> Iterator[Start]:
    """Start `starc view`; returns the process and its address."""
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "tmp").mkdir()

    def begin(*options: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "view", str(folder), "--port", "0", *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), **environment},
        )
        started.append(process)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("starc: http"), line
        return process, line.removeprefix("starc: ").strip()

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_command_line_holds_the_token(start: Start, tmp_path: Path, end: int) -> None:
    out, program = tmp_path / "seen.json", tmp_path / "browser"
    program.write_text(BROWSER.format(python=sys.executable, out=str(out)))
    program.chmod(0o755)
    process, address = start(BROWSER=str(program))
    token = address.partition("?token=")[2]
    assert len(token) >= 24
    wait(out.exists)
    seen = json.loads(out.read_text())
    assert not [command for command in seen["commands"] if token in command]
    assert seen["modes"] == [0o600, 0o700]
    # The page that the browser opens leads to the address, and that lets it in.
    (target,) = re.findall(r'content="0;url=(.*?)"', seen["page"])
    assert unescape(target) == address
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    assert b"<title>" in opener.open(address).read()
    process.send_signal(end)
    process.communicate(timeout=60)
    assert process.returncode == (-9 if end == signal.SIGKILL else 143)
    if end == signal.SIGKILL:  # the next one removes it
        (left,) = (tmp_path / "tmp").glob("*/open.html")
        start(BROWSER="true")
        wait(lambda: not left.exists())
    else:
        assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_half_an_upload_goes(
    start: Start, folder: Path, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, address = start("--no-browser", "--token", "none")
    parts = urlsplit(address)
    clip = write_clip(folder.parent / "clip.mp4", 2.0).read_bytes()
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as line:
        head = f"POST /api/uploads HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        head += f"Origin: http://{parts.netloc}\r\nContent-Length: 9999999\r\n\r\n"
        line.sendall(head.encode() + clip)
        wait(lambda: any(path.stat().st_size for path in folder.iterdir()))
        monkeypatch.setattr(atomic, "YOUNG", 0.0)
        create_app([folder], caption=lambda *_: pytest.fail("not called"))
        assert list(folder.iterdir()), "it is being received"
        process.send_signal(end)
        process.communicate(timeout=60)
    if end == signal.SIGKILL:
        (left,) = folder.iterdir()
        (folder / ".upload.notes.part").write_text("of the user")
        create_app([folder], caption=lambda *_: pytest.fail("not called"))
        assert not left.exists() and (folder / ".upload.notes.part").exists()
    else:
        assert not list(folder.iterdir())
