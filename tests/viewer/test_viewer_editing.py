"""Correcting in a real Chromium: typed times, drafts that survive, conflicts, keys, many events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from starc.types import Captioned, Event, Segment, Sentence
from starc.viewer import edits
from starc.viewer.library import Library
from starc.viewer.server import create_app
from support.viewer_browser import events, launch, open_page, point, running, until, watch
from support.viewer_sample import write_clip, write_record

STEPS = ["peel", "slice", "fry", "stir", "pour", "simmer", "blend", "season", "serve", "taste"]
FRAMES = tuple(float(n) for n in range(60))


def record(video: str, count: int = 10) -> Captioned:
    """An event every six seconds that lasts four; speech and segments begin elsewhere."""
    spans = [(n * 60 / count, n * 60 / count + 40 / count) for n in range(count)]
    return Captioned(
        video, 60.0,
        tuple(Event(a, b, STEPS[n % 10], 0.5) for n, (a, b) in enumerate(spans)),
        (Sentence(4.6, 5.4, "now we slice it"),),
        FRAMES, tuple(0.5 for _ in FRAMES), (Segment(0, 17, 1, 0.5, True, ()),),
    )  # fmt: skip


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("editing")
    for name in (
        "times",
        "draft",
        "conflict",
        "keys",
        "shape",
        "many",
        "versions",
        "menus",
        "hands",
    ):
        write_record(folder / f"{name}.json", record(name))
    thirds = (
        Event(1 / 3, 20 / 3, "peel"),
        Event(20 / 3, 38 / 3, "slice"),
        Event(14.0, 50 / 3, "fry"),
    )
    write_record(folder / "thirds.json", Captioned("thirds", 60.0, thirds))
    write_record(folder / "long.json", record("long", 200))
    write_clip(folder / "clip.mp4", 6.0)
    events = (Event(1.0, 2.0, "peel"), Event(4.0, 6.0, "serve"))
    write_record(folder / "clip.json", Captioned("clip.mp4", 6.0, events))
    return folder


browser = pytest.fixture(scope="module")(launch)


@pytest.fixture(scope="module")
def site(top: Path, browser: Any) -> Iterator[str]:
    srt = edits.Export("srt", lambda made: "\n".join(event.caption for event in made.events))
    with running(create_app([top], exports={"srt": srt})) as address:
        yield address


@pytest.fixture
def page(browser: Any, site: str) -> Iterator[Any]:
    yield from open_page(browser, site)


def edit(page: Any, title: str, row: int | None = None) -> None:
    watch(page, title)
    page.keyboard.press("e")
    if row is not None:
        page.locator(".row > button").nth(row).click()
        page.wait_for_selector(f".row:nth-child({row + 1}) .editor")


def span(page: Any, n: int) -> tuple[float, float]:
    event = events(page)[n]
    return event["start"], event["end"]


def captions(page: Any) -> list[str]:
    return [event["caption"] for event in events(page)]


def toast(page: Any) -> str:
    return str(page.locator("#toast").inner_text())


def test_a_time_counts_when_it_is_typed_to_the_end(page: Any) -> None:
    edit(page, "times", 2)
    end = page.get_by_label("End", exact=True)
    assert end.input_value() == "0:16.00"
    end.fill("35")
    end.fill("3")
    assert span(page, 2) == (12, 16)  # on the way
    end.fill("0:17.5")
    end.press("Enter")
    assert span(page, 2) == (12, 17.5)
    end.fill("1:75")
    end.press("Enter")
    assert "no time" in page.locator(".refusal").inner_text()
    assert end.get_attribute("aria-invalid") == "true" and span(page, 2) == (12, 17.5)
    end.fill("9")
    end.press("Enter")
    assert "after the start" in page.locator(".refusal").inner_text()
    end.fill("1:05")
    end.blur()
    assert "the video ends at 1:00.00" in page.locator(".refusal").inner_text()
    assert end.input_value() == "0:17.50" and span(page, 2) == (12, 17.5)
    end.press("ArrowUp")
    assert span(page, 2) == (12, 17.6) and end.input_value() == "0:17.60"
    end.fill("18")
    page.locator(".row > button").nth(5).click()  # leaving by a click counts, and so does the click
    page.wait_for_selector(".row:nth-child(6).chosen")
    assert span(page, 2) == (12, 18)
    page.get_by_label("Start", exact=True).fill("0:02")  # into another place of the list
    page.locator(".row > button").nth(8).click()
    page.wait_for_selector(".row:nth-child(9).chosen")
    assert [one[0] for one in sorted(span(page, n) for n in range(10))][:2] == [0, 2]


def test_an_edge_key_never_crushes_an_event(page: Any) -> None:
    edit(page, "times", 2)
    page.evaluate("starc.player.seek(30)")
    page.keyboard.press("[")
    assert span(page, 2) == (12, 16) and "start stays" in toast(page)
    page.evaluate("starc.player.seek(3)")
    page.keyboard.press("]")
    assert span(page, 2) == (12, 16) and "end stays" in toast(page)
    page.evaluate("starc.player.seek(13.5)")
    page.keyboard.press("[")
    assert span(page, 2) == (13.5, 16)


def test_a_draft_survives_a_reload(page: Any) -> None:
    edit(page, "draft", 1)
    page.get_by_label("Caption", exact=True).fill("slice it thinly")
    page.keyboard.press("Escape")
    page.keyboard.press("e")  # leaving edit mode keeps Save
    assert page.get_by_role("button", name="Save").is_enabled()
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert captions(page)[1] == "slice"
    offer = page.locator("#offer")
    assert "Not saved: 1 change" in offer.inner_text()
    offer.get_by_role("button", name="Restore").click()
    assert captions(page)[1] == "slice it thinly" and not offer.is_visible()
    page.keyboard.press("Control+z")
    assert captions(page)[1] == "slice"
    page.keyboard.press("Control+Shift+z")
    page.reload()
    page.wait_for_selector("#offer:not([hidden])")
    page.keyboard.press("e")  # whoever goes on writing goes on with the draft
    assert captions(page)[1] == "slice it thinly"
    page.keyboard.press("e")
    page.keyboard.press("Control+s")
    until(page, "document.getElementById('toast').textContent.startsWith('Saved as version')")
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert captions(page)[1] == "slice it thinly" and not page.locator("#offer").is_visible()

    edit(page, "draft", 1)
    page.get_by_label("Caption", exact=True).fill("never mind")
    page.reload()
    page.locator("#offer").get_by_role("button", name="Discard").click()
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert not page.locator("#offer").is_visible()


def test_a_conflict_is_settled_event_by_event(page: Any, top: Path) -> None:
    edit(page, "conflict", 0)
    for row, words in ((0, "peel (mine)"), (1, "slice (mine)")):
        page.locator(".row > button").nth(row).click()
        page.get_by_label("Caption", exact=True).fill(words)
    item = next(one for one in Library([top]).refresh() if one.summary.title == "conflict")
    theirs = [(event.start, event.end, event.caption) for event in record("x").events]
    theirs[1] = (*theirs[1][:2], "slice (theirs)")
    theirs[2] = (*theirs[2][:2], "fry (theirs)")
    theirs[3] = (*theirs[3][:2], "stir (theirs)")
    edits.save(item, theirs, seen=0)

    page.keyboard.press("Control+s")
    dialog = page.get_by_role("dialog")
    assert "Version 1" in dialog.inner_text() and dialog.get_by_role("group").count() == 5
    page.keyboard.press("Escape")
    until(page, "document.getElementById('toast').textContent.includes('stay here')")
    assert captions(page)[1] == "slice (mine)"
    page.reload()  # the draft still knows what it was made from
    page.get_by_role("button", name="Restore").click()
    assert captions(page)[2] == "fry"
    page.keyboard.press("Control+s")
    dialog.get_by_label("slice (theirs)").check()
    dialog.get_by_label("18.00 – 0:22.00 stir").first.check()
    dialog.get_by_role("button", name="Save these").click()
    until(page, "document.getElementById('toast').textContent === 'Saved as version 2'")
    wanted = ["peel (mine)", "slice (theirs)", "fry (theirs)", "stir", "pour"]
    assert captions(page)[:5] == wanted
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert captions(page)[:5] == wanted and not page.locator("#offer").is_visible()
    page.faults[:] = [fault for fault in page.faults if "409" not in fault]


def test_search_and_links_land_on_the_event(page: Any) -> None:
    page.goto("/?q=season")
    hits = page.locator(".moments li a")
    hits.first.click()
    page.wait_for_selector(".row.chosen")
    assert page.locator(".row.chosen.current .words").all_inner_texts() == ["season"]
    page.reload()  # the address has the event
    page.wait_for_selector(".row.chosen.current")
    watch(page, "shape", "?t=4.6")
    assert page.locator(".row.current .words").all_inner_texts() == ["now we slice it"]
    assert page.locator("#time").inner_text().startswith("0:04 ")
    page.goto("/?q=slice")
    assert "0:06" in page.locator(".moments li", has_text="times").first.inner_text()


VISIBLE = """(() => {
    const row = document.querySelector(".row.chosen").getBoundingClientRect();
    const list = document.getElementById("list").getBoundingClientRect();
    return row.top >= list.top - 1 && row.bottom <= list.bottom + 1;
})()"""


def test_the_chosen_row_stays_in_view(page: Any) -> None:
    edit(page, "long")
    for place in (120, 3, 199):
        page.mouse.click(*point(page, place * 0.3 + 0.1))
        key = page.locator(".row.chosen").get_attribute("data-key")
        assert page.evaluate(f"starc.draft.events[{place}].key") == int(key)
        until(page, VISIBLE, 3)
    page.keyboard.press(" ")
    page.evaluate("starc.player.seek(1)")
    page.wait_for_timeout(300)
    page.keyboard.press(" ")
    until(page, VISIBLE, 3)


def test_a_click_on_another_row_is_not_lost_by_leaving_a_field(page: Any) -> None:
    """Leaving the caption must not scroll the list away under the pointer."""
    edit(page, "long", 1)
    page.get_by_label("Caption", exact=True).fill("another caption")
    page.wait_for_timeout(300)  # the browser scrolls to a caret that moved, a while later
    row = page.locator(".row > button").nth(40)
    row.scroll_into_view_if_needed()
    box = row.bounding_box()
    page.mouse.move(box["x"] + 80, box["y"] + 10)
    page.mouse.down()
    page.wait_for_timeout(150)
    page.mouse.up()
    page.wait_for_selector(".row:nth-child(41) .editor")
    assert captions(page)[1] == "another caption"
    until(page, VISIBLE, 3)


def test_keys_lead_into_the_caption_and_back(page: Any) -> None:
    watch(page, "keys")
    focus = "document.activeElement"
    row = page.locator(".row > button").nth(2)
    row.focus()
    page.keyboard.press("e")
    page.keyboard.press("Enter")
    assert page.evaluate(f"{focus}.tagName") == "TEXTAREA"
    page.keyboard.press("End")
    page.keyboard.type(" well")
    page.keyboard.press("Escape")
    assert page.evaluate(f"{focus}.closest('.row')?.textContent.includes('fry well')")
    assert captions(page)[2] == "fry well"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    page.keyboard.type("!")
    page.keyboard.press("Enter")
    assert captions(page)[3] == "stir!"
    assert page.evaluate(f"{focus}.matches('.row:nth-child(4) > button')")
    page.evaluate(f"{focus}.blur()")
    page.keyboard.press("Enter")  # from anywhere: the chosen event
    assert page.evaluate(f"{focus}.tagName") == "TEXTAREA"
    page.keyboard.press("Escape")
    assert page.evaluate(f"{focus} === document.body")

    page.get_by_role("tab", name="Events").focus()
    stops = []
    for _ in range(8):
        page.keyboard.press("Tab")
        stops.append(page.evaluate(f"{focus}.id || {focus}.tagName"))
    assert stops == ["BUTTON", "TEXTAREA", "INPUT", "INPUT", "how", "edit", "follow", "BODY"]
    page.get_by_role("button", name="Edit", exact=True).focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(f"{focus}.id") == "add"
    page.keyboard.press("End")
    assert page.evaluate(f"{focus}.id") == "save"


def drag(page: Any, start: float, end: float, key: str | None = None) -> None:
    page.mouse.move(*point(page, start))
    if key:
        page.keyboard.down(key)
    page.mouse.down()
    x, y = point(page, end)
    page.mouse.move(x - 8, y)
    page.mouse.move(x, y)
    page.mouse.up()
    if key:
        page.keyboard.up(key)


def test_events_are_shaped_on_the_timeline(page: Any) -> None:
    edit(page, "shape")
    drag(page, 4.5, 5.35)  # along the empty lane: to the edges of the speech
    assert span(page, 1) == (4.6, 5.4) and len(events(page)) == 11
    page.keyboard.type("turn")
    page.keyboard.press("Escape")
    assert captions(page)[1] == "turn"
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    assert len(events(page)) == 10

    drag(page, 15.95, 17.1)  # an edge rests at the segment's
    assert span(page, 2) == (12, 17)
    drag(page, 16.95, 17.15, "Alt")  # or nowhere, with Alt
    assert span(page, 2)[1] == pytest.approx(17.2, abs=0.12) and span(page, 2)[1] != 17

    page.mouse.dblclick(*point(page, 20.0))
    page.keyboard.press("Control+a")
    page.keyboard.type("double")
    page.keyboard.press("Escape")
    assert captions(page)[3] == "double"
    page.locator(".row > button").nth(4).dblclick()
    page.keyboard.press("Control+a")
    page.keyboard.type("in the list")
    page.keyboard.press("Escape")
    assert captions(page)[4] == "in the list"

    page.evaluate("starc.player.seek(26)")
    page.keyboard.press("s")
    assert captions(page)[4:6] == ["in the list"] * 2 and span(page, 5) == (26, 28)
    page.keyboard.press("m")
    assert captions(page)[5] == "in the list, simmer" and span(page, 5) == (26, 34)

    x = point(page, 50.0)[0]
    top = page.evaluate("starc.timeline.host.getBoundingClientRect().top")
    page.mouse.move(x, top + 10)
    page.mouse.down()
    page.mouse.move(point(page, 40.0)[0], top + 10)
    assert page.evaluate("starc.player.time") == pytest.approx(40, abs=0.2)
    page.mouse.up()
    assert page.evaluate("starc.timeline.scale.whole")


def test_many_events_at_once(page: Any, tmp_path: Path) -> None:
    edit(page, "many", 2)
    rows = page.locator(".row > button")
    rows.nth(4).click(modifiers=["Shift"])
    assert page.locator(".row.chosen").count() == 3
    assert "3 events chosen" in page.locator("#hint").inner_text()
    page.keyboard.press(">")
    assert [span(page, n)[0] for n in (1, 2, 4, 5)] == [6, 12.1, 24.1, 30]
    rows.nth(3).click(modifiers=["Control"])
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Delete")
    assert captions(page)[:4] == ["peel", "slice", "stir", "simmer"]
    page.keyboard.press("Control+z")
    assert len(events(page)) == 10
    page.keyboard.press("Control+a")
    more = page.get_by_role("button", name="More")
    more.press("Enter")
    page.get_by_role("menuitem", name="Move in time").click()
    page.get_by_label("10 events").fill("1.5")
    page.get_by_role("button", name="Move", exact=True).click()
    until(page, "starc.data.events[0].start > 0")
    assert span(page, 0) == (1.5, 5.5)
    assert page.evaluate("document.activeElement.id") == "more"

    more.click()
    page.get_by_role("menuitem", name="Find and replace").click()
    page.get_by_label("Find", exact=True).fill("S")
    assert "6 events" in page.get_by_role("dialog").inner_text()
    page.get_by_label("Match case").check()
    assert "0 events" in page.get_by_role("dialog").inner_text()
    page.get_by_label("Find", exact=True).fill("s")
    page.get_by_label("Replace with").fill("z")
    page.get_by_role("button", name="Replace all").click()
    until(page, "starc.data.events[1].caption[0] === 'z'")
    assert captions(page)[1] == "zlice" and "6 captions changed" in toast(page)

    subtitles = tmp_path / "talk.vtt"
    subtitles.write_text(
        "WEBVTT\n\n00:01.000 --> 00:02.000\nhello\n\n02:00.000 --> 02:01.000\nlate"
    )
    page.set_input_files("#subtitles", subtitles)
    until(page, "starc.data.events.length === 1")
    assert captions(page) == ["hello"] and "1 left out" in toast(page)
    page.keyboard.press("Control+z")
    assert len(events(page)) == 10


def test_space_plays_and_never_presses_a_button_again(page: Any) -> None:
    edit(page, "keys", 1)
    page.evaluate("starc.player.seek(8)")
    split = page.get_by_role("button", name="Split")
    split.click()
    assert len(events(page)) == 11
    page.keyboard.press(" ")
    assert len(events(page)) == 11 and page.evaluate("starc.player.playing")
    page.keyboard.press(" ")
    assert not page.evaluate("starc.player.playing")
    page.keyboard.press("Enter")  # writes the caption of the second half
    assert len(events(page)) == 11 and page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    page.keyboard.press("Escape")

    page.get_by_label("Speed").select_option("2")
    for place in (
        "#split",
        "#tab-events",
        ".row:nth-child(4) > button",
        "#seek",
        "#speed",
        ".brand",
    ):
        page.locator(place).focus()
        page.keyboard.press(" ")
        assert page.evaluate("starc.player.playing"), place
        page.keyboard.press(" ")
        assert not page.evaluate("starc.player.playing") and len(events(page)) == 11
    page.evaluate("starc.player.seek(9)")
    split.focus()
    page.keyboard.press("Enter")  # where the keyboard has led there, Enter presses
    assert len(events(page)) == 12
    page.get_by_role("button", name="More").focus()
    page.keyboard.press("Enter")
    until(page, "document.activeElement.id === 'find'")
    page.keyboard.press(" ")  # a menu has its own keys
    page.get_by_role("dialog", name="Find and replace").wait_for()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "more"


def test_times_that_nobody_changed_stay_exact(page: Any) -> None:
    edit(page, "thirds", 1)
    page.get_by_label("Caption", exact=True).fill("slice it")
    end = page.get_by_label("End", exact=True)
    end.focus()
    end.press("Enter")
    assert span(page, 1) == (20 / 3, 38 / 3)
    end.fill("12.5")
    end.press("Enter")
    assert span(page, 1) == (20 / 3, 12.5)
    drag(page, 14.0, 13.0, "Alt")  # one edge moves, the other does not
    assert span(page, 2)[0] != 14 and span(page, 2)[1] == 50 / 3
    drag(page, 12.5, 9.0, "Alt")
    drag(page, span(page, 1)[1], 8.0, "Alt")
    drag(page, 20 / 3 - 0.06, 5.0, "Alt")  # the end of the first
    drag(page, span(page, 0)[1], 6.6)  # and back: it rests where the second begins
    assert span(page, 0) == (1 / 3, 20 / 3) and span(page, 1)[0] == 20 / 3
    page.keyboard.press("Control+a")
    page.keyboard.press(">")
    assert span(page, 0)[1] == span(page, 1)[0] == pytest.approx(20 / 3 + 0.1, abs=1e-6)


def test_menus_act_on_a_press_and_export_can_save_first(page: Any) -> None:
    edit(page, "menus", 0)
    page.get_by_label("Caption", exact=True).fill("peel with care")
    page.keyboard.press("Escape")
    export = page.get_by_role("button", name="Export", exact=True)
    downloads: list[Any] = []
    page.on("download", lambda one: downloads.append(one))
    export.press("Enter")
    until(page, "document.activeElement.textContent === 'SRT subtitles'")  # the first
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "JSON"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Export")
    assert "not saved yet" in dialog.inner_text() and downloads == []
    with page.expect_download() as saved:
        dialog.get_by_role("button", name="Save and export").click()
    assert "peel with care" in Path(saved.value.path()).read_text()
    assert saved.value.suggested_filename == "menus.srt"
    assert page.get_by_role("button", name="Shown: Version 1").is_visible()

    page.get_by_label("Caption", exact=True).fill("peel")
    page.keyboard.press("Escape")
    export.click()
    page.get_by_role("menuitem", name="SRT").click()
    with page.expect_download() as last:
        dialog.get_by_role("button", name="Export Version 1").click()
    assert "peel with care" in Path(last.value.path()).read_text()
    assert page.get_by_role("button", name="Save").is_enabled()
    version = page.locator("#version")
    version.press("Enter")
    until(page, "document.activeElement.textContent.startsWith('Version 1')")
    page.keyboard.press("ArrowDown")
    page.wait_for_timeout(100)
    assert (
        "version=" not in page.url and page.evaluate("document.activeElement.tagName") == "BUTTON"
    )
    page.keyboard.press("Enter")
    page.wait_for_url("**version=0")


def test_undo_brings_the_choice_back(page: Any) -> None:
    edit(page, "hands", 2)
    page.locator(".row > button").nth(3).click(modifiers=["Shift"])
    page.keyboard.press("Delete")
    assert page.locator(".row.chosen").count() == 0
    page.keyboard.press("Control+z")
    assert page.locator(".row.chosen .words").all_text_contents() == ["fry", "stir"]
    page.locator(".row > button").nth(4).click()
    page.evaluate("starc.player.seek(26)")
    page.keyboard.press("s")
    page.keyboard.press("Control+z")
    assert page.locator(".row.chosen .words").all_text_contents() == ["pour"]
    page.keyboard.press(">")
    page.keyboard.press("Control+z")
    assert page.locator(".row.chosen .words").all_text_contents() == ["pour"]


def test_nothing_is_deleted_out_of_sight(page: Any) -> None:
    edit(page, "hands", 2)
    page.get_by_role("tab", name="Speech").click()
    page.keyboard.press("Backspace")
    assert len(events(page)) == 10 and "again" in toast(page)
    assert page.locator(".row.chosen .words").all_text_contents() == ["fry"]  # now it is in sight
    page.keyboard.press("Backspace")
    assert len(events(page)) == 9 and "fry" not in captions(page)


def test_a_caption_is_split_at_the_caret(page: Any) -> None:
    edit(page, "hands", 2)
    words = page.get_by_label("Caption", exact=True)
    words.fill("fry and stir")
    for _ in range(5):
        words.press("ArrowLeft")
    page.evaluate("starc.player.seek(15)")
    words.press("Control+Enter")
    assert captions(page)[2:4] == ["fry and", "stir"]
    assert span(page, 2) == (12, 15) and span(page, 3) == (15, 16)
    assert words.input_value() == "stir" and words.evaluate(
        "node => node === document.activeElement"
    )
    page.keyboard.press("Escape")
    page.keyboard.press("Control+z")
    assert captions(page)[2] == "fry and stir" and span(page, 2) == (12, 16)
    page.evaluate("starc.player.seek(40)")  # elsewhere: the times are shared out by letters
    page.locator(".row > button").nth(2).click()
    page.evaluate("starc.player.seek(40)")
    words.click()
    words.press("Home")
    for _ in range(3):
        words.press("ArrowRight")
    page.get_by_role("button", name="Split").click()
    assert captions(page)[2:4] == ["fry", "and stir"] and span(page, 2) == (12, 13)


def test_an_overlap_is_said(page: Any) -> None:
    edit(page, "hands", 2)
    note = page.locator(".row .overlap")
    assert note.count() == 0
    end = page.get_by_label("End", exact=True)
    end.fill("18.5")
    end.press("Enter")
    assert note.all_inner_texts() == ["overlaps the next event by 0.50 s"]
    page.keyboard.press("e")
    assert note.count() == 0  # only whoever corrects wants to know
    page.keyboard.press("e")
    assert note.count() == 1
    page.keyboard.press("Control+z")
    assert note.count() == 0


def test_the_clock_is_no_live_region(page: Any) -> None:
    watch(page, "hands")
    assert page.locator("#time").inner_text().startswith("0:00 / 1:00")
    live = page.locator(".stage").locator("output, [aria-live], [role=status], [role=alert]")
    assert live.count() == 0


def test_versions_have_dates_and_a_difference(page: Any, top: Path) -> None:
    item = next(one for one in Library([top]).refresh() if one.summary.title == "versions")
    made = [(event.start, event.end, event.caption) for event in record("x").events]
    edits.save(item, made[1:], seen=0)
    edits.save(item, [(6.5, 10.0, "slice"), (12.0, 16.0, "fry gently"), *made[3:]], seen=1)
    watch(page, "versions")
    version = page.get_by_role("button", name="Shown: Version 2 · ")
    assert version.evaluate("node => node.scrollWidth <= node.clientWidth")  # the whole of its name
    version.click()
    names = page.get_by_role("menuitemradio").all_inner_texts()
    assert page.get_by_role("menuitemradio", checked=True).inner_text() == names[0]
    page.keyboard.press("Escape")
    assert names[0].startswith("Version 2 · ") and names[2] == "Original"
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Compare versions").click()
    page.wait_for_selector(".changes li")
    lines = page.locator(".changes li").all_inner_texts()
    assert [line.split()[1] for line in lines] == ["changed", "changed"]
    assert page.locator(".changes ins").all_inner_texts() == [
        "0:06.50 – 0:10.00 slice",
        "fry gently",
    ]
    page.get_by_label("From").select_option("0")
    until(page, "document.querySelectorAll('.changes li').length === 3")


def test_frames_and_one_event_alone(page: Any) -> None:
    watch(page, "clip")
    until(page, "document.querySelector('video').readyState > 1")
    rate = page.request.get(f"/api/videos/{page.url.rsplit('/', 1)[1]}").json()["fps"]
    page.keyboard.press(".")
    page.keyboard.press(".")
    assert page.evaluate("starc.player.time") == pytest.approx(2 / rate, abs=0.01)
    page.keyboard.press(",")
    assert page.evaluate("starc.player.time") == pytest.approx(1 / rate, abs=0.01)
    page.locator(".row > button").first.click()
    page.keyboard.press("p")
    until(page, "starc.player.playing")
    until(page, "!starc.player.playing")
    assert 1.9 < page.evaluate("starc.player.time") < 2.6
    page.locator(".row > button").nth(1).click()
    page.keyboard.press("l")
    assert page.locator("#loop").get_attribute("aria-pressed") == "true"
    page.evaluate("starc.player.seek(5.6)")
    page.keyboard.press("p")
    page.evaluate("starc.player.seek(5.6)")
    until(page, "starc.player.playing && starc.player.time < 5.5")  # round again
    page.keyboard.press(" ")
    page.keyboard.press("l")
    page.evaluate("starc.player.seek(5.6)")
    page.keyboard.press(" ")
    until(page, "starc.player.video.ended")
    # An event that ends where the video does: it has stopped by itself, and must not begin again.
    page.evaluate("starc.player.span = { start: 4, end: 6 }; starc.player.tick()")
    page.wait_for_timeout(200)
    assert page.evaluate("!starc.player.playing && starc.player.time > 5")
    page.keyboard.press("f")
    until(page, "document.fullscreenElement?.classList.contains('stage')")
    assert page.locator("#play").is_visible() and page.locator("#seek").is_visible()
    page.keyboard.press("f")
    until(page, "!document.fullscreenElement")
