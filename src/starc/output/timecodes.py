"""How times and captions are spelt in the files we write.

A caption is text from a model or an annotator and may hold anything: line breaks, control
characters, half a surrogate. `one_line` makes one clean line of it before any format adds its own
escapes. Times are rounded to milliseconds once, here, so all formats agree; where fewer digits are
shown the rest is cut off, as `viewer/static/times.js` does.
"""

from __future__ import annotations

import unicodedata


def one_line(text: str) -> str:
    """One line of printable text: runs of white space become a space, control characters go."""
    text = " ".join(text.split())
    return "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cs")).strip()


def span_ms(start: float, end: float) -> tuple[int, int]:
    """Start and end in milliseconds, never an empty span: readers drop those."""
    first = round(start * 1000)
    return first, max(round(end * 1000), first + 1)


def stamp(time_ms: int, *, point: str = ".") -> str:
    """01:02:03.004, as WebVTT writes it; SRT has a comma for the point."""
    seconds, rest = divmod(time_ms, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{rest:03}"


def clock(seconds: float) -> str:
    """02:03, or 1:02:03 from the first hour on; fractions are cut off."""
    whole = round(seconds * 1000) // 1000
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes:02}:{whole % 60:02}"
