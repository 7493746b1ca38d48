"""Look at the data before anything is trained on it.

In: annotations, features, speech, a datastore, held-out annotations. Out: `Findings`: what is
missing, what does not fit, what leaks, how much there is. Nothing is changed.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from torch import Tensor

from starc.errors import StarcError
from starc.media.features import FPS
from starc.retrieval.datastore import CaptionStore, overlap
from starc.types import Sentence
from starc_eval.annotations import VideoAnnotation, annotations_by_video

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class DataProblem:
    """One kind of trouble and where it is."""

    what: str
    where: tuple[str, ...]
    serious: bool = True
    """Training would stop, or its scores would mislead."""

    def __str__(self) -> str:
        more = f" and {len(self.where) - _SHOWN} more" if len(self.where) > _SHOWN else ""
        return f"{self.what}: {len(self.where)} ({', '.join(self.where[:_SHOWN])}{more})"


@dataclass(frozen=True, slots=True)
class Findings:
    """What is there, and what is wrong with it."""

    videos: int
    events: int
    sentences: int
    problems: tuple[DataProblem, ...]
    histograms: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Nothing serious was found."""
        return not any(problem.serious for problem in self.problems)


def examine(
    references: Sequence[Mapping[str, VideoAnnotation]],
    features: Mapping[str, Tensor] | None,
    speech: Mapping[str, Sequence[Sentence]] | None,
    *,
    width: int | None = None,
    store: CaptionStore | None = None,
    held_out: Sequence[Mapping[str, VideoAnnotation]] = (),
) -> Findings:
    """Everything that can be said without training; `width` is that of the model's features.

    `references` and `held_out` are annotation files, each a reference of its videos.
    """
    problems = []
    annotations, kept_back = (
        {video: each[0] for video, each in annotations_by_video(files).items()}
        for files in (references, held_out)
    )
    for name, videos, files in (
        ("", annotations, references),
        ("validation: ", kept_back, held_out),
    ):
        problems += [
            replace(problem, what=name + problem.what)
            for problem in (
                *_features(videos, features, width),
                *_speech(videos, speech),
                *(problem for file in files for problem in _events(file)),
            )
        ]
    if store is not None and width is None:
        what = f"features of another width than the datastore's {store.width}"
        other = _features(annotations, features, store.width)[1:2]
        problems += [
            DataProblem(f"{what} (right for a joint space)", one.where, False) for one in other
        ]
    problems += _copies([*annotations, *kept_back], features)
    problems += _leaks(annotations, store, annotations_by_video(held_out))
    durations = [annotated.duration for annotated in annotations.values() if annotated.duration]
    written = [each for file in references for each in file.values()]
    lengths = [end - start for each in written for start, end in each.spans]
    words = [len(text.split()) for each in written for text in each.sentences]
    return Findings(
        videos=len(annotations),
        events=len(lengths),
        sentences=sum(len((speech or {}).get(video, ())) for video in annotations),
        problems=tuple(problem for problem in problems if problem.where),
        histograms={
            "video length, s": _histogram(durations, (60, 120, 240, 480, 960)),
            "events per video": _histogram(
                [len(each.spans) for each in written], (2, 4, 8, 12, 20)
            ),
            "event length, s": _histogram(lengths, (5, 10, 20, 40, 80)),
            "words per caption": _histogram(words, (4, 8, 12, 20, 40)),
        },
    )


def _features(
    annotations: Mapping[str, VideoAnnotation],
    features: Mapping[str, Tensor] | None,
    width: int | None,
) -> list[DataProblem]:
    if features is None:
        return []
    missing = tuple(video for video in annotations if video not in features)
    wrong, broken, blank, rates = [], [], [], dict[str, float]()
    for video, annotated in annotations.items():
        if video in missing:
            continue
        try:
            found = features[video]
        except StarcError as error:
            broken.append(str(error))
            continue
        if width is not None and found.shape[-1] != width:
            wrong.append(f"{video} has {found.shape[-1]}")
        if len(found) > 1 and bool((found == found[0]).all()):
            blank.append(f"{video}: {'zeros' if not bool(found.any()) else 'one row repeated'}")
        if annotated.duration:
            rates[video] = len(found) / annotated.duration
    durations = {video: annotated.duration or 0.0 for video, annotated in annotations.items()}

    def odd(expected: float) -> tuple[str, ...]:
        """Videos with more or fewer rows than `expected` a second."""
        return tuple(
            f"{video}: {round(rate * durations[video])} rows for {durations[video]:g} s"
            for video, rate in rates.items()
            if abs(rate - expected) * durations[video]
            > max(2.0, 0.05 * expected * durations[video])
        )

    most = 2 * len(odd(FPS)) <= len(rates)
    usual = FPS if most else statistics.median(rates.values())
    return [
        DataProblem("videos without features", missing),
        DataProblem(f"features of another width than {width}", tuple(wrong)),
        DataProblem("features that cannot be read", tuple(broken)),
        DataProblem("features that never change", tuple(blank)),
        DataProblem("features that do not fit the duration (the others are "
                f"{usual:.2g} rows a second)", odd(usual)),
        DataProblem("features that are not a row a second (they are spread evenly over the video)",
                odd(FPS), serious=False),
    ]  # fmt: skip


