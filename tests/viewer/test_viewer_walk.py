"""The whole way, as a person goes it: captions, the page, corrections, training data; and axe."""

from __future__ import annotations

import importlib.resources
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from starc.cli import app
from starc.types import Captioned
from starc.viewer.server import create_app
from starc_eval.annotations import read_references
from support.viewer_browser import events, launch, open_page, point, running, until, watch
from support.viewer_sample import captioned, make_library, write_clip

browser = pytest.fixture(scope="module")(launch)
ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "examples" / "scrambled_eggs.mp4"


def walk(browser: Any, address: str, target: Path) -> dict[str, Any]:
    """From the address of the page to a file for `starc train`; what that file holds."""
    site = "/".join(address.split("/")[:3])
    for page in open_page(browser, site):
        page.goto(address)  # the library, or the one video there is
        if "/watch/" not in page.url:
            page.locator(".card a").first.click()
        page.wait_for_selector("body[data-ready]")
        until(page, "document.querySelector('video').videoWidth > 0")  # from another folder
        before = events(page)
        page.locator(".row button").nth(1).click()
        assert page.get_by_role("group", name="Where this event is from").is_visible()
        until(page, f"Math.abs(starc.player.time - {before[1]['start']}) < 0.1")
        page.keyboard.press("e")
        words = page.get_by_label("Caption", exact=True)
        words.fill("beat the eggs with a fork")
        page.keyboard.press("Control+s")
        until(page, "document.getElementById('toast').textContent.startsWith('Saved as')")
        page.goto("/")
        page.wait_for_selector(".tag")
        with page.expect_download() as download:
            page.get_by_role("link", name="Export corrections").click()
        download.value.save_as(target)
    (line,) = target.read_text().splitlines()
    record: dict[str, Any] = json.loads(line)
    changed = [event["caption"] for event in before]
    changed[1] = "beat the eggs with a fork"
    assert [event["caption"] for event in record["events"]] == changed
    checked = CliRunner().invoke(app, ["data", "check", "--annotations", str(target)])
    assert checked.exit_code == 0, checked.output
    assert f"1 videos, {len(before)} events" in checked.output
    assert len(read_references(target)) == 1
    return record


