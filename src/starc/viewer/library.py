"""The videos of the folders that the page was given, found anew whenever the library opens.

An item is a captioned JSON, its video if one is there, and the versions people saved. Its id is a
digest: no request ever carries a path, and the `video` a record names is only compared with names
that were found by walking. A file is parsed again only when its time or size has changed.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from starc.errors import AnnotationError, StarcError
from starc.files.annotations import video_id
from starc.types import Captioned
from starc.viewer.records import read_captioned, read_json, read_many
from starc.viewer.security import confine, display_name

log = logging.getLogger("starc")

VIDEO_ENDINGS = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi"})
EDITS = ".edits"
MOST_FILES = 200_000
_VERSION = re.compile(r"(\d{4,8})\.json")


class Passage(NamedTuple):
    """A caption or a spoken sentence, as search sees it (a tuple: a library has 100,000)."""

    start: float
    end: float
    text: str
    spoken: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """What the library shows of one record."""

    name: str
    """The video as the record names it, without folders."""
    title: str
    duration: float | None
    events: int
    sentences: int
    passages: tuple[Passage, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One video of the library."""

    id: str
    folder: Path
    """The root it belongs to; nothing outside is ever opened."""
    record: Path | None
    key: str | None
    """Id within `record`, where one file holds many videos."""
    video: Path | None
    edits: Path
    """Folder of the saved versions; need not exist."""
    versions: tuple[int, ...]
    summary: Summary

    @property
    def names(self) -> tuple[str, ...]:
        """Ids by which reference files and other systems may know this video."""
        known = [self.key, self.summary.name, self.video and self.video.name]
        known.append(self.record and self.record.stem)
        return tuple(dict.fromkeys(video_id(name) for name in known if name))


@dataclass(slots=True)
class _Found:
    """Paths below one root."""

    videos: list[Path]
    records: list[Path]
    edits: dict[Path, tuple[int, ...]]
    links_out: int = 0


class Library:
    """Finds, remembers and hands out items; safe to share between threads."""

    def __init__(self, roots: Sequence[Path]) -> None:
        if not roots:
            raise ValueError("a library needs at least one folder or file")
        for root in roots:
            if not root.exists():
                raise AnnotationError(f"{root}: no such file or folder; check the path")
        self.roots = tuple(root.resolve() for root in roots)
        self.links_out = 0
        """Links that lead out of the folders, and are therefore not shown."""
        self._lock = threading.Lock()
        self._parsed: dict[Path, tuple[tuple[int, int], Summary | None]] = {}
        self._items: dict[str, Item] = {}

    def refresh(self) -> list[Item]:
        """Look again; items in the order of their titles."""
        with self._lock:
            items: dict[str, Item] = {}
            self.links_out = 0
            for root in self.roots:
                found = _walk(root if root.is_dir() else root.parent, deep=root.is_dir())
                self.links_out += found.links_out
                for item in self._pair(root, found):
                    items[item.id] = item
            self._items = items
            return sorted(items.values(), key=lambda item: (item.summary.title.lower(), item.id))

    def find(self, id: str) -> Item | None:
        """The item of an id; a first look if nobody has looked yet."""
        if id not in self._items:
            self.refresh()
        return self._items.get(id)

    def items(self) -> list[Item]:
        """What the last look found."""
        return list(self._items.values()) or self.refresh()

    def _pair(self, root: Path, found: _Found) -> Iterator[Item]:
        """Records with their videos, then the videos that nobody has captioned."""
        folder = root if root.is_dir() else root.parent
        by_path = {(video.parent, video.name): video for video in found.videos}
        by_stem = {(video.parent, video.stem): video for video in found.videos}
        by_id: dict[str, Path | None] = {}
        for path in found.videos:
            name = video_id(path.name)
            by_id[name] = None if name in by_id else path  # two of a name: neither
        taken: set[Path] = set()
        for record in found.records:
            for key, summary in self._summaries(record, root):
                video = (
                    by_path.get((record.parent, summary.name))
                    or (by_stem.get((record.parent, record.stem)) if key is None else None)
                    or by_id.get(video_id(summary.name))
                )
                if video is not None:
                    taken.add(video)
                if root.is_dir() or root in (record, video):
                    yield self._item(folder, record, key, video, summary, found)
        for path in found.videos:
            if path not in taken and (root.is_dir() or root == path):
                yield self._item(folder, None, None, path, _bare(path.name), found)

    def _summaries(self, record: Path, root: Path) -> Iterator[tuple[str | None, Summary]]:
        summary = self._parse(record)
        if summary is not None:
            yield None, summary
        elif record == root:  # a file of another format, given by name: a record per video in it
            for key, captioned in read_many(record).items():
                yield key, summarise(captioned.to_json(), key)

    def _parse(self, record: Path) -> Summary | None:
        """Summary of a captioned JSON; None for a JSON file that is something else."""
        try:
            status = record.stat()
        except OSError:
            return None
        stamp = (status.st_mtime_ns, status.st_size)
        known = self._parsed.get(record)
        if known is None or known[0] != stamp:
            summary: Summary | None
            try:
                content = read_json(record, outline=True)
                summary = None
                if isinstance(content, dict) and "starc" in content:
                    summary = summarise(content, record.stem)
            except StarcError as error:
                log.warning("%s", error)
                summary = _bare(record.stem, problem="the file is not valid JSON")
            known = self._parsed[record] = (stamp, summary)
        return known[1]

    def _item(
        self,
        folder: Path,
        record: Path | None,
        key: str | None,
        video: Path | None,
        summary: Summary,
        found: _Found,
    ) -> Item:
        """An item whose summary is that of its newest version, if somebody saved one."""
        source = record or video
        assert source is not None
        digest = hashlib.sha256(f"{source}\0{key or ''}".encode("utf-8", "surrogateescape"))
        edits = edits_folder(source, key)
        if record and video and edits not in found.edits and key is None:
            by_hand = edits_folder(video, None)  # written before anybody captioned the video
            edits = by_hand if by_hand in found.edits else edits
        versions = found.edits.get(edits, ())
        if versions:
            summary = self._parse(version_path(edits, versions[-1])) or summary
        return Item(digest.hexdigest()[:16], folder, record, key, video, edits, versions, summary)