def _copies(videos: Sequence[str], features: Mapping[str, Tensor] | None) -> list[DataProblem]:
    """Videos whose features are those of another."""
    first, copies = dict[bytes, str](), []
    for video in dict.fromkeys(videos):
        try:
            found = features[video] if features is not None and video in features else None
        except StarcError:
            continue
        if found is not None and len(found):
            digest = hashlib.blake2b(found.contiguous().numpy().tobytes()).digest()
            if first.setdefault(digest, video) != video:
                copies.append(f"{video} has those of {first[digest]}")
    return [DataProblem("features that are copied", tuple(copies))]


def _speech(
    annotations: Mapping[str, VideoAnnotation], speech: Mapping[str, Sequence[Sentence]] | None
) -> list[DataProblem]:
    if speech is None:
        return []
    silent = tuple(video for video in annotations if not speech.get(video))
    late = tuple(
        video
        for video, annotated in annotations.items()
        if annotated.duration
        and any(sentence.end > annotated.duration for sentence in speech.get(video, ()))
    )
    return [
        DataProblem("videos without speech", silent, serious=False),
        DataProblem("videos with speech after their end (it is left out)", late, serious=False),
    ]


def _events(annotations: Mapping[str, VideoAnnotation]) -> list[DataProblem]:
    kinds: dict[str, list[str]] = {
        "events that run backwards": [],
        "events that reach beyond the video": [],
        "events without words": [],
        "events that occur twice": [],
    }
    nothing = []
    for video, annotated in annotations.items():
        seen: Counter[tuple[tuple[float, float], str]] = Counter()
        for n, (span, text) in enumerate(
            zip(annotated.spans, annotated.sentences, strict=True), start=1
        ):
            name = f"{video} #{n}"
            start, end = span
            if end <= start:
                kinds["events that run backwards"].append(name)
            elif start < 0 or (annotated.duration and end > annotated.duration + 1):
                kinds["events that reach beyond the video"].append(name)
            if not text.strip():
                kinds["events without words"].append(name)
            if seen[span, text]:
                kinds["events that occur twice"].append(name)
            seen[span, text] += 1
        if not annotated.duration or annotated.duration <= 0:
            nothing.append(video)
    return [
        DataProblem("videos without a duration", tuple(nothing)),
        *(DataProblem(what, tuple(where), serious=False) for what, where in kinds.items()),
    ]


def _leaks(
    annotations: Mapping[str, VideoAnnotation],
    store: CaptionStore | None,
    held_out: Mapping[str, Sequence[VideoAnnotation]],
) -> list[DataProblem]:
    both = tuple(video for video in held_out if video in annotations)
    problems = [DataProblem("held-out videos that are also trained on", both)]
    if store is not None:
        written = [each for known in held_out.values() for each in known]
        captions = [text for each in written for text in each.sentences]
        owned = {video for video in store.videos if video in held_out}
        problems.append(
            DataProblem(
                "captions of held-out videos in the datastore",
                tuple(overlap(store, captions)),
                serious=bool(owned),
            )
        )
        problems.append(
            DataProblem("held-out videos in the datastore", tuple(sorted(filter(None, owned))))
        )
    return problems


def _histogram(values: Sequence[float], edges: Sequence[float]) -> dict[str, int]:
    """How many values lie below the first edge, between neighbours, and from the last edge on."""
    counts = {f"< {edges[0]:g}": sum(value < edges[0] for value in values)}
    for low, high in pairwise(edges):
        counts[f"{low:g}–{high:g}"] = sum(low <= value < high for value in values)
    counts[f"≥ {edges[-1]:g}"] = sum(value >= edges[-1] for value in values)
    return counts
