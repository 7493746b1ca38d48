"""The page in other hands: other scripts and sizes, high contrast, other sites, old codecs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from starc.errors import SpeechError
from starc.types import Captioned, Event, Sentence
from starc.viewer import edits
from starc.viewer.library import Library
from starc.viewer.server import create_app
from support.viewer_browser import launch, open_page, point, running, until, watch
from support.viewer_sample import captioned, make_library, write_clip, write_record
from viewer.test_viewer_media import old_avi
from viewer.test_viewer_page import OUTSIDE

browser = pytest.fixture(scope="module")(launch)
ARABIC = "أضف الثوم إلى المقلاة"
WORKING = threading.Event()


def caption(path: Path, progress: Callable[[str, float], None], _: object) -> Captioned:
    if not WORKING.is_set():
        raise SpeechError(f"{path}: nobody listens")
    return captioned(path.name, 6.0)


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reach")
    make_library(folder, duration=30.0, dishes=2)
    library = folder / "library"
    spoken = (Sentence(1, 9, ARABIC),)
    write_record(library / "a.json", Captioned("a", 30.0, (Event(0, 9, ARABIC),), spoken))
    flat = replace(captioned("flat", 30.0), saliency=tuple(0.43 + n % 14 / 100 for n in range(30)))
    write_record(library / "flat.json", replace(flat, events=()))
    write_record(library / "name.json", captioned("a_file_name_that_no_line_breaks.mp4", 30.0))
    old_avi(library / "old.avi")
    (library / "broken.json").write_text('{"starc": 1,')
    return folder


@pytest.fixture(scope="module")
def site(top: Path, browser: Any) -> Iterator[str]:
    app = create_app(
        [top / "library"], reference=top / "reference.json", compare=top / "baseline",
        caption=caption,
    )  # fmt: skip
    with running(app) as address:
        yield address


@pytest.fixture
def page(browser: Any, site: str) -> Iterator[Any]:
    yield from open_page(browser, site)


COVERED = """() => [...document.querySelectorAll(".tabs button")].filter((tab) => {
    const box = tab.getBoundingClientRect();
    return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2) !== tab;
}).map((tab) => tab.textContent)"""


@pytest.mark.parametrize("size", [(320, 640), (430, 900), (640, 450), (740, 360)])
def test_nothing_sticks_out(browser: Any, site: str, size: tuple[int, int]) -> None:
    """A small phone, a large one, a laptop at 200 %, a phone on its side."""
    width, height = size
    for page in open_page(browser, site, has_touch=True):
        page.set_viewport_size({"width": width, "height": height})
        for path, part in (("/", ".card"), ("/?q=garlic", ".moments li")):
            page.goto(path)
            page.wait_for_selector(part)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(OUTSIDE) == []
        watch(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        controls = page.locator(".controls button").all()
        assert len({round(one.bounding_box()["y"]) for one in controls}) == 1
        page.locator(".tabs").scroll_into_view_if_needed()
        assert page.evaluate(COVERED) == []
        page.get_by_role("button", name="Edit", exact=True).tap()
        page.locator(".row button").nth(1).tap()
        assert page.evaluate(OUTSIDE) == []
        page.get_by_role("button", name="How was this made?").tap()
        box = page.get_by_role("dialog").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        if height < 400:  # the list is beside the picture, not below the fold
            assert page.locator(".panel").bounding_box()["y"] < height / 2


def test_high_contrast_keeps_lanes_apart(browser: Any, site: str) -> None:
    for page in open_page(browser, site, forced_colors="active"):
        watch(page)
        colours = page.evaluate("starc.timeline.colours")
        assert colours["accent"] != colours["text"] != colours["surface"] != colours["playhead"]
        anchors = {colours[f"anchor-{n}"] for n in range(10)}
        assert len(anchors) == 10
        page.keyboard.press("e")  # or a plate in the page's colour lies under the word
        save = page.locator("#save").evaluate("node => getComputedStyle(node).forcedColorAdjust")
        assert save == "none"


def test_scripts_that_run_from_right_to_left(page: Any) -> None:
    watch(page, "a")
    page.locator(".row button").click()
    for place in (".row .words", "#caption span", ".evidence q"):
        shown = page.locator(place).first
        assert shown.evaluate("node => getComputedStyle(node).direction") == "rtl"


def test_the_shelf_finds_sorts_and_filters(page: Any) -> None:
    page.goto("/")
    page.wait_for_selector(".card")

    def titles() -> list[str]:
        return page.locator(".card h2").all_text_contents()  # also of cards out of sight

    shelf = page.get_by_role("form", name="Which videos are shown")
    assert shelf.get_by_label("Order").input_value() == "worst"
    scored = [text for text in page.locator(".facts").all_inner_texts() if "F1" in text]
    assert len(scored) == 2 and "F1" in page.locator(".facts").first.inner_text()
    shelf.get_by_label("Order").select_option("title")
    assert titles() == sorted(titles(), key=str.lower)
    shelf.get_by_label("Find by title").fill("RISOTTO")
    assert titles() == ["Mushroom risotto"] and "1 of 7" in page.locator("#shown").inner_text()
    page.reload()
    page.wait_for_selector(".card")
    assert titles() == ["Mushroom risotto"] and "title=RISOTTO" in page.url
    shelf.get_by_label("Find by title").fill("")
    for show, found in (("empty", ["flat"]), ("bare", ["old"]), ("problem", ["broken"])):
        shelf.get_by_label("Show").select_option(show)
        assert titles() == found
    assert page.locator(".facts").inner_text() == "the file is not valid JSON"
    shelf.get_by_label("Find by title").fill("nothing like this")
    assert "No video is like that" in page.locator(".empty").inner_text()


def test_a_record_that_cannot_be_read_says_so_on_its_own_page(page: Any) -> None:
    page.goto("/?show=problem")
    page.locator(".card a").click()
    page.wait_for_selector(".trouble")
    said = page.locator(".trouble").inner_text()
    assert "broken.json: not valid JSON" in said and "/tmp" not in said
    page.faults[:] = [fault for fault in page.faults if "422" not in fault]


def test_saliency_fills_its_lane_and_says_between_what(page: Any) -> None:
    watch(page, "flat")
    lane = page.evaluate("starc.timeline.layout.lanes.find((one) => one.kind === 'saliency').ends")
    assert lane == pytest.approx([0.43, 0.56])
    drawn = page.evaluate("""async () => {
        const { draw, palette } = await import("/static/lanes.js");
        const { timeline, data } = starc;
        const said = [];
        const context = new Proxy(document.createElement("canvas").getContext("2d"), {
            get: (target, name) => name === "fillText" ? (text) => said.push(text)
                : typeof target[name] === "function" ? target[name].bind(target) : target[name],
            set: (target, name, value) => { target[name] = value; return true; },
        });
        draw(context, timeline.layout, timeline.scale, palette(), data, timeline.state);
        return said;
    }""")
    assert "0.56" in drawn and "0.43" in drawn


def test_missed_is_only_what_the_reference_has(page: Any) -> None:
    watch(page)
    page.keyboard.press("a")  # an event where the reference has none, before anything happens
    page.keyboard.type("wash the hands")
    page.keyboard.press("Escape")
    rows = page.get_by_role("table").locator("tbody tr")
    until(page, "[...document.querySelectorAll('tbody')].some(b => b.textContent.includes('wash'))")
    alone = [row for row in rows.all() if "not in the reference" in row.inner_text()]
    assert alone and all("missed" not in row.inner_text() for row in alone)
    page.get_by_role("button", name="Undo").click()


def test_an_event_says_where_it_is_from_and_the_record_how_it_was_made(page: Any) -> None:
    watch(page)
    page.keyboard.press("j")
    said = page.get_by_role("group", name="Where this event is from").inner_text()
    origin = "from the speech, the pictures and the datastore"
    assert said.startswith(f"Times: {origin} · Words: {origin}") and "not used" not in said
    assert "Said here" in said and "looked up in the datastore" in said
    assert "Retrieved captions" in said
    assert page.evaluate("starc.timeline.state.evidence.size") >= 2
    # One scale for all lists: half as similar is half as long.
    bars = page.evaluate("""[...document.querySelectorAll(".retrieved li")].map((row) =>
        [row.querySelector("b").textContent, row.querySelector("i").style.width])""")
    assert bars and all(abs(float(value) * 100 - float(width[:-1])) < 1.1 for value, width in bars)
    page.get_by_role("button", name="How was this made?").click()
    made = page.get_by_role("dialog", name="How was this made?")
    assert "starc-demo" in made.inner_text() and "Saliency is how likely" in made.inner_text()
    assert f"8 events. Times: {origin} · Words: {origin}." in made.inner_text()


def test_what_had_no_part_in_the_captions_stands_apart(browser: Any, tmp_path: Path) -> None:
    """Speech alone made these captions; the segments were only computed."""
    record, speech = captioned("soup", 30.0), ("speech",)
    heard = [replace(one, times_from=speech, words_from=speech) for one in record.events]
    write_record(tmp_path / "soup.json", replace(record, events=tuple(heard)))
    bare = replace(record, video="bare", events=tuple(heard), segments=())
    write_record(tmp_path / "bare.json", bare)
    with running(create_app([tmp_path])) as site:
        for page in open_page(browser, site):
            watch(page, "soup")
            page.keyboard.press("j")
            box = page.get_by_role("group", name="Where this event is from")
            used, apart = box.inner_text().split("Also computed, not used for this caption")
            assert used.startswith("Times: from the speech · Words: from the speech")
            assert "Said here" in used and "segment" not in used and "Retrieved" not in used
            assert "segment" in apart and "Retrieved captions" in apart
            kinds = "new Set([...starc.timeline.state.evidence].map((one) => 'text' in one))"
            assert page.evaluate(f"[...{kinds}]") == [True]  # sentences, no segment
            lanes = page.evaluate("starc.timeline.layout.lanes.map((lane) => lane.kind)")
            assert lanes[-2:] == ["note", "segments"]
            page.get_by_role("tab", name="Segments").click()
            note = "Also computed, not used for these captions."
            assert page.locator(".list .apart").inner_text() == note
            page.get_by_role("button", name="How was this made?").click()
            made = page.get_by_role("dialog", name="How was this made?").inner_text()
            assert note in made and "watched" not in made and "From all of these" not in made

            watch(page, "bare")
            assert not page.get_by_role("tab", name="Segments").is_visible()
            assert "segments" not in page.evaluate("starc.timeline.layout.lanes.map((l) => l.kind)")
            page.keyboard.press("a")
            page.keyboard.type("wash the hands")
            page.keyboard.press("Escape")
            said = box.inner_text()
            assert said == "Times: by a person · Words: by a person"
            assert page.evaluate("starc.timeline.state.evidence.size") == 0
            page.locator(".row > button").nth(3).click()
            page.get_by_label("Caption", exact=True).fill("crush it")
            page.keyboard.press("Escape")
            assert box.inner_text().startswith("Times: from the speech · Words: by a person")
            page.keyboard.press(">")
            assert box.inner_text().startswith("Times: by a person · Words: by a person")
            page.keyboard.press("Control+z")
            assert box.inner_text().startswith("Times: from the speech · Words: by a person")
            page.keyboard.press("Control+s")
            until(page, "document.getElementById('toast').textContent.includes('version 1')")
    saved = edits.read_captioned(tmp_path / "bare.edits" / "0001.json").events
    changed = {one.caption: one.times_from for one in saved if one.words_from == ("person",)}
    assert changed == {"wash the hands": ("person",), "crush it": speech}
    assert sum(one.words_from == speech for one in saved) == len(saved) - 2


def test_a_video_that_was_not_captioned_says_why_and_can_be_captioned_anyway(
    browser: Any, tmp_path: Path
) -> None:
    write_clip(tmp_path / "talk.mp4", 6.0)
    write_clip(tmp_path / "dark.mp4", 6.0)
    write_record(tmp_path / "soup.json", captioned("soup", 30.0))
    why = "out of domain: what is said is unlike the videos that the model was trained on"

    def decline(path: Path, *_: object) -> Captioned:
        reason = why if path.stem == "talk" else "no event was found"
        return Captioned(path.name, 6.0, (), reason=reason)

    def anyway(path: Path, *_: object) -> Captioned:
        return replace(captioned(path.name, 6.0), provenance={"forced": why})

    with running(create_app([tmp_path], caption=decline, caption_anyway=anyway)) as site:
        for page in open_page(browser, site):
            page.goto("/")
            for title in ("talk", "dark"):
                page.get_by_role("button", name=f"Caption {title}", exact=True).click()
            page.locator(".job.done", has_text=why).wait_for()
            page.locator(".job.done", has_text="no event was found").wait_for()
            page.goto("/?show=bare")
            cards = page.locator(".card")
            cards.first.wait_for()
            assert cards.locator("h2").all_text_contents() == ["dark", "talk"]
            talk = cards.filter(has_text="talk")
            assert talk.locator(".facts").text_content() == f"Not captioned: {why}."
            assert talk.get_by_role("button", name="Caption talk anyway").is_visible()
            assert cards.filter(has_text="dark").get_by_role("button").count() == 0
            talk.locator("a").click()
            page.wait_for_selector("body[data-ready]")
            assert page.locator(".none").inner_text().startswith(f"Not captioned: {why}.")
            page.get_by_role("button", name="Caption anyway").click()
            page.locator(".job.done", has_text="captioned").wait_for()
            watch(page, "talk")
            assert page.locator(".row").count() == 8
            warning = f"Captioned anyway; the captions are likely wrong ({why})."
            assert page.locator(".list .apart").inner_text() == warning
            page.get_by_role("button", name="How was this made?").click()
            made = page.get_by_role("dialog", name="How was this made?").inner_text()
            assert "Captioned anyway, despite" in made and why in made


def test_follow_keeps_the_playhead_in_the_middle(page: Any) -> None:
    watch(page)
    for _ in range(3):
        page.keyboard.press("+")
    page.get_by_role("button", name="Follow").click()
    page.evaluate("starc.player.seek(20)")
    until(page, "Math.abs((starc.timeline.scale.start + starc.timeline.scale.end) / 2 - 20) < 0.1")
    page.mouse.move(*point(page, 20.0))
    page.mouse.wheel(300, 0)
    until(page, "document.getElementById('follow').getAttribute('aria-pressed') === 'false'")
    start = page.evaluate("starc.timeline.scale.start")
    page.evaluate("starc.player.seek(20.5)")
    page.wait_for_timeout(100)
    assert page.evaluate("starc.timeline.scale.start") == start


def test_a_video_that_the_browser_cannot_play_plays_as_a_small_copy(
    browser: Any, site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for page in open_page(browser, site):
        watch(page, "old")
        until(page, "document.querySelector('video').src.endsWith('/preview')", 60)
        until(page, "document.querySelector('video').videoWidth === 640", 60)
        assert page.locator("#preview-note").is_visible()
        assert not page.locator("#no-video").is_visible()
        page.keyboard.press("ArrowRight")
        until(page, "document.querySelector('video').currentTime > 1")


def test_an_upload_that_failed_can_be_tried_again(page: Any, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "Onion tart.mp4", 4.0)
    page.goto("/")
    page.wait_for_selector(".card")
    page.route("**/api/uploads*", lambda route: route.abort())
    page.set_input_files("#file", [clip])
    failed = page.locator(".job.failed")
    failed.wait_for()
    assert "Onion tart" in failed.inner_text() and "broke off" in failed.inner_text()
    page.unroute("**/api/uploads*")
    failed.get_by_role("button", name="Try Onion tart.mp4 again").click()
    page.locator(".job.failed", has_text="nobody listens").wait_for()  # it arrived, and failed
    WORKING.set()
    page.get_by_role("button", name="Try Onion tart again").click()
    page.locator(".job.done", has_text="Onion tart").wait_for()
    assert page.locator(".job").count() == 1
    page.faults[:] = [fault for fault in page.faults if "ERR_FAILED" not in fault]


def test_a_failed_export_says_why(browser: Any, tmp_path: Path) -> None:
    write_record(tmp_path / "soup.json", captioned("soup", 30.0))
    edits.save(Library([tmp_path]).refresh()[0], [(0.0, 4.0, "chop")], seen=0)
    with running(create_app([tmp_path])) as site:
        for page in open_page(browser, site):
            page.goto("/")
            page.wait_for_selector(".tag")
            (tmp_path / "soup.edits" / "0001.json").write_text("{")
            page.get_by_role("link", name="Export corrections").click()
            page.wait_for_selector("#toast.bad.shown")
            assert "Not exported: " in page.locator("#toast").inner_text()
            page.faults[:] = [fault for fault in page.faults if "422" not in fault]


def test_a_link_with_the_token_works_from_another_site(browser: Any, top: Path) -> None:
    with running(create_app([top / "library"], token="correct-horse")) as site:
        context = browser.new_context()
        context.set_default_timeout(60_000)
        page = context.new_page()
        answer = context.request.get(f"{site}/api/library?token=correct-horse")
        id = next(one["id"] for one in answer.json()["videos"] if one["title"] == "flat")
        context.clear_cookies()
        there = f"{site}/watch/{id}"
        links = {"first": f"{there}?token=correct-horse", "later": f"{there}?t=5"}
        body = "".join(f"<a id={name} href='{link}'>{name}</a>" for name, link in links.items())
        other = {"body": body, "content_type": "text/html"}
        page.route("http://localhost:9/", lambda route: route.fulfill(**other))
        for name in links:
            page.goto("http://localhost:9/")
            page.click(f"#{name}")
            page.wait_for_selector("body[data-ready]")
            assert page.url.startswith(there) and "token" not in page.url
        assert page.url.endswith("?t=5")
        # A script of that site still gets nothing.
        page.goto("http://localhost:9/")
        asked = f"fetch('{site}/api/library').then((r) => r.status, () => 'refused')"
        assert page.evaluate(asked) == "refused"
        context.close()


def test_search_marks_words_in_scripts_without_spaces(browser: Any, tmp_path: Path) -> None:
    write_record(tmp_path / "x.json", Captioned("x", 9.0, (Event(0, 4, "先把大蒜切碎"),)))
    with running(create_app([tmp_path])) as site:
        for page in open_page(browser, site):
            page.goto("/?q=大蒜")
            page.wait_for_selector(".moments li")
            assert page.locator("mark").all_inner_texts() == ["大蒜"]


def test_all_moments_can_be_reached_and_titles_are_found(browser: Any, tmp_path: Path) -> None:
    steps = tuple(Event(n, n + 1, f"stir {n}") for n in range(150))
    write_record(tmp_path / "long.json", Captioned("long", 200.0, steps))
    soup = Captioned("tomato_soup.mp4", 9.0, (Event(0, 4, "stir it"),))
    write_record(tmp_path / "tomato_soup.json", soup)
    with running(create_app([tmp_path])) as site:
        for page in open_page(browser, site):
            page.goto("/?q=stirring")
            rows, more = page.locator(".moments li"), page.locator("#more-moments")
            more.wait_for()
            assert page.locator("#results-count").inner_text() == "151 moments"
            assert rows.count() == 60 and more.inner_text() == "Show more (91)"
            more.press("Enter")
            until(page, "document.querySelectorAll('.moments li').length === 120")
            until(page, "document.activeElement.closest('li') === "
                        "document.querySelectorAll('.moments li')[60]")  # fmt: skip
            more.click()
            until(page, "document.querySelectorAll('.moments li').length === 151")
            assert not more.is_visible()
            assert len(set(rows.locator("a").evaluate_all("all => all.map(String)"))) == 151

            page.goto("/?q=the tomato soups")
            rows.first.wait_for()
            assert page.locator("#results-count").inner_text() == "1 title"
            assert page.locator("mark").all_inner_texts() == ["tomato", "soup"]
            rows.first.locator("a").click()
            page.wait_for_selector("body[data-ready]")
            assert "t=" not in page.url


CLIPPED = """() => [...document.querySelectorAll(".row time, .compare td time, #time")]
    .filter((node) => node.checkVisibility() && node.scrollWidth > node.clientWidth + 1)
    .map((node) => node.textContent)"""


def test_a_long_video_shows_its_times_whole(browser: Any, tmp_path: Path) -> None:
    steps = tuple(Event(n * 1000.0, n * 1000 + 900.0, f"step {n}") for n in range(40))
    write_record(tmp_path / "long.json", Captioned("long", 40_000.0, steps))
    edits.save(Library([tmp_path]).refresh()[0], [(36_000.0, 36_001.0, "chop")], seen=0)
    with running(create_app([tmp_path], reference=tmp_path)) as site:
        for page in open_page(browser, site):
            watch(page, "long", "?version=0")
            last = page.locator(".row").last.locator("time")
            last.scroll_into_view_if_needed()
            assert last.inner_text() == "10:50:00"
            for node in (last, page.locator(".compare td time").last):
                box, words = node.bounding_box(), "node => node.nextElementSibling"
                after = node.evaluate_handle(words).as_element().bounding_box()
                assert box["x"] + box["width"] <= after["x"]
            assert page.evaluate(CLIPPED) == []


def test_a_message_leaves_the_timeline_free(page: Any) -> None:
    watch(page)
    page.set_viewport_size({"width": 1280, "height": 720})
    page.keyboard.press("e")
    page.keyboard.press("s")
    toast = page.locator("#toast.shown")
    toast.wait_for()
    box, bar = toast.bounding_box(), page.locator(".bar").bounding_box()
    assert box["y"] >= bar["y"] + bar["height"]
    for part in (".timeline", ".panel"):
        other = page.locator(part).bounding_box()
        apart = box["y"] + box["height"] <= other["y"] or box["x"] + box["width"] <= other["x"]
        assert apart, part


def test_names_for_a_screen_reader_are_words(page: Any) -> None:
    watch(page)
    tabs = page.get_by_role("tablist").aria_snapshot()
    assert 'tab "Events, 8"' in tabs and 'tab "Segments, 11"' in tabs
    page.keyboard.press("j")
    row = page.locator(".row.chosen > button")
    assert "seconds: halve the tomatoes and lay them on a tray IoU 0." in row.aria_snapshot()


def test_a_bar_lies_on_a_track(page: Any) -> None:
    watch(page)
    page.get_by_role("tab", name="Segments").click()
    bar = page.locator(".retrieved .track").first
    fill = bar.locator("i")
    assert fill.bounding_box()["x"] == pytest.approx(bar.bounding_box()["x"], abs=1)
    assert 0 < fill.bounding_box()["width"] < bar.bounding_box()["width"]
    colours = [
        one.evaluate("node => getComputedStyle(node).backgroundColor") for one in (bar, fill)
    ]
    assert len({*colours, "rgba(0, 0, 0, 0)"}) == 3
