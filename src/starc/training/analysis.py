"""What a trained model does inside, in numbers: the material of the paper's figures.

In: a model, its datastore, annotated videos. Out: for each video saliency against the annotated
events, how sharply X and X' change from frame to frame, which anchor each frame goes to, and the
segments and captions that other ways of cutting the video would give; and over models, how well
the segments fit the events. figures.py draws them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from starc.config import apply_overrides
from starc.evaluation import pairs
from starc.evaluation.pairs import corpus
from starc.files.annotations import VideoAnnotation
from starc.inference import long_videos
from starc.inference.long_videos import FrameRange
from starc.inference.predict import Prediction, split
from starc.model import saliency
from starc.model.checkpoint import Loaded
from starc.model.inputs import Batch, Collator
from starc.model.starc import STaRC, VideoEncoding
from starc.training.dataset import Videos, usable_events
from starc.types import Event, Segment

INDICATORS = ("Recall@0.5", "Mean IoU", "Matched segments")
"""Of segment quality: the axes of the paper's correlation figure."""
METHODS = ("uniform", "adaptive", "kmeans", "transport")


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
    laid_out = corpus(segments, [videos.annotations], videos.ids)
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
