"""The page for everybody: a phone, a screen reader, both themes, hostile captions, a token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from starc.types import Captioned, Event, Retrieved, Segment, Sentence
from starc.viewer import edits
from starc.viewer.library import Library
from starc.viewer.server import create_app
from support.viewer_browser import events, launch, open_page, point, running, until, watch
from support.viewer_sample import captioned, make_library, write_clip, write_record

browser = pytest.fixture(scope="module")(launch)


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    make_library(folder, duration=30.0, dishes=1)
    return folder


@pytest.fixture(scope="module")
def site(top: Path, browser: Any) -> Iterator[str]:
    with running(create_app([top / "library"], reference=top / "reference.json")) as address:
        yield address


@pytest.fixture
def page(browser: Any, site: str) -> Iterator[Any]:
    yield from open_page(browser, site)


OUTSIDE = """() => [...document.querySelectorAll("button, select, input, textarea, a[href]")]
    .filter((node) => node.checkVisibility() && !node.matches(".skip, .hidden-input"))
    .filter((node) => !node.closest(".compare .scroll, [hidden]"))
    .map((node) => [node.id || node.textContent, node.getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.left < 0 || box.right > innerWidth))
    .map(([name, box]) => `${name} ends at ${Math.round(box.right)} of ${innerWidth} px`)"""


@pytest.mark.parametrize("width", [320, 360])
def test_a_phone(browser: Any, site: str, width: int) -> None:
    """Nothing sticks out, with the fonts that are there and with wider letters."""
    for page in open_page(browser, site, has_touch=True):
        page.set_viewport_size({"width": width, "height": 740})
        for path, part in (("/", ".card"), ("/?q=garlic", ".moments li")):
            page.goto(path)
            page.wait_for_selector(part)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(OUTSIDE) == []
        watch(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        tops = [
            page.locator(f".{part}").bounding_box()["y"] for part in ("stage", "timeline", "panel")
        ]
        assert tops == sorted(tops) and page.locator("#legend").is_visible()
        page.get_by_role("button", name="Edit", exact=True).tap()
        page.locator(".row button").nth(2).tap()
        until(page, "starc.player.time > 1")
        for button in page.locator("#edit-tools button").all():
            assert button.bounding_box()["height"] >= 32
        assert page.evaluate(OUTSIDE) == []
        page.evaluate("document.documentElement.style.letterSpacing = '1px'")
        assert page.evaluate(OUTSIDE) == []


def test_a_phone_shows_title_and_versions(browser: Any, tmp_path: Path) -> None:
    write_record(tmp_path / "soup.json", captioned("a soup of many roasted tomatoes", 30.0))
    edits.save(Library([tmp_path]).refresh()[0], [(0.0, 4.0, "chop")], seen=0)
    with running(create_app([tmp_path])) as site:
        for page in open_page(browser, site):
            page.set_viewport_size({"width": 320, "height": 740})
            watch(page, "a soup of many roasted tomatoes")
            assert page.locator("#version").is_visible() and page.evaluate(OUTSIDE) == []
            assert page.locator("h1").bounding_box()["width"] > 150


HOSTILE = [
    "<script>window.hit = 1</script>", "<img src=x onerror='window.hit = 1'>", "{{7*7}}",
    "<svg onload=window.hit=1>", "\"><iframe src='javascript:parent.hit=1'>", "</li><b>bold</b>",
    "javascript:alert(1)",
]  # fmt: skip


def test_captions_are_text_whatever_they_say(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "library"
    folder.mkdir()
    made = Captioned(
        "x", 70.0,
        tuple(Event(n * 10.0, n * 10 + 9.0, text) for n, text in enumerate(HOSTILE)),
        tuple(Sentence(n * 10.0, n * 10 + 9.0, text) for n, text in enumerate(HOSTILE)),
        tuple(float(n) for n in range(70)), tuple(0.5 for _ in range(70)),
        (Segment(0, 70, 3, 0.5, True, tuple(Retrieved(text, 0.4) for text in HOSTILE)),),
        {"title": HOSTILE[1], "model": HOSTILE[0]},
    )  # fmt: skip
    write_record(folder / "x.json", made)
    reference = tmp_path / "reference.json"
    spans = [[event.start, event.end] for event in made.events]
    reference.write_text(
        json.dumps({"x": {"duration": 70.0, "timestamps": spans, "sentences": HOSTILE[::-1]}})
    )
    app = create_app([folder], reference=reference, compare=folder)
    with running(app) as site:
        for page in open_page(browser, site):
            page.goto("/?q=script img svg alert bold")
            page.wait_for_selector(".moments li")
            watch(page, page.request.get("/api/library").json()["videos"][0]["title"])
            assert page.locator(".row .words").all_inner_texts() == HOSTILE
            for name in ("Segments", "Speech", "Events"):
                page.get_by_role("tab", name=name).click()
            page.mouse.move(*point(page, 5.0))
            page.keyboard.press("j")
            assert page.locator("#caption").inner_text() in HOSTILE
            page.mouse.move(*point(page, 5.0, "segments"))
            assert page.evaluate("window.hit") is None
            assert (
                page.locator(
                    "iframe, .row b:not(.under b):not(.retrieved b), script:not([src])"
                ).count()
                == 0
            )
            # The browser itself refuses markup, should anybody ever try.
            refused = page.evaluate("""() => {
                try { document.body.innerHTML = "<b>x</b>"; return false; } catch { return true; }
            }""")
            assert refused
            page.faults[:] = [fault for fault in page.faults if "TrustedHTML" not in fault]


def test_without_a_video_the_timeline_works(browser: Any, tmp_path: Path) -> None:
    write_record(tmp_path / "soup.json", captioned("soup", 30.0))
    with running(create_app([tmp_path])) as site:
        for page in open_page(browser, site):
            watch(page, "soup")
            assert "not here" in page.locator("#no-video").inner_text()
            page.keyboard.press("j")
            page.keyboard.press(" ")
            until(page, f"starc.player.time > {events(page)[0]['start']} + 0.1")
            assert not page.locator("#compare").is_visible()


def test_a_moment_opens_on_its_own_event(browser: Any, tmp_path: Path) -> None:
    """A start of many digits is not rounded down into the event before."""
    made = Captioned("x", 9.0, (Event(0, 4.32401, "chop"), Event(4.32401, 9, "stir")))
    write_record(tmp_path / "x.json", made)
    with running(create_app([tmp_path])) as site:
        for page in open_page(browser, site):
            page.goto("/?q=stir")
            page.locator(".moments li a").click()
            page.wait_for_selector(".row.current")
            assert page.locator(".row.current .words").all_inner_texts() == ["stir"]


CONTRAST = """() => {
    const probe = document.body.appendChild(document.createElement("i"));
    const light = (name) => {
        probe.style.color = `var(--${name})`;
        const rgb = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
        const [r, g, b] = rgb.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const pairs = [["text", "page"], ["text", "surface"], ["muted", "page"], ["muted", "surface"],
        ["muted", "sunken"], ["accent", "surface"], ["accent", "accent-soft"],
        ["on-accent", "accent"], ["truth", "truth-soft"], ["other", "other-soft"],
        ["bad", "surface"], ["text", "accent-soft"]];
    return pairs.map(([a, b]) => {
        const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
        return [`${a} on ${b}`, (x + 0.05) / (y + 0.05)];
    });
}"""


def test_themes_have_contrast_and_are_remembered(browser: Any, site: str) -> None:
    for scheme in ("light", "dark"):
        for page in open_page(browser, site, color_scheme=scheme):
            page.goto("/")
            page.wait_for_selector(".card")
            for pair, ratio in page.evaluate(CONTRAST):
                assert ratio >= 4.5, (scheme, pair, ratio)
            shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
            page.locator("#theme").click()
            other = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert shown != other
            page.reload()
            page.wait_for_selector(".card")
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == other


UNNAMED = """() => [...document.querySelectorAll("button, a[href], input, select, textarea")]
    .filter((node) => node.checkVisibility?.() !== false)
    .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim()
        || node.labels?.[0]?.textContent.trim() || node.title))
    .map((node) => node.outerHTML.slice(0, 120))"""


def test_everything_has_a_name_for_a_screen_reader(page: Any) -> None:
    page.goto("/")
    page.wait_for_selector(".card")
    assert page.evaluate(UNNAMED) == []
    assert page.locator("img:not([alt])").count() == 0
    watch(page)
    page.keyboard.press("e")
    page.locator(".row button").first.click()
    assert page.evaluate(UNNAMED) == []
    assert page.locator("h1").count() == 1 and page.locator("html[lang]").count() == 1
    label = page.locator(".row button").first.text_content()
    assert "second" in label and "tomatoes" in label
    page.get_by_role("tab", name="Events").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-segments"
    page.keyboard.press("?")
    assert page.get_by_role("dialog", name="Keyboard").is_visible()


def test_two_pages_of_one_machine_leave_each_other_alone(browser: Any, top: Path) -> None:
    apps = [
        create_app([top / "library"], token=token) for token in ("correct-horse", "other-horse")
    ]
    with running(apps[0]) as first, running(apps[1]) as second:
        for page in open_page(browser, first):
            page.goto("/?token=correct-horse")
            page.wait_for_selector(".card")
            page.goto(f"{second}/?token=other-horse")
            page.wait_for_selector(".card")
            page.goto("/")  # the first still knows us, in a new page too
            page.locator(".card a").first.click()
            page.wait_for_selector("body[data-ready]")
            assert "key" not in page.url and "token" not in page.url
            until(page, "document.querySelector('video').readyState > 0")
            page.faults[:] = [fault for fault in page.faults if second not in fault]


def test_uploads_and_progress_carry_the_key(browser: Any, tmp_path: Path) -> None:
    folder, clip = tmp_path / "library", write_clip(tmp_path / "Onion tart.mp4", 4.0)
    folder.mkdir()

    def caption(path: Path, progress: Any, _: Any) -> Captioned:
        progress("frames", 0.5)
        return Captioned(path.name, 4.0, (Event(0, 2, "chop"),))

    with running(create_app([folder], caption=caption, token="correct-horse")) as site:
        for page in open_page(browser, site):
            page.goto("/?token=correct-horse")
            page.set_input_files("#file", [clip])
            page.wait_for_selector(".job.done")
            page.get_by_role("link", name="Watch").click()
            page.wait_for_selector("body[data-ready]")
            assert page.locator("#title").inner_text() == "Onion tart"


def test_a_token_gets_in_by_the_printed_address(browser: Any, top: Path) -> None:
    with running(create_app([top / "library"], token="correct-horse")) as site:
        for page in open_page(browser, site):
            assert page.goto("/").status == 401
            page.goto("/?token=correct-horse")
            page.wait_for_selector(".card")
            assert "token" not in page.url
            until(page, "[...document.images].some((image) => image.naturalWidth > 90)")
            page.faults[:] = [fault for fault in page.faults if "401" not in fault]
