"""What can be had on YouCook2 without a model: the first rows of docs/benchmarks.md.

    python recipes/baselines.py PREPARED OUT

writes a prediction file per baseline for the validation videos of prepare_youcook2.py's folder:
random training captions on a random training timeline; the spoken sentences themselves; and the
captions of the training video with the most similar transcript (tf-idf), its timeline stretched.
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from starc.media.subtitles import read_transcripts
from starc.types import Sentence
from starc_eval.annotations import VideoAnnotation, read_references, write_predictions

Speech = Mapping[str, Sequence[Sentence]]
Videos = Mapping[str, VideoAnnotation]


def main() -> None:
    """Write random.json, speech.json and nearest.json."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("prepared", type=Path)
    arguments.add_argument("out", type=Path)
    options = arguments.parse_args()
    train = read_references(options.prepared / "train.json")
    validation = read_references(options.prepared / "validation.json")
    speech = read_transcripts(options.prepared / "speech.json")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, predictions in (
        ("random", at_random(train, validation)),
        ("speech", as_said(validation, speech)),
        ("nearest", of_nearest(train, validation, speech)),
    ):
        write_predictions(predictions, options.out / f"{name}.json")


def at_random(train: Videos, validation: Videos) -> dict[str, VideoAnnotation]:
    """The timeline of a random training video with random training captions."""
    rng = random.Random(0)
    captions = [text for one in train.values() for text in one.sentences]
    found = {}
    for video, wanted in validation.items():
        given = train[rng.choice(list(train))]
        texts = tuple(rng.choice(captions) for _ in given.spans)
        found[video] = stretched(VideoAnnotation(given.spans, texts, given.duration), wanted)
    return found


def as_said(validation: Videos, speech: Speech) -> dict[str, VideoAnnotation]:
    """Every spoken sentence is an event."""
    return {
        video: VideoAnnotation(
            tuple((said.start, said.end) for said in speech[video]),
            tuple(said.text for said in speech[video]),
            wanted.duration,
        )
        for video, wanted in validation.items()
    }


def of_nearest(train: Videos, validation: Videos, speech: Speech) -> dict[str, VideoAnnotation]:
    """Times and captions of the training video whose words are most alike, by tf-idf cosine."""
    counts = {
        video: Counter(words(speech[video])) for video in (*train, *validation) if video in speech
    }
    documents = Counter(word for video in train if video in counts for word in counts[video])
    weight = {word: math.log(len(train) / seen) for word, seen in documents.items()}
    vectors = {video: unit(counted, weight) for video, counted in counts.items()}
    known = [video for video in train if video in vectors]
    found = {}
    for video, wanted in validation.items():
        mine = vectors[video]
        best = max(known, key=lambda other: cosine(mine, vectors[other]))
        found[video] = stretched(train[best], wanted)
    return found


def stretched(given: VideoAnnotation, wanted: VideoAnnotation) -> VideoAnnotation:
    """The events of one video on the duration of another."""
    factor = (wanted.duration or 1.0) / (given.duration or 1.0)
    spans = tuple((start * factor, end * factor) for start, end in given.spans)
    return VideoAnnotation(spans, given.sentences, wanted.duration)


def words(sentences: Sequence[Sentence]) -> list[str]:
    """Lower-case words of a transcript."""
    return [word for one in sentences for word in re.findall("[a-z]+", one.text.lower())]


def unit(counted: Counter[str], weight: Mapping[str, float]) -> dict[str, float]:
    """A tf-idf vector of unit length."""
    row = {word: (1 + math.log(n)) * weight[word] for word, n in counted.items() if word in weight}
    length = math.sqrt(sum(value * value for value in row.values())) or 1.0
    return {word: value / length for word, value in row.items()}


def cosine(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Of two unit vectors."""
    small, large = sorted((a, b), key=len)
    return sum(value * large.get(word, 0.0) for word, value in small.items())


if __name__ == "__main__":
    main()
