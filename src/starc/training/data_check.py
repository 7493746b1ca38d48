"""Look at the data before anything is trained on it.

In: annotations, features, speech, a datastore, held-out annotations. Out: `Findings`: what is
missing, what does not fit, what leaks, how much there is. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import Tensor

from starc.errors import StarcError
from starc.files.annotations import VideoAnnotation
from starc.retrieval.datastore import CaptionStore, overlap
from starc.types import Sentence

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class DataProblem:
    what: str
    where: tuple[str, ...]
    serious: bool = True
    """Training would stop, or its scores would mislead."""

    def __str__(self) -> str:
        more = f" and {len(self.where) - _SHOWN} more" if len(self.where) > _SHOWN else ""
        return f"{self.what}: {len(self.where)} ({', '.join(self.where[:_SHOWN])}{more})"


@dataclass(frozen=True, slots=True)
class Findings:
    videos: int
    events: int
    sentences: int
    problems: tuple[DataProblem, ...]
    histograms: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        return not any(problem.serious for problem in self.problems)


def examine(
    annotations: Mapping[str, VideoAnnotation],
    features: Mapping[str, Tensor] | None,
    speech: Mapping[str, Sequence[Sentence]] | None,
    *,
    width: int | None = None,
    store: CaptionStore | None = None,
    held_out: Mapping[str, VideoAnnotation] | None = None,
) -> Findings:
    """Everything that can be said without training."""
    problems = [
        *(_features(annotations, features, width) if features is not None else ()),
        *(_speech(annotations, speech) if speech is not None else ()),
        *_events(annotations),
        *_leaks(annotations, store, held_out or {}),
    ]
    videos = annotations.values()
    lengths = [end - start for each in videos for start, end in each.spans]
    measured: dict[str, tuple[list[float], tuple[int, ...]]] = {
        "video length, s": ([v.duration for v in videos if v.duration], (60, 120, 240, 480, 960)),
        "events per video": ([len(each.spans) for each in videos], (2, 4, 8, 12, 20)),
        "event length, s": (lengths, (5, 10, 20, 40, 80)),
        "words per caption": (
            [len(text.split()) for each in videos for text in each.sentences],
            (4, 8, 12, 20, 40),
        ),
    }
    return Findings(
        videos=len(annotations),
        events=len(lengths),
        sentences=sum(len((speech or {}).get(video, ())) for video in annotations),
        problems=tuple(problem for problem in problems if problem.where),
        histograms={name: _histogram(*values) for name, values in measured.items()},
    )


def _features(
    annotations: Mapping[str, VideoAnnotation], features: Mapping[str, Tensor], width: int | None
) -> Iterator[DataProblem]:
    yield DataProblem("videos without features", tuple(v for v in annotations if v not in features))
    wrong, broken = [], []
    for video in annotations:
        try:
            if video in features and (actual := features[video].shape[-1]) != (width or actual):
                wrong.append(f"{video} has {actual}")
        except StarcError as error:
            broken.append(str(error))
    yield DataProblem(f"features of another width than {width}", tuple(wrong))
    yield DataProblem("features that cannot be read", tuple(broken))


def _speech(
    annotations: Mapping[str, VideoAnnotation], speech: Mapping[str, Sequence[Sentence]]
) -> Iterator[DataProblem]:
    silent = tuple(video for video in annotations if not speech.get(video))
    late = tuple(
        video
        for video, annotated in annotations.items()
        if annotated.duration
        and any(sentence.end > annotated.duration for sentence in speech.get(video, ()))
    )
    yield DataProblem("videos without speech", silent, serious=False)
    yield DataProblem("videos with speech after their end (it is left out)", late, serious=False)


def _events(annotations: Mapping[str, VideoAnnotation]) -> Iterator[DataProblem]:
    backwards, beyond, wordless, twice, endless = [], [], [], [], []
    for video, annotated in annotations.items():
        duration, seen = annotated.duration, set()
        if not duration or duration <= 0:
            endless.append(video)
        pairs = zip(annotated.spans, annotated.sentences, strict=True)
        for n, ((start, end), text) in enumerate(pairs, start=1):
            name = f"{video} #{n}"
            if end <= start:
                backwards.append(name)
            elif start < 0 or (duration and end > duration + 1):
                beyond.append(name)
            if not text.strip():
                wordless.append(name)
            if (start, end, text) in seen:
                twice.append(name)
            seen.add((start, end, text))
    yield DataProblem("videos without a duration", tuple(endless))
    yield DataProblem("events that run backwards", tuple(backwards), serious=False)
    yield DataProblem("events that reach beyond the video", tuple(beyond), serious=False)
    yield DataProblem("events without words", tuple(wordless), serious=False)
    yield DataProblem("events that occur twice", tuple(twice), serious=False)


def _leaks(
    annotations: Mapping[str, VideoAnnotation],
    store: CaptionStore | None,
    held_out: Mapping[str, VideoAnnotation],
) -> Iterator[DataProblem]:
    both = tuple(video for video in held_out if video in annotations)
    yield DataProblem("held-out videos that are also trained on", both)
    if store is not None:
        leaked = overlap(store, [text for each in held_out.values() for text in each.sentences])
        owned = sorted({video for video in store.videos if video and video in held_out})
        what = "captions of held-out videos in the datastore"
        yield DataProblem(what, tuple(leaked), serious=bool(owned))
        yield DataProblem("held-out videos in the datastore", tuple(owned))


def _histogram(values: Sequence[float], edges: Sequence[float]) -> dict[str, int]:
    """How many values lie below the first edge, between neighbours, and from the last edge on."""
    counts = {f"< {edges[0]:g}": sum(value < edges[0] for value in values)}
    for low, high in pairwise(edges):
        counts[f"{low:g}–{high:g}"] = sum(low <= value < high for value in values)
    counts[f"≥ {edges[-1]:g}"] = sum(value >= edges[-1] for value in values)
    return counts
