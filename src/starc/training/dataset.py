"""Videos to train on: annotations, features and speech joined by id.

In: an annotation file, a feature source, speech by video. Out: `Videos`, a sequence of `Example`s
that reads features when asked. What does not fit together is found by `starc data check`
(data_check.py) before anything is trained; here it is an error at once.

`batch_order` says which videos make a batch, in which order: a function of seed and epoch alone.
Videos whose speech is about equally long go together, so that little of a batch is padding; which
of them meet, and when, is drawn anew in each epoch. What is left over makes a smaller batch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from starc.errors import AnnotationError
from starc.inference import long_videos
from starc.inference.predict import VideoInputs
from starc.media.features import FeatureStore
from starc.media.subtitles import read_transcripts
from starc.model.inputs import Example
from starc.model.joint_space import JointSpace
from starc.training.recipes import TrainConfig
from starc.types import Event, Sentence
from starc_eval.annotations import VideoAnnotation, annotations_by_video, read_references

POOL = 32
"""Batches whose videos are sorted by length together."""
JITTER = 0.4
"""How far, in parts, the cut between two parts may lie from an even one."""


class Part(NamedTuple):
    """Seconds [start, end) of the video with that index, as one of its annotators saw them."""

    video: int
    start: float
    end: float
    annotator: int = 0


@dataclass(frozen=True)
class Videos:
    """Annotated videos with their features and speech, in a fixed order."""

    ids: tuple[str, ...]
    references: tuple[Mapping[str, VideoAnnotation], ...]
    """The annotation files, as the evaluator takes them."""
    accounts: Mapping[str, Sequence[VideoAnnotation]]
    """By video all that annotators wrote of it; training learns from each."""
    features: Mapping[str, Tensor]
    speech: Mapping[str, Sequence[Sentence]]
    joint: JointSpace | None = None
    """Maps features of an image encoder into what the model takes."""

    @classmethod
    def of(
        cls,
        annotations: Mapping[str, VideoAnnotation] | Sequence[Mapping[str, VideoAnnotation]],
        features: Mapping[str, Tensor],
        speech: Mapping[str, Sequence[Sentence]],
        *,
        joint: JointSpace | None = None,
        source: str = "annotations",
    ) -> Videos:
        """All annotated videos; every one needs features and a duration, speech is optional."""
        references = (annotations,) if isinstance(annotations, Mapping) else tuple(annotations)
        known = annotations_by_video(references)
        if not known:
            raise AnnotationError(f"{source}: no annotated video to train on")
        for video, annotated in known.items():
            if video not in features:
                raise AnnotationError(
                    f"{source}: video {video!r} has no features; extract them, or remove it "
                    "(starc data check lists all)"
                )
            for duration in (each.duration for each in annotated):
                if duration is None or duration <= 0:
                    raise AnnotationError(
                        f"{source}: video {video!r} has no duration (found {duration}); add it"
                    )
        return cls(tuple(sorted(known)), references, known, features, dict(speech), joint)

    @classmethod
    def read(
        cls,
        annotations: Path | Sequence[Path],
        features: Path,
        speech: Path | None,
        *,
        subset: str | None = None,
        joint: JointSpace | None = None,
    ) -> Videos:
        """The same from files; several annotation files are several references."""
        files = [annotations] if isinstance(annotations, Path) else annotations
        events = [read_references(file, subset=subset) for file in files]
        spoken = read_transcripts(speech) if speech else {}
        store = FeatureStore.open(features)
        return cls.of(events, store, spoken, joint=joint, source=", ".join(map(str, files)))

    @property
    def annotations(self) -> dict[str, VideoAnnotation]:
        """By video what its first annotator wrote."""
        return {video: annotated[0] for video, annotated in self.accounts.items()}

    @classmethod
    def narrated(cls, features: Path, speech: Path, *, joint: JointSpace | None = None) -> Videos:
        """Videos of which only pictures and words are known: all that have both."""
        store, spoken = FeatureStore.open(features), read_transcripts(speech)
        known = {
            video: VideoAnnotation((), (), float(store.times(video)[-1]) + 1)
            for video, sentences in spoken.items()
            if sentences and video in store
        }
        if not known:
            raise AnnotationError(
                f"{speech}: none of its {len(spoken)} videos has both speech and features "
                f"({features}); do the files belong together?"
            )
        return cls.of(known, store, spoken, joint=joint, source=str(speech))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Example:
        return self.example(index)

    def example(self, index: int, annotator: int = 0) -> Example:
        """A video with the events that one of its annotators saw."""
        video = self.inputs(index)
        clip_TD = video.features_TD
        if self.joint is not None:
            clip_TD = self.joint.features(clip_TD, video.times, video.sentences)
        events = tuple(usable_events(self.accounts[video.id][annotator]))
        return Example(video.id, clip_TD, video.duration, video.sentences, events)

    def inputs(self, index: int) -> VideoInputs:
        """A video as `predict` takes it."""
        video, duration = self.ids[index], self.duration(index)
        features_TD = self.features[video]
        rows = len(features_TD)
        if isinstance(self.features, FeatureStore) and abs(rows - duration) <= max(
            2, duration / 50
        ):
            times = tuple(self.features.times(video).tolist())
        else:  # not one row a second: spread over the video
            times = tuple(k * duration / rows for k in range(rows))
        return VideoInputs(
            id=video,
            features_TD=features_TD,
            times=times,
            frames=rows,
            duration=duration,
            sentences=tuple(self.speech.get(video, ())),
        )

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def duration(self, index: int) -> float:
        """Seconds of a video."""
        duration = self.accounts[self.ids[index]][0].duration
        assert duration is not None
        return duration

    def parts(self, window: float, rng: random.Random) -> list[Part]:
        """Every video cut into parts of about `window` seconds, at random; 0: videos whole.

        A video comes once for each of its annotators. How many parts there are does not depend on
        the rng.
        """
        parts = []
        for index, annotator in (
            (n, each)
            for n, video in enumerate(self.ids)
            for each in range(len(self.accounts[video]))
        ):
            duration = self.duration(index)
            pieces = max(1, round(duration / window)) if window else 1
            jitter = [0.0, *(rng.uniform(-JITTER, JITTER) for _ in range(pieces - 1)), 0.0]
            edges = [duration * (n + jitter[n]) / pieces for n in range(pieces + 1)]
            parts += [Part(index, *edge, annotator) for edge in pairwise(edges)]
        return parts

    def part(self, part: Part) -> Example:
        """A part of a video as an example of its own, in its own time."""
        return cut(self.example(part.video, part.annotator), part.start, part.end)

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
    return Example(
        id=example.id,
        clip_TD=example.clip_TD[first:stop],
        duration=end - start,
        sentences=long_videos.within(example.sentences, start, end),
        events=long_videos.within(example.events, start, end),
    )


def usable_events(annotated: VideoAnnotation) -> Iterator[Event]:
    """Events inside the video, with words; what reaches beyond it is cut off."""
    duration = annotated.duration or float("inf")
    for (start, end), sentence in zip(annotated.spans, annotated.sentences, strict=True):
        first, last = max(start, 0.0), min(end, duration)
        if first < last and sentence.strip():
            yield Event(first, last, sentence.strip())


def batch_order(lengths: Sequence[int], config: TrainConfig, epoch: int) -> list[list[int]]:
    """The batches of an epoch as indices of videos."""
    rng = random.Random(f"{config.seed}/{epoch}")
    videos = list(range(len(lengths)))
    rng.shuffle(videos)
    size = min(config.batch, len(videos))
    if not config.group_by_length:
        return _cut(videos, size)
    even = len(videos) // size * size
    batches = _cut(videos[even:], size)
    for pool in _cut(videos[:even], size * POOL):
        pool.sort(key=lambda video: lengths[video])
        batches += _cut(pool, size)
    rng.shuffle(batches)
    return batches


def batches_per_epoch(videos: int, config: TrainConfig) -> int:
    """Batches in an epoch."""
    return math.ceil(videos / config.batch)


def _cut(videos: list[int], size: int) -> list[list[int]]:
    return [videos[n : n + size] for n in range(0, len(videos), size)]
