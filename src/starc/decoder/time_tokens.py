"""Events and sentences as token ids, and back: the language in which T5 speaks about time.

In: events or spoken sentences with seconds; out: `<start><end> Caption.` as ids, one of `bins` time
ids for each second, and the reverse. Everything works on ids; text exists only inside captions,
through the tokenizer's `encode` and `decode` that the caller hands in. Also here: the corrupted
speech of Vid2Seq's denoising task, T5's span corruption.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from starc.types import Event, Sentence

Encode = Callable[[str], Sequence[int]]
"""Text to ids, without an end id."""
Decode = Callable[[Sequence[int]], str]
"""Ids of text to text."""

SAME_MOMENT = 0.5
"""Temporal overlap (tIoU) from which the same caption again is a repetition."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Text ids, the last `sentinels` of which mark corrupted spans, then one id per time bin."""

    text_tokens: int
    bins: int
    pad: int = 0
    end: int = 1
    unknown: int = 2
    sentinels: int = 100

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ValueError(f"time needs two bins at least, got {self.bins = }")
        if self.sentinels < 1 or self.sentinels + 3 >= self.text_tokens:
            raise ValueError(f"no room for text, got {self.text_tokens = }, {self.sentinels = }")

    @property
    def size(self) -> int:
        """V."""
        return self.text_tokens + self.bins

    @property
    def wordless(self) -> tuple[int, ...]:
        """Text ids that are no part of a caption."""
        sentinels = range(self.text_tokens - self.sentinels, self.text_tokens)
        return (self.pad, self.end, self.unknown, *sentinels)

    def time_id(self, seconds: float, duration: float) -> int:
        """The id of int((bins - 1) seconds / duration); times outside the video are clamped."""
        _check_duration(duration)
        if not math.isfinite(seconds):
            raise ValueError(f"a time must be finite, got {seconds = }")
        bin_ = int((self.bins - 1) * seconds / duration)
        return self.text_tokens + min(max(bin_, 0), self.bins - 1)

    def seconds(self, time_id: int, duration: float) -> float:
        """The time of a time id: bin duration / (bins - 1)."""
        return (time_id - self.text_tokens) * duration / (self.bins - 1)


def event_ids(
    events: Iterable[Event],
    *,
    duration: float,
    vocabulary: Vocabulary,
    encode: Encode,
    limit: int | None = None,
) -> list[int]:
    """The target: events by start time as `<start><end> Caption.`, cut to `limit`, end id last.

    An event that reaches beyond the video is clamped to it. One shorter than a bin has twice the
    same time and is kept, as published, although nobody reads it back.
    """
    ordered = sorted(events, key=lambda event: event.start)
    spans = [(event.start, event.end, event.caption) for event in ordered]
    return _ids(spans, duration, vocabulary, encode, limit)


def speech_ids(
    sentences: Iterable[Sentence],
    *,
    duration: float,
    vocabulary: Vocabulary,
    encode: Encode,
    limit: int | None = None,
) -> list[int]:
    """What was said, in the given order, as `<start><end> Text.`, cut to `limit`, end id last.

    Sentences that end after the video are left out. No speech is just the end id.
    """
    spans = [
        (sentence.start, sentence.end, sentence.text)
        for sentence in sentences
        if sentence.end <= duration
    ]
    return _ids(spans, duration, vocabulary, encode, limit)


def to_events(
    ids: Sequence[int],
    *,
    duration: float,
    vocabulary: Vocabulary,
    decode: Decode,
    log_probabilities: Sequence[float] | None = None,
) -> list[Event]:
    """The events in decoded ids, up to the first end id, in the order in which they were said.

    Words after two or more time ids belong to the event of the last two; a single time id among
    words is ignored. Events with end <= start or without text are dropped. With the ids' log-
    probabilities an event has a confidence, the geometric mean of its tokens' probabilities.
    """
    _check_duration(duration)
    wordless = {*vocabulary.wordless} - {vocabulary.unknown}
    positions: list[list[int]] = []  # of each event: its start, its end, its words
    times: list[int] = []
    for at, token in enumerate(ids):
        if not 0 <= token < vocabulary.size:
            raise ValueError(f"ids must lie in [0, {vocabulary.size}), got {token}")
        if token == vocabulary.end:
            break
        if token >= vocabulary.text_tokens:
            times.append(at)
        elif token not in wordless:
            if len(times) >= 2:
                positions.append(times[-2:])
            if positions:
                positions[-1].append(at)
            times = []
    events: list[Event] = []
    for event in positions:
        start, end = (vocabulary.seconds(ids[at], duration) for at in event[:2])
        caption = " ".join(decode([ids[at] for at in event[2:]]).split())
        if end <= start or not caption:
            continue
        confidence = None
        if log_probabilities is not None:
            logs = [log_probabilities[at] for at in event]
            confidence = math.exp(min(0.0, math.fsum(logs) / len(logs)))
        events.append(Event(start, end, caption, confidence))
    return mark_repeated(events)


