"""How long the span head's events are, and what the kink of its score at `SHORT` bins does.

    python benchmarks/span_lengths.py [--short 4 6 8 12 16] [--captions] [--quick]

Speech of YouCook2's validation videos; the settings of the head were chosen on the first 100, so
the others are reported. A span's inside counts fully from `SHORT` bins on, and its length costs
nothing at `typical` seconds: 16 s are 8 bins, so both kinks fall on the same length. `--captions`
also writes captions for each row, which takes some 20 CPU minutes a row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from measure import row, shared
from torch import Tensor

from starc.decoder import span_head
from starc.decoder.caption_writer import CaptionWriter, Request, words_of
from starc.decoder.span_head import FINER, START, TimedSpan, bins_of, word_states
from starc.inference.pipeline import EMBEDDED
from starc.model import checkpoint
from starc.types import Sentence
from starc_eval import score
from starc_eval.annotations import VideoAnnotation

SHOWN = ("CIDEr", "METEOR", "soda_c")


class Video(NamedTuple):
    """What decoding needs of a video, and what it should find."""

    logits_T3: Tensor
    bin: float
    annotated: VideoAnnotation
    said: list[Sentence]


@torch.inference_mode()
def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--short", type=int, nargs="+", default=[4, 6, 8, 12, 16])
    arguments.add_argument("--captions", action="store_true")
    arguments.add_argument("--quick", action="store_true", help="a tenth of the videos")
    options = arguments.parse_args()
    data = shared("data")
    torch.set_num_threads(1)
    writer = checkpoint.load(EMBEDDED, device="cpu").writer
    assert writer is not None
    choose, report = _videos(writer, data, 10 if options.quick else 1)
    lengths = [end - start for video in report.values() for start, end in video.annotated.spans]
    at_typical = sum(15 <= length < 17 for length in lengths) / len(lengths)
    print(
        f"{len(lengths)} reference events of {len(report)} videos, {at_typical:.1%} of 15 to 17 s"
    )
    row(
        [
            "SHORT",
            "events",
            "8 bins",
            "F1, chosen on",
            "F1",
            "P",
            "R",
            *SHOWN[: 3 * options.captions],
        ]
    )
    row(["---:"] * (7 + 3 * options.captions))
    for short in options.short:
        span_head.SHORT = short
        row(_cells(writer, short, choose, report, options.captions))


def _cells(
    writer: CaptionWriter,
    short: int,
    choose: Mapping[str, Video],
    report: Mapping[str, Video],
    captions: bool,
) -> list[str]:
    """One row of the table."""
    found = {name: _spans(writer, video) for name, video in report.items()}
    bins = [
        round((one.end - one.start) / report[name].bin) for name in found for one in found[name]
    ]
    texts = {name: ["x"] * len(spans) for name, spans in found.items()}
    if captions:
        requests = [
            Request(video.said, [(one.start, one.end) for one in found[name]])
            for name, video in report.items()
        ]
        written = writer.write(requests, lambda: None)
        texts = {
            name: [one.text for one in some] for name, some in zip(report, written, strict=True)
        }
    metrics = ("localisation", *(("captions", "soda") if captions else ()))
    judged = _score(found, texts, report, metrics)
    first = {name: _spans(writer, video) for name, video in choose.items()}
    chosen_on = _score(
        first, {name: ["x"] * len(first[name]) for name in first}, choose, metrics[:1]
    )
    shown = ("F1", "Precision", "Recall", *SHOWN[: 3 * captions])
    share = f"{bins.count(8) / len(bins):.1%}"
    numbers = [
        f"{100 * number:.2f}" for number in (chosen_on["F1"], *(judged[key] for key in shown))
    ]
    return [str(short), str(len(bins)), share, *numbers]


def _score(
    found: Mapping[str, list[TimedSpan]],
    texts: Mapping[str, list[str]],
    videos: Mapping[str, Video],
    metrics: tuple[str, ...],
) -> Mapping[str, float]:
    made = {
        name: VideoAnnotation(
            tuple((one.start, one.end) for one in spans),
            tuple(texts[name]),
            videos[name].annotated.duration,
        )
        for name, spans in found.items()
    }
    wanted = {name: video.annotated for name, video in videos.items()}
    return score(made, wanted, metrics=metrics).metrics


def _spans(writer: CaptionWriter, video: Video) -> list[TimedSpan]:
    assert writer.head is not None
    return writer.head.spans(video.logits_T3, video.annotated.duration or 1.0, video.bin)


def _videos(
    writer: CaptionWriter, data: Path, share: int
) -> tuple[dict[str, Video], dict[str, Video]]:
    """Videos on which settings were chosen, and the others."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
    import youcook2_data as youcook2  # type: ignore[import-not-found]

    corpus, head = youcook2.read(data), writer.head
    assert head is not None
    names = sorted(corpus.validation)
    parts = names[: youcook2.CHOOSING : share], names[youcook2.CHOOSING :: share]
    made = []
    for part in parts:
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
