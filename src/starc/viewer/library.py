"""The videos of the folders that the page was given, looked up anew whenever the library opens.

An item is a captioned JSON, its video if one is there, and the versions people saved. Its id is a
digest: no request ever carries a path, and the `video` a record names is only compared with names
met while walking. A file is parsed again only when its time or size has changed.

A record finds its video by name in its own folder, then by the path and the content that the
record was made from, then by name in all folders. A file outside the folders is shown only if its
content is the one the record knows: whoever names a file so has seen it.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from starc.errors import AnnotationError, StarcError, VideoError
from starc.files.cache import content_name
from starc.types import Captioned
from starc.viewer.records import (
    Summary,
    bare_summary,
    kept_title,
    read_captioned,
    read_json,
    read_many,
    summarise,
)
from starc.viewer.security import confine, digest
from starc_eval.annotations import video_id

log = logging.getLogger("starc")

VIDEO_ENDINGS = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi"})
EDITS = ".edits"
NOTHING_FOUND = "no event was found"
"""How the reason begins where no events were withheld, so that asking again cannot help."""
MOST_FILES = 200_000
LAST_VERSION = 99_999_999
_VERSION = re.compile(r"([0-9]{4}|[1-9][0-9]{4,7})\.json")
"""As `version_path` writes it: a file that is found is the one that is read."""


class VideoGone(VideoError):
    status = 404


@dataclass(frozen=True, slots=True)
class Item:
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
    def newest(self) -> int:
        """The last version that was saved; 0 is the record as it was captioned."""
        return max(self.versions, default=0)

    @property
    def captioned(self) -> bool:
        return self.record is not None or bool(self.versions)

    @property
    def declined(self) -> bool:
        """Captions were withheld for a reason, and nobody has written others since."""
        reason = self.summary.reason
        withheld = bool(reason) and not reason.startswith(NOTHING_FOUND)
        return withheld and self.record is not None and not self.versions

    @property
    def names(self) -> tuple[str, ...]:
        """Ids by which reference files and other systems may know this video."""
        known = [self.key, self.summary.name, self.video and self.video.name]
        known.append(self.record and self.record.stem)
        return tuple(dict.fromkeys(video_id(name) for name in known if name))

    def as_row(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.summary.title,
            "duration": self.summary.duration,
            "events": self.summary.events,
            "sentences": self.summary.sentences,
            "captioned": self.captioned,
            "reason": self.summary.reason,
            "declined": self.declined,
            "versions": len(self.versions),
            "video": self.video is not None,
            "problem": self.summary.problem,
            "confidence": self.summary.confidence,
        }


@dataclass(slots=True)
class _Listing:
    videos: list[Path] = field(default_factory=list)
    records: list[Path] = field(default_factory=list)
    edits: dict[Path, tuple[int, ...]] = field(default_factory=dict)
    links_out: int = 0


class _Pair(NamedTuple):
    record: Path | None
    key: str | None
    video: Path | None
    summary: Summary


class _Videos:
    """Videos of some folders, by all that a record may know of its own; two of a name are none."""

    def __init__(self, videos: Iterable[Path]) -> None:
        self._all = dict.fromkeys(videos)
        self.by_path = {(video.parent, _composed(video.name)): video for video in self._all}
        self.by_stem: dict[tuple[Path, str], Path | None] = {}
        self._by_id: dict[str, Path | None] = {}
        for path in self._all:
            place, name = (path.parent, path.stem), _composed(video_id(path.name))
            self.by_stem[place] = None if place in self.by_stem else path
            self._by_id[name] = None if name in self._by_id else path
        self._by_size: dict[int, list[Path]] | None = None

    def of_source(self, record: Path, summary: Summary) -> Path | None:
        path = summary.source and Path(os.path.normpath(record.parent / summary.source))
        return path if path in self._all else None

    def named(self, summary: Summary) -> Path | None:
        """The one of that name, unless its size says that it is another video."""
        path = self._by_id.get(_composed(video_id(summary.name)))
        fits = path is None or summary.content is None or _size(path) == summary.size
        return path if fits else None

    def of_content(self, summary: Summary) -> Path | None:
        """One that was moved or renamed; only files of the right size are read."""
        if summary.content is None:
            return None
        if self._by_size is None:
            self._by_size = {}
            for path in self._all:
                self._by_size.setdefault(_size(path), []).append(path)
        for path in self._by_size.get(summary.size, ()):
            with suppress(VideoError):
                if content_name(path) == summary.content:
                    return path
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _source(record: Path, summary: Summary) -> Path | None:
    """The file outside the folders that a record says it was made from, if one is there."""
    if summary.source is None or summary.content is None or "\0" in summary.source:
        return None
    path = Path(os.path.normpath(record.parent / summary.source))
    return path if path.suffix.lower() in VIDEO_ENDINGS and path.is_file() else None


def _composed(name: str) -> str:
    """Letters with accents as one character: disks of Macs write them as two."""
    return unicodedata.normalize("NFC", name)


class Library:
    """Lists, remembers and hands out items; safe to share between threads."""

    def __init__(self, roots: Sequence[Path]) -> None:
        if not roots:
            raise ValueError("a library needs at least one folder or file")
        for root in roots:
            if not root.exists():
                raise AnnotationError(f"{root}: no such file or folder; check the path")
        self.roots = tuple(root.resolve() for root in roots)
        self.links_out = 0  # links that lead out of the folders, and are therefore not shown
        self._lock = threading.Lock()
        self._parsed: dict[Path, tuple[tuple[int, int], Summary | None]] = {}
        self._items: dict[str, Item] = {}

    def refresh(self) -> list[Item]:
        """Look again; items in the order of their titles."""
        with self._lock:
            listings = {
                root: _walk(root if root.is_dir() else root.parent, deep=root.is_dir())
                for root in self.roots
            }
            self.links_out = sum(listing.links_out for listing in listings.values())
            everywhere = _Videos(video for one in listings.values() for video in one.videos)
            pairs = [
                (root, pair)
                for root, listing in listings.items()
                for pair in self._pair(root, listing, everywhere)
            ]
            taken = {pair.video for _, pair in pairs}
            pairs += [
                (root, _Pair(None, None, path, bare_summary(path.name, title=kept_title(path))))
                for root, listing in listings.items()
                for path in listing.videos
                if path not in taken
            ]
            saved = {place: vs for one in listings.values() for place, vs in one.edits.items()}
            listed = [
                self._item(root, saved, pair)
                for root, pair in pairs
                if root.is_dir() or root in (pair.record, pair.video)
            ]
            self._items = items = {item.id: item for item in listed}
            return sorted(items.values(), key=lambda item: (item.summary.title.lower(), item.id))

    def find(self, id: str) -> Item | None:
        """The item of an id; a first look if nobody has looked yet."""
        if id not in self._items:
            self.refresh()
        return self._items.get(id)

    def items(self) -> list[Item]:
        return list(self._items.values()) or self.refresh()

    def _pair(self, root: Path, listing: _Listing, everywhere: _Videos) -> Iterator[_Pair]:
        """The records of a folder with their videos."""
        here = _Videos(listing.videos)
        for record in listing.records:
            for key, summary in self._summaries(record, root):
                video = (
                    here.by_path.get((record.parent, _composed(summary.name)))
                    or (here.by_stem.get((record.parent, record.stem)) if key is None else None)
                    or everywhere.of_source(record, summary)
                    or here.named(summary)
                    or everywhere.named(summary)
                    or everywhere.of_content(summary)
                    or _source(record, summary)
                )
                yield _Pair(record, key, video, summary)

    def open_video(self, item: Item) -> Path:
        """The real path of an item's video; VideoGone where it is not there or not the one.

        A file outside the folders must have the content that the record was made from.
        """
        wanted = item.summary.source or item.summary.name
        if item.video is None:
            raise VideoGone(f"{wanted}: the video file is not here")
        for root in self.roots:
            if real := confine(root if root.is_dir() else root.parent, item.video):
                return real
        real = confine(Path(item.video.anchor), item.video)
        if real is None or item.record is None:
            raise VideoGone(f"{wanted}: the video file is not there any more")
        if content_name(real) != item.summary.content:
            raise VideoGone(f"{wanted}: is not the video that was captioned any more")
        return real

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
            try:
                content = read_json(record)
                summary = None if content is None else summarise(content, record.stem)
            except StarcError as error:
                log.warning("%s", error)
                summary = bare_summary(record.stem, problem="the file is not valid JSON")
            known = self._parsed[record] = (stamp, summary)
        return known[1]

    def _item(self, root: Path, saved: Mapping[Path, tuple[int, ...]], pair: _Pair) -> Item:
        """An item whose summary is that of its newest version, if somebody saved one."""
        record, key, video, summary = pair
        source = record or video or root
        edits = _edits_folder(source, key)
        if record and video and edits not in saved and key is None:
            by_hand = _edits_folder(video, None)  # written before anybody captioned the video
            edits = by_hand if by_hand in saved else edits
        versions = saved.get(edits, ())
        if versions:
            summary = self._parse(version_path(edits, versions[-1])) or summary
        folder = root if root.is_dir() else root.parent
        id = digest(f"{source}\0{key or ''}")[:16]
        return Item(id, folder, record, key, video, edits, versions, summary)


def _edits_folder(source: Path, key: str | None) -> Path:
    """Where versions are kept: `talk.json` has `talk.edits/0001.json`, a bare video
    `talk.mp4.edits/0001.json`."""
    stem = source.stem if source.suffix == ".json" else source.name
    folder = source.with_name(stem + EDITS)
    return folder if key is None else folder / digest(key)[:16]


def version_path(edits: Path, version: int) -> Path:
    return edits / f"{version:04d}.json"


def versions_in(folder: Path) -> tuple[int, ...]:
    """The versions that a folder of edits holds, oldest first."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except OSError:
        return ()
    numbers = sorted(int(m[1]) for name in names if (m := _VERSION.fullmatch(name)))
    return tuple(number for number in numbers if number)  # 0 is the record itself


