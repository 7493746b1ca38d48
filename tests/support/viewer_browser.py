"""Debian's Chromium for the viewer's tests and benchmark, and the server it talks to."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from starc.viewer.server import http_config

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def chromium() -> str | None:
    """The browser's path, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def need_chromium() -> str:
    """The browser's path; a clear skip without it, a failure in CI."""
    path = chromium()
    if path is None:
        message = "no Chromium here: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """The app on a free port of this machine; its address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(http_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def launch() -> Iterator[Any]:
    """A running browser, for a fixture."""
    path = need_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def open_page(browser: Any, site: str, **options: Any) -> Iterator[Any]:
    """A page whose errors, dialogs and requests to elsewhere fail the test."""
    context = browser.new_context(
        base_url=site, viewport={"width": 1280, "height": 900}, reduced_motion="reduce", **options
    )
    context.set_default_timeout(60_000)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("console", lambda m: m.type == "error" and faults.append(f"console: {m.text}"))
    page.on("request", lambda r: r.url.startswith(site) or faults.append(f"request: {r.url}"))
    page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
    page.faults = faults
    yield page
    context.close()
    assert faults == []


def until(page: Any, expression: str, seconds: float = 15.0) -> None:
    """Wait until something is true; Playwright would poll by eval, which our CSP forbids."""
    limit = time.monotonic() + seconds
    while not page.evaluate(f"() => Boolean({expression})"):
        assert time.monotonic() < limit, f"never true: {expression}"
        page.wait_for_timeout(15)


def watch(page: Any, title: str = "Roasted tomato soup", query: str = "") -> None:
    """Open a video the way its card does, and wait until it can be used."""
    videos = page.request.get("/api/library").json()["videos"]
    id = next(video["id"] for video in videos if video["title"] == title)
    page.goto(f"/watch/{id}{query}")
    page.wait_for_selector("body[data-ready]")


def events(page: Any) -> list[dict[str, Any]]:
    return list(
        page.evaluate("starc.data.events.map(({start, end, caption}) => ({start, end, caption}))")
    )


def point(page: Any, time: float, lane: str = "ours") -> tuple[float, float]:
    """Where a time of a lane is on the screen."""
    x, y = page.evaluate(
        """([time, lane]) => {
        const { timeline } = starc;
        timeline.host.scrollIntoView({ block: "center" });
        const box = timeline.host.getBoundingClientRect();
        const row = timeline.layout.lanes.find((one) => one.name === lane || one.kind === lane);
        return [box.left + timeline.scale.x(time), box.top + row.y + 15];
    }""",
        [time, lane],
    )
    return x, y
