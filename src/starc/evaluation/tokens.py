"""Captions as the published evaluator sees them: the tokens of a Penn Treebank tokeniser, in lower
case.

In: a raw caption. Out: its tokens joined by spaces, without punctuation. The rules reproduce what
the Stanford tokeniser 3.4.1 does to a caption alone, found by watching what comes out of it; like
a lexer it takes, at every place, the rule that reaches furthest. Plain captions take a short cut
that gives the same. A token may hold a no-break space: `1 1/2` is one.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["exact", "plain", "tokenise"]


def _words(text: str) -> list[str]:
    return text.split()


# Abbreviations keep their full stop. Those of the first kind may also end a sentence.
_ENDING = _words("""
    al co ct ga jr ky md mo rd rt sq sr va vt ala apr aug bhd cos dak dec esq est etc ext
    feb fla fri inc ind jan jul jun kan ltd mar mon neb nev nov oct plc sep seq sys tel thu
    tue wed wis wyo ariz assn bldg blvd bros colo conn corp intl kans mich minn mont okla
    penn sept tenn tues univ wisc calif thurs ph[.]d ed[.]d
""")
_ALWAYS = _words("""
    cf dr ft lt mr ms mt ph st vs wm adj adm adv ave cie col cpl det drs ens gen gov hon jos
    maj mme mrs pfc pvt rep rev sen sfc sgt spc ste alex asst atty brig capt cmdr dept elec
    govs insp invt mlle msgr natl pres prof reps sens supt assoc attys comdr lieut profs
    supts treas messrs
""")
_CAPITALISED = _words("az la pa ark del ill ore tex mass miss wash")
_BEFORE_NUMBERS = _words("ca no op pp art fig nos figs prop")
# After a single letter and a full stop these words begin a new sentence.
_OPENERS = _words("""
    about according additionally after earlier here however last many more once other since
    some such that their then there these they this what when while a an as at he if in it
    so we but her now one our she the yet you
""")
_TWO_WORDS = {"cannot", "gonna", "gotta", "lemme", "gimme", "wanna"}
_FILES = _words("""
    c h x gz pl ps py bat bmp cgi cpp dll doc exe gif htm jar jpg mov mp3 pdf php png ppt
    sql tar txt wav xml zip docx html java jpeg
