"""The nouns that travel through the package, and the legend of tensor shapes.

Times are float seconds from the start of the video; frame ranges are half-open [first, stop).
A value checks itself where it is born. This file imports neither torch nor any other part of starc.

Shape letters, with one meaning everywhere:
    B videos, T frames, D width, K anchors, S segments, R captions per segment,
    N captions in a datastore, L tokens, M memory positions of the decoder, V vocabulary,
    G clusters of captions, H attention heads, W frames of a window,
    C image channels (in HWC: height, width, channel).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from starc_eval.annotations import LONGEST

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

CAPTIONED_VERSION = 1
"""Version of the JSON that `Captioned.to_json` writes."""
SOURCES = ("speech", "pictures", "datastore", "person")
"""Where the times and the words of an event can come from."""


def _check_span(kind: str, start: float, end: float) -> None:
    if not (math.isfinite(start) and math.isfinite(end) and 0 <= start < end):
        raise ValueError(f"{kind} must have finite 0 <= start < end, got {start = }, {end = }")
    if end > LONGEST:
        raise ValueError(f"{kind} must end within {LONGEST:g} seconds, got {end = }")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens, from `start` to `end`: predicted by us or written by an annotator."""

    start: float
    end: float
    caption: str
    confidence: float | None = None
    """Geometric mean of its tokens' probabilities, 0 to 1; None for an annotation."""
    repeated: bool = False
    """The model has already said this about (nearly) the same moment."""
    times_from: tuple[str, ...] = ()
    """Inputs that took part in start and end, out of SOURCES; empty: unknown."""
    words_from: tuple[str, ...] = ()
    """Inputs that took part in the caption, out of SOURCES; empty: unknown."""

    def __post_init__(self) -> None:
        _check_span("event", self.start, self.end)


@dataclass(frozen=True, slots=True)
class Sentence:
    start: float
    end: float
    text: str

    def __post_init__(self) -> None:
        _check_span("sentence", self.start, self.end)


@dataclass(frozen=True, slots=True)
class Frame:
    time: float
    rgb_HWC: NDArray[np.uint8]

    def __post_init__(self) -> None:
        shape = self.rgb_HWC.shape
        if len(shape) != 3 or shape[2] != 3:
            raise ValueError(f"frame must be [height, width, 3], got {shape = }")


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A caption found in the datastore, with its cosine similarity to the query."""

    caption: str
    similarity: float


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive frames [first, stop) assigned to one anchor."""

    first: int
    stop: int
    anchor: int
    score: float
    kept: bool = True
    """Among the top-k that are used for retrieval."""
    captions: tuple[Retrieved, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.stop:
            raise ValueError(
                f"segment must have 0 <= first < stop, got {self.first = }, {self.stop = }"
            )


@dataclass(frozen=True, slots=True)
class Captioned:
    """A captioned video: all that a writer or the viewer needs, and nothing of the model."""

    video: str
    duration: float
    events: tuple[Event, ...]
    sentences: tuple[Sentence, ...] = ()
    frame_times: tuple[float, ...] = ()
    """Time of each frame that the model saw."""
    saliency: tuple[float, ...] = ()
    """Saliency of each of those frames, 0 to 1."""
    segments: tuple[Segment, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    """Model, encoders, speech recogniser and versions that made this."""
    reason: str = ""
    """Why the video was not captioned, one sentence; empty where it was."""

    def __post_init__(self) -> None:
        if not 0 < self.duration <= LONGEST:
            raise ValueError(f"duration must be positive, got {self.duration = }")
        if self.saliency and len(self.saliency) != len(self.frame_times):
            raise ValueError(
                f"one saliency per frame, got {len(self.saliency) = }, {len(self.frame_times) = }"
            )

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, ready for `json.dump`."""
        return {"starc": CAPTIONED_VERSION, **_plain(self)}

    def save(self, path: str | Path, **how: Any) -> tuple[str, ...]:
        """Write a file in the format of its ending; returns notes on what was repaired.

        Takes the settings of `starc.output.formats.write`: format, mode, granularity, overwrite,
        and `source`, the video itself, for a copy of it with chapters.
        """
        # By name: this file imports no other part of us.
        notes: tuple[str, ...] = import_module("starc.output.formats").write(self, path, **how)
        return notes

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Captioned:
        """The inverse of `to_json`: finite numbers and real text.

        Raises KeyError, TypeError, ValueError or OverflowError on anything else.
        """
        if data.get("starc") != CAPTIONED_VERSION:
            raise ValueError(
                f"expected a captioned video of version {CAPTIONED_VERSION}, "
                f"found {data.get('starc')!r}"
            )
        # `reason` is younger than the format: records without it are still read.
        given = {spec.name: data[spec.name] for spec in fields(cls) if spec.name != "reason"}
        kept: Captioned = _read(cls, {**given, "reason": data.get("reason", "")}, "record")
        return kept


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries and tuples as lists, all the way down."""
    if is_dataclass(value):
        return {spec.name: _plain(getattr(value, spec.name)) for spec in fields(value)}
    if isinstance(value, tuple):
        return [item if isinstance(item, float) else _plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _read(kind: Any, value: Any, name: str) -> Any:
    """The inverse of `_plain`: a JSON value as the type of a field, checked all the way down."""
    if kind is float and type(value) in (int, float):
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")
        return value
    if type(value) is kind:
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{key: _read(hints[key], item, key) for key, item in dict(value).items()})
    origin, options = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(_read(options[0], item, name) for item in value)
    if origin is Mapping:
        return {_read(str, key, name): _read(str, item, name) for key, item in dict(value).items()}
    if options:  # or None
        return None if value is None else _read(options[0], value, name)
    raise TypeError(f"{name} must be {_NAMES[kind]}, got {value!r:.40}")


_NAMES = {str: "text", float: "a number", int: "a whole number", bool: "true or false"}
_hints = cache(get_type_hints)
