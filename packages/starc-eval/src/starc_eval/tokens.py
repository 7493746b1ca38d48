"""Captions as the published evaluator sees them: Penn Treebank tokens in lower case.

In: a raw caption. Out: its tokens joined by spaces, without punctuation. The rules reproduce what
the Stanford tokeniser 3.4.1 does to a caption that is alone (`OneText`: among others), found by
watching what comes out of it: at every place the rule that reaches furthest wins, the earlier one
of two that reach equally far. Ordinary captions take a short cut that gives the same. A token may
hold a no-break space (`1 1/2` is one), and some spellings are odd (`:)` is `:-rrb-`): scores need
both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LONGEST_RUN = 1000
"""Characters without white space in a caption that can be scored. Rules look ahead to the end of
such a run from each of its tokens, so the work grows with the square of its length."""
_RUN = re.compile(rf"[!-~]{{{LONGEST_RUN + 1}}}")

_words = str.split

# Abbreviations keep their full stop. Two more characters count towards the reach of the first
# kind, so `etc.-a` is three tokens and `mr.-a` is one.
_ENDING = _words("""
    al co ct ga jr ky md mo rd rt sq sr va vt ala apr aug bhd cos dak dec esq est etc ext feb fla
    fri inc ind jan jul jun kan ltd mar mon neb nev nov oct plc sep seq sys tel thu tue wed wis wyo
    ariz assn bldg blvd bros colo conn corp intl kans mich minn mont okla penn sept tenn tues univ
    wisc calif thurs
""")
_LEADING = _words("""
    cf dr ft lt mr ms mt ph st vs wm adj adm adv ave cie col cpl det drs ens gen gov hon jos maj mme
    mrs pfc pvt rep rev sen sfc sgt spc ste alex asst atty brig capt cmdr dept elec govs insp invt
    mlle msgr natl pres prof reps sens supt assoc attys comdr lieut profs supts treas messrs
""")
_STATES = _words("az la pa ark del ill ore tex mass miss wash")  # only with a capital: "WASH."
_FIRMS = _words("mfg mtg pte pty ppte ppty ptes ptys pptes pptys")
_BEFORE_NUMBERS = _words("ca no op pp art fig nos figs prop")
# A single letter loses its full stop before a word that opens a sentence: "So am I. The pan ..."
_OPENERS = _words("""
    about according additionally after earlier here however last many more once other since some
    such that their then there these they this what when while a an as at he if in it so we but her
    now one our she the yet you mr[.] ms[.]
""")
_SPLIT = {"cannot": 3, "gonna": 3, "gotta": 3, "lemme": 3, "gimme": 3, "wanna": 3}
_FILES = _words("""
    c h x gz pl ps py bat bmp cgi cpp dll doc exe gif htm jar jpg mov mp3 pdf php png ppt sql tar
    txt wav xml zip docx html java jpeg
