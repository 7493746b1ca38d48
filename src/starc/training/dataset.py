"""Videos to train on: annotations, features and speech joined by id.

In: an annotation file, a feature source, speech by video. Out: `Videos`, a sequence of `Example`s
that reads features when asked. What does not fit together is found by `starc data check`
(check.py) before anything is trained; here it is an error at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from torch import Tensor

from starc.errors import AnnotationError
from starc.files.annotations import VideoAnnotation, read_references
from starc.media.features import FeatureStore
from starc.media.subtitles import read_transcripts
from starc.model.collate import Example
from starc.types import Event, Sentence

Moment = TypeVar("Moment", Event, Sentence)
JITTER = 0.4
"""How far, in parts, the cut between two parts may lie from an even one."""


class Features(Protocol):
    """Frame features by video id."""

    def __contains__(self, video: object, /) -> bool: ...

    def __getitem__(self, video: str, /) -> Tensor: ...


class Part(NamedTuple):
    """Seconds [start, end) of the video with that index."""

    video: int
    start: float
    end: float


@dataclass(frozen=True)
class Videos:
    """VideoAnnotation videos with their features and speech, in a fixed order."""

    ids: tuple[str, ...]
    annotations: Mapping[str, VideoAnnotation]
    features: Features
    speech: Mapping[str, Sequence[Sentence]]

    @classmethod
    def of(
        cls,
        annotations: Mapping[str, VideoAnnotation],
        features: Features,
        speech: Mapping[str, Sequence[Sentence]],
        *,
        source: str = "annotations",
    ) -> Videos:
        """All annotated videos; every one needs features and a duration, speech is optional."""
        if not annotations:
            raise AnnotationError(f"{source}: no annotated video to train on")
        for video, annotated in annotations.items():
            if video not in features:
                raise AnnotationError(
                    f"{source}: video {video!r} has no features; extract them, or remove it "
                    "(starc data check lists all)"
                )
            if annotated.duration is None or annotated.duration <= 0:
                raise AnnotationError(
                    f"{source}: video {video!r} has no duration "
                    f"(found {annotated.duration}); add it"
                )
        return cls(tuple(sorted(annotations)), dict(annotations), features, dict(speech))

    @classmethod
    def read(
        cls,
        annotations: Path,
        features: Path,
        speech: Path | None,
        *,
        subset: str | None = None,
    ) -> Videos:
        """The same from files."""
        found = read_references(annotations, subset=subset)
        said = read_transcripts(speech) if speech else {}
        return cls.of(found, FeatureStore.open(features), said, source=str(annotations))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Example:
        video = self.ids[index]
        return Example(
            id=video,
            clip_TD=self.features[video],
            duration=self.duration(index),
            sentences=tuple(self.speech.get(video, ())),
            events=tuple(usable_events(self.annotations[video])),
        )

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def duration(self, index: int) -> float:
        """Seconds of a video."""
        duration = self.annotations[self.ids[index]].duration
        assert duration is not None
        return duration

    def parts(self, window: float, rng: random.Random) -> list[Part]:
        """Every video cut into parts of about `window` seconds, at random; 0: videos whole.

        How many parts there are does not depend on the rng.
        """
        found = []
        for index in range(len(self)):
            duration = self.duration(index)
            pieces = max(1, round(duration / window)) if window else 1
            jitter = [0.0, *(rng.uniform(-JITTER, JITTER) for _ in range(pieces - 1)), 0.0]
            edges = [duration * (n + jitter[n]) / pieces for n in range(pieces + 1)]
            found += [Part(index, start, end) for start, end in pairwise(edges)]
        return found

    def part(self, part: Part) -> Example:
        """A part of a video as an example of its own, in its own time."""
        return cut(self[part.video], part.start, part.end)

    def length(self, part: Part) -> int:
        """About how long the speech of a part is, in characters: to batch equals together."""
        return sum(
            len(sentence.text)
            for sentence in self.speech.get(self.ids[part.video], ())
            if part.start <= (sentence.start + sentence.end) / 2 < part.end
        )


def cut(example: Example, start: float, end: float) -> Example:
    """The seconds [start, end) of a video. Events and sentences go where their middle lies."""
    if start <= 0 and end >= example.duration:
        return example
    frames = len(example.clip_TD)
    first = min(int(frames * start / example.duration), frames - 1)
    stop = max(first + 1, round(frames * end / example.duration))

    def inside(when: Event | Sentence) -> bool:
        return start <= (when.start + when.end) / 2 < end

    def moved(when: Moment) -> Moment:
        return replace(when, start=max(when.start - start, 0.0), end=min(when.end, end) - start)

    return Example(
        id=example.id,
        clip_TD=example.clip_TD[first:stop],
        duration=end - start,
        sentences=tuple(moved(said) for said in example.sentences if inside(said)),
        events=tuple(moved(event) for event in example.events if inside(event)),
    )


def usable_events(annotated: VideoAnnotation) -> Iterator[Event]:
    """Events inside the video, with words; what reaches beyond it is cut off."""
    duration = annotated.duration or float("inf")
    for (start, end), sentence in zip(annotated.spans, annotated.sentences, strict=True):
        first, last = max(start, 0.0), min(end, duration)
        if first < last and sentence.strip():
            yield Event(first, last, sentence.strip())
