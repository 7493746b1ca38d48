"""Caption annotated videos from their features, as `starc caption` would, and score the answers.

`evaluate` is what `starc evaluate` does, for any model folder: published checkpoints with published
features, or one's own; validation during training goes through the same functions. Where the model
has a saliency head, its scores are compared with the annotation: how often a frame inside an event
outranks one outside (area under the ROC curve, mean over videos).

`analyse` gives the material of the paper's figures, which figures.py draws: for each video saliency
against the annotated events, how sharply X and X' change from frame to frame, which anchor each
frame goes to, the segments and captions that other ways of cutting the video would give; and over
models, how well the segments fit the events.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from starc.config import BeamSearch, apply_overrides
from starc.errors import AnnotationError, ConfigError
from starc.inference import long_videos
from starc.inference.long_videos import FrameRange
from starc.inference.predict import Prediction, predict, split
from starc.media.encoders import batches
from starc.methods.folder import holds_method
from starc.methods.folder import load as load_method
from starc.model import checkpoint, saliency
from starc.model.checkpoint import Loaded
from starc.model.inputs import Batch, Collator
from starc.model.starc import STaRC, VideoEncoding
from starc.retrieval.datastore import open_datastore
from starc.training.dataset import Videos, usable_events
from starc.training.run import RECIPE
from starc.types import Event, Segment
from starc_eval import pairs, score
from starc_eval.annotations import VideoAnnotation

AT_ONCE = 16
"""Videos handed to `predict` together: progress is told after each such handful."""
HEADLINES = ("CIDEr", "METEOR", "soda_c", "Bleu_4", "F1", "Precision", "Recall")
INDICATORS = ("Recall@0.5", "Mean IoU", "Matched segments")
"""Of segment quality: the axes of the paper's correlation figure."""
METHOD_LIMITS = "a set prediction model decodes greedily, from frames and its own memory bank"
METHODS = ("uniform", "adaptive", "kmeans", "transport")


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
    if holds_method(chosen := _chosen(model)):
        if store or beams or given_boundaries or settings:
            raise ConfigError(
                f"{chosen}: {METHOD_LIMITS}; leave --datastore, --beams, --given-boundaries, "
                "--no-video and --no-speech out"
            )
        return _evaluate_method(chosen, Videos.read(annotations, features, None, subset=subset))
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


def _evaluate_method(folder: Path, videos: Videos) -> Evaluation:
    """Answers of a method of starc.methods, which reads no speech."""
    from starc.training.set_prediction import predict as predict_events  # imports this module

    begun = time.perf_counter()
    model = load_method(folder)
    loading = time.perf_counter() - begun
    predictions = predict_events(model, videos, range(len(videos)))
    return Evaluation(predictions, videos.references, None, loading)


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
                    "described; fix it, or leave --given-boundaries out"
                )


def open_model(folder: Path) -> Loaded:
    """A model folder, or the best model of a run folder."""
    return checkpoint.load(_chosen(folder))


def _chosen(folder: Path) -> Path:
    return folder / "best" if (folder / RECIPE).is_file() else folder


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
    """How often a frame inside an event outranks one outside, mean over videos with both kinds."""
    areas = []
    for video, prediction in predictions.items():
        annotated, shown_T = _annotation(videos, video), torch.tensor(prediction.saliency)
        events, duration = tuple(usable_events(annotated)), annotated.duration or 0.0
        inside_T = saliency.labels(events, duration=duration, frames=len(shown_T))
        areas.append(area_under_curve(shown_T, inside_T.bool()))
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


@dataclass(frozen=True, slots=True)
class VideoAnalysis:
    """One video seen from inside; T real frames."""

    video: str
    duration: float
    events: tuple[Event, ...]
    salient_T: Tensor
    """Highlight labels."""
    saliency_T: Tensor | None
    """The prior p_s, 0 to 1."""
    sharpness_T: Tensor
    """‖x_t − x_{t−1}‖ of X; the first is 0."""
    refined_sharpness_T: Tensor
    """The same of X'."""
    anchor_T: Tensor | None
    """The anchor of each frame."""
    segments: dict[str, list[Segment]]
    """By method, with the captions of the kept ones."""

    def contrast(self) -> tuple[float, float] | None:
        """Mean saliency inside and outside events; None without saliency or without either side."""
        inside_T = self.salient_T.bool()
        if self.saliency_T is None or inside_T.all() or not inside_T.any():
            return None
        return float(self.saliency_T[inside_T].mean()), float(self.saliency_T[~inside_T].mean())


