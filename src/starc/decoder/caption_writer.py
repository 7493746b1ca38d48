"""The caption writer: a language model that captions given spans.

In: spoken sentences, spans of events in seconds, retrieved captions. They become a text in which
what is said inside a span stands in brackets right before its caption, so that nothing has to be
looked up by numbers:

    hi everyone today i make onion soup                       first words of the video
    so cut the onions [ and now into the hot oil they go ] until they are golden
    ~ add onions to the oil; fry the onions                    retrieved captions
    = add the onions to the hot oil

Out: what the model writes after each "=", which it then reads on, and how probable that was.
Training (recipes/caption_writer.py) and inference share `blocks`.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from starc.config import WriterConfig
from starc.decoder.reader import Reader, Text
from starc.decoder.span_head import SpanHead, Timing, word_states
from starc.types import Sentence

Span = tuple[float, float]

SCRIPT_EVENTS = 6
"""Most events of one text; longer videos are several."""
INTRO, BEFORE, INSIDE, AFTER = 24, 28, 70, 10
"""Most words read: at the start of the video, before, inside and after a span."""
AT_ONCE = 3
"""Texts that are written at the same time; each holds some 20 MB of keys and values."""


class Word(NamedTuple):
    """A spoken word and about when."""

    time: float
    text: str


class Request(NamedTuple):
    """A video: what is said, where events are, captions retrieved for each of them."""

    sentences: Sequence[Sentence]
    spans: Sequence[Span]
    retrieved: Sequence[Sequence[str]] = ()


class Caption(NamedTuple):
    """A caption, and the geometric mean of its tokens' probabilities."""

    text: str
    probability: float


def words_of(sentences: Sequence[Sentence]) -> list[Word]:
    """All words in order, spread evenly over their sentences; times never fall."""
    words, latest = list[Word](), 0.0
    for sentence in sorted(sentences, key=lambda one: (one.start, one.end)):
        texts = plain(sentence.text).split()
        for n, text in enumerate(texts):
            time = sentence.start + (n + 0.5) / len(texts) * (sentence.end - sentence.start)
            latest = max(latest, time)
            words.append(Word(latest, text))
    return words


def plain(text: str) -> str:
    """Lower case, with full stops and apostrophes as the only marks."""
    text = re.sub(r" ?['’] ?(?=(?:s|m|re|ve|ll|d|t)\b)", "'", text.lower())
    text = re.sub(r" n't\b", "n't", text)
    text = re.sub(r"[!?;]", ".", text)
    return re.sub(r"[^\w.'%/&-]+", " ", text).strip()


def logit(probability: float) -> float:
    """log p / (1 - p), kept finite."""
    kept = min(max(probability, 1e-6), 1 - 1e-6)
    return math.log(kept / (1 - kept))


