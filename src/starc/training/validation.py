"""Validation: caption held-out videos as a user would, and score them with the evaluator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from starc.annotations import Annotated
from starc.evaluation import score
from starc.model.collate import Collator
from starc.model.datastore import Datastore
from starc.model.decoding import BeamSearch
from starc.model.starc import STaRC
from starc.training.videos import Videos

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
) -> dict[str, Annotated]:
    """Events of some videos, in batches of equally long speech."""
    model.eval()
    lengths = videos.lengths()
    queue = sorted(indices, key=lambda index: lengths[index])
    device = next(model.parameters()).device
    found: dict[str, Annotated] = {}
    for first in range(0, len(queue), batch):
        examples = [videos[index] for index in queue[first : first + batch]]
        generated = model.generate(collate(examples).to(device), store, search)
        for example, decoded in zip(examples, generated.decoded, strict=True):
            events = collate.events(decoded, example.duration)
            found[example.id] = Annotated(
                tuple((event.start, event.end) for event in events),
                tuple(event.caption for event in events),
                example.duration,
            )
    return found


def validate(predictions: Mapping[str, Annotated], videos: Videos) -> dict[str, float]:
    """Headline metrics against the videos' own annotations, raw."""
    report = score(predictions, {video: videos.annotations[video] for video in videos.ids})
    return {name: report.metrics[name] for name in _HEADLINES}