def test_from_captions_to_training_data(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`starc caption src -o lib` with a model that answers at once, then the page."""
    (tmp_path / "src").mkdir()
    write_clip(tmp_path / "src" / "eggs.mp4", 12.0)

    def answer(self: Any, videos: Any, on_step: Any = None) -> list[Captioned]:
        return [captioned(one.video.name, 12.0) for one in videos]

    nothing: Callable[..., Any] = lambda *_, **__: None  # noqa: E731
    for name in ("read_frames", "read_speech"):
        monkeypatch.setattr(f"starc.inference.pipeline.Captioner.{name}", nothing)
    monkeypatch.setattr("starc.inference.pipeline.Captioner.caption_read", answer)
    command = ["caption", str(tmp_path / "src"), "-o", str(tmp_path / "lib"), "--speech", "none"]
    done = CliRunner().invoke(app, [*command, "--model", "embedded"])
    assert done.exit_code == 0, done.output
    with running(create_app([tmp_path / "lib"])) as site:
        record = walk(browser, f"{site}/", tmp_path / "corrected.jsonl")
    assert record["video"] == "eggs.mp4"


@pytest.mark.slow
def test_from_the_demonstration_to_training_data(browser: Any, tmp_path: Path) -> None:
    cache = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    terminal, far_end = pty.openpty()
    demo = subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        cwd=tmp_path, env=cache, stdout=far_end, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    said = ""
    try:
        while not (address := re.search(r"http://\S+(?=\s)", said)):
            assert demo.poll() is None, said
            said += os.read(terminal, 4096).decode()
        walk(browser, address[0], tmp_path / "corrected.jsonl")
    finally:
        demo.send_signal(signal.SIGINT)
        assert demo.wait(30) == 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[str]:
    top = tmp_path_factory.mktemp("states")
    make_library(top, duration=30.0, dishes=2)
    write_clip(top / "library" / "bare.mp4", 4.0)
    (top / "library" / "broken.json").write_text("{")

    def fail(path: Path, progress: Any, cancelled: Any) -> Captioned:
        raise RuntimeError("nobody is there")

    app = create_app(
        [top / "library"], caption=fail, reference=top / "reference.json", compare=top / "baseline"
    )
    with running(app) as address:
        yield address


def open_library(page: Any) -> None:
    page.goto("/")
    page.wait_for_selector(".card")


def fail_a_job(page: Any) -> None:
    open_library(page)
    page.get_by_role("button", name="Caption bare").click()
    page.locator(".job.failed").wait_for()


def edit(page: Any) -> None:
    watch(page)
    page.keyboard.press("e")
    page.locator(".row button").nth(1).click()


def open_tab(page: Any, name: str) -> None:
    watch(page)
    page.get_by_role("tab", name=name).click()


def press(page: Any, name: str) -> None:
    watch(page)
    page.get_by_role("button", name=name).click()


def choose(page: Any, name: str) -> None:
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name=name).click()
    page.get_by_role("dialog").wait_for()


def write(page: Any) -> None:
    edit(page)
    page.get_by_label("Caption", exact=True).fill("something else")


def look_closer(page: Any) -> None:
    watch(page)
    page.mouse.move(*point(page, 6.0, "segments"))
    page.wait_for_selector("#tip:not([hidden])")


def search(page: Any, words: str) -> None:
    page.goto(f"/?q={words}")
    until(page, "document.getElementById('results-count').textContent")


def open_broken(page: Any) -> None:
    page.goto("/?show=problem")
    page.locator(".card a").click()
    page.wait_for_selector(".trouble")


STATES: dict[str, Callable[[Any], None]] = {
    "library": open_library,
    "filtered": lambda page: (page.goto("/?show=problem"), page.wait_for_selector(".card")),
    "moments": lambda page: search(page, "garlic"),
    "no moments": lambda page: search(page, "zebra"),
    "failed job": fail_a_job,
    "video": watch,
    "event chosen": lambda page: (watch(page), page.keyboard.press("j")),
    "editing": edit,
    "segments": lambda page: open_tab(page, "Segments"),
    "speech": lambda page: open_tab(page, "Speech"),
    "keys": lambda page: press(page, "Keyboard shortcuts"),
    "how it was made": lambda page: press(page, "How was this made?"),
    "tooltip": look_closer,
    "menu": lambda page: press(page, "More"),
    "export": lambda page: press(page, "Export"),
    "export of a draft": lambda page: (
        write(page),
        page.get_by_role("button", name="Export").click(),
        page.get_by_role("menuitem", name="JSON").click(),
        page.get_by_role("dialog").wait_for(),
    ),
    "find and replace": lambda page: (watch(page), choose(page, "Find and replace…")),
    "draft offered": lambda page: (write(page), page.reload(), page.wait_for_selector(".offer")),
    "versions": lambda page: (write(page), choose(page, "Compare versions…")),
    "without captions": lambda page: watch(page, "bare"),
    "cannot be shown": open_broken,
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_state(browser: Any, site: str, scheme: str) -> None:
    pytest.importorskip("axe_playwright_python", reason="no axe here: pip install 'starc[dev]'")
    axe = importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
    found = {}
    for page in open_page(browser, site, color_scheme=scheme, bypass_csp=True):
        for name, reach in STATES.items():
            reach(page)
            page.evaluate(axe + "; undefined")
            rules = page.evaluate("""axe.run().then(({ violations }) => violations.map(
                (one) => `${one.id}: ${one.nodes.map((node) => node.html).slice(0, 3)}`))""")
            if rules:
                found[name] = rules
        page.faults[:] = [fault for fault in page.faults if "422" not in fault]
    assert found == {}
