"""What people correct, kept as versions: checked, never overwritten, ready to train on.

A save writes a whole new record beside the old ones, in one step, and only if nobody else has
saved since: the page says which version it has seen last. Undoing a save is opening an older
version and saving it again. `training_line` is the form that `starc train` reads.
"""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starc.errors import StarcError, VideoError
from starc.files.atomic import replacing
from starc.media.video import probe
from starc.types import Captioned, Event
from starc.viewer.library import Item, read_item, version_path, versions_in

MOST_EVENTS = 5_000
LONGEST_CAPTION = 2_000

Export = Callable[[Captioned, str], tuple[bytes, str]]
"""A captioned video and the name of a format in; the file and its media type out."""


class EditRefused(StarcError):
    """The events cannot be saved as they are; `problems` has a line for each."""

    def __init__(self, problems: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(str(problem["message"]) for problem in problems[:3]))
        self.problems = problems


class EditConflict(StarcError):
    """Somebody saved in the meantime."""

    def __init__(self, newest: int) -> None:
        super().__init__(f"version {newest} was saved in the meantime; reload to see it")
        self.newest = newest


def draft(item: Item, version: int | None = None) -> Captioned | None:
    """The record to show or edit; a video nobody captioned starts with no events."""
    captioned = read_item(item, version)
    if captioned is None and item.record is None and item.video is not None and not version:
        try:
            captioned = Captioned(item.video.name, probe(item.video).duration, ())
        except VideoError as error:  # for the page, which must not learn where files lie
            raise VideoError(str(error).replace(str(item.video), item.video.name)) from None
    return captioned


def checked(
    events: Sequence[tuple[float, float, str]], *, duration: float, known: Sequence[Event] = ()
) -> tuple[Event, ...]:
    """Events in order of time; one that is as it was in `known` keeps its confidence."""
    if len(events) > MOST_EVENTS:
        raise EditRefused([_problem(None, f"{len(events)} events; at most {MOST_EVENTS}")])
    problems, sound = [], []
    before = {(event.start, event.end, event.caption): event for event in known}
    for place, (start, end, text) in enumerate(events):
        caption = _one_line(text)
        if words := _fault(start, end, caption, duration):
            problems.append(_problem(place, f"event {place + 1}: {words}"))
        else:
            sound.append(before.get((start, end, caption)) or Event(start, end, caption))
    if problems:
        raise EditRefused(problems)
    return tuple(sorted(sound, key=lambda event: (event.start, event.end)))


def save(item: Item, events: Sequence[tuple[float, float, str]], *, seen: int) -> int:
    """Write the next version and return its number; `seen` is the newest the editor knew."""
    versions = versions_in(item.edits)
    newest = versions[-1] if versions else 0
    if seen != newest:
        raise EditConflict(newest)
    item = replace(item, versions=versions)
    current = draft(item)
    if current is None:
        raise EditRefused([_problem(None, "this video has no record to correct")])
    original = read_item(item, 0)
    known = [*(original.events if original else ()), *current.events]
    corrected = replace(
        current,
        events=checked(events, duration=current.duration, known=known),
        provenance={
            **current.provenance,
            "corrected": datetime.now(UTC).isoformat(timespec="seconds"),
            "version": str(newest + 1),
        },
    )
    if item.edits.is_symlink() or item.edits.parent.is_symlink():
        raise EditRefused([_problem(None, "the folder of versions is a link; remove it")])
    item.edits.mkdir(parents=True, exist_ok=True)
    _write_new(version_path(item.edits, newest + 1), corrected, newest)
    return newest + 1


def _write_new(path: Path, captioned: Captioned, newest: int) -> None:
    """Whole or not at all, and never over another's file: a link fails where a rename would not."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    with replacing(staged) as file:
        json.dump(captioned.to_json(), file)
    try:
        os.link(staged, path)
    except FileExistsError:
        raise EditConflict(newest + 1) from None
    except OSError:  # a file system without hard links
        if path.exists():
            raise EditConflict(newest + 1) from None
        os.replace(staged, path)
    finally:
        with suppress(OSError):
            staged.unlink()


def _one_line(text: str) -> str:
    """A caption is one line; marks that turn text around or hide it have no place in one."""
    text = re.sub(r"[\r\n\t]+", " ", text)
    return "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cs")).strip()


def _fault(start: float, end: float, caption: str, duration: float) -> str | None:
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


def _problem(event: int | None, message: str) -> dict[str, Any]:
    return {"event": event, "message": message}


def training_line(captioned: Captioned) -> str:
    """One JSON Lines record of `starc train`: the video, its duration and its events."""
    record = {
        "video": re.split(r"[/\\]", captioned.video)[-1],
        "duration": captioned.duration,
        "events": [
            {"start": event.start, "end": event.end, "caption": event.caption}
            for event in captioned.events
        ],
    }
    return json.dumps(record) + "\n"


def exported(captioned: Captioned, format: str, export: Export | None) -> tuple[bytes, str]:
    """A file of `format`: `training` and `json` are ours, the rest is the caller's `export`."""
    if format == "training":
        return training_line(captioned).encode(), "application/jsonl"
    if format == "json" or export is None:
        return json.dumps(captioned.to_json()).encode(), "application/json"
    return export(captioned, format)
