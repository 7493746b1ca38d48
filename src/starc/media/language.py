"""Whether a text is English: by its letters, and by the small words that every language has.

For subtitles and transcripts, which are right whatever their language; what a recogniser of English
makes of another language consists of English words (speech.py hears those again instead).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

MIN_WORDS = 8
"""Fewer words say nothing about the language."""
FEWEST_LATIN = 0.5
"""Share of Latin letters in English at least."""
FOREIGN = 0.08
"""Share of another language's small words from which a text may be in it."""
ENGLISH = (
    "the and a an to of in is it you that we this for on with so i are be your have can just was "
    "not if at or as by from will there what they then don't it's i'm do all my me but"
)
# fmt: off
OTHERS = {
    "German": "und der die das ist nicht ein eine ich wir sie mit auf für den dem von zu auch noch "
    "wenn aber es jetzt dann habe haben hat sind wird zum im sich",
    "French": "le la les des et est une un dans pour avec pas vous nous je que qui sur ce du "
    "il elle on c'est au plus mais de en",
    "Spanish": "el la los las y es una un con para por que de en no se lo más muy pero su al del "
    "como esta este vamos",
    "Italian": "il la le e è di che un una con per non si nel della questo poi ma i gli lo dei "
    "sono anche più",
    "Portuguese": "o os as e é de que um uma com para não se na do da em mais você por vai isso "
    "aqui muito",
    "Dutch": "de het een en van ik je dat niet met op voor dan nog ook maar hij wat dit zijn naar "
    "heb er",
    "Polish": "i w na z do się nie to jest że a jak ale po tak co już od za przez teraz",
    "Swedish": "och att det som en ett är på för med den av till inte jag vi kan så har om men nu",
    "Turkish": "ve bir bu için da de ile çok ne var ama şimdi gibi olarak daha kadar sonra",
    "Indonesian": "yang dan di ini itu untuk dengan dari tidak ke kita saya ada akan bisa sudah",
}
# fmt: on
_ENGLISH = frozenset(ENGLISH.split())
_OTHERS = {name: frozenset(words.split()) - _ENGLISH for name, words in OTHERS.items()}


def why_foreign(texts: Iterable[str]) -> str | None:
    """What shows that sentences are not English; None where they may be."""
    text = " ".join(texts).lower().replace("’", "'")
    scripts = Counter(unicodedata.name(c, "?").split()[0] for c in text if c.isalpha())
    letters = scripts.total()
    if letters >= MIN_WORDS and scripts["LATIN"] < FEWEST_LATIN * letters:
        name = max(scripts, key=lambda script: (script != "LATIN") * scripts[script])
        return f"written in {name if name == 'CJK' else name.capitalize()} letters"
    words = Counter(re.findall(r"\b[^\W\d_]+(?:'[^\W\d_]+)?\b", text))
    if words.total() < MIN_WORDS:
        return None
    found = {name: sum(words[word] for word in small) for name, small in _OTHERS.items()}
    name = max(found, key=found.__getitem__)
    english = sum(words[word] for word in _ENGLISH)
    if found[name] > max(english, FOREIGN * words.total()):
        return f"{name} words"
    return None
