"""One video in several tabs of one browser: each has its own draft, and knows of the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from starc.types import Captioned, Event
from starc.viewer.server import create_app
from support.viewer_browser import events, launch, open_page, running, until, watch
from support.viewer_sample import write_record

browser = pytest.fixture(scope="module")(launch)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[str]:
    top: Path = tmp_path_factory.mktemp("tabs")
    steps = (Event(1.0, 4.0, "peel"), Event(5.0, 9.0, "slice"), Event(10.0, 12.0, "fry"))
    for name in ("soup", "cake"):
        write_record(top / f"{name}.json", Captioned(name, 20.0, steps))
    with running(create_app([top])) as address:
        yield address


@pytest.fixture
def page(browser: Any, site: str) -> Iterator[Any]:
    yield from open_page(browser, site)


def reword(page: Any, row: int, words: str) -> None:
    if not page.locator("#edit-tools").is_visible():
        page.keyboard.press("e")
    page.locator(".row > button").nth(row).click()
    page.get_by_label("Caption", exact=True).fill(words)
    page.keyboard.press("Escape")


def captions(page: Any) -> list[str]:
    return [event["caption"] for event in events(page)]


def reload(page: Any) -> None:
    page.reload()
    page.wait_for_selector("body[data-ready]")


def slots(page: Any) -> int:
    return int(page.evaluate("Object.keys(localStorage).filter((n) => n.includes('draft')).length"))


def test_undo_in_one_tab_leaves_the_draft_of_another(page: Any) -> None:
    watch(page, "soup")
    second = page.context.new_page()
    watch(second, "soup")
    reword(second, 1, "slice it thinly")
    until(second, "Object.keys(localStorage).length === 1")
    offer = page.locator("#offer")
    until(page, "!document.getElementById('offer').hidden")
    assert "Another tab has changes" in offer.inner_text()
    assert offer.get_by_role("button").count() == 0  # nobody takes what is being written there
    reword(page, 0, "peel (first tab)")
    until(page, "Object.keys(localStorage).length === 2")
    page.keyboard.press("Control+z")
    assert captions(page)[0] == "peel" and slots(page) == 1
    reword(page, 2, "fry gently")
    page.keyboard.press("Control+s")
    until(page, "document.getElementById('toast').textContent.startsWith('Saved as')")
    until(second, "document.getElementById('offer').textContent.includes('Version 1 was saved')")
    assert captions(second)[1] == "slice it thinly"

    reload(second)
    assert captions(second) == ["peel", "slice", "fry gently"]
    second.get_by_role("button", name="Restore").click()
    assert captions(second) == ["peel", "slice it thinly", "fry"]  # Save shows both
    assert slots(second) == 1
    second.close(run_before_unload=True)
    page.goto("/")
    page.wait_for_selector(".tag.draft")
    assert (
        page.locator(".card", has=page.locator(".tag.draft")).locator("h2").inner_text() == "soup"
    )
    page.locator("#show").select_option("draft")
    assert page.locator(".card h2").all_inner_texts() == ["soup"]


def test_drafts_of_closed_tabs_are_offered_one_after_another(page: Any) -> None:
    for words in ("older", "newer"):
        tab = page.context.new_page()
        watch(tab, "cake")
        reword(tab, 0, words)
        until(tab, f"Object.values(localStorage).some((one) => one.includes('{words}'))")
        page.wait_for_timeout(5)
    # Both were open at once; now neither is.
    for tab in page.context.pages[1:]:
        tab.close(run_before_unload=True)
    watch(page, "cake")
    other = page.context.new_page()
    watch(other, "cake")
    for one in (page, other):
        one.get_by_role("button", name="Restore").wait_for()
    offered = "document.getElementById('offer').dataset.shown"
    newest = other.evaluate(offered)
    page.get_by_role("button", name="Restore").click()
    other.bring_to_front()
    until(other, f"{offered} !== {json.dumps(newest)}")
    assert captions(page)[0] == "newer" and not page.get_by_role("button", name="Restore").count()
    other.get_by_role("button", name="Discard").click()  # what was restored is no longer offered
    until(other, "!document.getElementById('offer').textContent.includes('Not saved:')")
    assert slots(page) == 1 and captions(page)[0] == "newer"
    page.keyboard.press("Control+s")
    until(page, "document.getElementById('toast').textContent.startsWith('Saved as')")
    assert slots(page) == 0


def test_a_draft_of_the_time_before_tabs_is_offered(page: Any) -> None:
    watch(page, "cake")
    page.evaluate("""() => {
        const events = [{ start: 2, end: 3, caption: "old" }];
        const slot = `starc.draft.${location.pathname.split("/").pop()}`;
        localStorage.setItem(slot, JSON.stringify({ events, seen: 0, from: 0, at: 1 }));
    }""")
    reload(page)
    page.get_by_role("button", name="Restore").click()
    assert captions(page) == ["old"] and slots(page) == 1
