"""What the model makes of videos that have been seen and heard: events, saliency, segments.

Each example is encoded alone, so that its numbers are its own whatever is captioned beside it;
decoding, which takes nearly all the time, serves many at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from starc.config import Config
from starc.decoder import beam_search
from starc.decoder.beam_search import BeamSearch
from starc.errors import CheckpointError
from starc.model import saliency
from starc.model.checkpoint import Loaded
from starc.model.collate import Collator, Example
from starc.model.starc import VideoEncoding
from starc.types import Event, Segment

AT_ONCE = 8
"""Examples that are decoded as one batch."""
CONFIDENCE_DIGITS = 4
"""Beyond these, a confidence depends on what else was decoded at the same time."""


class Prediction(NamedTuple):
    """What the model makes of one example, in its own time and positions."""

    events: list[Event]
    saliency: list[float]
    segments: list[Segment]


def tell(loaded: Loaded, examples: Sequence[Example], search: BeamSearch) -> list[Prediction]:
    """What the model says of each example, which may be a whole video or a window of one."""
    if loaded.tokenizer is None:
        raise CheckpointError(f"{loaded.folder}: no tokenizer.json; copy the model's own")
    collate = Collator(loaded.config, loaded.tokenizer)
    told: list[Prediction] = []
    for first in range(0, len(examples), AT_ONCE):
        told += _tell(loaded, collate, examples[first : first + AT_ONCE], search)
    return told


@torch.no_grad()
def _tell(
    loaded: Loaded, collate: Collator, examples: Sequence[Example], search: BeamSearch
) -> list[Prediction]:
    model = loaded.model
    device = next(model.parameters()).device
    encoded = [
        model.encode(collate([example]).to(device), loaded.store, inference=True)
        for example in examples
    ]
    memory_BMD = pad_sequence([one.memory_BMD[0] for one in encoded], batch_first=True)
    mask_BM = pad_sequence([one.memory_mask_BM[0] for one in encoded], batch_first=True)
    decoded = beam_search.generate(model.t5, memory_BMD, mask_BM, search)
    return [
        _told(example, one.seen, collate.events(said, example.duration), loaded.config)
        for example, one, said in zip(examples, encoded, decoded, strict=True)
    ]


def _told(
    example: Example, seen: VideoEncoding, events: Sequence[Event], config: Config
) -> Prediction:
    frames, scores = len(example.clip_TD), list[float]()
    if seen.saliency_BT is not None and config.saliency is not None:
        prior_BT = saliency.prior(
            seen.saliency_BT.float(), seen.mask_BT, standardise=config.saliency.standardise
        )
        scores = prior_BT[0, :frames].tolist()
    # Where padding counts as video (published), segments may reach beyond its end.
    segments = [
        replace(segment, stop=min(segment.stop, frames))
        for segment in seen.segments[0]
        if segment.first < frames
    ]
    rounded = [
        replace(event, confidence=round(event.confidence, CONFIDENCE_DIGITS))
        if event.confidence is not None
        else event
        for event in events
    ]
    return Prediction(rounded, scores, segments)
