"""Events and sentences as ids and back; span corruption; published numbers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from starc.decoder import time_tokens
from starc.decoder.time_tokens import Vocabulary
from starc.types import Event, Sentence

VOCABULARY = Vocabulary(1100, 100)
WORDS = VOCABULARY.text_tokens - VOCABULARY.sentinels


def encode(text: str) -> list[int]:
    """One id per character: reversible, and enough for everything but the published numbers."""
    return [3 + ord(letter) % (WORDS - 3) for letter in text]


def decode(ids: list[int]) -> str:
    return "".join(chr(token - 3) for token in ids)


def to_events(ids: list[int], duration: float = 198.0, **options: object) -> list[Event]:
    return time_tokens.to_events(
        ids, duration=duration, vocabulary=VOCABULARY, decode=decode, **options
    )


def event_ids(events: list[Event], duration: float = 198.0, **options: int) -> list[int]:
    return time_tokens.event_ids(
        events, duration=duration, vocabulary=VOCABULARY, encode=encode, **options
    )


def ids_of(text: str) -> list[int]:
    """Ids of a string in which time tokens are written as <time=N>; a space may follow them."""
    ids: list[int] = []
    for part in re.split(r"(<time=\d+>)\s*", text):
        bin_ = re.fullmatch(r"<time=(\d+)>", part)
        ids += [VOCABULARY.text_tokens + int(bin_[1])] if bin_ else encode(part)
    return ids


def test_ids_say_what_the_published_parser_reads(shared: Path) -> None:
    for case in json.loads((shared / "parity/model/parser.json").read_text()):
        expected = [
            (*event["timestamp"], re.sub(r"\s*<time=\d+>\s*", " ", event["sentence"]).strip())
            for event in case["events"]
        ]
        found = to_events(ids_of(case["text"]), case["duration"])
        if "<time=3><time=5> glued" in case["text"]:
            # Text loses events whose time tokens touch; ids do not.
            expected.insert(0, (6.0, 10.0, "glued."))
        assert [(event.start, event.end, event.caption) for event in found] == expected


def test_targets_and_denoising_are_the_published_ones(shared: Path) -> None:
    processor = pytest.importorskip("sentencepiece").SentencePieceProcessor(
        model_file=str(shared / "parity/model/small.model")
    )
    annotations = json.loads((shared / "data/yc2/vid2seq_train.json").read_text())
    annotations |= json.loads((shared / "data/yc2/vid2seq_val.json").read_text())
    items = torch.load(shared / "parity/model/dataset_items.pt")["items"]
    compared = 0
    for number, item in enumerate(items):
        annotation = annotations.get(item["video_id"]) or annotations[item["video_id"][2:]]
        spans = zip(item["timestamp"], annotation["sentences"], strict=True)
        events = [Event(start, end, sentence) for (start, end), sentence in spans]
        duration, encoder = item["duration"], processor.encode
        target = time_tokens.event_ids(
            events, duration=duration, vocabulary=VOCABULARY, encode=encoder, limit=64
        )
        assert target == item["output_tokens"].tolist()
        speech = item["input_tokens"].tolist()
        if speech != [1]:
            sentences = [Sentence(event.start, event.end, event.caption) for event in events]
            assert speech == time_tokens.speech_ids(
                sentences, duration=duration, vocabulary=VOCABULARY, encode=encoder, limit=120
            )
            compared += 1
        pair = time_tokens.denoising_pair(
            speech, vocabulary=VOCABULARY, generator=np.random.RandomState(77 + number)
        )
        assert pair == (
            item["denoising_input_tokens"].tolist(),
            item["denoising_output_tokens"].tolist(),
        )
    assert compared == 5


caption = st.text("abc xyz", min_size=1, max_size=12).filter(lambda text: text.strip())


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), caption), max_size=6),
    st.floats(0.5, 5000),
)
def test_round_trip(spans: list[tuple[float, float, str]], duration: float) -> None:
    events = [
        Event(low * duration, high * duration, text)
        for low, high, text in ((min(a, b), max(a, b), text) for a, b, text in spans)
        if low * duration < high * duration
    ]
    found = to_events(event_ids(events, duration), duration)
    bin_ = duration / 99
    kept = [
        event
        for event in sorted(events, key=lambda event: event.start)
        if VOCABULARY.time_id(event.start, duration) < VOCABULARY.time_id(event.end, duration)
    ]
    assert len(found) == len(kept)
    for event, back in zip(kept, found, strict=True):
        assert back.start <= event.start + 1e-6 * duration
        assert event.start - back.start <= bin_ * (1 + 1e-6)
        assert back.caption.lower() == " ".join(event.caption.split()).lower() + "."


def test_time_ids() -> None:
    assert VOCABULARY.time_id(0, 10) == 1100
    assert VOCABULARY.time_id(10, 10) == 1199
    assert VOCABULARY.time_id(9.99, 10) == 1198
    assert VOCABULARY.time_id(11, 10) == 1199
    assert VOCABULARY.time_id(-1, 10) == 1100
    assert VOCABULARY.seconds(1199, 10) == 10
    assert VOCABULARY.size == 1200


def test_events_beyond_the_video_are_clamped() -> None:
    (event,) = to_events(event_ids([Event(100, 500, "long")]))
    assert (event.start, event.end) == (100, 198)
    assert to_events(event_ids([Event(300, 500, "outside")])) == []


def test_speech() -> None:
    sentences = [
        Sentence(0, 2, "  hello THERE "),
        Sentence(2, 400, "ends after the video"),
        Sentence(4, 6, "Done."),
        Sentence(6, 8, " "),
    ]
    ids = time_tokens.speech_ids(sentences, duration=198, vocabulary=VOCABULARY, encode=encode)
    assert ids == [1100, 1101, *encode("Hello there."), 1102, 1103, *encode("Done."), 1]


def test_no_speech_is_the_end_id() -> None:
    ids = time_tokens.speech_ids([], duration=5, vocabulary=VOCABULARY, encode=encode)
    assert ids == [1]
    pair = time_tokens.denoising_pair(
        ids, vocabulary=VOCABULARY, generator=np.random.default_rng(0)
    )
    assert pair == ([0], [1])


def test_long_speech_is_cut() -> None:
    sentences = [Sentence(second, second + 1, "word " * 30) for second in range(50)]
    given = {"duration": 60, "vocabulary": VOCABULARY, "encode": encode}
    ids = time_tokens.speech_ids(sentences, **given, limit=1000)
    assert len(ids) == 1000 and len(time_tokens.speech_ids(sentences, **given)) > 1000
    assert ids[-1] == 1
    assert 1 not in ids[:-1]
    assert len(time_tokens.event_ids([Event(0, 1, "word " * 100)], **given, limit=256)) == 256


def test_confidence_is_the_geometric_mean() -> None:
    ids = [1100, 1110, *encode("ab"), 1, 1120]
    logs = [-0.1, -0.2, -0.3, -1.0, -9.0, -9.0]
    (event,) = to_events(ids, log_probabilities=logs)
    assert event.confidence == pytest.approx(np.exp(-0.4))
    assert to_events(ids)[0].confidence is None


def test_repetitions_are_flagged() -> None:
    events = [
        Event(0, 20, "Stir the pot."),
        Event(2, 22, "stir the pot."),
        Event(4, 24, "Stir the pan."),
        Event(100, 120, "Stir the pot."),
    ]
    assert [event.repeated for event in to_events(event_ids(events))] == [False, True, False, False]


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 400), st.integers(0, 1000))
def test_corruption_loses_nothing(length: int, seed: int) -> None:
    ids = np.random.default_rng(seed).integers(3, WORDS, length).tolist()
    generator = np.random.default_rng(seed)
    given_, target = time_tokens.denoising_pair(ids, vocabulary=VOCABULARY, generator=generator)
    assert given_[-1] == target[-1] == 1
    spans: dict[int, list[int]] = {}
    for token in target[:-1]:
        if token >= WORDS:
            spans[latest := token] = []
        else:
            spans[latest].append(token)
    assert list(spans) == [1099 - number for number in range(len(spans))]
    restored = [token for given in given_[:-1] for token in spans.get(given, [given])]
    assert restored == ids
    assert sum(map(len, spans.values())) == max(1, min(round(length * 0.25), length - 1))


def test_bad_input() -> None:
    for duration in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="duration must be positive"):
            event_ids([], duration)
        with pytest.raises(ValueError, match="duration must be positive"):
            to_events([], duration)
    for token in (-1, 1200):
        with pytest.raises(ValueError, match=r"ids must lie in \[0, 1200\)"):
            to_events([token])
    with pytest.raises(ValueError, match="does the tokenizer belong"):
        time_tokens.event_ids(
            [Event(0, 1, "a")], duration=9, vocabulary=VOCABULARY, encode=lambda _: [1100]
        )
    with pytest.raises(ValueError, match="two bins"):
        Vocabulary(1100, 1)
    with pytest.raises(ValueError, match="no room for text"):
        Vocabulary(100, 10)
    with pytest.raises(ValueError, match="density"):
        time_tokens.denoising_pair(
            [5, 6], vocabulary=VOCABULARY, generator=np.random.default_rng(0), density=1.0
        )
    with pytest.raises(ValueError, match="finite"):
        VOCABULARY.time_id(float("nan"), 3)
