"""A captioned video as one HTML page that needs nothing else: no font, no network.

One time axis carries the saliency curve, the events, the speech and the segments in the colour of
their anchor (those that were looked up marked); below it the same as text. Every bar is a link to
its row. Each event says where its times and words come from; what took part in none stands apart.
Where the video's place is known, the page plays it, and times are links into it; that needs the
page's only script. Captions are text, never HTML, and the page forbids itself everything but its
own style, that script and the video.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from starc.output import origin
from starc.output.chapters import clock, one_line
from starc.types import Captioned, Event, Segment

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#3fa7a0", "#d9a800", "#9c755f"
)  # fmt: skip
"""Of the anchors, told apart on light and dark ground; more anchors than these begin again."""
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200)
SEGMENTS = "Segments, in the colour of their anchor; with a line above: looked up in the datastore"
CURVE_PX = (1000, 100)
EVENT_PX = 14
"""Width an event needs on the axis; a video with many of them scrolls sideways."""


def render(captioned: Captioned, video: str | None = None) -> str:
    """The whole page; `video` is the address of the video, as seen from the page."""
    title = _text(captioned.video)
    link = escape(video, quote=True) if video else None
    script = Path(__file__).with_suffix(".js").read_text("utf-8") if link else ""
    policy = POLICY
    if link:
        digest = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
        policy += f"; media-src 'self' file:; script-src 'sha256-{digest}'"
    style = Path(__file__).with_suffix(".css").read_text("utf-8")
    wide = max(320, EVENT_PX * len(captioned.events))
    lanes = "".join(
        [
            _axis(captioned.duration),
            _lane("Saliency", _curve(captioned)) if captioned.saliency else "",
            _lane("Events", _events(captioned)),
            _lane("Speech", _speech(captioned)) if captioned.sentences else "",
            _lane(_segments_name(captioned), _segments(captioned)) if captioned.segments else "",
        ]
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{title}</h1><p>{_summary(captioned)}</p></header>\n"
        f"{_player(link)}"
        f'<figure><div class="scroll"><div class="axis" style="min-width:{wide}px">{lanes}'
        f"</div></div></figure>\n"
        f"{_event_list(captioned, link)}{_speech_list(captioned, link)}"
        f"{_retrieved_list(captioned)}{_provenance(captioned)}</main>\n"
        + (f"<script>\n{script}</script>\n" if link else "")
        + "</body>\n</html>\n"
    )


def _player(link: str | None) -> str:
    if link is None:
        return ""
    return (
        f'<div class="player"><video src="{link}" controls preload="metadata" playsinline></video>'
        f'<p class="missing" hidden>The video cannot be played here: '
        f'<a href="{link}">{link}</a></p></div>\n'
    )


def _when(text: str, seconds: float, link: str | None) -> str:
    """A time, which plays the video from there if there is one."""
    if link is None:
        return f"<time>{text}</time>"
    return (
        f'<a class="play" href="{link}#t={seconds:.3f}" data-seek="{seconds:.3f}">'
        f"<time>{text}</time></a>"
    )


def _text(text: str) -> str:
    return escape(one_line(text), quote=True)


def _summary(captioned: Captioned) -> str:
    kept = sum(segment.kept for segment in captioned.segments)
    parts = [clock(captioned.duration), _count(captioned.events, "event")]
    if captioned.segments:
        parts.append(f"{_count(captioned.segments, 'segment')}, {kept} looked up")
    if captioned.sentences:
        parts.append(_count(captioned.sentences, "spoken sentence"))
    return " · ".join(parts)


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _range(start: float, end: float) -> str:
    return f"{clock(start)}–{clock(end)}"


# The time axis: everything is placed in percent of the duration, so any width will do.


def _place(start: float, end: float, duration: float) -> str:
    left = min(start / duration, 1) * 100
    return f"left:{left:.3f}%;width:{min(end / duration, 1) * 100 - left:.3f}%"


def _lane(name: str, content: str) -> str:
    return f'<div class="lane"><div class="name">{name}</div>{content}</div>'


def _axis(duration: float) -> str:
    step = next((tick for tick in TICKS if duration / tick <= 8), math.ceil(duration / 8))
    marks = "".join(
        # The last label would stick out of the page if it were not turned to the left.
        f'<span class="tick{" end" if time > 0.94 * duration else ""}" '
        f'style="left:{time / duration * 100:.3f}%">{clock(time)}</span>'
        for time in range(0, int(duration // step) * step + 1, step)
    )
    return f'<div class="ticks" aria-hidden="true">{marks}</div>'


def _curve(captioned: Captioned) -> str:
    width, height = CURVE_PX
    points = [
        (time / captioned.duration * width, (1 - min(max(value, 0.0), 1.0)) * height)
        for time, value in zip(captioned.frame_times, captioned.saliency, strict=True)
    ]
    points = [(0.0, points[0][1]), *points, (float(width), points[-1][1])]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="Saliency over time"><polygon points="0,{height} {line} {width},{height}"/>'
        f'<polyline points="{line}"/></svg>'
    )


def _segment_span(segment: Segment, captioned: Captioned) -> tuple[float, float]:
    """Seconds of a segment: from its first frame to the first frame of the next."""
    times = captioned.frame_times
    start = times[segment.first] if 0 < segment.first < len(times) else 0.0
    end = times[segment.stop] if segment.stop < len(times) else captioned.duration
    return start, max(start, end)


def _segments(captioned: Captioned) -> str:
    bars = []
    for n, segment in enumerate(captioned.segments, 1):
        start, end = _segment_span(segment, captioned)
        title = f"{_range(start, end)}, anchor {segment.anchor}, score {segment.score:.2f}"
        style = f"{_place(start, end, captioned.duration)};--c:{_colour(segment)}"
        if segment.kept:
            href, kind = f' href="#segment-{n}"', "bar kept"
            title += ", looked up in the datastore"
        else:
            href, kind = "", "bar"
        bars.append(f'<a class="{kind}"{href} style="{style}" title="{title}"></a>')
    return f'<div class="bars segments">{"".join(bars)}</div>'


def _apart(captioned: Captioned) -> str:
    """What stands over segments and what they retrieved, unless they took part in an event."""
    if not captioned.events:
        return ""
    known = origin.used(captioned, "pictures", "datastore")
    return "" if known else origin.NOT_USED if known is False else origin.UNKNOWN_USE


def _segments_name(captioned: Captioned) -> str:
    apart = _apart(captioned)
    return f"{SEGMENTS}. {apart}" if apart else SEGMENTS


def _colour(segment: Segment) -> str:
    return COLOURS[segment.anchor % len(COLOURS)]


def _numbered(captioned: Captioned) -> Iterator[tuple[int, Event]]:
    return enumerate(sorted(captioned.events, key=lambda e: (e.start, e.end)), 1)


def _events(captioned: Captioned) -> str:
    """Bars in as few rows as can be, so that no two in a row overlap."""
    bars, rows = [], 1
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for n, event in _numbered(captioned):
        while busy and busy[0][0] <= event.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (event.end, row))
        rows = max(rows, row + 1)
        style = f"{_place(event.start, event.end, captioned.duration)};--row:{row}"
        title = f"{_range(event.start, event.end)} {_text(event.caption)}"
        kind = "bar event repeated" if event.repeated else "bar event"
        bars.append(
            f'<a class="{kind}" href="#event-{n}" data-seek="{event.start:.3f}" style="{style}" '
            f'title="{title}"><b>{n}</b></a>'
        )
    return f'<div class="bars events" style="--rows:{rows}">{"".join(bars)}</div>'


def _speech(captioned: Captioned) -> str:
    bars = "".join(
        f'<a class="bar" style="{_place(one.start, one.end, captioned.duration)}" '
        f'title="{clock(one.start)} {_text(one.text)}"></a>'
        for one in captioned.sentences
    )
    return f'<div class="bars speech">{bars}</div>'


# The same as text.


def _event_list(captioned: Captioned, link: str | None) -> str:
    items = []
    for n, event in _numbered(captioned):
        sure = ""
        if event.confidence is not None:
            percent = f"{min(max(event.confidence, 0.0), 1.0) * 100:.0f}"
            sure = (
                f'<span class="sure" title="confidence {percent} %">'
                f'<i style="width:{percent}%"></i></span>'
            )
        again = (
            '<em title="says again what was said before">repeated</em>' if event.repeated else ""
        )
        items.append(
            f'<li id="event-{n}" data-from="{event.start:.3f}" data-to="{event.end:.3f}"><b>{n}</b>'
            f"{_when(_range(event.start, event.end), event.start, link)}"
            f"<p>{_text(event.caption)} {again}<small>{origin.of_event(event)}</small></p>"
            f"{sure}</li>\n"
        )
    nothing = _text(origin.why_not(captioned)) or "No events found."
    content = f'<ol class="list">\n{"".join(items)}</ol>' if items else f"<p>{nothing}</p>"
    return f"<section><h2>Events</h2>\n{content}</section>\n"


def _retrieved_list(captioned: Captioned) -> str:
    groups = []
    for n, segment in enumerate(captioned.segments, 1):
        if not segment.kept:
            continue
        start, end = _segment_span(segment, captioned)
        captions = "".join(
            f"<li><span>{one.similarity:.2f}</span> {_text(one.caption)}</li>"
            for one in segment.captions
        )
        groups.append(
            f'<div class="found" id="segment-{n}" style="--c:{_colour(segment)}"><h3><time>'
            f"{_range(start, end)}</time> anchor {segment.anchor}</h3>"
            f"<ul>{captions}</ul></div>\n"
        )
    if not groups:
        return ""
    apart = _apart(captioned)
    return (
        f"<section><h2>Retrieved captions</h2><p>{apart}{'. ' if apart else ''}Captions of the "
        f"datastore nearest to each segment that was looked up, with cosine similarity.</p>\n"
        f'<div class="grid">{"".join(groups)}</div></section>\n'
    )


def _speech_list(captioned: Captioned, link: str | None) -> str:
    if not captioned.sentences:
        return ""
    lines = "".join(
        f'<li data-from="{one.start:.3f}" data-to="{one.end:.3f}">'
        f"{_when(clock(one.start), one.start, link)} {_text(one.text)}</li>\n"
        for one in captioned.sentences
    )
    return f'<section><h2>Speech</h2>\n<ul class="said">\n{lines}</ul></section>\n'


def _provenance(captioned: Captioned) -> str:
    rows = "".join(
        f"<div><dt>{_text(key)}</dt><dd>{_text(value)}</dd></div>"
        for key, value in captioned.provenance.items()
    )
    return f"<footer><dl>{rows}</dl></footer>\n" if rows else ""
