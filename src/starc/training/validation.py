"""Validation: caption held-out videos as a user would, and score them with the evaluator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

import torch

from starc.decoder.beam_search import BeamSearch
from starc.evaluation import score
from starc.files.annotations import VideoAnnotation
from starc.inference import long_videos
from starc.inference.long_videos import WindowEvents
from starc.media.encoders import batches
from starc.model.collate import FRAMES, Collator
from starc.model.starc import STaRC
from starc.retrieval.datastore import Datastore
from starc.training.dataset import Part, Videos
from starc.types import Event

_HEADLINES = ("CIDEr", "METEOR", "soda_c", "Bleu_4", "F1", "Precision", "Recall")


@torch.no_grad()
def predict(
    model: STaRC,
    videos: Videos,
    indices: Iterable[int],
    collate: Collator,
    store: Datastore | None,
    *,
    batch: int,
    search: BeamSearch,
) -> dict[str, VideoAnnotation]:
    """Events of some videos, in batches of equally long speech; long videos in windows."""
    model.eval()
    device = next(model.parameters()).device
    looks = [look for index in indices for look in overlapping(videos, index, model.config.window)]
    said: dict[Part, list[Event]] = {}
    for queue in batches(sorted(looks, key=videos.length), batch):
        examples = [videos.part(look) for look in queue]
        generated = model.generate(collate(examples).to(device), store, search)
        for look, example, decoded in zip(queue, examples, generated.decoded, strict=True):
            said[look] = collate.events(decoded, example.duration)
    found: dict[str, VideoAnnotation] = {}
    for index, group in groupby(looks, key=lambda look: look.video):
        events = long_videos.merge_events(
            [
                WindowEvents(
                    look.start, look.end, long_videos.shifted(said[look], look.start, look.end)
                )
                for look in group
            ]
        )
        found[videos.ids[index]] = VideoAnnotation(
            tuple((event.start, event.end) for event in events),
            tuple(event.caption for event in events),
            videos.duration(index),
        )
    return found


def overlapping(videos: Videos, index: int, window: float) -> list[Part]:
    """A video's windows, as at inference; one that holds all of it where `window` is 0."""
    duration = videos.duration(index)
    long = long_videos.for_window(window, most=FRAMES) if window else None
    plan = long_videos.plan(max(1, round(duration)), fps=1.0, most=FRAMES, long=long)
    return [Part(index, *long_videos.seconds(one, plan.indices, duration)) for one in plan.windows]


def validate(predictions: Mapping[str, VideoAnnotation], videos: Videos) -> dict[str, float]:
    """Headline metrics against the videos' own annotations, raw."""
    report = score(predictions, {video: videos.annotations[video] for video in videos.ids})
    return {name: report.metrics[name] for name in _HEADLINES}