def _walk(folder: Path, *, deep: bool) -> _Listing:
    """Files below a folder; links to folders are not entered, links to files must stay inside."""
    listing = _Listing()
    waiting, seen = [folder], 0
    while waiting:
        try:
            with os.scandir(waiting.pop()) as unsorted:
                entries = sorted(unsorted, key=lambda entry: entry.name)
        except OSError:
            continue
        seen += len(entries)
        for entry in entries:
            path = Path(entry.path)
            ending = path.suffix.lower()
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if path.suffix == EDITS:
                    _collect_edits(path, listing)
                elif deep:
                    waiting.append(path)
            elif ending == ".json" or ending in VIDEO_ENDINGS:
                if entry.is_symlink() and confine(folder, path) is None:
                    listing.links_out += 1
                elif entry.is_file():  # a pipe would be waited for
                    (listing.records if ending == ".json" else listing.videos).append(path)
        if seen > MOST_FILES:
            log.warning("%s: more than %d files; the rest is not shown", folder, MOST_FILES)
            break
    return listing


def _collect_edits(folder: Path, listing: _Listing) -> None:
    places = [folder]
    with suppress(OSError), os.scandir(folder) as entries:
        places += [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
    listing.edits |= {place: versions for place in places if (versions := versions_in(place))}


def read_item(item: Item, version: int | None = None) -> Captioned | None:
    """A version of an item: None asks for the newest, 0 for the original; None if there is none."""
    chosen = item.newest if version is None else version
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
    with suppress(StarcError):
        captioned = read_item(item)
        if captioned and captioned.saliency:
            return captioned.frame_times[captioned.saliency.index(max(captioned.saliency))]
    return None
