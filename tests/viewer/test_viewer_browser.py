"""The page in a real Chromium: open, jump, edit, undo, save, upload, cancel, search, phone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from starc.types import Captioned
from starc.viewer.server import create_app
from support.viewer_browser import events, launch, open_page, point, running, until, watch
from support.viewer_sample import captioned, make_library, write_clip

GO = threading.Event()


def caption(path: Path, progress: Callable[[str, float], None], _: object) -> Captioned:
    """Stops half-way until the test lets it go."""
    progress("decode frames", 1.0)
    for step in range(2000):
        progress("write captions", 0.4)
        if GO.is_set():
            break
        time.sleep(0.01)
        assert step < 1999
    progress("write captions", 1.0)
    return captioned(path.name, 6.0)


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    make_library(folder, duration=30.0, dishes=2)
    return folder


browser = pytest.fixture(scope="module")(launch)


@pytest.fixture(scope="module")
def site(top: Path, browser: Any) -> Iterator[str]:
    app = create_app(
        [top / "library"],
        caption=caption,
        reference=top / "reference.json",
        compare=top / "baseline",
    )
    with running(app) as address:
        yield address


@pytest.fixture
def page(browser: Any, site: str) -> Iterator[Any]:
    yield from open_page(browser, site)


def test_the_library_opens(page: Any) -> None:
    page.goto("/")
    page.wait_for_selector(".card")
    assert page.locator(".card h2").all_inner_texts() == ["Mushroom risotto", "Roasted tomato soup"]
    assert page.locator("#totals").inner_text().startswith("2 videos")
    until(page, "[...document.images].filter(i => i.naturalWidth > 90).length >= 2")
    page.get_by_role("link", name="Roasted tomato soup").click()
    page.wait_for_selector("body[data-ready]")
    assert page.locator("#title").inner_text() == "Roasted tomato soup"


def test_search_jumps_to_the_moment(page: Any) -> None:
    page.goto("/")
    page.wait_for_selector(".card")
    page.keyboard.press("/")
    page.keyboard.insert_text("where do they add garlic?")  # at once: one question, one answer
    page.wait_for_selector(".moments li")
    first = page.locator(".moments li a").first
    assert "add the garlic" in first.inner_text()
    assert first.locator("mark").all_inner_texts() == ["add", "garlic"]
    assert not page.locator("#grid").is_visible() and "?q=where" in page.url
    first.click()
    page.wait_for_selector(".row.current")
    assert "add the garlic" in page.locator(".row.current").inner_text()
    assert "add the garlic" in page.locator("#caption").inner_text()
    until(page, "document.querySelector('video').currentTime > 10")


def test_click_hover_and_keys_move_through_the_video(page: Any) -> None:
    watch(page)
    wanted = events(page)[3]
    page.mouse.click(*point(page, (wanted["start"] + wanted["end"]) / 2))
    until(page, f"Math.abs(starc.player.time - {wanted['start']}) < 0.1")
    assert wanted["caption"] in page.locator(".row.current").inner_text()

    page.mouse.move(*point(page, (wanted["start"] + wanted["end"]) / 2))
    assert wanted["caption"] in page.locator("#tip").inner_text()
    page.mouse.move(*point(page, 6.0, "segments"))
    assert "Anchor" in page.locator("#tip").inner_text()
    page.mouse.move(*point(page, 6.0, "saliency"))
    assert "Saliency" in page.locator("#tip").inner_text()

    page.keyboard.press("j")
    until(page, f"Math.abs(starc.player.time - {events(page)[4]['start']}) < 0.1")
    page.keyboard.press("k")
    page.keyboard.press("k")
    until(page, f"Math.abs(starc.player.time - {events(page)[2]['start']}) < 0.1")
    before = page.evaluate("starc.player.time")
    page.keyboard.press("ArrowRight")
    until(page, f"Math.abs(starc.player.time - {before} - 5) < 0.1")
    page.keyboard.press(" ")
    until(page, "starc.player.playing && starc.player.time > 0")
    page.keyboard.press(" ")
    until(page, "!starc.player.playing")

    page.mouse.click(*point(page, 8.0, "segments"))
    assert page.get_by_role("tab", name="Segments").get_attribute("aria-selected") == "true"
    assert page.locator(".row .retrieved li").count() > 4
    page.mouse.click(*point(page, 20.0, "saliency"))
    until(page, "Math.abs(starc.player.time - 20) < 0.2")
    page.get_by_role("tab", name="Speech").click()
    page.get_by_role("button", name="Low heat").click()
    until(page, "document.querySelector('.row.current')")


def test_zoom_and_scroll(page: Any) -> None:
    watch(page)
    page.mouse.move(*point(page, 15.0))
    page.keyboard.down("Control")
    for _ in range(6):
        page.mouse.wheel(0, -120)
    page.keyboard.up("Control")
    until(page, "starc.timeline.scale.span < 10")
    assert (
        abs(page.evaluate("(starc.timeline.scale.start + starc.timeline.scale.end) / 2") - 15) < 5
    )
    start = page.evaluate("starc.timeline.scale.start")
    page.mouse.wheel(200, 0)
    until(page, f"starc.timeline.scale.start > {start}")
    page.keyboard.press("0")
    until(page, "starc.timeline.scale.whole")
    page.get_by_role("button", name="Zoom in").click()
    until(page, "!starc.timeline.scale.whole")


def test_truth_and_two_systems_side_by_side(page: Any) -> None:
    watch(page)
    assert page.locator(".row .chip").first.inner_text().startswith("IoU 0.")
    table = page.get_by_role("table")
    assert table.locator("th").all_inner_texts()[0].startswith("Reference")
    assert "baseline" in table.locator("th").nth(2).inner_text()
    assert table.locator("tbody tr").count() >= 8
    assert "recall" in page.locator(".figures").inner_text()
    cell = table.locator("tbody tr").nth(4).locator("button").nth(2)
    cell.click()
    page.wait_for_selector("tr.current")


def test_matching_is_one_to_one_by_overlap(page: Any) -> None:
    watch(page)
    matched = page.evaluate("""async () => {
        const { match, iou } = await import("/static/matching.js");
        const span = (start, end) => ({ start, end });
        const ours = [span(0, 10), span(1, 9), span(20, 30), span(50, 60)];
        const theirs = [span(21, 31), span(0, 9), span(0, 11)];
        return [match(ours, theirs).map((one) => one && [theirs.indexOf(one.event), one.iou]),
                iou(span(0, 1), span(1, 2)), iou(span(0, 4), span(2, 4))];
    }""")
    assert matched[0] == [[2, 10 / 11], [1, 8 / 9], [0, 9 / 11], None]
    assert matched[1:] == [0, 0.5]


def test_correct_undo_save_reload(page: Any) -> None:
    title = "Mushroom risotto"
    watch(page, title)
    before = events(page)
    page.keyboard.press("e")
    third = before[2]

    x, y = point(page, third["end"])
    page.mouse.move(x - 2, y)
    page.mouse.down()
    for step in range(1, 6):
        page.mouse.move(x - 2 - step * 4, y)
    page.mouse.up()
    moved = events(page)[2]
    assert moved["start"] == third["start"] and moved["end"] < third["end"] - 0.2
    page.keyboard.press("Control+z")
    assert events(page) == before
    page.keyboard.press("Control+Shift+z")
    assert events(page)[2] == moved

    page.locator(".row").nth(1).locator("button").click()
    words = page.get_by_label("Caption", exact=True)
    words.fill("rinse the rice <b>twice</b>")
    page.get_by_label("Start", exact=True).fill(str(before[1]["start"] + 0.3))
    page.locator(".row").nth(3).locator("button").click()  # a click right out of a field counts
    page.wait_for_selector(".row:nth-child(4).chosen")
    assert events(page)[1]["caption"] == "rinse the rice <b>twice</b>"
    page.get_by_role("button", name="Delete").click()
    assert len(events(page)) == len(before) - 1
    page.get_by_role("button", name="Undo").click()
    assert len(events(page)) == len(before)
    page.get_by_role("button", name="Redo").click()

    page.evaluate("starc.player.seek(0.2)")
    page.keyboard.press("a")
    page.keyboard.type("greet the guests")
    page.keyboard.press("Control+s")
    until(page, "document.getElementById('toast').textContent === 'Saved as version 1'")
    saved = events(page)
    assert any(event["caption"] == "greet the guests" for event in saved)

    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert events(page) == saved
    assert "Version 1" in page.locator("#version").inner_text()
    page.locator("#version").click()
    page.get_by_role("menuitemradio", name="Original").click()
    page.wait_for_url("**version=0")
    page.wait_for_selector("body[data-ready]")
    assert events(page) == before
    page.locator("#export").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Training annotations").click()
    record = json.loads(Path(download.value.path()).read_text())
    assert [event["caption"] for event in record["events"]] == [e["caption"] for e in before]
    page.goto("/")
    page.wait_for_selector(".tag")
    assert page.get_by_role("link", name="Export corrections").is_visible()


def test_an_event_can_be_moved_whole_and_nothing_leaves_the_video(page: Any) -> None:
    watch(page)
    page.get_by_role("button", name="Edit", exact=True).click()
    last = events(page)[-1]
    x, y = point(page, (last["start"] + last["end"]) / 2)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y)
    page.mouse.move(x + 2000, y)
    page.mouse.up()
    moved = events(page)[-1]
    assert moved["end"] == pytest.approx(30.0, abs=0.02)
    assert moved["end"] - moved["start"] == pytest.approx(last["end"] - last["start"], abs=0.03)
    page.get_by_role("button", name="Undo").click()
    assert events(page)[-1] == last


def test_a_refused_save_says_why_and_loses_nothing(page: Any) -> None:
    watch(page)
    page.keyboard.press("a")  # an event without words
    page.keyboard.press("Control+s")
    page.wait_for_selector("#toast.bad.shown")
    assert "no caption" in page.locator("#toast").inner_text()
    assert any(event["caption"] == "" for event in events(page))
    page.faults[:] = [fault for fault in page.faults if "422" not in fault]
    page.get_by_role("button", name="Undo").click()


def test_upload_progress_cancel_and_result(page: Any, tmp_path: Path) -> None:
    GO.clear()
    clip = write_clip(tmp_path / "Onion tart.mp4", 6.0)
    page.goto("/")
    page.wait_for_selector(".card")
    before = page.locator(".card").count()
    page.set_input_files("#file", [clip])
    page.wait_for_selector(".stages .now")
    assert page.locator(".stages .over").inner_text() == "decode frames"
    assert page.get_by_role("progressbar").get_attribute("aria-valuenow") == "40"
    page.set_input_files("#file", [clip])
    page.wait_for_selector(".job.queued")
    # Pressed slowly: progress that arrives meanwhile must not take the button away.
    page.locator(".job.queued").get_by_role("button", name="Cancel").hover()
    page.mouse.down()
    page.set_input_files("#file", [clip])
    page.wait_for_timeout(400)
    page.mouse.up()
    page.wait_for_selector(".job.cancelled")
    page.locator(".job.queued").get_by_role("button", name="Cancel").click()
    until(page, "document.querySelectorAll('.job.cancelled').length === 2")
    page.locator(".job.running").get_by_role("button", name="Cancel").click()
    until(page, "document.querySelectorAll('.job.cancelled').length === 3")
    assert page.locator(".card").count() == before

    GO.set()
    page.set_input_files("#file", [clip])
    page.wait_for_selector(".job.done")
    until(page, f"document.querySelectorAll('.card').length === {before + 1}")
    page.get_by_role("link", name="Watch").click()
    page.wait_for_selector("body[data-ready]")
    assert page.locator("#title").inner_text() == "Onion tart" and events(page)


def test_what_is_no_video_is_refused_before_it_is_sent(page: Any, tmp_path: Path) -> None:
    text = tmp_path / "notes.mp4"
    text.write_text("not a video at all, whatever it is called")
    page.goto("/")
    page.wait_for_selector(".card")
    page.set_input_files("#file", [text])
    page.wait_for_selector("#toast.bad.shown")
    assert "not a video" in page.locator("#toast").inner_text()
