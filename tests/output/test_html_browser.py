"""The page of `--format html` in a real Chromium, opened as a file: plays, seeks, fits a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from starc.types import Captioned, Event, Sentence
from support.viewer_browser import launch, open_page, until

SAMPLE = Path(__file__).parents[2] / "examples/scrambled_eggs.mp4"
browser = pytest.fixture(scope="module")(launch)


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    yield from open_page(browser, "file://")


def write(folder: Path, name: str) -> str:
    events = (Event(5, 15, "crack " + "eggs" * 12, 0.4), Event(30, 40, "stir", 0.3))
    spoken = (Sentence(31, 35, "now stir the eggs"),)
    path = folder / "page.html"
    Captioned(name, 70.0, events, spoken).save(path, source=folder / name)
    return path.as_uri()


def test_a_click_plays_from_there(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copy(SAMPLE, tmp_path / "a b#.mp4")
    page.goto(write(tmp_path, "a b#.mp4"))
    until(page, "document.querySelector('video').readyState > 0")
    page.click("#event-2 .play")
    until(page, "document.querySelector('video').currentTime >= 30")
    until(page, "document.querySelector('#event-2.now')")
    page.click(".said .play")
    until(page, "document.querySelector('.said .now') && !document.querySelector('#event-1.now')")
    for width in (320, 360, 430):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_video_that_is_gone_is_said(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    page.goto(write(tmp_path, "gone.mp4"))
    until(page, "!document.querySelector('.missing').hidden")
    assert [fault for fault in page.faults if "ERR_FILE_NOT_FOUND" not in fault] == []
    page.faults.clear()
