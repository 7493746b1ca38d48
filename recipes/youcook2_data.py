"""YouCook2 from the raw files at hand to annotations and timed speech.

In: a folder with the papers' split (`yc2/`), Whisper speech of validation videos and transcripts of
training videos (`asr/`). Out: `VideoAnnotation` videos and spoken `Sentence`s by video id.

Most training transcripts have no times. A sentence gets them from a monotone alignment with the
video's own steps (`align`): it belongs to a step or to the gap between two, it should sound like
the step, and it should not stand far from where it would be if the cook spoke evenly. Only training
videos are aligned; the speech of validation videos is Whisper's, with Whisper's times.
"""

from __future__ import annotations

import csv
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starc.types import Sentence
from starc_eval.annotations import VideoAnnotation, read_references, video_id

LEFT_OUT = "xHlBWc-7Kwo"
"""The real video we look at: in no training, in no datastore."""
CHOOSING = 100
"""Validation videos, first in the order of their ids, on which settings are chosen."""
_BINS = 99
"""TimeChat's last time token."""


@dataclass(frozen=True)
class Corpus:
    """Videos by id: their steps, and what is said in them."""

    train: Mapping[str, VideoAnnotation]
    validation: Mapping[str, VideoAnnotation]
    speech: Mapping[str, Sequence[Sentence]]
    """Of all videos; missing where there is none."""
    untimed: Mapping[str, Sequence[str]]
    """Of training videos whose transcript has no times."""


def read(data: Path) -> Corpus:
    """Everything, still untimed where it is; `LEFT_OUT` is left out."""
    train = dict(read_references(data / "yc2/vid2seq_train.json"))
    train.pop(LEFT_OUT, None)
    whisper = read_whisper(data / "asr/timechat_yc2_val_gt_with_whisper_asr.json")
    validation = {
        video: annotated
        for video, annotated in read_references(data / "yc2/vid2seq_val.json").items()
        if whisper.get(video)
    }
    heard = {
        video: _stretched(whisper[video], annotated.duration or 0.0)
        for video, annotated in validation.items()
    }
    timed = read_timed(data / "asr/yc2_timed_asr_353videos_Video_data_all.csv")
    heard |= {
        video: until(timed[video], annotated.duration or 0.0)
        for video, annotated in train.items()
        if video in timed
    }
    scripts = read_untimed(data / "asr/yc2_untimed_transcripts_1736.tar.gz")
    untimed = {video: scripts[video] for video in train if video in scripts and video not in heard}
    return Corpus(train, validation, heard, untimed)


def read_whisper(path: Path) -> dict[str, list[tuple[int, int, str]]]:
    """(first bin, last bin, text) per video, in hundredths of its duration."""
    pattern = re.compile(r"<time_token_(\d+)>\s*<time_token_(\d+)>\s*([^<]*)")
    return {
        video_id(row["image_id"]): [
            (int(first), int(last), text.strip())
            for first, last, text in pattern.findall(row.get("asr_text") or "")
            if text.strip()
        ]
        for row in json.loads(path.read_text("utf-8"))["annotations"]
    }


def read_timed(path: Path) -> dict[str, list[tuple[float, str]]]:
    """(start in seconds, text) per video."""
    found: dict[str, list[tuple[float, str]]] = {}
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            video = re.search(r"v=([\w-]{11})", row["VideoUrl"] or "")
            clock = re.fullmatch(r"(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", row["TimeStamp"].strip())
            if video and clock and row["Sentence"].strip():
                hours, minutes, seconds = (float(part or 0) for part in clock.groups())
                start = 3600 * hours + 60 * minutes + seconds
                found.setdefault(video_id(video[1]), []).append((start, row["Sentence"].strip()))
    return {video: sorted(rows) for video, rows in found.items()}


