"""Caption annotated videos from their features, as `starc caption` would, and score the answers.

`evaluate` is what `starc evaluate` does, for any model folder: published checkpoints with published
features, or one's own; validation during training goes through the same functions. Where the model
has a saliency head, its scores are compared with the annotation: how often a frame inside an event
outranks one outside (area under the ROC curve, mean over windows).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from starc.config import BeamSearch, apply_overrides
from starc.errors import AnnotationError
from starc.evaluation import score
from starc.files.annotations import VideoAnnotation
from starc.inference import long_videos
from starc.inference.predict import Prediction, predict
from starc.media.encoders import batches
from starc.model import checkpoint, saliency
from starc.model.checkpoint import Loaded
from starc.retrieval.datastore import open_datastore
from starc.training.dataset import Videos, usable_events
from starc.training.run import RECIPE

AT_ONCE = 16
"""Videos handed to `predict` together: progress is told after each such handful."""
HEADLINES = ("CIDEr", "METEOR", "soda_c", "Bleu_4", "F1", "Precision", "Recall")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a model says about annotated videos."""

    predictions: dict[str, VideoAnnotation]
    references: tuple[Mapping[str, VideoAnnotation], ...]
    """One for each annotation file."""
    saliency_auc: float | None
    loading: float
    """Seconds until the first video could be captioned."""


def evaluate(
    model: Path,
    annotations: Path | Sequence[Path],
    features: Path,
    speech: Path | None,
    *,
    store: str | Path | None = None,
    beams: int | None = None,
    subset: str | None = None,
    given_boundaries: bool = False,
    settings: Sequence[str] = (),
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Answers for all annotated videos; `store` takes the place of the model's own datastore.

    With `given_boundaries` the model is told when events happen and only says what. `settings`
    change the model's own, such as NO_VIDEO and NO_SPEECH of recipes.py.
    """
    begun = time.perf_counter()
    loaded = open_model(model)
    changes = [setting.removeprefix("model.") for setting in settings]
    loaded.model.config = apply_overrides(loaded.config, changes)
    if store is not None:
        loaded = loaded.with_store(open_datastore(str(store)))
    videos = Videos.read(annotations, features, speech, subset=subset)
    search = loaded.config.decoding
    search = replace(search, beams=beams or search.beams)
    loading = time.perf_counter() - begun
    if given_boundaries:
        _require_given(annotations, videos)
    predictions = caption_videos(
        loaded, videos, search=search, given_boundaries=given_boundaries, on_progress=on_progress
    )
    return Evaluation(
        as_annotations(predictions, videos),
        videos.references,
        saliency_auc(predictions, videos),
        loading,
    )


def _require_given(annotations: Path | Sequence[Path], videos: Videos) -> None:
    """An error unless all events of one file can be described."""
    file, *others = [annotations] if isinstance(annotations, Path) else annotations
    if others:
        raise AnnotationError(f"{others[0]}: given boundaries are those of one file; leave it out")
    for video, annotated in videos.references[0].items():
        for number, (start, end) in enumerate(annotated.spans, start=1):
            if not 0 <= start < end:
                raise AnnotationError(
                    f"{file}: video {video!r}, event {number}: [{start}, {end}] cannot be "
                    "described; mend it, or leave --given-boundaries out"
                )


def open_model(folder: Path) -> Loaded:
    """A model folder, or the best model of a run folder."""
    return checkpoint.load(folder / "best" if (folder / RECIPE).is_file() else folder)


def caption_videos(
    loaded: Loaded,
    videos: Videos,
    indices: Iterable[int] | None = None,
    *,
    search: BeamSearch | None = None,
    given_boundaries: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Prediction]:
    """What a model says of some of the videos, or of all.

    With `given_boundaries`, of their annotated events, under the name of each annotator's account.
    """
    order = sorted(range(len(videos)) if indices is None else indices, key=videos.duration)
    named = [(videos.ids[index], index) for index in order]
    if given_boundaries:
        keys: dict[str, list[str]] = {}
        for key, annotated in videos.references[0].items():
            keys.setdefault(annotated.video or key, []).append(key)
        named = [(key, index) for video, index in named for key in keys[video]]
    predictions: dict[str, Prediction] = {}
    for some in batches(named, AT_ONCE):
        inputs = [videos.inputs(index) for _, index in some]
        if given_boundaries:
            inputs = [
                replace(one, given=videos.references[0][key].spans)
                for one, (key, _) in zip(inputs, some, strict=True)
            ]
        answers = predict(loaded, inputs, search=search)
        predictions.update(zip((name for name, _ in some), answers, strict=True))
        on_progress(len(predictions), len(named))
    return predictions


def _annotation(videos: Videos, name: str) -> VideoAnnotation:
    """What the account of that name says, or the first account of the video."""
    return videos.references[0].get(name) or videos.accounts[name][0]


def as_annotations(
    predictions: Mapping[str, Prediction], videos: Videos
) -> dict[str, VideoAnnotation]:
    """Predicted events as the evaluator takes them."""
    return {
        video: VideoAnnotation(
            tuple((event.start, event.end) for event in prediction.events),
            tuple(event.caption for event in prediction.events),
            _annotation(videos, video).duration,
        )
        for video, prediction in predictions.items()
    }


def headline_scores(predictions: Mapping[str, VideoAnnotation], videos: Videos) -> dict[str, float]:
    """Headline metrics against the videos' own annotations, raw."""
    wanted = {*videos.ids}
    files = [
        {key: each for key, each in file.items() if (each.video or key) in wanted}
        for file in videos.references
    ]
    report = score(predictions, [file for file in files if file])
    return {name: report.metrics[name] for name in HEADLINES}


def saliency_auc(predictions: Mapping[str, Prediction], videos: Videos) -> float | None:
    """How often a frame inside an event outranks one outside, mean over windows with both kinds."""
    areas = []
    for video, prediction in predictions.items():
        events = tuple(usable_events(_annotation(videos, video)))
        for window in prediction.windows:
            inside = events
            if len(prediction.windows) > 1:
                inside = long_videos.within(events, window.start, window.end)
            labels_T = saliency.labels(
                inside, duration=window.end - window.start, frames=len(window.saliency)
            )
            areas.append(area_under_curve(torch.tensor(window.saliency), labels_T.bool()))
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
