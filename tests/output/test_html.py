"""The page: whole, harmless, and every bar leads to its row."""

from __future__ import annotations

import base64
import hashlib
import re
import tempfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from starc.output import html
from starc.types import Captioned, Event, Retrieved, Segment, Sentence

EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">'


class Reader(HTMLParser):
    """Collects tags and attributes, and fails where tags are not closed in order."""

    VOID = frozenset({"meta", "polygon", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(captioned: Captioned) -> Reader:
    reader = Reader()
    reader.feed(html.render(captioned))
    assert not reader.open
    return reader


def everything(evil: str = "plain") -> Captioned:
    segments = (
        Segment(0, 4, 0, 0.4, True, (Retrieved(f"whisk {evil}", 0.91),)),
        Segment(4, 7, 9, 0.3, False),
        Segment(7, 10, 1, 0.9, True, (Retrieved("fry", 0.8),)),
    )
    return Captioned(
        f"a {evil}.mp4",
        100.0,
        (
            Event(0, 40, f"one {evil}", 0.9),
            Event(30, 60, "two", 0.5),
            Event(60, 120, "three", None, True),
        ),
        (Sentence(1, 5, f"hello {evil}"),),
        tuple(10.0 * k for k in range(10)),
        tuple(k / 10 for k in range(10)),
        segments,
        {"model": f"m {evil}"},
    )


def test_captions_are_text_and_never_markup() -> None:
    text = html.render(everything(EVIL))
    reader = read(everything(EVIL))
    assert not {tag for tag, _ in reader.tags} & {"script", "img"}
    assert 'onerror="' not in text and reader.text.count(EVIL) >= 5
    assert not [
        name for _, attributes in reader.tags for name in attributes if name.startswith("on")
    ]


def test_the_page_plays_the_video_beside_it() -> None:
    text = html.render(everything(EVIL), "a%20%22b.mp4")
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    (player,) = [attributes for tag, attributes in reader.tags if tag == "video"]
    assert player["src"] == "a%20%22b.mp4"
    seeks = [a["href"] for _, a in reader.tags if "data-seek" in a]
    assert seeks.count("a%20%22b.mp4#t=30.000") == 1 and "#event-2" in seeks
    # The policy lets this one script run and no other.
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def test_a_link_does_not_lead_to_before_its_event() -> None:
    text = html.render(
        Captioned("a", 20.0, (Event(0.0, 12.344, "x"), Event(12.344, 20.0, "y"))), "a"
    )
    assert 'data-seek="12.344"' in text and 'data-from="12.344"' in text


def test_a_page_knows_the_way_to_its_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "pages").mkdir()
    for name, link in (("a b#1.mp4", "../a%20b%231.mp4"), ("c:d?.mp4", "../c%3Ad%3F.mp4")):
        page = tmp_path / "pages" / "a.html"
        everything().save(page, source=tmp_path / name)
        assert f'<video src="{link}"' in page.read_text("utf-8")
    fetched = Path(tempfile.gettempdir(), "starc-x1y2z3_w", "stdin")
    everything().save(page, source=fetched)
    assert "<video" not in page.read_text("utf-8")


def test_nothing_is_fetched() -> None:
    text = html.render(everything())
    assert (
        "http" not in text.replace("http-equiv", "")
        and "url(" not in text
        and "@import" not in text
    )
    assert "default-src 'none'" in text


def test_every_bar_leads_to_its_row() -> None:
    reader = read(everything())
    ids = {attributes["id"] for _, attributes in reader.tags if "id" in attributes}
    links = {attributes["href"][1:] for _, attributes in reader.tags if "href" in attributes}
    assert links == ids == {"event-1", "event-2", "event-3", "segment-1", "segment-3"}


def test_all_parts_are_on_one_axis() -> None:
    text = html.render(everything())
    for name in ("Saliency", "Segments", "Events", "Speech", "Retrieved captions"):
        assert name in text
    spans = re.findall(r"left:([\d.]+)%;width:([\d.]+)%", text)
    assert len(spans) == 3 + 3 + 1
    assert all(float(left) + float(width) <= 100.001 for left, width in spans)
    assert text.count('class="bar kept"') == 2


def test_overlapping_events_lie_in_rows() -> None:
    events = (Event(0, 10, "a"), Event(5, 8, "b"), Event(8, 12, "c"), Event(10, 11, "d"))
    text = html.render(Captioned("x", 12.0, events))
    rows = [int(row) for row in re.findall(r"--row:(\d+)", text)]
    assert rows == [0, 1, 1, 0]
    for a, row_a in zip(events, rows, strict=True):
        for b, row_b in zip(events, rows, strict=True):
            assert a is b or row_a != row_b or a.end <= b.start or b.end <= a.start


def test_an_empty_or_very_long_video_is_a_page_too() -> None:
    assert "No events found" in read(Captioned("a.mp4", 0.04, ())).text
    reader = read(
        Captioned("a.mp4", 86400.0, tuple(Event(k * 60, k * 60 + 90, "x") for k in range(1440)))
    )
    ticks = [
        attributes for _, attributes in reader.tags if "tick" in attributes.get("class", "").split()
    ]
    assert 2 <= len(ticks) <= 9


@pytest.mark.parametrize(
    ("sources", "words", "apart"),
    [
        (("speech",), "from the speech", "Also computed, not used for these captions"),
        (("pictures", "datastore"), "from the pictures and the datastore", None),
        (("person",), "by a person", "Also computed, not used for these captions"),
        ((), "unknown", "whether it was used is unknown"),
    ],
)
def test_each_event_says_where_it_is_from(
    sources: tuple[str, ...], words: str, apart: str | None
) -> None:
    video = everything()
    events = [replace(one, times_from=sources, words_from=sources) for one in video.events]
    text = read(replace(video, events=tuple(events))).text
    assert text.count(f"Times: {words} · Words: {words}") == 3
    assert "Retrieved captions" in text
    for heading in ("not used for these captions", "whether it was used is unknown"):
        # Once over the lane of the segments, once over what they retrieved.
        assert text.count(heading) == (2 if apart and apart.endswith(heading) else 0)