""")


def _any(words: list[str]) -> str:
    return "(?:" + "|".join(sorted(words, key=len, reverse=True)) + ")"


def _title(words: list[str]) -> str:
    """The words with a capital first letter, the rest in any case."""
    return _any([w[0].upper() + "".join(f"[{c}{c.upper()}]" for c in w[1:]) for w in words])


_L, _W = "[A-Za-z]", "[A-Za-z0-9]"
_APOS, _QUOTE = "(?:'|&[aA][pP][oO][sS];)", "(?:['`]|&[aA][pP][oO][sS];)"
_LETTER = "(?:[A-Za-z]|&[aeiouAEIOU](?:[aA][cC][uU][tT][eE]|[gG][rR][aA][vV][eE]|[uU][mM][lL]);)"
_WORD = rf"{_LETTER}(?:{_LETTER}|[0-9])*"
_PART = rf"(?:[dDlLoO]{_QUOTE}{_W}{_W}+|{_W}+)"
_THING = rf"{_PART}(?:[-_]{_PART})*"
_CLITIC = rf"{_APOS}(?:[smd]|ll|re|ve)"
_NAME = "[A-Za-z][A-Za-z0-9_.:-]*"
_TAG = (
    rf"""(?:<{_NAME}(?: +{_NAME}(?: *= *(?:"[^"]*"|'[^']*'))?)* *(?:/ *)?>"""
    rf"|</{_NAME} *>|<[!?][A-Za-z-][^>]*>)"
)
_URL, _URL_END = r'[^\s"<>|(){}]', r'[^\s"<>|(){}.!?,-]'
_HOST, _MAIL = r'[^\s"<>|.!?,(){}]', r'[^\s"<>|(){}.]'
_PATH = rf'(?:/[^\s"<>|()]+{_URL_END})'
_SITE = rf"www\.(?:{_HOST}+\.)+[a-z]{{2,4}}"
_HYPHENATED = rf"{_W}[A-Za-z0-9.,]*(?:-(?:{_L}(?:\.{_L})+\.|{_W}+))+"
_SLASHED = rf"{_W}+(?:-{_L}+){{0,2}}"
_EYE = "[x=~<>'^-]"
_ABBREVIATION = _any(_ENDING) + r"\."
_STATE = rf"(?:{_title(_CAPITALISED)}|[Pp]{{1,2}}[Tt][ey][Ss]?)\."


def _any_case(pattern: str) -> str:
    return f"(?i:{pattern})"


# The rule that reaches furthest wins, of two that reach equally far the first. A group at the end
# of a rule counts towards its reach but is left for the next token.
_RULES = [
    re.compile(rule, re.S)
    for rule in [
        _any_case("can(not)|gon(na)|got(ta)|lem(me)|gim(me)|wan(na)"),
        # addresses
        _any_case(rf"https?://{_URL}+{_URL_END}"),
        _any_case(_SITE + _PATH),
        _any_case(_SITE),
        rf"(?:[a-z#%&*+~]+\.)+(?:[cC][oO][mM]|[nN][eE][tT]|[oO][rR][gG]|[eE][dD][uU]){_PATH}?",
        rf"(?:<|&[lL][tT];)?{_W}{_URL}*@{_MAIL}+(?:\.{_MAIL}+)*(?:>|&[gG][tT];)?",
        # what an apostrophe joins
        rf"[A-Za-z]*[A-MO-Za-mo-z]([nN]{_QUOTE}[tT])",
        _any_case(rf"{_WORD}(?:[.!?]{_WORD})+({_CLITIC})"),
        _any_case(rf"(?:{_W}+|{_WORD})({_CLITIC})"),
        _any_case(rf"n{_QUOTE}t"),
        _any_case(rf"{_CLITIC}([^A-Za-z])"),
        _any_case("'t(is|was)"),
        rf"[yY]{_APOS}({_L})",
        # words
        _WORD,
        rf"{_WORD}\.([,;:])",
        rf"{_THING}(?:\.([,;:]))?",
        _THING,
        rf"[A-HJ-XZn]{_QUOTE}{_L}{_L}+",
        rf"{_L}+[aeiouyAEIOUY]{_QUOTE}[aeiouA-Z]{_L}*",
        rf"[dDlLjJ]{_APOS}",
        _any_case(
            rf"{_APOS}n{_APOS}|{_APOS}till?|{_APOS}em|{_APOS}cause|{_APOS}[2-9]0s|e'er|ev'ry|c'est"
            rf"|c'mon|li'l|cap'n|nat'l|ol{_APOS}|o{_QUOTE}o|dunkin{_APOS}"
        ),
        rf"{_APOS}\d\d(\s)",
        _any_case(
            r"&(?:amp|lt|gt|nbsp|md|mdash|ndash|ht|tl|ur|lr|qc|ql|qr|odq|cdq|quot|apos|#\d+);"
        ),
        _any_case(rf"{_APOS}n"),
        rf"{_SLASHED}(?:\\?/{_SLASHED}){{1,2}}",
        r"[A-Z]+(?:(?:[+&]|&[aA][mM][pP];)[A-Z]+)+(?:\.([,;:]))?",
        rf"{_WORD}(?:[.!?]{_WORD})+(?:\.([,;:]))?",
        rf"(?:{_L}\.)+(?:{_L})?",
        # numbers and signs
        r"[+-]?(?:\d+(?:[.:,]\d+)*|(?:[.:,]\d+)+)",
        rf"#{_LETTER}+",
        "#+",
        "@[A-Za-z_][A-Za-z_0-9]*",
        r"@@+|_+|\*+|\\\*|[?!]+|[.]{3,5}|--+|''|``",
        rf"'({_L}\S)",
        _any_case(_CLITIC),
        r"[A-Z]+\$",
        "<<|>>",
        # abbreviations
        _any_case(rf"{_any(_ALWAYS)}\."),
        r"[mM][ft][gG]\.",
        _any_case(_ABBREVIATION),
        _any_case(rf"{_ABBREVIATION}(..)"),
        _STATE,
        rf"{_STATE}(..)",
        _HYPHENATED,
        rf"{_HYPHENATED}\.([,;:])",
        _any_case(rf"{_any(_BEFORE_NUMBERS)}\.(\s?\d)"),
        # fractions, telephone numbers, dates, files
        r"(?:\d{1,4}[- ])?\d{1,4}\\?/\d{1,4}",
        r"\(\d{2,3}\) ?\d{3,4}[- ]?\d{3,5}",
        r"\+{0,2}\d{2,4}[- ]\d{3,4}[- ]?\d{3,5}",
        r"\+{0,2}\d{2,4}[- ]\d{2,4}[- ]\d{3,4}[- ]?\d{3,5}",
        r"\d{1,2}[-/]\d{1,2}[-/]\d{2,4}",
        _any_case(rf"{_W}+(?:\.{_W}+)*\.{_any(_FILES)}([\s.!?,])"),
        # tags, brackets, smileys
        _TAG,
        _any_case("-[lr][rsc]b-"),
        _any_case(r"[cf]#|c\+\+"),
        r"[<>]?[:;=]['*o-]?[()DdPpO|\\{@\[\]]([^A-Za-z0-9])",
        rf"{_EYE}_{_EYE}",
        rf"\((?:{_EYE}[._]?{_EYE}|[x=~<>'^]-[x=~<>'^])\)",
        # a single letter before a new sentence
        rf"{_L}(\.\s+(?:{_title(_OPENERS)}|{_TAG})\s)",
    ]
]
_LONE_WORD = re.compile(r"[A-Za-z]+(?=\s)")
_BRACKETS = dict(zip("()[]{}", _words("-lrb- -rrb- -lsb- -rsb- -lcb- -rcb-"), strict=True))
_DROPPED = re.compile(r"""-{1,4}|[.]+|[;:,?!"]|['`]|''|``""")
_ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">"}
_SILENT = {"&quot;", "&apos;", "&nbsp;", "&md;", "&mdash;", "&ndash;"}
_ENCODED_CLITIC = re.compile(r"(?:n|&apos;)(?:&apos;)?(?:t|[smd]|ll|re|ve)", re.I)
_CONTROLS = dict.fromkeys([*range(32), 127], 9)
# "… with a capital T." Alone, the letter would keep its full stop. But the published evaluator
# reads all captions as one text, and the golden numbers have it as the end of a sentence, which it
# is where the next caption begins with a capital too.
_LAST_LETTER = re.compile(r"\s*[A-Z].*(?<![A-Za-z0-9.])[A-Z]\.\s*", re.S)
_ODD = re.compile(r"[^\x00-\x7f]|\n")

_PLAIN = re.compile(r"\s*[A-Za-z]+(?:,?\s+[A-Za-z]+)*(?:\s*\.)?\s*", re.A)
_PLAIN_WORD = re.compile("[A-Za-z]+")
_STOPPED = re.compile(r"([A-Za-z]+)\.\s*$")
_ABBREVIATIONS = {*_ENDING, *_ALWAYS, *_CAPITALISED, *_BEFORE_NUMBERS, "mfg", "mtg", "pty", "ppty"}


@lru_cache(maxsize=262_144)
def tokenise(caption: str) -> str:
    """The tokens of a caption, lower-cased, joined by spaces, punctuation left out."""
    caption = _ODD.sub(" ", caption)
    found = plain(caption)
    return exact(caption) if found is None else found


def plain(caption: str) -> str | None:
    """The same for letters, spaces, commas and one last full stop; None for anything harder."""
    if not _PLAIN.fullmatch(caption):
        return None
    words = _PLAIN_WORD.findall(caption)
    stopped = _STOPPED.search(caption)
    if stopped:
        last = stopped.group(1)
        if len(last) < 3 or not last.islower() or last in _ABBREVIATIONS:
            return None
    lowered = [word.lower() for word in words]
    return None if _TWO_WORDS.intersection(lowered) else " ".join(lowered)


def exact(caption: str) -> str:
    """The same by the full set of rules, for ASCII text."""
    if _LAST_LETTER.fullmatch(caption):
        caption = caption.rstrip().removesuffix(".")
    text = caption.translate(_CONTROLS) + "\n"
    tokens = []
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        stop = _stop(text, place)
        token = _spelled(text[place:stop])
        place = stop
        if token is not None:
            tokens.append(token)
    return " ".join(tokens)


def _stop(text: str, place: int) -> int:
    """Where the token that begins at `place` ends."""
    word = _LONE_WORD.match(text, place)
    if word and word.group().lower() not in _TWO_WORDS:
        return word.end()
    reach, stop = place, place + 1
    for rule in _RULES:
        found = rule.match(text, place)
        if found and found.end() > reach:
            reach = found.end()
            stop = found.start(found.lastindex) if found.lastindex else reach
    return stop


def _spelled(token: str) -> str | None:
    """How a token is written in the end; None if it is dropped."""
    if "&" in token:
        lowered = token.lower()
        if lowered in _SILENT:
            return None
        token = _ENTITIES.get(lowered, token)
        if "&amp;" in lowered and "A" <= token[0] <= "Z" and "@" not in token and ":" not in token:
            token = lowered.replace("&amp;", "&")
        if _ENCODED_CLITIC.fullmatch(token):
            token = token.replace("&apos;", "'")
    if _DROPPED.fullmatch(token):
        return None
    token = token.replace(" ", "\u00a0")
    if len(token) == 1:
        token = _BRACKETS.get(token, token)
    elif not (token[0] == "<" and token[-1] == ">"):
        token = token.replace("(", "-lrb-").replace(")", "-rrb-")
    return token.lower()
