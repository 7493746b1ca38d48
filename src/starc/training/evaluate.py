"""What `starc evaluate` does: caption annotated videos from feature files, and score the answers.

The road of validation, for any model folder: published checkpoints with published features, or
one's own. Where the model has a saliency head, it also says how well saliency tells the frames
inside events from those outside (area under the ROC curve, mean over looks).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from starc.decoder.beam_search import BeamSearch
from starc.errors import CheckpointError
from starc.files.annotations import VideoAnnotation, prediction_file
from starc.files.atomic import replacing
from starc.model import checkpoint
from starc.model.checkpoint import Loaded
from starc.model.collate import Collator
from starc.retrieval import datastore
from starc.training.dataset import Videos
from starc.training.run import RECIPE
from starc.training.validation import overlapping, predict

BATCH = 16


@dataclass(frozen=True, slots=True)
class Answers:
    """What a model says about annotated videos."""

    predictions: dict[str, VideoAnnotation]
    references: dict[str, VideoAnnotation]
    saliency_auc: float | None


def evaluate(
    model: Path,
    annotations: Path,
    features: Path,
    speech: Path | None,
    *,
    store: Path | None = None,
    search: BeamSearch,
    subset: str | None = None,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Answers:
    """Answers for all annotated videos; `store` takes the place of the model's own datastore."""
    loaded, collate = opened(model)
    captions = datastore.open_datastore(store) if store else loaded.store
    videos = Videos.read(annotations, features, speech, subset=subset)
    predictions: dict[str, VideoAnnotation] = {}
    order = sorted(range(len(videos)), key=videos.duration)
    for first in range(0, len(order), BATCH):
        some = order[first : first + BATCH]
        predictions |= predict(
            loaded.model, videos, some, collate, captions, batch=BATCH, search=search
        )
        told(len(predictions), len(videos))
    auc = None
    if loaded.config.saliency is not None:
        auc = saliency_auc(replace(loaded, store=captions), videos, collate)
    return Answers(predictions, dict(videos.annotations), auc)


def opened(folder: Path) -> tuple[Loaded, Collator]:
    """A model folder, or the best model of a run folder, and what makes its batches."""
    model = folder / "best" if (folder / RECIPE).is_file() else folder
    loaded = checkpoint.load(model)
    if loaded.tokenizer is None:
        raise CheckpointError(f"{model}: no tokenizer.json; copy it there")
    return loaded, Collator(loaded.config, loaded.tokenizer)


@torch.no_grad()
def saliency_auc(loaded: Loaded, videos: Videos, collate: Collator) -> float | None:
    """How often a frame inside an event outranks one outside, mean over looks with both kinds."""
    device = next(loaded.model.parameters()).device
    areas = []
    for index in range(len(videos)):
        for look in overlapping(videos, index, loaded.config.window):
            batch = collate([videos.part(look)], epoch=0).to(device)
            seen = loaded.model.encode_video(
                loaded.model.encode_frames(batch), batch, loaded.store, inference=True
            )
            assert seen.saliency_BT is not None
            real_BT = batch.frame_mask_BT
            inside_N = batch.wanted("salient_BT")[real_BT].bool()
            areas.append(area_under_curve(seen.saliency_BT[real_BT].cpu(), inside_N.cpu()))
    known = [area for area in areas if area is not None]
    return sum(known) / len(known) if known else None


def area_under_curve(score_N: torch.Tensor, inside_N: torch.Tensor) -> float | None:
    """Share of (inside, outside) pairs in the right order, ties half: Mann and Whitney's U."""
    inside = int(inside_N.sum())
    pairs = inside * (len(inside_N) - inside)
    if not pairs:
        return None
    values_N, order_N = score_N.double().sort()
    _, group_N, size = torch.unique_consecutive(values_N, return_inverse=True, return_counts=True)
    last = size.cumsum(0).double()
    rank_N = torch.empty_like(values_N)
    rank_N[order_N] = (last - (size.double() - 1) / 2)[group_N]
    u = rank_N[inside_N].sum() - inside * (inside + 1) / 2
    return float(u / pairs)


def write_predictions(predictions: dict[str, VideoAnnotation], path: Path) -> None:
    """The papers' prediction file."""
    events = {
        video: [(*span, text) for span, text in zip(one.spans, one.sentences, strict=True)]
        for video, one in predictions.items()
    }
    with replacing(path) as file:
        file.write(prediction_file(events))
