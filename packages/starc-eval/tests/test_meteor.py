"""METEOR against numbers of the published jar, in both back ends."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fuzz_meteor
from starc_eval import alignment, meteor
from starc_eval.errors import AnnotationError
from starc_eval.meteor import Meteor, aggregate, normalise
from starc_eval.pairs import UNMATCHED

Maker = Callable[[str], Meteor]


@pytest.fixture(params=["c", "python"])
def scorer(request: pytest.FixtureRequest, meteor_backend: Maker) -> Meteor:
    return meteor_backend(request.param)


def own_pairs(data: Path) -> list[tuple[str, str, tuple[int, ...], float]]:
    rows = json.loads((data / "meteor_own.json").read_text())
    return [(h, r, tuple(map(int, counts.split())), score) for h, r, counts, score in rows]


def test_own_pairs(scorer: Meteor, data: Path) -> None:
    for hypothesis, reference, counts, score in own_pairs(data):
        assert scorer.statistics(hypothesis, reference) == counts, (hypothesis, reference)
        assert scorer.score(hypothesis, reference) == pytest.approx(score, abs=1e-15)


def test_published_pairs(scorer: Meteor, shared: Path) -> None:
    rows = json.loads((shared / "parity/eval/meteor_pairs.json").read_text())
    pairs = [(row["hyp"], row["ref"]) for row in rows]
    for row, counts in zip(rows, scorer.statistics_many(pairs), strict=True):
        assert list(counts) == row["stats"], row
    scores = scorer.score_many(pairs)
    assert max(abs(score - row["score"]) for score, row in zip(scores, rows, strict=True)) < 1e-12


def test_aggregate_leaves_out_the_chunks_of_perfect_pairs(data: Path) -> None:
    counts = np.array([counts for _, _, counts, _ in own_pairs(data)])
    assert aggregate(counts[:13]) == pytest.approx(0.31054105442929597, abs=1e-15)
    assert aggregate(counts[[0, 5]]) == pytest.approx(0.8421052631578946, abs=1e-15)
    assert aggregate(counts[:2]) == pytest.approx(0.39854710420612166, abs=1e-15)
    assert aggregate(counts[:1] * 0) == 0.0
    assert aggregate(counts[:0]) == 0.0


def test_a_reference_with_the_separator_is_several(scorer: Meteor) -> None:
    counts = scorer.statistics("a red hat", "blue hat ||| a hat ||| red cap")
    assert counts == scorer.statistics("a red hat", "red cap")
    assert scorer.score("a red hat", "blue hat ||| a red hat ||| a red cap") == 1.0


@pytest.mark.parametrize("text", ["pour the soup", "", "it 's a -lrb- big -rrb- one", "a ||| b"])
def test_what_the_unmatched_are_paired_with_matches_nothing(scorer: Meteor, text: str) -> None:
    counts = scorer.statistics(text, UNMATCHED)
    assert (counts[1], counts[3]) == (1, 0) and not any(counts[4:])


def test_pairs_may_repeat_and_come_in_any_order(scorer: Meteor) -> None:
    one, two = ("a cat", "the cat"), ("the cats", "a cat")
    assert scorer.statistics_many([one, two, one]).tolist() == [
        [*scorer.statistics(*one)],
        [*scorer.statistics(*two)],
        [*scorer.statistics(*one)],
    ]
    assert scorer.statistics_many([]).shape == (0, 23)


WORDS = (
    "the a of to in and is was on it he she runs run running dog dogs hound cars auto automobiles "
    "big large child kids food foods in front of 1\xa01/2 -lrb- n't 's , e.g. cat5 oil cut"
)
VOCABULARY = WORDS.split(" ")
sentences = st.lists(st.sampled_from(VOCABULARY), max_size=30).map(" ".join)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(sentences, sentences)
def test_back_ends_agree(meteor_backend: Maker, hypothesis: str, reference: str) -> None:
    counts = meteor_backend("python").statistics(hypothesis, reference)
    assert meteor_backend("c").statistics(hypothesis, reference) == counts
    assert counts[21] <= counts[0] and counts[22] <= counts[1]
    assert counts[20] <= min(counts[21:])
    assert sum(counts[4:20:4]) + sum(counts[6:20:4]) == counts[21]
    assert 0 <= meteor.score(np.array(counts)) <= 1


def test_back_ends_agree_on_hostile_input(meteor_backend: Maker) -> None:
    """A slice of `make fuzz`, without the sanitisers."""
    meteor_backend("c")
    assert fuzz_meteor.fuzz(400, seed=1, extension=meteor._meteor)["failed"] == 0


def test_back_ends_agree_on_long_sentences(meteor_backend: Maker) -> None:
    """More ways to align than the beam holds, and more words than one machine word has bits."""
    draw = random.Random(0)
    for length in (65, 130, 200):
        words = [" ".join(draw.choices(VOCABULARY[: length // 6], k=length)) for _ in range(2)]
        one, two = (meteor_backend(backend).statistics(*words) for backend in ("c", "python"))
        assert one == two


def test_normalise() -> None:
    prefixes = {"Mr": False, "No": True, "vs": False}
    for text, words in {
        "do n't 's it's 1990's ma'am": "do n 't ' s it 's 1990 's ma 'am",
        "e.g. u.s. Ph.D. a.b.c 3.5 x.": "eg us phd a.b.c 3.5 x .",
        "Mr. Smith vs. no. Smith No. 5 No. X": "mr. smith vs. no . smith no. 5 no . x",
        "tug-of-war a-b-c a--b -lrb- -- -": "tug of war a b-c a b -lrb- - -",
        "2,000 a,b 1,a ,103": "2,000 a , b 1 , a , 103",
        "1\xa01/2 ½ a@b.com ?! ``x''": '1 1 / 2 ½ a @ b.com ? ! " x "',
        "wait... a..b .": "wait ... a .. b .",
        "“Café” – l’été": '" café " - l \'été',
        "": "",
        " \xa0 ": "",
    }.items():
        assert normalise(text, prefixes) == words.split(), text


def test_unknown_back_end_is_a_wrong_call() -> None:
    with pytest.raises(ValueError, match="backend must be"):
        Meteor(backend="java")  # type: ignore[arg-type]


def test_without_the_extension_python_does_it(
    monkeypatch: pytest.MonkeyPatch, meteor_backend: Maker
) -> None:
    meteor_backend("python")  # the index is there
    monkeypatch.setattr(meteor, "_meteor", None)
    assert Meteor().backend == "python"
    with pytest.raises(ValueError, match="not built"):
        Meteor(backend="c")


def test_the_extension_refuses_what_would_lead_outside_its_arrays(meteor_backend: Maker) -> None:
    meteor_backend("c")
    from array import array

    from starc_eval._meteor import Aligner

    def view(code: str, *numbers: int) -> memoryview:
        return memoryview(array(code, numbers))

    good = view("H", 0, 0), view("I", 1, 2, 2), view("I", 0, 0, 1), view("I", 1)
    for place, wrong in [
        (0, view("H", 0)),
        (0, view("I", 0, 0)),
        (1, view("I", 1, 9, 2)),
        (2, view("I", 0, 0, 2)),
        (3, view("I", 2)),
        (3, view("H", 1)),
    ]:
        with pytest.raises(ValueError):
            Aligner(*good[:place], wrong, *good[place + 1 :])
    Aligner(view("H", 0), view("I", 1, 1), view("I", 0, 0), view("I"))  # no paraphrase at all
    aligner = Aligner(*good)
    word = aligner.add_word(1, 2, True, [3], 0)
    sentence = aligner.add_sentence([word, word])
    python = alignment.Aligner(*good)
    python.add_sentence([python.add_word(1, 2, True, [3], 0)] * 2)
    pair = [(sentence, sentence)]
    assert aligner.statistics(pair) == python.statistics(pair)
    with pytest.raises(IndexError):
        aligner.add_sentence([1])
    with pytest.raises(IndexError):
        aligner.statistics([(0, 1)])
    with pytest.raises(TypeError):
        aligner.statistics([0])
    with pytest.raises(OverflowError):
        aligner.add_word(1 << 32, 0, False, [], -1)
    with pytest.raises(ValueError, match="no index"):
        Aligner.__new__(Aligner).add_sentence([])


@pytest.mark.parametrize("texts", [("stir " * 8000, "stir " * 8001), ("stir " * 40_000, "pan")])
def test_more_words_than_can_be_compared_are_refused(
    scorer: Meteor, texts: tuple[str, str]
) -> None:
    with pytest.raises(AnnotationError, match=r"METEOR: 'stir stir .*shorten the captions"):
        scorer.statistics(*texts)
