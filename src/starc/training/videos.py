"""Videos to train on: annotations, features and speech joined by id.

In: an annotation file, a feature source, speech by video. Out: `Videos`, a sequence of `Example`s
that reads features when asked. What does not fit together is found by `starc data check`
(check.py) before anything is trained; here it is an error at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from starc.annotations import Annotated, read_references
from starc.errors import AnnotationError
from starc.media.features import FeatureStore
from starc.media.subtitles import read_transcripts
from starc.model.collate import Example
from starc.types import Event, Sentence


class Features(Protocol):
    """Frame features by video id."""

    def __contains__(self, video: object, /) -> bool: ...

    def __getitem__(self, video: str, /) -> Tensor: ...


@dataclass(frozen=True)
class Videos:
    """Annotated videos with their features and speech, in a fixed order."""

    ids: tuple[str, ...]
    annotations: Mapping[str, Annotated]
    features: Features
    speech: Mapping[str, Sequence[Sentence]]

    @classmethod
    def of(
        cls,
        annotations: Mapping[str, Annotated],
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
        annotated = self.annotations[video]
        assert annotated.duration is not None
        return Example(
            id=video,
            clip_TD=self.features[video],
            duration=annotated.duration,
            sentences=tuple(self.speech.get(video, ())),
            events=tuple(usable_events(annotated)),
        )

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def lengths(self) -> list[int]:
        """About how long each video's speech is, in characters: to batch equals together."""
        return [
            sum(len(sentence.text) for sentence in self.speech.get(video, ())) for video in self.ids
        ]


def usable_events(annotated: Annotated) -> Iterator[Event]:
    """Events inside the video, with words; what reaches beyond it is cut off."""
    duration = annotated.duration or float("inf")
    for (start, end), sentence in zip(annotated.spans, annotated.sentences, strict=True):
        first, last = max(start, 0.0), min(end, duration)
        if first < last and sentence.strip():
            yield Event(first, last, sentence.strip())
