"""Every sequence decoded under the grammar parses completely."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from starc.config import BeamSearch, T5Config
from starc.decoder import beam_search, time_tokens
from starc.decoder.beam_search import generate
from starc.decoder.incremental import IncrementalDecoder
from starc.decoder.t5 import T5
from starc.decoder.time_tokens import Vocabulary

SIZE = T5Config(
    width=32,
    head_width=8,
    feed_forward=64,
    layers=1,
    decoder_layers=2,
    heads=4,
    text_vocabulary=120,
    bins=12,
    dropout=0.0,
)
VOCABULARY = Vocabulary(SIZE.text_vocabulary, SIZE.bins)


def check(ids: tuple[int, ...]) -> int:
    """Walk the sequence by hand; the number of its events."""
    rest = list(ids[:-1] if ids[-1] == 1 else ids)
    events, latest = 0, 0
    while rest:
        start, end = (token - SIZE.text_vocabulary for token in rest[:2])
        assert latest <= start < end < SIZE.bins
        words = 0
        while 2 + words < len(rest) and rest[2 + words] < SIZE.text_vocabulary:
            assert 3 <= rest[2 + words] < 20, "a word, not a sentinel or a special id"
            words += 1
        assert words
        rest, latest, events = rest[2 + words :], start, events + 1
    return events


@pytest.mark.parametrize("beams", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_everything_parses(beams: int, seed: int) -> None:
    torch.manual_seed(seed)
    t5 = T5(SIZE)
    with torch.no_grad():
        t5.shared.weight[SIZE.text_vocabulary :] *= 2.0
        t5.shared.weight[1] *= 2.0
    memory_BMD = torch.randn(4, 10, SIZE.width)
    mask_BM = torch.ones(4, 10, dtype=torch.bool)
    found = 0
    for tokens in (3, 4, 5, 17):
        search = BeamSearch(beams=beams, max_tokens=tokens, repetition_penalty=1.5, grammar=True)
        for decoded in generate(t5, memory_BMD, mask_BM, search):
            assert len(decoded.ids) <= tokens
            assert decoded.score > -1e8
            events = check(decoded.ids)
            parsed = time_tokens.to_events(
                decoded.ids, duration=11.0, vocabulary=VOCABULARY, decode=lambda ids: "w" * len(ids)
            )
            assert len(parsed) == events
            found += events
        free = generate(t5, memory_BMD, mask_BM, replace(search, grammar=False))
        assert len(free) == 4
    assert found


@pytest.mark.parametrize("rules", ["published", "transformers"])
def test_a_search_ends_when_no_beam_can_go_on(rules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A video without events ends at once, and the type of the first token leaves no other way."""
    steps, real = list[int](), IncrementalDecoder.step

    def step(self: IncrementalDecoder, token_BK: Tensor) -> Tensor:
        steps.append(1)
        logits_BKV = real(self, token_BK)
        logits_BKV[..., 1] += 100.0 * (len(steps) == 1)
        return logits_BKV

    monkeypatch.setattr(IncrementalDecoder, "step", step)
    torch.manual_seed(0)
    search = BeamSearch(max_tokens=60, rules=rules, grammar=True, token_type_first=True)
    memory_BMD, mask_BM = torch.randn(1, 6, SIZE.width), torch.ones(1, 6, dtype=torch.bool)
    (decoded,) = generate(T5(SIZE), memory_BMD, mask_BM, search)
    assert decoded.ids == (1,) and decoded.score > -1 and len(steps) == 1


def test_what_may_follow() -> None:
    def allowed(*tokens: int, room: int = 9) -> set[int]:
        said_BKL = torch.tensor([[[VOCABULARY.pad, *tokens]]])
        score_BKV = torch.zeros(1, 1, VOCABULARY.size)
        beam_search.forbid_(score_BKV, said_BKL, VOCABULARY, room=room)
        return set(score_BKV[0, 0].isfinite().nonzero().flatten().tolist())

    def times(*bins: int) -> set[int]:
        return {SIZE.text_vocabulary + bin_ for bin_ in bins}

    words = set(range(3, 20))
    (four,), (six,), (ten,) = times(4), times(6), times(10)
    assert allowed() == {1} | times(*range(11))
    assert allowed(room=2) == {1}
    assert allowed(four) == times(*range(5, 12))
    assert allowed(ten) == times(11)
    assert allowed(four, six) == words
    assert allowed(four, six, 5) == {1} | words | times(*range(5, 11))
    assert allowed(four, six, 5, room=2) == {1} | words
    assert allowed(four, six, 5, six) == times(*range(7, 12))


