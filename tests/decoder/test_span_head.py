"""The span head: bins of words, and the set of spans that scores best."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from starc.config import SpanConfig
from starc.decoder import span_head
from starc.decoder.llama import Llama
from starc.decoder.reader import Reader
from starc.decoder.span_head import END, INSIDE, START, SpanHead, WordStates, bins_of, word_states
from support.stock_llama import TINY, byte_tokenizer

SETTINGS = SpanConfig(layers=2, width=8, shortest=4.0, longest=12.0, reward=2.0)


def head() -> SpanHead:
    torch.manual_seed(0)
    return SpanHead(TINY.width, SETTINGS).eval()


def value(logits_T3: Tensor, first: int, stop: int) -> float:
    """The score of one span, from its definition."""
    settings, bins = SETTINGS, stop - first
    total = F.logsigmoid(logits_T3[first, START]) + F.logsigmoid(logits_T3[stop - 1, END])
    total += settings.inside * logits_T3[first:stop, INSIDE].mean() * min(1, bins / 8)
    away = abs(math.log(bins * settings.bin / settings.typical))
    return float(total) + settings.reward - settings.length * away


@pytest.mark.parametrize("seed", range(5))
def test_the_best_set_is_found(seed: int) -> None:
    logits_T3 = 3 * torch.randn(9, 3, generator=torch.Generator().manual_seed(seed))
    spans = head().spans(logits_T3, 18.0, 2.0)
    assert all(one.end <= two.start for one, two in itertools.pairwise(spans))
    assert all(4 <= one.end - one.start <= 12 and 0 < one.confidence < 1 for one in spans)
    ours = sum(value(logits_T3, int(s.start // 2), int(s.end // 2)) for s in spans)
    pieces = [(a, b) for a in range(9) for b in range(a + 2, min(a + 6, 9) + 1)]
    best = 0.0
    for count in range(1, 5):
        for some in itertools.combinations(pieces, count):
            if all(a[1] <= b[0] for a, b in itertools.pairwise(some)):
                best = max(best, sum(value(logits_T3, *one) for one in some))
    assert ours == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize(("bins", "found"), [(1, False), (2, True), (6, True), (7, False)])
def test_spans_are_neither_shorter_nor_longer_than_they_may_be(bins: int, found: bool) -> None:
    """Of 4 to 12 seconds, where something surely goes on from the third bin for so many."""
    logits_T3 = torch.full((12, 3), -9.0)
    logits_T3[2, START] = logits_T3[1 + bins, END] = 9.0
    logits_T3[2 : 2 + bins, INSIDE] = 9.0
    spans = head().spans(logits_T3, 24.0, 2.0)
    assert [(one.start, one.end) for one in spans] == [(4.0, 4.0 + 2 * bins)] * found


def test_words_go_into_their_bins() -> None:
    torch.manual_seed(0)
    reader, tokenizer = Reader.of(Llama(TINY)), byte_tokenizer()
    words = [(0.5, "add"), (1.0, "the"), (9.0, "onions"), (99.0, "late")]
    with torch.no_grad():
        bins_TD = bins_of(word_states(reader, tokenizer, words, SETTINGS.layers), 11.0, 2.0)
        ids = tokenizer.encode(" add the onions late").ids
        states_LD = reader.first_layers(ids, SETTINGS.layers)
    assert bins_TD.shape == (6, TINY.width + 2)
    tokens = [len(tokenizer.encode(f" {text}").ids) for _, text in words]
    first_LD = F.layer_norm(states_LD[: tokens[0] + tokens[1]], (TINY.width,))
    torch.testing.assert_close(bins_TD[0, :-2], first_LD.mean(0), atol=1e-5, rtol=0)
    assert bins_TD[:, -2].expm1().round().tolist() == [
        tokens[0] + tokens[1],
        0,
        0,
        0,
        tokens[2],
        tokens[3],
    ]
    assert not bins_TD[1:4, :-2].any() and bins_TD[-1, -1] == 1


def test_long_speech_is_read_in_parts_with_what_comes_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(span_head, "CHUNK", 20)
    monkeypatch.setattr(span_head, "CONTEXT", 8)
    torch.manual_seed(0)
    reader, tokenizer = Reader.of(Llama(TINY)), byte_tokenizer()
    words = [(float(n), "w" * 4) for n in range(10)]
    ids = tokenizer.encode(" ".join(["", *(text for _, text in words)])).ids
    assert len(ids) > 40
    found = word_states(reader, tokenizer, words, SETTINGS.layers)
    for first, stop in ((0, 20), (20, 40), (40, len(ids))):
        context = max(0, first - 8)
        states_LD = reader.first_layers(ids[context:stop], SETTINGS.layers)[first - context :]
        wanted_LD = F.layer_norm(states_LD, (TINY.width,))
        torch.testing.assert_close(found.state_LD[first:stop], wanted_LD, atol=1e-5, rtol=0)


def test_silence_has_no_words() -> None:
    states = word_states(Reader.of(Llama(TINY)), byte_tokenizer(), [], SETTINGS.layers)
    bins_TD = bins_of(states, 7.0, 2.0)
    assert not bins_TD[:, :-1].any()
    with torch.no_grad():
        assert head()(bins_TD[None]).shape == (1, 4, 3)


class Crowded(SpanHead):
    """Sees a start in every bin that holds more than one token, an end in the next."""

    def forward(self, bins_BTD: Tensor) -> Tensor:
        tokens_T = bins_BTD[0, :, -2].expm1()
        start_T = torch.where(tokens_T > 1.5, 4.0, -4.0)
        return torch.stack([start_T, start_T.roll(1), start_T], dim=-1)[None]


def test_bins_are_finer_where_starts_crowd() -> None:
    seen = Crowded(TINY.width, SETTINGS)
    slow = WordStates(torch.zeros(30, TINY.width), torch.arange(30) * 2.0)
    assert seen.timing(slow, 60.0).bin == 2.0
    fast = WordStates(torch.zeros(60, TINY.width), torch.arange(60) * 1.0)
    timing = seen.timing(fast, 60.0)
    assert timing.bin == pytest.approx(4 / 3) and len(timing.inside_T) == 46


def test_finer_bins_are_a_slower_cook() -> None:
    """The same speech twice as fast, in bins of half the length, gives the same spans earlier."""
    states = WordStates(torch.randn(50, TINY.width), torch.rand(50).sort().values * 40)
    fast = WordStates(states.state_LD, states.time_L / 2)
    one = head()
    with torch.no_grad():
        slow_T3 = one(bins_of(states, 40.0, 2.0)[None])[0]
        fast_T3 = one(bins_of(fast, 20.0, 1.0)[None])[0]
    torch.testing.assert_close(slow_T3, fast_T3)
    slow, soon = one.spans(slow_T3, 40.0, 2.0), one.spans(fast_T3, 20.0, 1.0)
    assert slow and [(s.start / 2, s.end / 2) for s in slow] == [(s.start, s.end) for s in soon]