def read_untimed(path: Path) -> dict[str, list[str]]:
    """Spoken sentences per video."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".txt") else None
            if file is not None:
                lines = file.read().decode("utf-8", "replace").splitlines()
                found[video_id(Path(member.name).stem)] = [
                    line.strip() for line in lines if line.strip()
                ]
    return found


def until(rows: Sequence[tuple[float, str]], duration: float) -> list[Sentence]:
    """Each sentence lasts until the next one, but no longer than its words take."""
    starts = [start for start, _ in rows] + [duration]
    return [
        Sentence(start, min(following, start + 1 + 0.5 * len(text.split()), duration), text)
        for (start, following), (_, text) in zip(pairwise(starts), rows, strict=True)
        if start < min(following, duration)
    ]


def align(
    sentences: Sequence[str],
    annotated: VideoAnnotation,
    likeness_SE: NDArray[np.float32],
    *,
    pull: float = 80.0,
    least: float = 0.05,
) -> list[Sentence]:
    """Times for untimed sentences: the best monotone walk through gaps and steps.

    score = sum over sentences of  likeness - least (in a step; 0 in a gap)
                                   - pull (place in the walk - place if spoken evenly)^2

    Places are fractions of the video. Sentences of a slot share its time by their length.
    """
    duration = annotated.duration or 1.0
    slots = _slots(annotated)
    weight_S = np.array([len(text) + 10.0 for text in sentences])
    even_S = (np.cumsum(weight_S) - weight_S / 2) / weight_S.sum()
    score_SK = np.zeros((len(sentences), len(slots)))
    for k, (first, last, event) in enumerate(slots):
        away_S = np.maximum(0.0, np.maximum(first / duration - even_S, even_S - last / duration))
        score_SK[:, k] = -pull * away_S**2
        if event is not None:
            score_SK[:, k] += likeness_SE[:, event] - least
    chosen_S = _walk(score_SK)
    timed: list[Sentence] = []
    for k, (first, last, _) in enumerate(slots):
        members = np.flatnonzero(chosen_S == k)
        edges = first + (last - first) * np.cumsum([0.0, *weight_S[members]]) / max(
            weight_S[members].sum(), 1e-9
        )
        timed += [
            Sentence(float(edges[n]), float(edges[n + 1]), sentences[index])
            for n, index in enumerate(members)
            if edges[n + 1] > edges[n]
        ]
    return timed


def extracts(
    train: Mapping[str, VideoAnnotation], speech: Mapping[str, Sequence[Sentence]]
) -> dict[str, VideoAnnotation]:
    """Annotations to practise on: what a cook says, reduced to the words that captions use.

    A word stays if it is at least half as common in captions as in speech. The half of all
    sentences with most words that captions clearly prefer become events, at their own times.
    """
    written = Counter(word for one in train.values() for word in _words(one.sentences))
    said = Counter(
        word for video in train for word in _words(one.text for one in speech.get(video, ()))
    )
    ratio = sum(said.values()) / sum(written.values())
    lift = {word: ratio * (written[word] + 0.5) / (said[word] + 3) for word in said}
    kept: dict[str, list[tuple[float, Sentence]]] = {}
    for video in train:
        for one in speech.get(video, ()):
            words = [word for word in _words([one.text]) if lift[word] > 0.5][:14]
            if len(words) >= 3:
                score = sum(lift[word] > 1.5 for word in words) / len(_words([one.text]))
                kept.setdefault(video, []).append((score, replace(one, text=" ".join(words))))
    middle = float(np.median([score for rows in kept.values() for score, _ in rows]))
    chosen = {video: [one for score, one in rows if score > middle] for video, rows in kept.items()}
    return {
        video: VideoAnnotation(
            tuple((one.start, one.end) for one in rows),
            tuple(one.text for one in rows),
            train[video].duration,
        )
        for video, rows in chosen.items()
        if rows
    }


def idle_words(spoken: Iterable[str], captions: Iterable[str], *, most: float = 0.1) -> list[str]:
    """Frequent words of speech that are at most `most` times as common in captions."""
    said, written = Counter(_words(spoken)), Counter(_words(captions))
    ratio = sum(said.values()) / sum(written.values())
    return [
        word
        for word, count in said.most_common()
        if count >= 200 and ratio * written[word] <= most * count
    ]


def _words(texts: Iterable[str]) -> list[str]:
    lower = (re.sub(" ?['’]", "", text.lower()) for text in texts)
    return [word for text in lower for word in re.findall("[a-z0-9]+", text)]


def _stretched(rows: Sequence[tuple[int, int, str]], duration: float) -> list[Sentence]:
    step = duration / _BINS
    return [
        Sentence(first * step, min(max(last, first + 0.5) * step, duration), text)
        for first, last, text in rows
        if first < _BINS
    ]


def _slots(annotated: VideoAnnotation) -> list[tuple[float, float, int | None]]:
    """The video cut into steps and the gaps between them: (start, end, step or None)."""
    duration, at = annotated.duration or 1.0, 0.0
    slots: list[tuple[float, float, int | None]] = []
    for event, (start, end) in sorted(enumerate(annotated.spans), key=lambda item: item[1]):
        start, end = max(start, at), min(end, duration)
        if start > at:
            slots.append((at, start, None))
        if end > start:
            slots.append((start, end, event))
            at = end
    return [*slots, (at, duration, None)] if at < duration else slots


def _walk(score_SK: NDArray[np.float64]) -> NDArray[np.intp]:
    """The slot of each sentence, never falling, of largest summed score."""
    best_K = score_SK[0].copy()
    came_SK = np.zeros(score_SK.shape, dtype=np.intp)
    for s in range(1, len(score_SK)):
        reached = np.maximum.accumulate(best_K)
        came_SK[s] = np.maximum.accumulate(np.where(best_K == reached, np.arange(len(best_K)), 0))
        best_K = reached + score_SK[s]
    chosen = np.zeros(len(score_SK), dtype=np.intp)
    chosen[-1] = int(best_K.argmax())
    for s in range(len(score_SK) - 1, 0, -1):
        chosen[s - 1] = came_SK[s, chosen[s]]
    return chosen
