"""What is said in a video, as text: SRT, WebVTT, or a line per sentence.

Unlike captions these carry no mark of ours: beside their video they are its speech.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

from starc.output.chapters import clock, one_line, span_ms, stamp
from starc.types import Sentence


def _lines(sentences: Sequence[Sentence]) -> Iterator[tuple[int, int, str]]:
    for one in sentences:
        yield *span_ms(one.start, one.end), one_line(one.text)


def _srt(sentences: Sequence[Sentence]) -> str:
    return "\n".join(
        f"{n}\n{stamp(start, point=',')} --> {stamp(end, point=',')}\n{text}\n"
        for n, (start, end, text) in enumerate(_lines(sentences), 1)
    )


def _vtt(sentences: Sequence[Sentence]) -> str:
    return "WEBVTT\n" + "".join(
        f"\n{n}\n{stamp(start)} --> {stamp(end)}\n{escape(text, quote=False)}\n"
        for n, (start, end, text) in enumerate(_lines(sentences), 1)
    )


def _txt(sentences: Sequence[Sentence]) -> str:
    return "".join(f"{clock(start / 1000)} {text}\n" for start, _, text in _lines(sentences))


TEXTS: Mapping[str, Callable[[Sequence[Sentence]], str]] = {"srt": _srt, "vtt": _vtt, "txt": _txt}
"""By the ending of the file."""
