"""How long the span head's events are, and what the settings of its score do to them.

    python benchmarks/span_lengths.py [--full-inside 16 32] [--typical 16 20] [--captions] [--quick]

Speech of YouCook2's validation videos; the settings were chosen on the first 100, so the others are
reported. The first row is as shipped. `--captions` also writes its captions, some 20 CPU minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from measure import row, shared
from torch import Tensor

from starc.decoder.caption_writer import CaptionWriter, Request, words_of
from starc.decoder.span_head import FINER, START, SpanHead, TimedSpan, bins_of, word_states
from starc.inference.pipeline import EMBEDDED
from starc.model import checkpoint
from starc.types import Sentence
from starc_eval import score
from starc_eval.annotations import VideoAnnotation


class Video(NamedTuple):
    """What decoding needs of a video, and what it should find."""

    logits_T3: Tensor
    bin: float
    annotated: VideoAnnotation
    said: list[Sentence]


Videos = Mapping[str, Video]
Found = Mapping[str, list[TimedSpan]]


@torch.inference_mode()
def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--full-inside", type=float, nargs="+", default=[8, 16, 24, 32, 40])
    arguments.add_argument("--typical", type=float, nargs="+", default=[16, 20, 24])
    arguments.add_argument("--captions", action="store_true")
    arguments.add_argument("--quick", action="store_true", help="a tenth of the videos")
    options = arguments.parse_args()
    data = shared("data")
    torch.set_num_threads(1)
    writer = checkpoint.load(EMBEDDED, device="cpu").writer
    assert writer is not None and writer.head is not None
    head, shipped = writer.head, writer.head.settings
    choose, report = _videos(writer, data, 10 if options.quick else 1)
    if options.captions:
        _print_captions(writer, report)
    row(
        [
            "full inside, s",
            "typical, s",
            "events",
            "commonest length",
            "F1, chosen on",
            "F1",
            "P",
            "R",
        ]
    )
    row(["---:"] * 8)
    others = [
        replace(shipped, full_inside=full, typical=typical)
        for full in options.full_inside
        for typical in options.typical
    ]
    for settings in (shipped, *(one for one in others if one != shipped)):
        head.settings = settings
        found = _spans(head, report)
        bins = [
            round((one.end - one.start) / report[name].bin) for name in found for one in found[name]
        ]
        length, often = Counter(bins).most_common(1)[0]
        judged = _localisation(found, report)
        numbers = (_localisation(_spans(head, choose), choose)["F1"],
                   *(judged[key] for key in ("F1", "Precision", "Recall")))  # fmt: skip
        row([
            f"{settings.full_inside:g}", f"{settings.typical:g}", str(len(bins)),
            f"{length} bins, {often / len(bins):.1%}", *(f"{100 * one:.2f}" for one in numbers),
        ])  # fmt: skip


def _print_captions(writer: CaptionWriter, videos: Videos) -> None:
    """Scores of captions for the spans of the shipped settings."""
    assert writer.head is not None
    found = _spans(writer.head, videos)
    requests = [
        Request(video.said, [(one.start, one.end) for one in found[name]])
        for name, video in videos.items()
    ]
    written = writer.write(requests, lambda: None)
    texts = {name: [one.text for one in some] for name, some in zip(videos, written, strict=True)}
    made = _annotations(found, texts, videos)
    judged = score(made, {name: video.annotated for name, video in videos.items()}).metrics
    shown = ("CIDEr", "METEOR", "soda_c", "F1")
    print(", ".join(f"{key} {100 * judged[key]:.2f}" for key in shown), f"of {len(videos)} videos")


def _localisation(found: Found, videos: Videos) -> Mapping[str, float]:
    texts = {name: ["x"] * len(spans) for name, spans in found.items()}
    wanted = {name: video.annotated for name, video in videos.items()}
    return score(_annotations(found, texts, videos), wanted, metrics=("localisation",)).metrics


def _annotations(
    found: Found, texts: Mapping[str, list[str]], videos: Videos
) -> dict[str, VideoAnnotation]:
    return {
        name: VideoAnnotation(
            tuple((one.start, one.end) for one in spans),
            tuple(texts[name]),
            videos[name].annotated.duration,
        )
        for name, spans in found.items()
    }


def _spans(head: SpanHead, videos: Videos) -> dict[str, list[TimedSpan]]:
    return {
        name: head.spans(video.logits_T3, video.annotated.duration or 1.0, video.bin)
        for name, video in videos.items()
    }


def _videos(writer: CaptionWriter, data: Path, share: int) -> tuple[Videos, Videos]:
    """Videos on which settings were chosen, and the others."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
    import youcook2_data as youcook2  # type: ignore[import-not-found]

    corpus, head = youcook2.read(data), writer.head
    assert head is not None
    names = sorted(corpus.validation)
    made = []
    for part in (names[: youcook2.CHOOSING : share], names[youcook2.CHOOSING :: share]):
        videos = {}
        for name in part:
            annotated, said = corpus.validation[name], list(corpus.speech[name])
            words = words_of(said)
            states = word_states(writer.reader, writer.tokenizer, words, head.settings.layers)
            for finer in FINER:  # as SpanHead.timing
                seconds = head.settings.bin / finer
                logits_T3 = head(bins_of(states, annotated.duration or 1.0, seconds)[None])[0]
                if logits_T3[:, START].sigmoid().mean() <= head.settings.most_starts:
                    break
            videos[name] = Video(logits_T3, seconds, annotated, said)
        made.append(videos)
    return made[0], made[1]


if __name__ == "__main__":
    main()
