"""What people correct, kept as versions: checked, never overwritten, ready to train on.

A save writes a whole new record beside the old ones, in one step, and only if nobody else has
saved since: the page says which version it has seen last. Undoing a save is opening an older
version and saving it again. `training_line` is the form that `starc train` reads.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from starc.errors import StarcError, VideoError
from starc.files.atomic import make_folders, replacing
from starc.media.video import probe
from starc.types import Captioned, Event
from starc.viewer.library import LAST_VERSION, Item, read_item, version_path, versions_in
from starc.viewer.records import read_captioned

MOST_EVENTS = 5_000
LONGEST_CAPTION = 2_000
PERSON = ("person",)


class Export(NamedTuple):
    """A kind of file that a version can be downloaded as."""

    ending: str
    render: Callable[[Captioned], str]
    media_type: str = "text/plain; charset=utf-8"


class Edited(NamedTuple):
    """An event as somebody left it; the page may say that a person made its times or words."""

    start: float
    end: float
    caption: str
    times_from: tuple[str, ...] | None = None
    words_from: tuple[str, ...] | None = None


class EditRefused(StarcError):
    """The events cannot be saved as they are; `details` has a line for each problem."""

    def __init__(self, *problems: tuple[int | None, str]) -> None:
        """Each problem is the number of an event, or None, and what is wrong with it."""
        super().__init__("; ".join(message for _, message in problems[:3]))
        self.details = {"problems": [{"event": n, "message": text} for n, text in problems]}


class EditConflict(StarcError):
    status = 409

    def __init__(self, newest: int) -> None:
        super().__init__(f"version {newest} was saved in the meantime; reload to see it")
        self.details = {"newest": newest}


def draft(item: Item, version: int | None = None) -> Captioned | None:
    """The record to show or edit; a video nobody captioned starts with no events."""
    captioned = read_item(item, version)
    if captioned is None and item.record is None and item.video is not None and not version:
        try:
            captioned = Captioned(item.video.name, probe(item.video).duration, ())
        except VideoError as error:  # for the page, which must not learn where files lie
            raise VideoError(str(error).replace(str(item.video), item.video.name)) from None
    return captioned


def saved_at(item: Item) -> list[str | None]:
    """When each version was saved (ISO 8601), oldest first; None where it does not say."""
    return [_saved_at(version_path(item.edits, number)) for number in item.versions]


def _saved_at(path: Path) -> str | None:
    try:
        return _read_date(path, path.lstat().st_mtime_ns)
    except (OSError, StarcError):
        return None


@lru_cache(maxsize=4096)
def _read_date(path: Path, _changed: int) -> str | None:
    return read_captioned(path).provenance.get("corrected")


def checked(
    events: Sequence[Edited | tuple[float, float, str]],
    *,
    duration: float,
    known: Sequence[Event] = (),
) -> tuple[Event, ...]:
    """Events in order of time; one that is as it was in `known` stays as it was there.

    To the millisecond, which is what subtitles keep. What was changed is by a person: the words,
    the times or both.
    """
    if len(events) > MOST_EVENTS:
        raise EditRefused((None, f"{len(events)} events; at most {MOST_EVENTS}"))
    problems, valid = [], []
    before = _Known(known)
    for n, edited in enumerate(events):
        start, end, text, times_from, words_from = Edited(*edited)
        # A caption is one line; control characters and half characters have no place in one.
        line = re.sub(r"[\r\n\t]+", " ", text)
        caption = "".join(c for c in line if unicodedata.category(c) not in ("Cc", "Cs")).strip()
        if problem := _problem(start, end, caption, duration):
            problems.append((n, f"event {n + 1}: {problem}"))
        elif same := before.event(start, end, caption):
            valid.append(same)
        else:
            times_from = _origin(times_from, before.times_from(start, end))
            words_from = _origin(words_from, before.words_from(start, caption))
            event = Event(start, end, caption, times_from=times_from, words_from=words_from)
            valid.append(event)
    if problems:
        raise EditRefused(*problems)
    return tuple(sorted(valid, key=lambda event: (event.start, event.end)))


def _origin(said: tuple[str, ...] | None, known: tuple[str, ...] | None) -> tuple[str, ...]:
    """What the record has. The page may say only that a person did it, or that nobody knows."""
    if said in ((), PERSON):
        return said
    return PERSON if known is None else known


class _Known:
    """Events that were there, by their times, their words, or both."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = {(*_ms(event.start, event.end), event.caption): event for event in events}
        self._times = {_ms(event.start, event.end): event.times_from for event in events}
        self._words: dict[str, list[Event]] = {}
        for event in events:
            self._words.setdefault(event.caption, []).append(event)

    def event(self, start: float, end: float, caption: str) -> Event | None:
        return self._events.get((*_ms(start, end), caption))

    def times_from(self, start: float, end: float) -> tuple[str, ...] | None:
        return self._times.get(_ms(start, end))

    def words_from(self, start: float, caption: str) -> tuple[str, ...] | None:
        """Of the nearest event with these words."""
        same = self._words.get(caption)
        return min(same, key=lambda event: abs(event.start - start)).words_from if same else None