def mark_repeated(events: Sequence[Event]) -> list[Event]:
    """The events, with those marked that say the same about the same moment as one before."""
    marked: list[Event] = []
    for event in events:
        repeated = any(
            min(event.end, before.end) - max(event.start, before.start)
            >= SAME_MOMENT * (max(event.end, before.end) - min(event.start, before.start))
            and event.caption.casefold() == before.caption.casefold()
            for before in marked
        )
        marked.append(replace(event, repeated=repeated))
    return marked


def captions(ids: Sequence[int], *, vocabulary: Vocabulary, decode: Decode) -> list[str]:
    """The text after each pair of time ids: for events whose times were given, however short."""
    texts: list[list[int]] = []
    times = 0
    for token in ids:
        if token >= vocabulary.text_tokens:
            times += 1
            if times % 2 == 0:
                texts.append([])
        elif texts and token not in vocabulary.wordless:
            texts[-1].append(token)
    return [" ".join(decode(text).split()) for text in texts]


def denoising_pair(
    ids: Sequence[int],
    *,
    vocabulary: Vocabulary,
    generator: np.random.Generator | np.random.RandomState,
    density: float = 0.25,
    span: float = 5.0,
) -> tuple[list[int], list[int]]:
    """T5's span corruption of speech ids: what the encoder reads, what the decoder must say.

    `density` of the ids, in random spans of mean length `span`, are replaced by one sentinel per
    span; the target is each sentinel with its span. Text and spans alternate, text first; the end
    id is corrupted like any other and another one is appended to both. No speech: [pad] and [end].
    The published numbers come from a `RandomState`.
    """
    if not (0 < density < 1 and span >= 1):
        raise ValueError(f"corruption needs 0 < density < 1 <= span, got {density = }, {span = }")
    if len(ids) < 2:
        return [vocabulary.pad], [vocabulary.end]
    noisy = min(max(round(len(ids) * density), 1), len(ids) - 1)
    spans = min(max(round(noisy / span), 1), len(ids) - noisy, vocabulary.sentinels)
    hidden, shown = (_parts(total, spans, generator) for total in (noisy, len(ids) - noisy))
    given: list[int] = []
    target: list[int] = []
    at = 0
    for number in range(spans):
        sentinel = vocabulary.text_tokens - 1 - number
        given += [*ids[at : at + shown[number]], sentinel]
        at += shown[number]
        target += [sentinel, *ids[at : at + hidden[number]]]
        at += hidden[number]
    return [*given, vocabulary.end], [*target, vocabulary.end]


def _ids(
    spans: Iterable[tuple[float, float, str]],
    duration: float,
    vocabulary: Vocabulary,
    encode: Encode,
    limit: int | None,
) -> list[int]:
    _check_duration(duration)
    ids: list[int] = []
    for start, end, text in spans:
        if not text.strip():
            continue
        text = text.strip().capitalize()
        words = encode(text if text.endswith(".") else text + ".")
        if words and not 0 <= min(words) <= max(words) < vocabulary.text_tokens:
            raise ValueError(
                f"text ids must lie in [0, {vocabulary.text_tokens}), got {min(words)} to "
                f"{max(words)}; does the tokenizer belong to this model?"
            )
        times = [vocabulary.time_id(seconds, duration) for seconds in (start, end)]
        ids += [*times, *words]
        if limit is not None and len(ids) >= limit:
            break
    return [*(ids if limit is None else ids[: limit - 1]), vocabulary.end]


def _parts(
    total: int, count: int, generator: np.random.Generator | np.random.RandomState
) -> list[int]:
    """`total` as the sum of `count` positive numbers, all sums equally likely."""
    cuts = np.arange(total - 1) < count - 1
    generator.shuffle(cuts)
    edges = [0, *(np.flatnonzero(cuts) + 1).tolist(), total]
    return [stop - first for first, stop in pairwise(edges)]


def _check_duration(duration: float) -> None:
    if not (math.isfinite(duration) and duration > 0):
        raise ValueError(f"duration must be positive and finite, got {duration = }")