@torch.no_grad()
def analyse(
    loaded: Loaded, videos: Videos, indices: Sequence[int], *, methods: Sequence[str] = METHODS
) -> Iterator[VideoAnalysis]:
    """One analysis per video, cut by `methods`; a long one is seen in windows, as everywhere."""
    model = loaded.model.eval()
    assert loaded.tokenizer is not None
    collate = Collator(loaded.config, loaded.tokenizer)
    variants = dict(_variants(model, methods)) if loaded.store is not None else {}
    for index in indices:
        video = videos.inputs(index)
        events = tuple(usable_events(videos.accounts[video.id][0]))
        windows = split(loaded, video)
        ranges = windows.plan.windows
        batches = [collate([one]).to(next(model.parameters()).device) for one in windows.examples]
        plain = [model.encode_video(model.encode_frames(b), b, loaded.store) for b in batches]
        encodings = [_encoded(model, batch, loaded) for batch in batches]
        priors = [
            saliency.prior(one.saliency_BT, one.mask_BT, standardise=chosen.standardise)[0]
            for one in encodings
            if (chosen := model.config.saliency) and one.saliency_BT is not None
        ]
        planned = [one.plan.anchor_BT[0] for one in encodings if one.plan is not None]
        yield VideoAnalysis(
            video=video.id,
            duration=video.duration,
            events=events,
            salient_T=saliency.labels(events, duration=video.duration, frames=len(windows.times)),
            saliency_T=_merged(ranges, priors) if priors else None,
            sharpness_T=_merged(ranges, [_sharpness(one.video_BTD[0]) for one in plain]),
            refined_sharpness_T=_merged(ranges, [_sharpness(one.refined_BTD[0]) for one in plain]),
            anchor_T=_merged(ranges, planned) if planned else None,
            segments={
                name: long_videos.merge_segments(
                    ranges, [_encoded(variant, batch, loaded).segments[0] for batch in batches]
                )
                for name, variant in variants.items()
            },
        )


def _encoded(model: STaRC, batch: Batch, loaded: Loaded) -> VideoEncoding:
    return model.encode_video(model.encode_frames(batch), batch, loaded.store, inference=True)


def _merged(ranges: Sequence[FrameRange], rows: Sequence[Tensor]) -> Tensor:
    return torch.tensor(long_videos.merge_frames(ranges, [row_T.tolist() for row_T in rows]))


def retrieving_segments(
    predictions: Mapping[str, Prediction], videos: Videos
) -> dict[str, VideoAnnotation]:
    """Where the segments lie whose captions reach the decoder, by video, in seconds."""
    segments = {}
    for video, prediction in predictions.items():
        spans = []
        for start, end, _, _, cut, frames in prediction.windows:
            times = [start + frame * (end - start) / frames for frame in range(frames + 1)]
            spans += [(times[one.first], times[one.stop]) for one in cut if one.kept]
        duration = videos.accounts[video][0].duration
        segments[video] = VideoAnnotation(tuple(spans), ("",) * len(spans), duration)
    return segments


def segment_quality(segments: Mapping[str, VideoAnnotation], videos: Videos) -> dict[str, float]:
    """The paper's indicators of how well segments fit the annotated events, mean over videos."""
    laid_out = pairs.corpus(segments, [videos.annotations], videos.ids)
    values = pairs.segment_quality(laid_out)
    return {name: float(each_V.mean()) for name, each_V in zip(INDICATORS, values, strict=True)}


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's r; None below three points, or where one side does not vary."""
    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    return statistics.correlation(x, y)


def _sharpness(x_TD: Tensor) -> Tensor:
    step_T = (x_TD[1:] - x_TD[:-1]).norm(dim=-1)
    return torch.cat([step_T.new_zeros(1), step_T])


def _variants(model: STaRC, methods: Sequence[str]) -> Iterator[tuple[str, STaRC]]:
    """The same weights with each way of cutting a video, where the model retrieves at all."""
    if model.config.retrieval is None:
        return
    for name in methods:
        if name == model.config.segments.method:
            yield name, model
        elif name != "transport":  # needs anchors, which this model never learned
            variant = STaRC(apply_overrides(model.config, [f"segments.method={name}"]))
            wanted, weights = variant.state_dict(), model.state_dict()
            variant.load_state_dict({key: weights[key] for key in weights if key in wanted})
            yield name, variant.to(next(model.parameters()).device).eval()
