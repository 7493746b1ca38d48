"""What is shown beside the predictions: the reference, and a second system.

The reference is an annotation file of any known format; the second system a folder of captioned
JSON or a prediction file. Videos meet by `annotations.video_id`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from starc.files.annotations import read_annotations
from starc.types import Captioned, Event
from starc.viewer.library import Item, Library, read_item
from starc.viewer.records import events_of, read_many


class Reference:
    """What annotators wrote."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._videos = read_annotations(path)

    def events(self, names: Iterable[str]) -> tuple[Event, ...] | None:
        """The reference events of a video that goes by any of `names`."""
        for name in names:
            if name in self._videos:
                return events_of(self._videos[name])
        return None


class OtherSystem:
    """What a second system predicted."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem if path.is_file() else path.name
        self._records: dict[str, Captioned] = {}
        self._library = Library([path]) if path.is_dir() else None
        if self._library is None:
            self._records = read_many(path)

    def captioned(self, names: Iterable[str]) -> Captioned | None:
        """Its record of a video that goes by any of `names`; its newest version."""
        wanted = list(names)
        for name in wanted:
            if name in self._records:
                return self._records[name]
        found = self._by_name() if self._library else {}
        return next((read_item(found[name]) for name in wanted if name in found), None)

    def _by_name(self) -> dict[str, Item]:
        assert self._library is not None
        items = [item for item in self._library.refresh() if item.record is not None]
        return {name: item for item in reversed(items) for name in reversed(item.names)}