""")


def _any(words: Iterable[str]) -> str:
    """The words in any case."""
    return "(?i:" + "|".join(sorted(words, key=len, reverse=True)) + ")"


def _title(words: Iterable[str]) -> str:
    """The words with a capital first letter, the rest in any case."""
    return "(?:" + "|".join(f"{word[0].upper()}(?i:{word[1:]})" for word in words) + ")"


_L, _W = "[A-Za-z]", "[A-Za-z0-9]"
_APOSTROPHE, _QUOTE = "(?:'|(?i:&apos;))", "(?:['`]|(?i:&apos;))"
_CLITIC = rf"{_APOSTROPHE}(?i:[smd]|ll|re|ve)"
_LETTER = "(?:[A-Za-z]|(?i:&[aeiou](?:acute|grave|uml);))"
_WORD = rf"{_LETTER}(?:{_LETTER}|[0-9])*"
_DOTTED = rf"{_WORD}(?:[.!?]{_WORD})+"
_PART = rf"(?:[dDlLoO]{_QUOTE}{_W}{_W}+|{_W}+)"
_THING = rf"{_PART}(?:[-_]{_PART})*"
_HYPHENATED = rf"{_W}[A-Za-z0-9.,]*+(?:-(?:{_L}(?:\.{_L})+\.|{_W}+))+"
_SLASHED = rf"{_W}+(?:-{_L}+){{0,2}}"
_CAPITALS = "[A-Z]+(?:(?:[+&]|(?i:&amp;))[A-Z]+)+"
_KEPT_STOP = r"\.([,;:])"  # any word keeps a full stop that another sign follows: "tsp.,"
_URL, _URL_END = r'[^\s"<>|(){}]', r'[^\s"<>|(){}.!?,-]'
_HOST, _MAIL = r'[^\s"<>|.!?,(){}]', r'[^\s"<>|(){}.]'
_PATH = rf'(?:/[^\s"<>|()]+{_URL_END})'
_SITE = rf"(?i:www)\.(?:{_HOST}+\.)+[A-Za-z]{{2,4}}"
_EMAIL = rf"{_W}{_URL}*@{_MAIL}+(?:\.{_MAIL}+)*(?:>|(?i:&gt;))?"
_DOMAIN = rf"(?:[a-z#%&*+~]+\.)+(?i:com|net|org|edu){_PATH}?"
_NAME = "[A-Za-z][A-Za-z0-9_.:-]*"
_TAG = (
    rf"""(?:<{_NAME}(?: +{_NAME}(?: *= *(?:"[^"]*"|'[^']*'))?)* *(?:/ *)?>"""
    rf"|</{_NAME} *>|<[!?][A-Za-z-][^>]*>)"
)
_ENDED = rf"(?:{_any([*_ENDING, 'ph[.]d', 'ed[.]d'])}|{_title(_STATES)}|[Pp]{{1,2}}[Tt][ey][Ss]?)\."
_FILE = rf"{_W}+(?:\.{_W}+)*\.{_any(_FILES)}([\s.!?,])"
_NUMBER = r"(?:\d+(?:[.:,]\d+)*|(?:[.:,]\d+)+)"
_FRACTION = r"(?:\d{1,4}[- ])?\d{1,4}\\?/\d{1,4}"
_PHONES = [rf"\+{{0,2}}(?:\d{{2,4}}[- ]){{{n}}}\d{{3,4}}[- ]?\d{{3,5}}" for n in (1, 2)]
_EYE, _ROUND_EYE = "[x=~<>'^-]", "[x=~<>'^]"

# A rule: characters of which the caption must have one (none: always), and a pattern. A group at
# its end counts towards the reach but is left for the next token.
_ALPHANUMERIC = [
    ("@", _EMAIL),
    ("'&", rf"{_W}+({_CLITIC})"),
    ("", rf"{_THING}(?:{_KEPT_STOP})?"),
    ("-", _HYPHENATED),
    ("-", rf"{_HYPHENATED}{_KEPT_STOP}"),
    ("/", rf"{_SLASHED}(?:\\?/{_SLASHED}){{1,2}}"),
    (".", _FILE),
]
_FROM_LETTER = [
    ("", "(?i:can(not)|gon(na)|got(ta)|lem(me)|gim(me)|wan(na))"),
    (":", rf"(?i:https?)://{_URL}+{_URL_END}"),
    (".", _SITE + _PATH),
    (".", _SITE),
    (".", _DOMAIN),
    ("@", _EMAIL),
    ("'`&", rf"[A-Za-z]*[A-MO-Za-mo-z]([nN]{_QUOTE}[tT])"),
    ("'&", rf"{_DOTTED}({_CLITIC})"),
    ("'&", rf"(?:{_W}+|{_WORD})({_CLITIC})"),
    ("'`&", rf"[nN]{_QUOTE}[tT]"),
    ("'&", rf"[yY]{_APOSTROPHE}({_L})"),
    ("&", rf"{_WORD}(?:{_KEPT_STOP})?"),
    ("'`&", rf"[A-HJ-XZn]{_QUOTE}{_L}{_L}+"),
    ("'`&", rf"{_L}+[aeiouyAEIOUY]{_QUOTE}[aeiouA-Z]{_L}*"),
    ("'&", rf"[dDlLjJ]{_APOSTROPHE}"),
    ("'", "(?i:e'er|ev'ry|c'est|c'mon|li'l|cap'n|nat'l)"),
    ("'`&", rf"(?i:ol{_APOSTROPHE}|dunkin{_APOSTROPHE}|o{_QUOTE}o)"),
    ("&+", rf"{_CAPITALS}(?:{_KEPT_STOP})?"),
    (".!?", rf"{_DOTTED}(?:{_KEPT_STOP})?"),
    (".", rf"(?:{_L}\.)+{_L}?"),
    (".", rf"(?:{_any(_LEADING)}|[mM][ft][gG])\."),
    (".", _ENDED),
    (".", rf"{_ENDED}(..)"),
    (".", rf"{_any(_BEFORE_NUMBERS)}\.(\s?\d)"),
    (".", rf"{_L}(\.\s+{_title(_OPENERS)}\s)"),
    (">", rf"{_L}(\.\s+{_TAG}\s)"),
    ("$", r"[A-Z]+\$"),
    ("#+", r"(?i:[cf]#|c\+\+)"),
    ("_", rf"x_{_EYE}"),
    *_ALPHANUMERIC,
]
_FROM_DIGIT = [
    *_ALPHANUMERIC,
    ("", _NUMBER),
    ("/", _FRACTION),
    (" -", _PHONES[0]),
    (" -", _PHONES[1]),
    ("-/", r"\d{1,2}[-/]\d{1,2}[-/]\d{2,4}"),
]
_FROM_SIGN = [
    ("<&", rf"(?:<|(?i:&lt;)){_EMAIL}"),
    ("'&", rf"{_CLITIC}([^A-Za-z])"),
    ("'", "(?i:'t(is|was))"),
    ("&", rf"{_DOTTED}({_CLITIC})"),
    ("&", rf"{_WORD}({_CLITIC})"),
    ("&", rf"{_WORD}(?:{_KEPT_STOP})?"),
    ("&", rf"{_DOTTED}(?:{_KEPT_STOP})?"),
    ("'&", rf"{_APOSTROPHE}(?i:n{_APOSTROPHE}|till?|em|cause|[2-9]0s)"),
    ("'&", rf"{_APOSTROPHE}\d\d(\s)"),
    ("'&", rf"{_APOSTROPHE}[nN]"),
    ("&", r"(?i:&(?:amp|[lg]t|nbsp|md|[mn]dash|ht|tl|ur|lr|q[clr]|[oc]dq|quot|apos|#\d+);)"),
    ("#%&*+~", _DOMAIN),
    ("#", rf"#{_LETTER}+"),
    ("@", "@[A-Za-z_][A-Za-z_0-9]*|@@+"),
    ("+-.:,", rf"[+-]?{_NUMBER}"),
    ("(", r"\(\d{2,3}\) ?\d{3,4}[- ]?\d{3,5}"),
    ("+", _PHONES[0]),
    ("+", _PHONES[1]),
    ("-", "(?i:-[lr][rsc]b-)"),
    ("", r"#+|_+|\*+|\\\*|[?!]+|\.{3,5}|\.(?: \.){2,4}|--+|''|``|<<|>>"),
    ("'", rf"'({_L}\S)"),
    ("'&", _CLITIC),
    (">", _TAG),
    (":;=", r"[<>]?[:;=]['*o-]?[()DdPpO|\\{@\[\]]([^A-Za-z0-9])"),
    ("_", rf"{_EYE}_{_EYE}"),
    ("(", rf"\((?:{_EYE}[._]?{_EYE}|{_ROUND_EYE}-{_ROUND_EYE})\)"),
]
_MARKS = frozenset("'`&@:./-_<>(+$#!?;= %*~,")

_EASY = re.compile(r"\s*(?:([A-Za-z]+)[,;:!?]?(?=\s))?")
_SPELLING = dict(zip("()[]{}", _words("-lrb- -rrb- -lsb- -rsb- -lcb- -rcb-"), strict=True))
_SPELLING |= {"&amp;": "&", "&lt;": "<", "&gt;": ">"}
_SPELLING |= dict.fromkeys(_words("&nbsp; &md; &mdash; &ndash; -- --- ---- '' ``"), "")
_SPELLING |= dict.fromkeys("-.,;:!?'`\"", "")
_NON_ASCII = re.compile(r"[^\x00-\x7f]|\n")
_CONTROLS = dict.fromkeys([*range(32), 127], "\t")

# "... with a capital T." Alone, the letter would keep its full stop. But the published evaluator
# reads all captions as one text, and the golden numbers have it as the end of a sentence, which it
# is where the next caption begins with such a word as "She". `OneText` looks at the next caption.
_LAST_LETTER = re.compile(r"\s*[A-Z].*(?<![A-Za-z0-9.])[A-Z]\.", re.DOTALL)

_ORDINARY = re.compile(
    r" *(?:(?:[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*[.,;:!?]?|[.,;:!?])(?: +(?!(?<=\d )\d)|\Z))*"
)
_UNPUNCTUATED = str.maketrans(dict.fromkeys(".,;:!?", " "))
_CAREFUL = {
    *(word + sign for word in _SPLIT for sign in ["", *".,;:!?"]),
    *(word + "." for word in (*_ENDING, *_LEADING, *_STATES, *_FIRMS, *_BEFORE_NUMBERS)),
    *(letter + "." for letter in "abcdefghijklmnopqrstuvwxyz"),
}


@lru_cache(maxsize=1 << 17)
def tokenise(caption: str) -> str:
    """The tokens of a caption, lower-cased, joined by spaces, punctuation left out."""
    text = _as_ascii(caption)
    tokens = tokenise_ordinary(text)
    if tokens is not None:
        return tokens
    return tokenise_by_rules(text.removesuffix(".") if _LAST_LETTER.fullmatch(text) else text)


def too_long(caption: str) -> bool:
    """Whether a caption has a run of characters that is longer than can be scored."""
    return len(caption) > LONGEST_RUN and _RUN.search(caption) is not None


def _as_ascii(caption: str) -> str:
    """A caption on one line, without the characters that the published evaluator leaves out."""
    if caption.isascii() and "\n" not in caption:
        return caption
    return _NON_ASCII.sub(" ", caption)


class OneText:
    """Captions as lines of one text, which is how the published tokeniser reads those of a run.

    Where a caption ends in one letter and a full stop, or in `no.`, it depends on the next caption
    whether the stop stays, so a caption may have several readings.
    """

    tokenised: list[str]
    """The readings: first those of the captions as last lines, by number, then others."""

    def __init__(self, captions: Sequence[str]) -> None:
        self._lines = [_as_ascii(caption) for caption in captions]
        ordinary = [tokenise_ordinary(line) for line in self._lines]
        self._open = np.array([tokens is None for tokens in ordinary], bool)
        self.tokenised = [
            tokenise_by_rules(line) if tokens is None else tokens
            for line, tokens in zip(self._lines, ordinary, strict=True)
        ]
        self._numbers = {(n, tokens): n for n, tokens in enumerate(self.tokenised)}

    def numbers(self, caption_X: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the readings, where the captions follow each other like this."""
        reading_X = caption_X.copy()
        for place in np.flatnonzero(self._open[caption_X]).tolist():
            caption = int(caption_X[place])
            following = ""
            for n in caption_X[place + 1 :].tolist():
                following += self._lines[n] + "\n"
                if following.strip():
                    break
            tokens = tokenise_by_rules(self._lines[caption], following)
            number = self._numbers.setdefault((caption, tokens), len(self.tokenised))
            if number == len(self.tokenised):
                self.tokenised.append(tokens)
            reading_X[place] = number
        return reading_X


def tokenise_ordinary(text: str) -> str | None:
    """The tokens of an ordinary caption: words, whole numbers, hyphens and signs before a space.

    None for anything that may not be ordinary: abbreviations, `cannot`, two numbers in a row.
    """
    if _ORDINARY.fullmatch(text) is None:
        return None
    words = text.lower().split()
    if not _CAREFUL.isdisjoint(words):
        return None
    return " ".join(" ".join(words).translate(_UNPUNCTUATED).split())


def tokenise_by_rules(text: str, following: str = "") -> str:
    """The tokens of any ASCII text, by the full set of rules, where these lines follow.

    Control characters separate tokens; so do those that end a line, which a caption cannot hold.
    """
    last = len(text)
    text = text.translate(_CONTROLS) + "\n" + following
    marks = _MARKS.intersection(text)
    last_tag, untagged = text.rfind(">"), marks - {">"}  # from there on no tag is looked for
    tokens: list[str] = []
    place = 0
    while True:
        easy = _EASY.match(text, place)
        assert easy is not None  # it matches the empty string
        place = easy.end()
        if (place if easy[1] is None else easy.start(1)) >= last:
            return " ".join(filter(None, tokens))
        if word := easy[1]:
            lowered = word.lower()
            cut = _SPLIT.get(lowered, len(lowered))
            tokens += (lowered[:cut], lowered[cut:])
        else:
            stop = _stop(text, place, marks if place < last_tag else untagged)
            tokens.append(_spelled(text[place:stop]))
            place = stop


def _stop(text: str, place: int, marks: frozenset[str]) -> int:
    """Where the token that begins at `place` ends."""
    first = text[place]
    reach, stop = place, place + 1
    for pattern in _patterns(first.isalpha(), first.isdigit(), marks):
        match = pattern.match(text, place)
        if match is not None and match.end() > reach:
            reach = match.end()
            stop = match.start(match.lastindex) if match.lastindex else reach
    return stop


@lru_cache(maxsize=4096)
def _patterns(letter: bool, digit: bool, marks: frozenset[str]) -> list[re.Pattern[str]]:
    """The rules for a token with this first character in a caption with these marks."""
    rules = _FROM_LETTER if letter else _FROM_DIGIT if digit else _FROM_SIGN
    return [
        re.compile(rule, re.DOTALL)
        for needs, rule in rules
        if not needs or not marks.isdisjoint(needs)
    ]


def _spelled(token: str) -> str:
    """How a token is written in the end; empty if it is dropped."""
    lowered = token.lower()
    if lowered in _SPELLING:
        return _SPELLING[lowered]
    if "&" in token:
        if token in ("&quot;", "&apos;"):  # in capitals they are kept
            return ""
        if re.fullmatch(rf"{_CAPITALS}\.?", token):
            return lowered.replace("&amp;", "&")
        if re.fullmatch(rf"[nN]&apos;[tT]|{_CLITIC}", token) and "&apos;" in token:
            return lowered.replace("&apos;", "'")
    if set(token) <= {".", " "}:
        return ""
    lowered = lowered.replace(" ", "\u00a0")
    if token[0] == "<" and token[-1] == ">":
        return lowered
    return lowered.replace("(", "-lrb-").replace(")", "-rrb-")
