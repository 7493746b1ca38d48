"""The tokeniser: stored answers of the published one, and a short cut that changes nothing."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starc.evaluation.tokens import exact, plain, tokenise

# Captions of our own wording with the published tokeniser's answer, punctuation dropped.
ANSWERS = {
    "": "",
    "  \n ": "",
    "crack two eggs into the bowl": "crack two eggs into the bowl",
    "Crack two eggs, then whisk.": "crack two eggs then whisk",
    "you cannot stir it": "you can not stir it",
    "Cannot see": "can not see",
    "we're gonna wanna taste it": "we 're gon na wan na taste it",
    "gimme salt, lemme stir, gotta go": "gim me salt lem me stir got ta go",
    "don't burn it, it's hot": "do n't burn it it 's hot",
    "they'll add what they've got": "they 'll add what they 've got",
    "the chef's knife": "the chef 's knife",
    "the boys' bread": "the boys bread",
    "rock 'n' roll": "rock 'n' roll",
    "beat 'em 'til they foam": "beat 'em 'til they foam",
    "y'all come": "y' all come",
    "o'clock": "o'clock",
    "add 1/2 cup and 1 1/2 spoons": "add 1/2 cup and 1\u00a01/2 spoons",
    "bake at 350.5 degrees": "bake at 350.5 degrees",
    "mix 1,000 grams": "mix 1,000 grams",
    "at 10:30 sharp": "at 10:30 sharp",
    "for 5-6 minutes": "for 5-6 minutes",
    "50% off": "50 % off",
    "$5 each": "$ 5 each",
    "salt & pepper": "salt & pepper",
    "salt &amp; pepper": "salt & pepper",
    "salt/pepper mix": "salt/pepper mix",
    "and/or": "and/or",
    "a (big) pan": "a -lrb- big -rrb- pan",
    "a [big] pan": "a -lsb- big -rsb- pan",
    "a {big} pan": "a -lcb- big -rcb- pan",
    'the "best" soup': "the best soup",
    "the ``best'' soup": "the best soup",
    "wait... done": "wait done",
    "wait -- done": "wait done",
    "what?! really": "what ?! really",
    "well-done steak": "well-done steak",
    "Mr. Smith stirs": "mr. smith stirs",
    "vegetables etc. are cut": "vegetables etc. are cut",
    "see www.example.com now": "see www.example.com now",
    "mail cook@example.com": "mail cook@example.com",
    "in the U.S. they fry": "in the u.s. they fry",
    "WASH.": "wash.",
    "Wash": "wash",
    "Wash. and dry": "wash. and dry",
    "colour the flavour": "colour the flavour",
    "jalape\u00f1o caf\u00e9": "jalape o caf",
    "stir\nit": "stir it",
    "no. 5 pan": "no. 5 pan",
    "step #2": "step # 2",
    "he put an * here": "he put an * here",
    "A lady writes a capital T.": "a lady writes a capital t",
}


@pytest.mark.parametrize("caption", ANSWERS)
def test_stored_answers(caption: str) -> None:
    assert tokenise(caption) == ANSWERS[caption]


def test_published_answers(shared: Path) -> None:
    pairs = json.loads((shared / "parity/eval/ptb_pairs.json").read_text())
    wrong = [(raw, tokens, tokenise(raw)) for raw, tokens in pairs if tokenise(raw) != tokens]
    assert len(pairs) == 4750
    assert not wrong


WORDS = ["add", "Oil", "cannot", "WASH", "etc", "T", "no", "gonna", "mr", "salt", "Inc", "a"]
sentence = st.builds(
    lambda parts, end: "".join(word + gap for word, gap in parts) + end,
    st.lists(
        st.tuples(st.sampled_from(WORDS), st.sampled_from([" ", ", ", "  ", ",  "])), max_size=6
    ),
    st.sampled_from(["", ".", " .", "salt.", "etc.", "Salt.", "mix. ", "\t"]),
)


@given(sentence)
@settings(max_examples=500, deadline=None)
def test_the_short_cut_changes_nothing(caption: str) -> None:
    found = plain(caption)
    assert found is None or found == exact(caption)


NASTY = st.text(alphabet="aAnNtTsS09 .,;:!?'`\"-_/\\()[]{}<>&@#$%*+=~^|\t\x00\x7f", max_size=24)


@given(st.one_of(st.text(max_size=40), NASTY))
@settings(max_examples=500, deadline=None)
def test_any_text_has_tokens(caption: str) -> None:
    found = tokenise(caption)
    assert found == tokenise(caption)
    assert found == found.lower()
    assert not re.search(r"(?:^| )(?:[.,;:?!]|-|--|\.\.\.|''|``|'|`)(?: |$)", found)
    assert "  " not in found and found == found.strip(" ")


@given(st.lists(st.sampled_from(["stir", "the", "soup"]), max_size=8))
def test_plain_words_stay(words: list[str]) -> None:
    assert tokenise(" ".join(words)) == " ".join(words)
