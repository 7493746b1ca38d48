"""Costly requests leave room for others, and Ctrl-C ends the server whatever it is doing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from starc.types import Captioned, Event
from starc.viewer.edits import Export
from starc.viewer.server import create_app
from support.viewer_browser import running
from support.viewer_sample import write_record

RECORD = Captioned("a.mp4", 9.0, (Event(1, 2, "stir"),))


def get(address: str, wait: float = 30) -> Any:
    with urllib.request.urlopen(address, timeout=wait) as answer:
        return json.loads(answer.read())


def ask(address: str) -> threading.Thread:
    """Ask for something and wait for no answer."""

    def work() -> None:
        with suppress(OSError, ValueError):
            get(address)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_many_costly_requests_leave_the_page_to_others(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", RECORD)
    began, go_on = threading.Semaphore(0), threading.Event()

    def slow(_: Captioned) -> str:
        began.release()
        assert go_on.wait(60)
        return "{}"

    app = create_app([tmp_path], exports={"slow": Export("json", slow, "application/json")})
    with running(app) as address:
        (video,) = get(f"{address}/api/library")["videos"]
        asked = [ask(f"{address}/api/videos/{video['id']}/export/slow") for _ in range(60)]
        try:
            assert began.acquire(timeout=30)
            assert get(f"{address}/api/library")["videos"] == [video]
            assert get(f"{address}/api/videos/{video['id']}")["title"] == video["title"]
        finally:
            go_on.set()
        for thread in asked:
            thread.join(30)
        assert not any(thread.is_alive() for thread in asked)


SCRIPT = """
import sys, time
from starc import cli
from starc.output import formats

def render(*_, **__):
    sys.stdout.write("rendering\\n")  # in one piece: several threads write
    sys.stdout.flush()
    time.sleep(3600)

formats.render = render
sys.argv = ["starc", "view", sys.argv[1], "--port", "0", "--no-browser", "--token", "none",
            "--model", "none"]
cli.main()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals work otherwise there")
def test_ctrl_c_ends_a_server_that_is_busy(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", RECORD)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    try:
        address = process.stderr.readline().removeprefix("starc: ").strip().partition("/watch")[0]
        address = address.rstrip("/")
        (video,) = get(f"{address}/api/library")["videos"]
        for _ in range(3):
            ask(f"{address}/api/videos/{video['id']}/export/vtt")
        assert process.stdout.readline() == "rendering\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