def scripts(spans: Sequence[Span]) -> list[list[int]]:
    """Indices of the spans in order of time, in texts of about equally many events."""
    order = sorted(range(len(spans)), key=lambda n: spans[n])
    parts = -(-len(order) // SCRIPT_EVENTS)
    edges = [round(n * len(order) / parts) for n in range(parts + 1)] if parts else []
    return [order[first:stop] for first, stop in pairwise(edges)]


def blocks(
    words: Sequence[Word], spans: Sequence[Span], retrieved: Sequence[Sequence[str]] = ()
) -> list[str]:
    """What is read before each caption of one text, its mark included."""
    texts, times = [word.text for word in words], [word.time for word in words]
    shown, made = min(INTRO, len(texts)), list[str]()
    for n, (start, end) in enumerate(spans):
        first, stop = bisect_left(times, start), bisect_right(times, end)
        inside = texts[first:stop]
        if len(inside) > INSIDE:
            inside = [*inside[: INSIDE // 2], "...", *inside[-(INSIDE // 2) :]]
        before = texts[max(min(shown, first), first - BEFORE) : first]
        line = " ".join([*before, "[", *inside, "]", *texts[stop : stop + AFTER]])
        shown = max(shown, stop)
        similar = "; ".join(retrieved[n]) if retrieved else ""
        made.append(f"{line}\n" + (f"~ {similar}\n" if similar else "") + "=")
    if made:
        made[0] = f"{' '.join(texts[:INTRO])}\n{made[0]}"
    return made


@dataclass
class _Row:
    """One text while it is being written."""

    blocks: list[list[int]]
    captions: list[list[int]] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)

    def next_block(self) -> list[int]:
        """What is read before the next caption, which begins."""
        self.captions.append([])
        self.logs.append(0.0)
        return self.blocks[len(self.captions) - 1]


class CaptionWriter:
    """A language model that captions spans."""

    def __init__(
        self,
        reader: Reader,
        tokenizer: Tokenizer,
        settings: WriterConfig,
        folder: Path,
        head: SpanHead | None = None,
    ) -> None:
        self.reader, self.tokenizer, self.settings = reader, tokenizer, settings
        self.folder = folder
        """Where its files are."""
        self.head = None if head is None else head.eval()
        (self.newline,) = self._encode("\n")

    def write(
        self, requests: Sequence[Request], on_step: Callable[[], None] = lambda: None
    ) -> list[list[Caption]]:
        """A caption for every span of every request; `on_step` is called between captions."""
        rows: list[tuple[int, list[int], _Row]] = []
        for number, request in enumerate(requests):
            words = words_of(request.sentences)
            for script in scripts(request.spans):
                retrieved = [request.retrieved[n] for n in script] if request.retrieved else ()
                read = blocks(words, [request.spans[n] for n in script], retrieved)
                read_ids = [self._encode(text) for text in read]
                rows.append((number, script, _Row(read_ids)))
        self._write([row for _, _, row in rows], on_step)
        written = [[Caption("", 0.0)] * len(request.spans) for request in requests]
        for number, script, row in rows:
            for n, ids, log in zip(script, row.captions, row.logs, strict=True):
                text = self.tokenizer.decode(ids).strip()
                written[number][n] = Caption(text, math.exp(log / (len(ids) + 1)))
        return written

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    @torch.inference_mode()
    def timing(self, sentences: Sequence[Sentence], duration: float) -> Timing:
        """When things happen; for a writer with a head."""
        assert self.head is not None
        words, layers = words_of(sentences), self.head.settings.layers
        return self.head.timing(word_states(self.reader, self.tokenizer, words, layers), duration)

    def confidence(self, span: float | None, caption: Caption) -> float:
        """How likely an event is right, by what was measured on validation videos.

        `span` is the decoder's confidence in the event before its caption was written.
        """
        weight, slope, offset = self.settings.calibration
        total = weight * logit(0.5 if span is None else span)
        total += slope * logit(caption.probability) + offset
        return round(1 / (1 + math.exp(-total)), 4)

    @torch.inference_mode()
    def _write(self, rows: Sequence[_Row], on_step: Callable[[], None]) -> None:
        """Each text reads a block, writes until its line ends, and goes on at its own pace."""
        waiting, going = deque(rows), list[tuple[_Row, Text, list[int]]]()
        while waiting or going:
            on_step()
            while waiting and len(going) < AT_ONCE:
                row = waiting.popleft()
                room = (self.settings.max_tokens + 1) * len(row.blocks)
                text = Text(self.reader, sum(map(len, row.blocks)) + room)
                going.append((row, text, row.next_block()))
            last_BD = self.reader.read([text for _, text, _ in going], [ids for *_, ids in going])
            score_BV = self.reader.logits(last_BD).log_softmax(-1)
            read, going = going, []
            for (row, text, _), score_V in zip(read, score_BV, strict=True):
                token = self._next(row, score_V)
                if token != self.newline:
                    going.append((row, text, [token]))
                elif len(row.captions) < len(row.blocks):
                    going.append((row, text, [token, *row.next_block()]))

    def _next(self, row: _Row, score_V: Tensor) -> int:
        """The likeliest token that repeats nothing, noted down; or the end of the line."""
        caption, longest = row.captions[-1], self.settings.max_repeated_tokens
        last = caption[len(caption) - longest :]
        if len(caption) > longest:
            for n in range(len(caption) - longest):
                if caption[n : n + longest] == last:
                    score_V[caption[n + longest]] = -torch.inf
        if not caption:
            score_V[self.newline] = -torch.inf
        token = int(score_V.argmax())
        if token == self.newline or len(caption) == self.settings.max_tokens:
            row.logs[-1] += float(score_V[self.newline])
            return self.newline
        row.logs[-1] += float(score_V[token])
        caption.append(token)
        return token
