"""A captioned video as one HTML page that needs nothing else: no script, no font, no network.

One time axis carries the saliency curve, the segments in the colour of their anchor (those used
for retrieval marked), the events and the speech; below it the same as text. Every bar is a link to
its row. Captions are text, never HTML, and the page forbids itself everything but its own style.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from html import escape

from starc.output.timecodes import clock, plain
from starc.types import Captioned, Event, Segment

COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#3fa7a0", "#d9a800", "#9c755f"
)  # fmt: skip
"""Of the anchors, told apart on light and dark ground; more anchors than these begin again."""
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200)
SEGMENTS = "Segments, in the colour of their anchor; with a line above: used for retrieval"
CURVE_PX = (1000, 100)
EVENT_PX = 14
"""Width an event needs on the axis; a video with many of them scrolls sideways."""


def render(captioned: Captioned) -> str:
    """The whole page."""
    title = _text(captioned.video)
    wide = max(320, EVENT_PX * len(captioned.events))
    lanes = "".join(
        [
            _axis(captioned.duration),
            _lane("Saliency", _curve(captioned)) if captioned.saliency else "",
            _lane(SEGMENTS, _segments(captioned)) if captioned.segments else "",
            _lane("Events", _events(captioned)),
            _lane("Speech", _speech(captioned)) if captioned.sentences else "",
        ]
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{title}</h1><p>{_summary(captioned)}</p></header>\n"
        f'<figure><div class="scroll"><div class="axis" style="min-width:{wide}px">{lanes}'
        f"</div></div></figure>\n"
        f"{_event_list(captioned)}{_retrieved_list(captioned)}{_speech_list(captioned)}"
        f"{_provenance(captioned)}</main>\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return escape(plain(text), quote=True)


def _summary(captioned: Captioned) -> str:
    kept = sum(segment.kept for segment in captioned.segments)
    parts = [clock(captioned.duration), _count(len(captioned.events), "event")]
    if captioned.segments:
        parts.append(f"{_count(len(captioned.segments), 'segment')}, {kept} used for retrieval")
    if captioned.sentences:
        parts.append(_count(len(captioned.sentences), "spoken sentence"))
    return " · ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# The time axis: everything is placed in percent of the duration, so any width will do.


def _place(start: float, end: float, duration: float) -> str:
    left = min(start / duration, 1) * 100
    return f"left:{left:.3f}%;width:{min(end / duration, 1) * 100 - left:.3f}%"


def _lane(name: str, content: str) -> str:
    return f'<div class="lane"><div class="name">{name}</div>{content}</div>'


def _axis(duration: float) -> str:
    step = next((tick for tick in TICKS if duration / tick <= 8), math.ceil(duration / 8))
    times = [k * step for k in range(int(duration // step) + 1)]
    marks = "".join(
        # The last label would stick out of the page if it were not turned to the left.
        f'<span class="tick{" end" if time > 0.94 * duration else ""}" '
        f'style="left:{time / duration * 100:.3f}%">{clock(time)}</span>'
        for time in times
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


def segment_span(segment: Segment, captioned: Captioned) -> tuple[float, float]:
    """Seconds of a segment: from its first frame to the first frame of the next."""
    times = captioned.frame_times
    start = times[segment.first] if 0 < segment.first < len(times) else 0.0
    end = times[segment.stop] if segment.stop < len(times) else captioned.duration
    return start, max(start, end)


def _segments(captioned: Captioned) -> str:
    bars = []
    for n, segment in enumerate(captioned.segments, 1):
        start, end = segment_span(segment, captioned)
        title = f"{clock(start)}–{clock(end)}, anchor {segment.anchor}, score {segment.score:.2f}"
        style = f"{_place(start, end, captioned.duration)};--c:{_colour(segment)}"
        if segment.kept:
            href, kind = f' href="#segment-{n}"', "bar kept"
            title += ", used for retrieval"
        else:
            href, kind = "", "bar"
        bars.append(f'<a class="{kind}"{href} style="{style}" title="{title}"></a>')
    return f'<div class="bars segments">{"".join(bars)}</div>'


def _colour(segment: Segment) -> str:
    return COLOURS[segment.anchor % len(COLOURS)]


def _rows(events: Iterable[Event]) -> list[int]:
    """The row of each event so that no two in a row overlap; as few rows as can be."""
    rows: list[int] = []
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for event in events:
        while busy and busy[0][0] <= event.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (event.end, row))
        rows.append(row)
    return rows


def _numbered(captioned: Captioned) -> list[tuple[int, Event]]:
    return list(enumerate(sorted(captioned.events, key=lambda e: (e.start, e.end)), 1))


def _events(captioned: Captioned) -> str:
    numbered = _numbered(captioned)
    rows = _rows(event for _, event in numbered)
    bars = []
    for (n, event), row in zip(numbered, rows, strict=True):
        style = f"{_place(event.start, event.end, captioned.duration)};--row:{row}"
        title = f"{clock(event.start)}–{clock(event.end)} {_text(event.caption)}"
        kind = "bar event repeated" if event.repeated else "bar event"
        bars.append(
            f'<a class="{kind}" href="#event-{n}" style="{style}" title="{title}"><b>{n}</b></a>'
        )
    return (
        f'<div class="bars events" style="--rows:{max(rows, default=0) + 1}">{"".join(bars)}</div>'
    )


def _speech(captioned: Captioned) -> str:
    bars = "".join(
        f'<a class="bar" style="{_place(said.start, said.end, captioned.duration)}" '
        f'title="{clock(said.start)} {_text(said.text)}"></a>'
        for said in captioned.sentences
    )
    return f'<div class="bars speech">{bars}</div>'


# The same as text.


def _event_list(captioned: Captioned) -> str:
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
            f'<li id="event-{n}"><b>{n}</b><time>{clock(event.start)}–{clock(event.end)}</time>'
            f"<p>{_text(event.caption)} {again}</p>{sure}</li>\n"
        )
    content = f'<ol class="list">\n{"".join(items)}</ol>' if items else "<p>No events found.</p>"
    return f"<section><h2>Events</h2>\n{content}</section>\n"


def _retrieved_list(captioned: Captioned) -> str:
    groups = []
    for n, segment in enumerate(captioned.segments, 1):
        if not segment.kept:
            continue
        start, end = segment_span(segment, captioned)
        captions = "".join(
            f"<li><span>{found.similarity:.2f}</span> {_text(found.caption)}</li>"
            for found in segment.captions
        )
        groups.append(
            f'<div class="found" id="segment-{n}" style="--c:{_colour(segment)}"><h3><time>'
            f"{clock(start)}–{clock(end)}</time> anchor {segment.anchor}</h3>"
            f"<ul>{captions}</ul></div>\n"
        )
    if not groups:
        return ""
    return (
        f"<section><h2>Retrieved captions</h2><p>Found in the datastore for the segments used, "
        f'with cosine similarity.</p>\n<div class="grid">{"".join(groups)}</div></section>\n'
    )


def _speech_list(captioned: Captioned) -> str:
    if not captioned.sentences:
        return ""
    lines = "".join(
        f"<li><time>{clock(said.start)}</time> {_text(said.text)}</li>\n"
        for said in captioned.sentences
    )
    return (
        f"<section><details><summary><h2>Speech</h2></summary>"
        f'<ul class="said">\n{lines}</ul></details></section>\n'
    )


def _provenance(captioned: Captioned) -> str:
    rows = "".join(
        f"<div><dt>{_text(key)}</dt><dd>{_text(value)}</dd></div>"
        for key, value in captioned.provenance.items()
    )
    return f"<footer><dl>{rows}</dl></footer>\n" if rows else ""


POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root{color-scheme:light dark;--ground:#fbfaf8;--card:#fff;--ink:#1d1f23;--soft:#666b73;
--line:#e4e2dd;--mark:#2f5fd0;--wash:#2f5fd022;--said:#b9bcc4}
@media(prefers-color-scheme:dark){:root{--ground:#15171b;--card:#1d2025;--ink:#e8e9ec;
--soft:#9aa0aa;--line:#2e323a;--mark:#84a7ff;--wash:#84a7ff26;--said:#4b515c}}
*{box-sizing:border-box;margin:0}
html{scroll-behavior:smooth}
@media(prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
body{background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:1.5rem;line-height:1.25;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:30px 0 10px}
header p,section>p,footer{color:var(--soft);font-size:.9rem}
section>p{margin:-6px 0 10px}
time{font-variant-numeric:tabular-nums;color:var(--soft);font-size:.88rem;white-space:nowrap}
figure{margin-top:20px;background:var(--card);border:1px solid var(--line);border-radius:12px;
padding:14px 16px 16px}
.scroll{overflow-x:auto}
.ticks{position:relative;height:20px;font-size:.72rem;color:var(--soft);
font-variant-numeric:tabular-nums}
.tick{position:absolute;border-left:1px solid var(--line);padding-left:4px}
.tick.end{transform:translateX(-100%);border-left:0;border-right:1px solid var(--line);
padding:0 4px 0 0}
.name{font-size:.72rem;color:var(--soft);margin:10px 0 3px;position:sticky;left:0;
width:max-content}
svg{display:block;width:100%;height:72px;border-bottom:1px solid var(--line)}
polygon{fill:var(--wash)}
polyline{fill:none;stroke:var(--mark);stroke-width:1.5;vector-effect:non-scaling-stroke}
.bars{position:relative}
.bar{position:absolute;display:block;border-radius:3px;min-width:2px}
.segments{height:26px}
.segments .bar{top:6px;height:20px;background:var(--c);opacity:.32;
box-shadow:inset -1px 0 var(--card)}
.segments .kept{opacity:1}
.segments .kept::before{content:"";position:absolute;top:-6px;left:0;right:1px;height:3px;
border-radius:2px;background:var(--ink)}
.events{height:calc(var(--rows)*26px)}
.event{top:calc(var(--row)*26px);height:23px;background:var(--wash);border:1px solid var(--mark);
color:var(--ink);font-size:.72rem;line-height:21px;text-align:center;text-decoration:none;
overflow:hidden}
.event:hover,.event:focus-visible{background:var(--mark);color:var(--card)}
.event.repeated{border-style:dashed}
.event b{font-weight:600}
.speech{height:10px}
.speech .bar{height:10px;background:var(--said);border-right:1px solid var(--card)}
.list{list-style:none;padding:0}
.list li{display:grid;grid-template-columns:2rem 7.6rem 1fr 64px;gap:0 10px;align-items:baseline;
padding:9px 10px;border-top:1px solid var(--line);scroll-margin:40vh}
.list li>b{color:var(--soft);font-weight:600;text-align:right}
.list p{overflow-wrap:anywhere}
.list em{font-size:.75rem;color:var(--soft);border:1px dashed var(--soft);border-radius:4px;
padding:0 5px;font-style:normal}
.sure{display:block;height:5px;border-radius:3px;background:var(--line);align-self:center}
.sure i{display:block;height:100%;border-radius:3px;background:var(--mark)}
li:target,.found:target{background:var(--wash);border-radius:6px}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr));gap:12px}
.found{background:var(--card);border:1px solid var(--line);border-left:5px solid var(--c);
border-radius:8px;padding:10px 12px;scroll-margin:40vh}
.found h3{font-size:.82rem;font-weight:500;color:var(--soft);margin-bottom:4px}
.found ul,.said{list-style:none;padding:0}
.found li{font-size:.88rem;padding:2px 0 2px 2.6rem;text-indent:-2.6rem;overflow-wrap:anywhere}
.found li span{display:inline-block;width:2.6rem;text-indent:0;color:var(--soft);
font-variant-numeric:tabular-nums}
summary{cursor:pointer}
summary h2{display:inline}
section:has(>details){margin-top:30px}
.said{margin-top:10px}
.said li{padding:2px 0 2px 4.6rem;text-indent:-4.6rem;overflow-wrap:anywhere}
.said time{display:inline-block;width:4.6rem;text-indent:0}
footer{margin-top:36px;border-top:1px solid var(--line);padding-top:12px}
dl{display:flex;flex-wrap:wrap;gap:4px 22px}
dl div{display:flex;gap:6px;overflow-wrap:anywhere}
dd{color:var(--ink)}
@media(max-width:600px){main{padding:18px 12px 40px}figure{padding:10px 10px 12px}
.list li{grid-template-columns:1.6rem 1fr 48px;padding:9px 4px}
.list p{grid-column:2/4;grid-row:2}.list time{grid-column:2}.sure{grid-column:3;grid-row:1}}
"""