def edits_folder(source: Path, key: str | None) -> Path:
    """Where versions are kept: `talk.json` has `talk.edits/0001.json`, a bare video
    `talk.mp4.edits/0001.json`."""
    stem = source.stem if source.suffix == ".json" else source.name
    folder = source.with_name(stem + EDITS)
    if key is None:
        return folder
    return folder / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def version_path(edits: Path, version: int) -> Path:
    """The file of one version."""
    return edits / f"{version:04d}.json"


def versions_in(folder: Path) -> tuple[int, ...]:
    """The versions that a folder of edits holds, oldest first."""
    try:
        with os.scandir(folder) as listing:
            names = [entry.name for entry in listing if entry.is_file(follow_symlinks=False)]
    except OSError:
        return ()
    return tuple(sorted(int(m[1]) for name in names if (m := _VERSION.fullmatch(name))))


def _walk(folder: Path, *, deep: bool) -> _Found:
    """Files below a folder; links to folders are not entered, links to files must stay inside."""
    found = _Found([], [], {})
    waiting, seen = [folder], 0
    while waiting:
        try:
            with os.scandir(waiting.pop()) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            seen += 1
            path = Path(entry.path)
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name.endswith(EDITS):
                    _collect_edits(path, found)
                elif deep:
                    waiting.append(path)
                continue
            ending = path.suffix.lower()
            if ending != ".json" and ending not in VIDEO_ENDINGS:
                continue
            if entry.is_symlink() and confine(folder, path) is None:
                found.links_out += 1
            else:
                (found.records if ending == ".json" else found.videos).append(path)
        if seen > MOST_FILES:
            log.warning("%s: more than %d files; the rest is not shown", folder, MOST_FILES)
            break
    return found


def _collect_edits(folder: Path, found: _Found) -> None:
    places = [folder]
    with suppress(OSError), os.scandir(folder) as listing:
        places += [Path(e.path) for e in listing if e.is_dir(follow_symlinks=False)]
    for place in places:
        if versions := versions_in(place):
            found.edits[place] = versions


def _bare(name: str, problem: str | None = None) -> Summary:
    title = display_name(video_id(name))
    return Summary(name, title, None, 0, 0, (), problem)


def summarise(content: dict[str, Any], stem: str) -> Summary:
    """Summary of a captioned JSON, checked only as far as it is shown: the rest is for `open`."""
    try:
        name = re.split(r"[/\\]", content["video"])[-1] or stem
        title = content["provenance"].get("title") or video_id(name)
        passages = [
            Passage(float(event["start"]), float(event["end"]), event["caption"] + "", False)
            for event in content["events"]
        ]
        passages += [
            Passage(float(said["start"]), float(said["end"]), said["text"] + "", True)
            for said in content["sentences"]
        ]
        duration = float(content["duration"])
        if not math.isfinite(duration + sum(one.start + one.end for one in passages)):
            raise ValueError("a time in it is not finite")
        return Summary(
            name=name,
            title=display_name(title),
            duration=duration,
            events=len(content["events"]),
            sentences=len(content["sentences"]),
            passages=tuple(passages),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        log.warning("%s: not a captioned video (%r)", stem, error)
        return _bare(stem, problem="not a captioned video of this version")


def as_row(item: Item) -> dict[str, Any]:
    """An item as the library page needs it."""
    summary = item.summary
    return {
        "id": item.id,
        "title": summary.title,
        "duration": summary.duration,
        "events": summary.events,
        "sentences": summary.sentences,
        "captioned": item.record is not None or bool(item.versions),
        "versions": len(item.versions),
        "video": item.video is not None,
        "problem": summary.problem,
    }


def read_item(item: Item, version: int | None = None) -> Captioned | None:
    """A version of an item: None asks for the newest, 0 for the original; None if there is none."""
    chosen = version if version is not None else (item.versions[-1] if item.versions else 0)
    if chosen:
        path = version_path(item.edits, chosen) if chosen in item.versions else None
    elif item.key is not None and item.record is not None:
        return read_many(item.record).get(item.key)
    else:
        path = item.record
    real = path and confine(item.folder, path)
    return read_captioned(real) if real else None


def best_moment(item: Item) -> float | None:
    """Time of the most salient frame, for the thumbnail."""
    try:
        captioned = read_item(item)
    except StarcError:
        return None
    if captioned is None or not captioned.saliency:
        return None
    return captioned.frame_times[captioned.saliency.index(max(captioned.saliency))]
