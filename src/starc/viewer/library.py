"""The videos of the folders that the page was given, looked up anew whenever the library opens.

An item is a captioned JSON, its video if one is there, and the versions people saved. Its id is a
digest: no request ever carries a path, and the `video` a record names is only compared with names
met while walking. A file is parsed again only when its time or size has changed.

`search` takes a question and returns moments. Words that only make it a question are dropped
("where do they add garlic?" asks for *add garlic*), the rest is cut to a stem and looked for at the
start of words. A moment scores the sum of log(1 + passages / passages with the word) over the words
it has, captions before speech. There is no index: the text of a thousand videos is a few megabytes.
"""

from __future__ import annotations

import bisect
import heapq
import logging
import math
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from starc.errors import AnnotationError, StarcError
from starc.files.annotations import video_id
from starc.types import Captioned
from starc.viewer.records import (
    Passage,
    Summary,
    bare_summary,
    read_captioned,
    read_json,
    read_many,
    summarise,
)
from starc.viewer.security import confine, digest

log = logging.getLogger("starc")

VIDEO_ENDINGS = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi"})
EDITS = ".edits"
MOST_FILES = 200_000
MOST_WORDS = 12
_VERSION = re.compile(r"(\d{4,8})\.json")
_QUESTION = """
    a an and are at be by can did do does for from get gets has have he her his how i in into is
    it its let me my of on or our she show so that the their them then there they this to up us
    was we were what when where which who why will with you your
"""
_STOP_WORDS = frozenset(_QUESTION.split())


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
            "versions": len(self.versions),
            "video": self.video is not None,
            "problem": self.summary.problem,
        }


@dataclass(slots=True)
class _Listing:
    videos: list[Path] = field(default_factory=list)
    records: list[Path] = field(default_factory=list)
    edits: dict[Path, tuple[int, ...]] = field(default_factory=dict)
    links_out: int = 0


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
            items: dict[str, Item] = {}
            self.links_out = 0
            for root in self.roots:
                listing = _walk(root if root.is_dir() else root.parent, deep=root.is_dir())
                self.links_out += listing.links_out
                items |= {item.id: item for item in self._pair(root, listing)}
            self._items = items
            return sorted(items.values(), key=lambda item: (item.summary.title.lower(), item.id))

    def find(self, id: str) -> Item | None:
        """The item of an id; a first look if nobody has looked yet."""
        if id not in self._items:
            self.refresh()
        return self._items.get(id)

    def items(self) -> list[Item]:
        return list(self._items.values()) or self.refresh()

    def _pair(self, root: Path, listing: _Listing) -> Iterator[Item]:
        """Records with their videos, then the videos that nobody has captioned."""
        by_path = {(video.parent, video.name): video for video in listing.videos}
        by_stem: dict[tuple[Path, str], Path | None] = {}
        by_id: dict[str, Path | None] = {}
        for path in listing.videos:  # two of a name: neither
            place, name = (path.parent, path.stem), video_id(path.name)
            by_stem[place] = None if place in by_stem else path
            by_id[name] = None if name in by_id else path
        pairs: list[tuple[Path | None, str | None, Path | None, Summary]] = []
        for record in listing.records:
            for key, summary in self._summaries(record, root):
                video = (
                    by_path.get((record.parent, summary.name))
                    or (by_stem.get((record.parent, record.stem)) if key is None else None)
                    or by_id.get(video_id(summary.name))
                )
                pairs.append((record, key, video, summary))
        taken = {video for _, _, video, _ in pairs}
        alone = [path for path in listing.videos if path not in taken]
        pairs += [(None, None, path, bare_summary(path.name)) for path in alone]
        for pair in pairs:
            if root.is_dir() or root in pair:
                yield self._item(root, listing.edits, *pair)

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

    def _item(
        self, root: Path, saved: dict[Path, tuple[int, ...]],
        record: Path | None, key: str | None, video: Path | None, summary: Summary,
    ) -> Item:  # fmt: skip
        """An item whose summary is that of its newest version, if somebody saved one."""
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
    return tuple(sorted(int(m[1]) for name in names if (m := _VERSION.fullmatch(name))))


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


class Comparison:
    """A reference or a second system, shown with the predictions; videos meet by `video_id`.

    It is a file of any annotation or prediction format, or a folder of captioned JSON, of which the
    newest versions are shown.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name if path.is_dir() else path.stem
        self._library = Library([path]) if path.is_dir() else None
        self._records = {} if self._library else read_many(path)

    def captioned(self, names: Iterable[str]) -> Captioned | None:
        """The record of a video that goes by any of `names`."""
        items: dict[str, Item] = {}
        for item in self._library.refresh() if self._library else ():
            for name in item.names if item.record else ():
                items.setdefault(name, item)
        for name in names:
            if name in self._records:
                return self._records[name]
            if name in items:
                return read_item(items[name])
        return None


class Moment(NamedTuple):
    item: Item
    passage: Passage
    score: float


def words_of(query: str) -> list[str]:
    """The stems to look for; if there are only stop words, they are looked for all the same."""
    words = re.findall(r"\w+", query.casefold())
    telling = [word for word in words if word not in _STOP_WORDS] or words
    return list(dict.fromkeys(map(stem, telling)))[:MOST_WORDS]


def stem(word: str) -> str:
    """A prefix that the word's other forms share: `adding`, `added` and `adds` give `add`."""
    for ending in ("ing", "ied", "ies", "ed", "es", "s", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    # chopp(ing) and chop must meet; ll and ss are part of the word (grill, press).
    doubled = len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz"
    return word[:-1] if doubled else word


def search(items: Iterable[Item], query: str, *, limit: int) -> tuple[list[Moment], int]:
    """The best moments, and how many there are in all."""
    patterns = [re.compile(rf"\b{re.escape(word)}") for word in words_of(query)]
    counts, passages = [0] * len(patterns), 0
    answers: list[tuple[Item, Passage, set[int]]] = []
    for item in items:
        for place, words in _matches(item.summary.passages, patterns).items():
            answers.append((item, item.summary.passages[place], words))
            for word in words:
                counts[word] += 1
        passages += len(item.summary.passages)
    weight = [math.log1p(passages / count) if count else 0.0 for count in counts]
    moments = [
        Moment(item, passage, sum(map(weight.__getitem__, words)) * (0.9 if passage.spoken else 1))
        for item, passage, words in answers
    ]
    best = heapq.nsmallest(
        limit, moments, key=lambda one: (-one.score, one.item.summary.title, one.passage.start)
    )
    return best, len(moments)


def _matches(passages: tuple[Passage, ...], patterns: list[re.Pattern[str]]) -> dict[int, set[int]]:
    """Passage -> words in it. One scan over the joined text is far cheaper than one per passage."""
    texts = [passage.text.casefold() for passage in passages]
    starts = [0]
    for text in texts:
        starts.append(starts[-1] + len(text) + 1)
    whole = "\n".join(texts)
    matches: dict[int, set[int]] = {}
    for word, pattern in enumerate(patterns):
        for match in pattern.finditer(whole):
            place = bisect.bisect_right(starts, match.start()) - 1
            matches.setdefault(place, set()).add(word)
    return matches