def _ms(start: float, end: float) -> tuple[int, int]:
    return round(start * 1000), round(end * 1000)


def save(item: Item, events: Sequence[Edited | tuple[float, float, str]], *, seen: int) -> int:
    """Write the next version and return its number; `seen` is the newest the editor knew."""
    item = replace(item, versions=versions_in(item.edits))
    if seen != item.newest:
        raise EditConflict(item.newest)
    if item.newest >= LAST_VERSION:
        last = version_path(item.edits, item.newest).name
        raise EditRefused((None, f"{last} is the last version there can be; rename that file"))
    current, original = draft(item), read_item(item, 0)
    if current is None:
        raise EditRefused((None, "this video has no record to correct"))
    known = [*(original.events if original else ()), *current.events]
    version, now = item.newest + 1, datetime.now(UTC).isoformat(timespec="seconds")
    corrected = replace(
        current,
        events=checked(events, duration=current.duration, known=known),
        reason="" if events else current.reason,
        provenance={**current.provenance, "corrected": now, "version": str(version)},
    )
    if item.edits.is_symlink() or item.edits.parent.is_symlink():
        raise EditRefused((None, "the folder of versions is a link; remove it"))
    make_folders(item.edits)
    try:
        with replacing(version_path(item.edits, version), new=True) as file:
            json.dump(corrected.to_json(), file)
    except FileExistsError:
        raise EditConflict(version) from None
    return version


def _problem(start: float, end: float, caption: str, duration: float) -> str | None:
    if not (math.isfinite(start) and math.isfinite(end)):
        return "its times must be numbers"
    if not 0 <= start < end:
        return f"it must start before it ends ({start:g} to {end:g} s)"
    if end > duration + 1e-6:
        return f"it ends at {end:g} s, after the video ({duration:g} s)"
    if not caption:
        return "it has no caption"
    if len(caption) > LONGEST_CAPTION:
        return f"its caption has {len(caption)} characters; at most {LONGEST_CAPTION}"
    return None


def training_line(captioned: Captioned) -> str:
    """One JSON Lines record of `starc train`: the video, its duration and its events."""
    video = re.split(r"[/\\]", captioned.video)[-1]
    events = [{"start": e.start, "end": e.end, "caption": e.caption} for e in captioned.events]
    record = {"video": video, "duration": captioned.duration, "events": events}
    return json.dumps(record) + "\n"


EXPORTS: Mapping[str, Export] = {
    "training": Export("jsonl", training_line, "application/jsonl"),
    "json": Export("json", lambda made: json.dumps(made.to_json()), "application/json"),
}
"""The viewer's own; `create_app` adds those it is handed."""
