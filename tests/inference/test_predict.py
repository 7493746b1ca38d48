"""`predict` with a tiny writer and span head, against a plain computation from the definitions.

The plain one reads whole texts again for every token with transformers' Llama, adds up words by
bins in loops and finds the best spans by trying all of them.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from starc.config import SpanConfig, WriterConfig, apply_overrides
from starc.decoder.caption_writer import CaptionWriter
from starc.decoder.reader import Reader
from starc.decoder.span_head import SpanHead
from starc.inference.predict import VideoInputs, predict, split
from starc.model.checkpoint import Loaded
from starc.model.starc import STaRC
from starc.types import Event, Sentence
from support.stock_llama import TINY, byte_tokenizer, pair
from support.tiny import WIDTH, store, tiny, words_tokenizer

SECONDS = 61
SPANS = SpanConfig(
    layers=2, width=8, shortest=4.0, longest=12.0, typical=9.0, reward=1.7, length=0.7,
    most_starts=0.9,
)  # fmt: skip
SETTINGS = WriterConfig(
    llama=TINY, spans=SPANS, retrieved=0, max_tokens=14, max_repeated_tokens=1,
    calibration=(0.8, 0.6, -0.3),
)  # fmt: skip
WORDS = (
    "cut",
    "fry",
    "salt",
    "boil",
    "peel",
    "stir",
    "heat",
    "chop",
    "bake",
    "pour",
    "mix",
    "whisk",
)
SAID = tuple(
    Sentence(2.0 * n, 2.0 * n + 1.5, f"now {word} the {word[::-1]} add {n}")
    for n, word in enumerate(2 * WORDS)
)
END_OF_LINE = "\n"


class Plain(NamedTuple):
    loaded: Loaded
    stock: LlamaForCausalLM


@pytest.fixture(scope="module")
def made() -> Plain:
    """A tiny model whose span head sees much and is sure of little."""
    ours, stock = pair()
    torch.manual_seed(3)
    head = SpanHead(TINY.width, SPANS)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(4)
    writer = CaptionWriter(Reader.of(ours), byte_tokenizer(), SETTINGS, Path("nowhere"), head)
    model = STaRC(tiny()).eval()
    loaded = Loaded(model, words_tokenizer(), store(), Path("tiny"), writer=writer)
    return Plain(loaded, stock)


def video(**changes: object) -> VideoInputs:
    generator = torch.Generator().manual_seed(5)
    features_TD = torch.randn(SECONDS, WIDTH, generator=generator)
    times = tuple(float(n) for n in range(SECONDS))
    whole = VideoInputs("v", features_TD, times, SECONDS, float(SECONDS), SAID)
    return replace(whole, **changes)


def timed_words() -> list[tuple[float, str]]:
    found = []
    for sentence in SAID:
        texts = sentence.text.split()
        each = (sentence.end - sentence.start) / len(texts)
        found += [(sentence.start + (n + 0.5) * each, text) for n, text in enumerate(texts)]
    return found


@torch.no_grad()
def logits(made: Plain) -> Tensor:
    """Of start, end and inside for each two seconds."""
    assert made.loaded.writer is not None and made.loaded.writer.head is not None
    tokenizer, ids, times = byte_tokenizer(), list[int](), list[float]()
    for time, text in timed_words():
        some = tokenizer.encode(f" {text}").ids
        ids, times = ids + some, times + [time] * len(some)
    read = made.stock(torch.tensor([ids]), output_hidden_states=True)
    state_LD = F.layer_norm(read.hidden_states[SPANS.layers][0], (TINY.width,))
    rows = []
    count = SECONDS // 2 + 1
    for n in range(count):
        here = [state_LD[k] for k, time in enumerate(times) if 2 * n <= time < 2 * n + 2]
        mean_D = torch.stack(here).mean(0) if here else torch.zeros(TINY.width)
        rows.append([*mean_D.tolist(), math.log(1 + len(here)), n / (count - 1)])
    members = [member(torch.tensor([rows]))[0] for member in made.loaded.writer.head.members]
    return (members[0] + members[1]) / 2


def best_spans(logits_T3: Tensor) -> list[tuple[float, float, float]]:
    """Start, end and how sure, of the set that scores best, by recursion over the first span."""
    start, end, inside = logits_T3.double().unbind(1)
    bins = len(logits_T3)

    def score(first: int, stop: int) -> float:
        length = stop - first
        away = abs(math.log(2 * length / SPANS.typical))
        total = F.logsigmoid(start[first]) + F.logsigmoid(end[stop - 1]) + SPANS.reward
        total += SPANS.inside * inside[first:stop].mean() * min(1, length / 8)
        return float(total) - SPANS.length * away

    @functools.cache
    def best(first: int) -> tuple[float, tuple[tuple[int, int], ...]]:
        if first >= bins:
            return 0.0, ()
        choices = [best(first + 1)]
        for stop in range(first + 2, min(first + 6, bins) + 1):
            rest, others = best(stop)
            choices.append((score(first, stop) + rest, ((first, stop), *others)))
        return max(choices)

    probability_T3 = logits_T3.double().sigmoid()
    return [
        (
            2.0 * first,
            min(2.0 * stop, SECONDS),
            math.sqrt(probability_T3[first, 0] * probability_T3[stop - 1, 1]),
        )
        for first, stop in best(0)[1]
    ]


def written(made: Plain, spans: list[tuple[float, float]]) -> list[tuple[str, float]]:
    """Captions and their probabilities: texts of at most six events, each token on its own."""
    said, tokenizer = timed_words(), byte_tokenizer()
    (newline,) = tokenizer.encode(END_OF_LINE).ids
    texts = -(-len(spans) // 6)
    edges = [round(n * len(spans) / texts) for n in range(texts + 1)]
    found = []
    for first, stop in itertools.pairwise(edges):
        ids, shown = tokenizer.encode(" ".join(text for _, text in said[:24]) + "\n").ids, 24
        for start, end in spans[first:stop]:
            before = [n for n, (time, _) in enumerate(said) if time < start]
            inside = [n for n, (time, _) in enumerate(said) if start <= time <= end]
            after = [n for n, (time, _) in enumerate(said) if time > end]
            fresh = [n for n in before if n >= shown][-28:]
            texts_inside = [said[n][1] for n in inside]
            if len(inside) > 70:
                texts_inside[35:-35] = ["..."]
            line = [*(said[n][1] for n in fresh), "[", *texts_inside, "]"]
            line += [said[n][1] for n in after[:10]]
            shown = max(shown, max([-1, *before, *inside]) + 1)
            ids = ids + tokenizer.encode(" ".join(line) + "\n=").ids
            caption, log = greedy(made.stock, ids, newline)
            ids = [*ids, *caption, newline]
            text = tokenizer.decode(caption).strip()
            found.append((text, math.exp(log / (len(caption) + 1))))
    return found


@torch.no_grad()
def greedy(stock: LlamaForCausalLM, ids: list[int], newline: int) -> tuple[list[int], float]:
    """The likeliest tokens, no pair of them twice, and the logarithm of their probability."""
    caption, total = list[int](), 0.0
    while True:
        log_V = stock(torch.tensor([[*ids, *caption]])).logits[0, -1].log_softmax(-1)
        pairs = set(itertools.pairwise(caption))
        allowed = [
            token
            for token in range(len(log_V))
            if not (token == newline and not caption)
            and not (caption and (caption[-1], token) in pairs)
        ]
        token = max(allowed, key=log_V.__getitem__)
        if token == newline or len(caption) == SETTINGS.max_tokens:
            return caption, total + float(log_V[newline])
        caption, total = [*caption, token], total + float(log_V[token])


def confidence(span: float, caption: float) -> float:
    weight, slope, offset = SETTINGS.calibration
    odds = (span / (1 - span)) ** weight * (caption / (1 - caption)) ** slope * math.exp(offset)
    return odds / (1 + odds)


def check(events: tuple[Event, ...], wanted: list[tuple[float, float, str, float]]) -> None:
    assert [(event.start, event.end, event.caption) for event in events] == [
        one[:3] for one in wanted
    ]
    for event, (*_, sure) in zip(events, wanted, strict=True):
        assert event.confidence == pytest.approx(sure, abs=2e-4)
        assert event.confidence == round(event.confidence or 0.0, 4)


def test_events_are_those_of_the_definitions(made: Plain) -> None:
    (found,) = predict(made.loaded, [video()])
    spans = best_spans(logits(made))
    assert len(spans) > 6, "several texts are written"
    captions = written(made, [(start, end) for start, end, _ in spans])
    assert len({text for text, _ in captions}) > 3
    check(
        found.events,
        [
            (start, end, text, confidence(sure, probability))
            for (start, end, sure), (text, probability) in zip(spans, captions, strict=True)
        ],
    )


def test_shown_saliency_is_that_of_the_span_head(made: Plain) -> None:
    (found,) = predict(made.loaded, [video()])
    inside_T = logits(made)[:, 2].sigmoid()
    assert found.frame_times and inside_T.std() > 0.05
    wanted = [float(inside_T[int(time // 2)]) for time in found.frame_times]
    assert found.saliency == pytest.approx(wanted, abs=1e-4)


def test_lanes_are_computed_where_asked_for_and_change_no_event(made: Plain) -> None:
    (shown,), (found,) = (predict(made.loaded, [video()], lanes=lanes) for lanes in (True, False))
    assert shown.segments and shown.windows and not found.segments and not found.windows
    assert found.events == shown.events and len(found.saliency) == SECONDS
    assert {(event.times_from, event.words_from) for event in found.events} == {
        (("speech",), ("speech",))
    }


def test_a_model_that_does_not_listen_captions_what_it_sees(made: Plain) -> None:
    deaf = replace(made.loaded, model=STaRC(apply_overrides(tiny(), ["inputs.speech=false"])))
    deaf.model.load_state_dict(made.loaded.model.state_dict())
    (heard,), (silent,) = predict(deaf, [video()]), predict(made.loaded, [video(sentences=())])
    assert heard.events == silent.events
    assert all(event.words_from == ("pictures", "datastore") for event in heard.events)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(((40.0, 51.5), (3.0, 9.25), (10.0, 10.5)), id="far apart"),
        pytest.param(((20.0, 30.0), (1.0, 47.0), (10.0, 24.0)), id="one in another"),
        pytest.param(tuple((7.0 * n, 7.0 * n + 4) for n in range(7)), id="two texts"),
    ],
)
def test_given_spans_are_kept_and_captioned(
    made: Plain, given: tuple[tuple[float, float], ...]
) -> None:
    (found,) = predict(made.loaded, [video(given=given)])
    assert {(event.times_from, event.words_from) for event in found.events} == {
        (("person",), ("speech",))
    }
    captions = written(made, sorted(given))
    check(
        found.events,
        [
            (*span, text, confidence(0.5, probability))
            for span, (text, probability) in zip(sorted(given), captions, strict=True)
        ],
    )


def test_videos_together_are_as_alone(made: Plain) -> None:
    other = video(id="w", sentences=SAID[:9])
    silent = video(id="s", sentences=())
    together = predict(made.loaded, [other, silent, video()])
    for one, found in zip([other, silent, video()], together, strict=True):
        (alone,) = predict(made.loaded, [one])
        check(
            found.events,
            [(e.start, e.end, e.caption, e.confidence or 0.0) for e in alone.events],
        )


@pytest.mark.parametrize(
    ("span", "window"), [((1.0, 3.0), 0), ((9.0, 27.0), 1), ((5.0, 60.0), 2), ((59.0, 60.0), 4)]
)
def test_a_given_event_goes_where_its_middle_is(span: tuple[float, float], window: int) -> None:
    """Windows of 16 seconds, 4 of them shared, about 8, 19, 30.5, 41.5 and 53."""
    settings = ["windowing.seconds=16", "windowing.longest=20", "inputs.frames=16"]
    model = STaRC(apply_overrides(tiny(), settings))
    loaded = Loaded(model, words_tokenizer(), store(), Path("tiny"))
    cut = split(loaded, video(given=(span,)))
    assert cut.given is not None and len(cut.spans) == 5
    assert [n for n, share in enumerate(cut.given) if share] == [window]
    middles = [sum(one) / 2 for one in cut.spans]
    assert window == min(range(5), key=lambda n: abs(middles[n] - sum(span) / 2))
