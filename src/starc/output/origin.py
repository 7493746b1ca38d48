"""What a record says of where its events come from, in words; `static/evidence.js` says the same.

Nothing here infers: an event whose record is silent is of unknown origin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from starc.output.chapters import INTRODUCTION
from starc.types import SOURCES, Captioned, Event

PHRASES = {
    "speech": "from the speech",
    "pictures": "from the pictures",
    "datastore": "from the datastore",
    "person": "by a person",
}
NOT_USED = "Also computed, not used for these captions"
UNKNOWN_USE = "Also in the record; whether it was used is unknown"


def phrase(sources: Collection[str]) -> str:
    """("pictures", "datastore") as "from the pictures and the datastore"."""
    words = [PHRASES[source] for source in SOURCES if source in sources]
    if not words:
        return "unknown"
    first, *rest = words
    if first.startswith("from "):
        rest = [word.removeprefix("from ") for word in rest]
    return " and ".join([", ".join([first, *rest[:-1]]), *rest[-1:]])


def why_not(captioned: Captioned) -> str:
    """Why a video without events was not captioned, as a sentence; or ""."""
    if captioned.events or not captioned.reason:
        return ""
    end = "" if captioned.reason.endswith((".", "!", "?")) else "."
    return f"Not captioned: {captioned.reason}{end}"


def of_event(event: Event) -> str:
    """Where its times and its words come from, in one line."""
    return f"Times: {phrase(event.times_from)} · Words: {phrase(event.words_from)}"


def used(captioned: Captioned, *sources: str) -> bool | None:
    """Whether any of `sources` took part in any event; None if the record does not say."""
    if any({*sources} & {*event.times_from, *event.words_from} for event in captioned.events):
        return True
    known = captioned.events and all(e.times_from and e.words_from for e in captioned.events)
    return False if known else None


def of_words(captioned: Captioned) -> str:
    """Who or what wrote the captions, for a note: "written from the speech by MODEL"; or ""."""
    titled = [e for e in captioned.events if e.words_from or e.caption != INTRODUCTION]
    origins = list(dict.fromkeys(event.words_from for event in titled))
    parts = [_written(origin, captioned) for origin in origins]
    return "; ".join(parts) if len(parts) > 1 or (origins and origins[0]) else ""


def _written(sources: Iterable[str], captioned: Captioned) -> str:
    chosen = tuple(sources)
    if not chosen:
        return "of unknown origin"
    model = "" if chosen == ("person",) else captioned.provenance.get("model", "")
    return f"written {phrase(chosen)}" + (f" by {model}" if model else "")