def test_kinds_are_weighed_before_tokens() -> None:
    vocabulary = Vocabulary(SIZE.text_vocabulary, SIZE.bins)
    text = vocabulary.text_tokens

    def best(words: float, end: float, times: dict[int, float], *, started: bool = False) -> int:
        score = torch.full((1, 1, vocabulary.size), 1e-9)
        score[..., 7] = words
        score[..., vocabulary.end] = end
        for bin_, mass in times.items():
            score[..., text + bin_] = mass
        said = torch.tensor([[[vocabulary.pad, text if started else 7]]])
        return int(beam_search.weigh_(score.log(), said, vocabulary, (0.5, 0.9)).argmax())

    spread = dict.fromkeys(range(2, 9), 0.08)
    assert best(0.1, 0.2, spread) == text + 5
    assert best(0.1, 0.7, spread) == vocabulary.end
    assert best(0.9, 0.2, spread) == 7
    assert best(0.0, 0.0, spread, started=True) == text + 8
    assert best(0.0, 0.0, {2: 0.3, 6: 0.2, 7: 0.2, 8: 0.2}) == text + 6


def test_captions_do_not_go_round_in_circles() -> None:
    vocabulary = Vocabulary(SIZE.text_vocabulary, SIZE.bins)
    start, end = (vocabulary.text_tokens + bin_ for bin_ in (1, 3))

    def forbidden(*said: int, max_repeated_words: int | None = None) -> set[int]:
        score = torch.zeros(1, 1, vocabulary.size)
        found = beam_search.vary_(
            score, torch.tensor([[said]]), vocabulary, max_repeated_words=max_repeated_words
        )[0, 0]
        return set(found.isinf().nonzero()[:, 0].tolist()) - {vocabulary.pad}

    assert forbidden(0, start, end) == set()
    assert forbidden(0, start, end, 5) == {5}
    assert forbidden(0, start, end, 5, 6, 8, 5) == {5, 6}
    assert forbidden(0, start, end, 5, 6, start, end, 9, 5) == {5}
    # Across captions: two words may be said twice, a third after them may not.
    before = (0, start, end, 5, 6, 8, start, end)
    assert forbidden(*before, 5, max_repeated_words=2) == {5}
    assert forbidden(*before, 5, 6, max_repeated_words=2) == {6, 8}
    assert forbidden(*before, 6, 8, max_repeated_words=2) == {8}


def test_search_by_kind_needs_the_grammar() -> None:
    with pytest.raises(ValueError, match="needs the grammar"):
        BeamSearch(token_type_first=True)
    with pytest.raises(ValueError, match="needs token_type_first"):
        BeamSearch(grammar=True, max_repeated_words=3)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("types", [False, True])
def test_given_times_are_said_and_every_event_has_words(beams: int, types: bool) -> None:
    """Whatever the model would rather say, however little room; neighbours change nothing."""
    torch.manual_seed(1)
    t5 = T5(SIZE)
    text = SIZE.text_vocabulary
    # Several events, one shorter than a bin, two that begin together; one; none.
    given = [[text, text + 4, text + 4, text + 4, text + 4, text + 9], [text + 2, text + 11], []]
    memory_BMD = torch.randn(3, 10, SIZE.width)
    mask_BM = torch.ones(3, 10, dtype=torch.bool)
    for tokens in (3, 12, 40):
        search = BeamSearch(beams=beams, max_tokens=tokens, grammar=types, token_type_first=types)
        found = generate(t5, memory_BMD, mask_BM, search, given)
        for n, (decoded, times) in enumerate(zip(found, given, strict=True)):
            assert [token for token in decoded.ids if token >= text] == times
            assert decoded.ids[-1] == 1 and len(decoded.ids) <= max(tokens, 10)
            said = time_tokens.captions(
                decoded.ids, vocabulary=VOCABULARY, decode=lambda ids: " ".join(map(str, ids))
            )
            assert len(said) == len(times) // 2 and all(said)
            assert all(3 <= int(word) < 20 for caption in said for word in caption.split())
            alone = generate(t5, memory_BMD[[n]], mask_BM[[n]], replace(search), [times])
            # A lone video has no neighbour that needs more room than `max_tokens`.
            assert tokens == 3 or alone[0].ids == decoded.ids


def test_words_end_by_the_mass_of_all_that_could_follow() -> None:
    text = SIZE.text_vocabulary
    given_BN = torch.tensor([[text + 1, text + 3, 1]])

    def best(*said: int, word: float, room: int = 9) -> int:
        score_BKV = torch.full((1, 1, VOCABULARY.size), 1e-9)
        score_BKV[..., 7] = word
        score_BKV[..., text : text + 8] = 0.05  # 0.4 in all
        said_BKL = torch.tensor([[[0, *said]]])
        chosen = beam_search.follow_(score_BKV.log(), said_BKL, VOCABULARY, given_BN, room=room)
        return int(chosen.argmax())

    assert best(word=0.9) == text + 1
    assert best(text + 1, word=0.9) == text + 3
    assert best(text + 1, text + 3, word=0.01) == 7
    assert best(text + 1, text + 3, 7, word=0.5) == 7
    assert best(text + 1, text + 3, 7, word=0.3) == 1
    assert best(text + 1, text + 3, 7, word=0.5, room=1) == 1
