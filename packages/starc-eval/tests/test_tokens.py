"""The tokeniser: stored answers of the published one, and a short cut that changes nothing."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growth import NEAR_LINEAR, growth
from starc_eval.tokens import (
    LONGEST_RUN,
    OneText,
    tokenise,
    tokenise_by_rules,
    tokenise_ordinary,
    too_long,
)

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
    "Bake it at 425\u00b0F/218\u00b0C. ": "bake it at 425 f/218 c.",
    "218 C. ": "218 c.",
    "this is plan B. Mr. Smith stirs": "this is plan b mr. smith stirs",
}

# The same for what a lexer finds hard: clitics, abbreviations, numbers, addresses, signs.
HARD_ANSWERS = [
    ("Add the onions, carrots and celery.", "add the onions carrots and celery"),
    (
        "Stir-fry the beef for 5 minutes; set it aside!",
        "stir-fry the beef for 5 minutes set it aside",
    ),
    ("you cannot wait, you're gonna love it", "you can not wait you 're gon na love it"),
    (
        "Gimme that; lemme see. I wanna know, gotta go",
        "gim me that lem me see i wan na know got ta go",
    ),
    (
        "don't, won't & can't: it's what they're saying, we've heard",
        "do n't wo n't & ca n't it 's what they 're saying we 've heard",
    ),
    ("the chef's knife and the dogs' bowl", "the chef 's knife and the dogs bowl"),
    ("she'd say I'm sure he'll come", "she 'd say i 'm sure he 'll come"),
    ("DON'T TOUCH, IT'S HOT", "do n't touch it 's hot"),
    ("dont cant wont wouldnt", "dont cant wont wouldnt"),
    ("he isn't-ish, didn'ts and nn't", "he is n't ish did n'ts and nn t"),
    ("'tis the season, 'twas said", "'t is the season 't was said"),
    ("keep 'em 'til 12, 'cause it's hot", "keep 'em 'til 12 'cause it 's hot"),
    ("salt 'n' pepper and rock'n'roll", "salt 'n' pepper and rock 'n' roll"),
    ("mac 'n cheese, more'n enough", "mac 'n cheese more 'n enough"),
    ("y'all come at 5 o'clock, ma'am", "y' all come at 5 o'clock ma'am"),
    ("O'Brien said d'oh to l'eau and d'Artagnan", "o'brien said d'oh to l'eau and d'artagnan"),
    ("c'mon, ol' Cap'n, li'l one", "c'mon ol' cap'n li'l one"),
    ("what d'ye want", "what d'ye want"),
    (
        "the '90s, the 80's and the summer of '12 here",
        "the '90s the 80 's and the summer of '12 here",
    ),
    ("Wash the spinach. WASH.", "wash the spinach wash."),
    ("Wash. wash. la. LA. pa. Miss. ill. Ill.", "wash. wash la la. pa miss. ill ill."),
    ("Dr. Smith vs. Mr. Jones etc.", "dr. smith vs. mr. jones etc."),
    ("salt, pepper, etc. and oil", "salt pepper etc. and oil"),
    ("1 lb. of beef, 2 tsp. of salt, 3 oz. of rum", "1 lb of beef 2 tsp of salt 3 oz of rum"),
    ("see fig. 3 and no. 5, but no. Not that", "see fig. 3 and no. 5 but no not that"),
    ("bake at 350 degrees f. then rest", "bake at 350 degrees f. then rest"),
    ("the U.S. and the U.K., e.g. at 5 p.m.", "the u.s. and the u.k. e.g. at 5 p.m."),
    ("a Ph.D. from the U.S.-based school", "a ph.d. from the u.s.-based school"),
    ("So am I. The pan is hot", "so am i the pan is hot"),
    ("plan B. Add it", "plan b. add it"),
    (
        "serve with Inc.-made sauce and Mr.-like style",
        "serve with inc.-made sauce and mr.-like style",
    ),
    ("tsp., tbsp.; cup.:", "tsp. tbsp. cup."),
    (
        "1/2 cup, 1 1/2 cups, 10-1/2 inches and 2  1/4",
        "1/2 cup 1\xa01/2 cups 10-1/2 inches and 2 1/4",
    ),
    ("a 3-1/2-inch cut, 1/2-inch rng", "a 3-1/2 inch cut 1/2-inch rng"),
    ("12/25/2012, 2012-12-25 and 1/2-2010", "12/25/2012 2012-12-25 and 1/2-2010"),
    ("at 5:30pm or 12:30:45 or 5p.m.", "at 5:30 pm or 12:30:45 or 5p m."),
    ("1,000 or 1,234.56 or .5 or -5 or +3 or 1,,2", "1,000 or 1,234.56 or .5 or -5 or +3 or 1 ,2"),
    ("1.5a 1.5-a 1:5-a 5x5 2nd 350F", "1.5 a 1.5-a 1:5 a 5x5 2nd 350f"),
    ("$5, US$5.00, A$ 3 and 50%", "$ 5 us$ 5.00 a$ 3 and 50 %"),
    ("call 555-1234 or (555) 555-1234 now", "call 555-1234 or -lrb-555-rrb-\xa0555-1234 now"),
    (
        "call +44 20 7946 0958 or 555 555 1234",
        "call +44\xa020\xa07946\xa00958 or 555\xa0555\xa01234",
    ),
    ("add salt,pepper,oil", "add salt pepper oil"),
    ("stir.then serve.Now", "stir.then serve.now"),
    ("end of one... start of..two....", "end of one start of two"),
    ("well . . . yes . . .5", "well yes 5"),
    ("a--b, a -- b, a---b and a-----b", "a b a b a b and a ----- b"),
    ("-1 - 2 -a a-", "-1 2 a a"),
    ("and/or, a/b/c, a/b/c/d, w/o and 1/a", "and/or a/b/c a/b/c / d w/o and 1/a"),
    ("a_b _a_ __ a__b", "a_b _ a _ __ a __ b"),
    ("(boil) [music] {laughs}", "-lrb- boil -rrb- -lsb- music -rsb- -lcb- laughs -rcb-"),
    ("-LRB- already -rsb-", "-lrb- already -rsb-"),
    ("\"quoted\" 'single' ``tex'' `tick'", "quoted single tex tick"),
    ("it`s don`t d`or", "it s do n`t d`or"),
    ("what?! no!! why?? wait... stop!?", "what ?! no !! why ?? wait stop !?"),
    ("really?yes wow!ok a;b a:b", "really?yes wow!ok a b a b"),
    (
        "smile :) or :-) and ;D or :'( or >:( here",
        "smile :-rrb- or :--rrb- and ;d or :'-lrb- or >:-lrb- here",
    ),
    ("eyes ^_^ and (-_-) and x_x and <_<", "eyes ^_^ and -lrb--_--rrb- and x_x and <_<"),
    ("I <3 it :)x", "i < 3 it -rrb- x"),
    (
        "see http://a.b/c?d=e, www.site.co.uk. or foo.com/bar",
        "see http://a.b/c?d=e www.site.co.uk or foo.com/bar",
    ),
    ("https://www.youtube.com/watch?v=_a-B", "https://www.youtube.com/watch?v=_a-b"),
    ("mail a@b.com, or <me@here.org>", "mail a@b.com, or <me@here.org>"),
    ("@user #tag #1 #a1 ## @ 5", "@user #tag # 1 #a 1 ## @ 5"),
    ("file.txt, 1.jpg 2.c and a-b.txt", "file.txt 1.jpg 2.c and a-b txt"),
    (
        '<b>bold</b> <br /> <a href="x y"> <1> < b>',
        '<b> bold </b> <br\xa0/> <a\xa0href="x\xa0y"> < 1 > < b >',
    ),
    ("<!-- a note --> <?xml?> <a b=c>", "<!--\xa0a\xa0note\xa0--> <?xml?> < a b = c >"),
    ("AT&T, R&B, Q&A, a&b, A+B and M&Ms", "at&t r&b q&a a & b a+b and m&m s"),
    ("Tom &amp; Jerry &lt;3 &quot;x&quot; &nbsp;", "tom & jerry < 3 x"),
    ("caf&eacute; &mdash; don&apos;t &#39;", "caf&eacute; do n't &#39;"),
    ("C++ and C# and F# but not D#", "c++ and c# and f# but not d #"),
    ("a * b ** c *d* = e + f", "a * b ** c * d * = e + f"),
    ("50~60 a^b a|b a\\b \\* ~", "50 ~ 60 a ^ b a | b a \\ b \\* ~"),
    ("I'TIS Y'ALL Z'ab abe'N", "i 't is y' all z'ab abe'n"),
    ("20-year-old t-shirt self-rising x-U.S.", "20-year-old t-shirt self-rising x-u.s."),
    ("it's--so they say--done", "it 's so they say done"),
    ("tab\tand  spaces   here", "tab and spaces here"),
    ("Recall@0.5 and precision@10s", "recall@0.5 and precision@10s"),
]


@pytest.mark.parametrize("caption", ANSWERS)
def test_stored_answers(caption: str) -> None:
    assert tokenise(caption) == ANSWERS[caption]


@pytest.mark.parametrize(("caption", "tokens"), HARD_ANSWERS)
def test_stored_hard_answers(caption: str, tokens: str) -> None:
    assert tokenise(caption) == tokens
    assert tokenise_by_rules(caption) == tokens


# What the published tokeniser makes of captions that follow each other, line by line.
ONE_TEXT = {
    "Bake it at 350 F.": "bake it at 350 f.",
    "bake it at 350 F. ": "bake it at 350 f",
    "The pan is hot.": "the pan is hot",
    "add a jalape\u00f1o.": "add a jalape o",
    "": "",
    " \n ": "",
    "Then add option B.": "then add option b",
    "This is it, no.": "this is it no.",
    "5 minutes": "5 minutes",
    "it is plan B.": "it is plan b.",
    "Thereafter it boils": "thereafter it boils",
    "a big Jr.": "a big jr.",
    "A": "a",
    "such as a.b.": "such as a.b.",
    "The end of plan C.": "the end of plan c.",
}


def test_captions_as_one_text() -> None:
    captions, tokens = list(ONE_TEXT), list(ONE_TEXT.values())
    text = OneText(captions)
    sequence = np.arange(len(captions))
    assert [text.tokenised[n] for n in text.numbers(sequence)] == tokens
    other = [text.tokenised[n] for n in text.numbers(sequence[::-1])]  # other neighbours
    assert other[-2:] == ["bake it at 350 f.", "bake it at 350 f."]
    assert other[8] == "then add option b."


def test_control_characters_separate() -> None:
    assert tokenise_by_rules("stir\x00the\x7fsoup\r\x0b\x0cnow") == "stir the soup now"
    assert tokenise_by_rules("1\t1/2") == "1 1/2"  # only a space makes one token of the two


def test_published_answers(shared: Path) -> None:
    pairs = json.loads((shared / "parity/eval/ptb_pairs.json").read_text())
    wrong = [(raw, tokens, tokenise(raw)) for raw, tokens in pairs if tokenise(raw) != tokens]
    assert len(pairs) == 4750
    assert not wrong


def test_most_captions_take_the_short_cut(shared: Path) -> None:
    videos = json.loads((shared / "data/yc2/vid2seq_val.json").read_text()).values()
    tokens = [tokenise_ordinary(caption) for video in videos for caption in video["sentences"]]
    assert tokens.count(None) < 0.02 * len(tokens)


WORDS = [
    "add",
    "Oil",
    "cannot",
    "WASH",
    "etc",
    "T",
    "no",
    "gonna",
    "mr",
    "salt",
    "Inc",
    "a",
    "350",
    "x-ray",
]
sentence = st.builds(
    lambda parts, end: "".join(word + gap for word, gap in parts) + end,
    st.lists(
        st.tuples(
            st.sampled_from(WORDS), st.sampled_from([" ", ", ", "  ", ". ", "; ", "! ", " . "])
        ),
        max_size=6,
    ),
    st.sampled_from(["", ".", " .", "salt.", "etc.", "Salt.", "mix. ", "\t"]),
)


@given(sentence)
@settings(max_examples=500, deadline=None)
def test_the_short_cut_changes_nothing(caption: str) -> None:
    tokens = tokenise_ordinary(caption)
    assert tokens is None or tokens == tokenise_by_rules(caption)


ordinary = st.from_regex(r"(?:[A-Za-z0-9-]{1,5}[.,;:!? ]{1,2}){0,6}", fullmatch=True)


@given(ordinary)
@settings(max_examples=500, deadline=None)
def test_the_short_cut_is_exact_where_it_answers(caption: str) -> None:
    tokens = tokenise_ordinary(caption)
    assert tokens is None or tokens == tokenise_by_rules(caption)


NASTY = st.text(alphabet="aAnNtTsS09 .,;:!?'`\"-_/\\()[]{}<>&@#$%*+=~^|\t\x00\x7f", max_size=24)


@given(st.one_of(st.text(max_size=40), NASTY))
@settings(max_examples=500, deadline=None)
def test_any_text_has_tokens(caption: str) -> None:
    tokens = tokenise(caption)
    assert tokens == tokens.lower()
    assert not re.search(r"(?:^| )(?:[.,;:?!]|-|--|\.\.\.|''|``|'|`)(?: |$)", tokens)
    assert "  " not in tokens and tokens == tokens.strip(" ")


@given(st.lists(st.sampled_from(["stir", "the", "soup"]), max_size=8))
def test_plain_words_stay(words: list[str]) -> None:
    assert tokenise(" ".join(words)) == " ".join(words)


HARD = (
    "%.",
    "a.1",
    "www.1",
    "&.a",
    "~.&",
    "1Awww.",
    "a.%",
    "a-1,",
    "a/",
    "d'",
    "a@",
    "<!a ",
    "a. <!",
)


@pytest.mark.parametrize("part", HARD)
def test_work_grows_with_the_length_of_a_caption(part: str) -> None:
    """A caption of runs as long as they may be."""
    run = (part * LONGEST_RUN)[:LONGEST_RUN]

    def tokens(caption: str) -> None:
        tokenise_by_rules(caption)

    assert growth(lambda n: f"{run} " * n, tokens, 4) < NEAR_LINEAR


def test_a_run_that_is_too_long_is_known() -> None:
    assert too_long("stir " * 1000 + "x" * (LONGEST_RUN + 1))
    assert not too_long("stir " * 1000 + "x" * LONGEST_RUN)
    assert not too_long("stir " * 1000 + "x" * LONGEST_RUN + "炒" + "x" * LONGEST_RUN)
