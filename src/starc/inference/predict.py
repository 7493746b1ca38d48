"""Inference: videos in, events, saliency and segments out.

Captioning, validation, evaluation and analysis all call `predict`; they differ only in where
features and speech come from. A video is cut as the model's `windowing` says, its windows are
encoded one by one and decoded together, and their events are merged (long_videos.py).

A model with a caption writer and a span head makes the events of a video with speech from the
speech alone. Its encoder then runs only if the caller asks for the `lanes`: segments and retrieved
captions that are shown beside the events and have no part in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from starc.config import BeamSearch
from starc.decoder.beam_search import Decoded
from starc.decoder.caption_writer import Caption, CaptionWriter, Request, plain
from starc.decoder.time_tokens import mark_repeated
from starc.errors import CheckpointError
from starc.inference import long_videos
from starc.inference.long_videos import FramePlan
from starc.model import saliency
from starc.model.checkpoint import Loaded
from starc.model.inputs import Collator, Example
from starc.model.starc import Generated
from starc.types import Event, Segment, Sentence

AT_ONCE = 8
"""Windows that are decoded as one batch."""
CONFIDENCE_DIGITS = 4
"""Beyond these, a confidence depends on what else was decoded at the same time."""


@dataclass(frozen=True, slots=True)
class VideoInputs:
    """What is known of a video before the model looks."""

    id: str
    features_TD: Tensor
    """Of frames at 1 FPS: all of them, or only those that `frame_plan` chooses."""
    times: tuple[float, ...]
    """Seconds of these frames."""
    frames: int
    """How many frames the video has at 1 FPS."""
    duration: float
    sentences: tuple[Sentence, ...] = ()
    given: tuple[tuple[float, float], ...] | None = None
    """Start and end of the events to describe; None: the model finds them itself."""
    has_pictures: bool = True
    """Whether the features come from frames; those of a sound file do not."""


class WindowPrediction(NamedTuple):
    """What the model makes of the seconds [start, end), in the window's own time and frames."""

    start: float
    end: float
    events: list[Event]
    """Given ones keep their place in the video."""
    saliency: list[float]
    """The prior p_s of each frame, 0 to 1; empty where saliency is off."""
    segments: list[Segment]
    frames: int
    """That the model saw of these seconds."""


@dataclass(frozen=True, slots=True)
class Prediction:
    events: tuple[Event, ...]
    frame_times: tuple[float, ...]
    """Of the frames the model saw."""
    features_TD: Tensor = field(compare=False, repr=False)
    """Of these frames, as the model takes them."""
    saliency: tuple[float, ...]
    segments: tuple[Segment, ...]
    windows: tuple[WindowPrediction, ...]


class VideoWindows(NamedTuple):
    """A video as the model takes it in: an example per window, and where each lies."""

    examples: list[Example]
    spans: list[tuple[float, float]]
    """Start and end of each window in seconds."""
    plan: FramePlan
    times: tuple[float, ...]
    """Of the frames that `plan.windows` count."""
    features_TD: Tensor
    """Of these frames."""
    given: list[list[tuple[float, float]]] | None
    """The given events that each window describes, by start; in the time of the video."""


def frame_plan(loaded: Loaded, frames: int) -> FramePlan:
    """Which of a video's 1-FPS frames the model sees, and in which windows."""
    config = loaded.config
    return long_videos.plan(frames, most=config.inputs.frames, windowing=config.windowing)


def split(loaded: Loaded, video: VideoInputs) -> VideoWindows:
    """A video as examples, one per window, with features as the model wants them."""
    plan, video = frame_plan(loaded, video.frames), _heard(loaded, video)
    features_TD, times = video.features_TD, video.times
    if len(features_TD) != len(plan.indices):
        features_TD = features_TD[plan.indices]
        times = tuple(times[index] for index in plan.indices)
    if loaded.joint is not None:
        features_TD = loaded.joint.features(features_TD, times, video.sentences)
    spans = [long_videos.seconds(window, times, video.duration) for window in plan.windows]
    examples = [
        Example(
            id=video.id,
            clip_TD=features_TD[window.first : window.stop],
            duration=end - start,
            # Published, a sentence that outlasts the video is left out; in a window it is cut off.
            sentences=video.sentences
            if loaded.config.windowing is None
            else long_videos.within(video.sentences, start, end),
        )
        for window, (start, end) in zip(plan.windows, spans, strict=True)
    ]
    return VideoWindows(examples, spans, plan, times, features_TD, _shared_out(video, spans))


def _heard(loaded: Loaded, video: VideoInputs) -> VideoInputs:
    """The video as the model hears it: one that only watches takes all for silent."""
    return video if loaded.config.inputs.speech else replace(video, sentences=())


def _shared_out(
    video: VideoInputs, windows: Sequence[tuple[float, float]]
) -> list[list[tuple[float, float]]] | None:
    """The given events by window: each goes where it lies nearest to the middle."""
    if video.given is None:
        return None
    shares: list[list[tuple[float, float]]] = [[] for _ in windows]
    for span in sorted(video.given):
        off = [abs(sum(span) - sum(window)) for window in windows]
        shares[off.index(min(off))].append(span)
    return shares


def predict(
    loaded: Loaded,
    videos: Sequence[VideoInputs],
    *,
    search: BeamSearch | None = None,
    lanes: bool = True,
    on_step: Callable[[], None] = lambda: None,
) -> list[Prediction]:
    """What the model says of each video; without `search` it decodes as its folder says.

    Either all videos have given events or none. Without `lanes`, segments and retrieved captions
    that have no part in the events are not computed. `on_step` is called between windows and
    between captions; what it raises ends the work.
    """
    if loaded.tokenizer is None:
        raise CheckpointError(f"{loaded.folder}: no tokenizer.json; copy the model's own")
    collate = Collator(loaded.config, loaded.tokenizer)
    videos = [_heard(loaded, video) for video in videos]
    writer = loaded.writer
    by_writer = [
        writer is not None
        and bool(video.sentences)
        and (writer.head is not None or video.given is not None)
        for video in videos
    ]
    encoded_by_model = [lanes or not each for each in by_writer]
    cut = [
        split(loaded, video) if needed else _uncut(video)
        for video, needed in zip(videos, encoded_by_model, strict=True)
    ]
    owner = [n for n, video in enumerate(cut) for _ in video.examples]
    examples = [example for video in cut for example in video.examples]
    spans = [span for video in cut for span in video.spans]
    # Windows of similar memory decode together: less padding, the same answers.
    lengths = [
        len(example.clip_TD) + sum(len(sentence.text) for sentence in example.sentences)
        for example in examples
    ]
    order = sorted(range(len(examples)), key=lengths.__getitem__)
    shares = [share for video in cut for share in video.given or ()]
    windows: dict[int, WindowPrediction] = {}
    model, search = loaded.model, search or loaded.config.decoding
    device, training = next(model.parameters()).device, model.training
    model.eval()
    try:
        for n in (n for n in order if by_writer[owner[n]]):
            on_step()
            with torch.no_grad():
                batch = collate([examples[n]]).to(device)
                encoded = model.encode(batch, loaded.store, inference=True)
            one = Generated([Decoded((), (), 0.0)], encoded)
            windows[n] = _window(loaded, collate, examples[n], spans[n], one)
        decoded = [n for n in order if not by_writer[owner[n]]]
        for first in range(0, len(decoded), AT_ONCE):
            on_step()
            some = decoded[first : first + AT_ONCE]
            batches = [collate([examples[n]]).to(device) for n in some]
            given = [_times(collate, shares[n], spans[n]) for n in some] if shares else None
            generated = model.generate(batches, loaded.store, search, given)
            for n, one in zip(some, generated, strict=True):
                windows[n] = _window(loaded, collate, examples[n], spans[n], one)
                if shares:
                    texts = collate.captions(one.decoded[0])
                    events = [Event(*at, text) for at, text in zip(shares[n], texts, strict=True)]
                    windows[n] = windows[n]._replace(events=events)
    finally:
        model.train(training)
    in_order = iter(windows[n] for n in range(len(examples)))
    joined = [
        _with_sources(_merged(one, list(islice(in_order, len(one.examples)))), loaded, video)
        for one, video in zip(cut, videos, strict=True)
    ]
    if writer is None:
        return joined
    joined = [
        _with_spans(writer, video, one) if timed else one
        for video, one, timed in zip(videos, joined, by_writer, strict=True)
    ]
    captions = write_captions(loaded, writer, videos, joined, on_step)
    return [
        _captioned(loaded, writer, one, written) if written else one
        for one, written in zip(joined, captions, strict=True)
    ]


def _uncut(video: VideoInputs) -> VideoWindows:
    """A video of which no window is encoded."""
    return VideoWindows([], [], FramePlan([], []), video.times, video.features_TD, None)


def _with_sources(prediction: Prediction, loaded: Loaded, video: VideoInputs) -> Prediction:
    """The prediction whose events, if it has any, say what the decoder made them from."""
    sources = []
    if video.sentences:
        sources.append("speech")
    if video.has_pictures and loaded.config.inputs.video:
        sources.append("pictures")
    if loaded.config.retrieval is not None and loaded.store is not None and len(loaded.store):
        sources.append("datastore")
    times = ("person",) if video.given is not None else tuple(sources)
    events = [
        replace(event, times_from=times, words_from=tuple(sources)) for event in prediction.events
    ]
    return replace(prediction, events=tuple(events))


def _with_spans(writer: CaptionWriter, video: VideoInputs, prediction: Prediction) -> Prediction:
    """The prediction with the given events, or with those of the span head, still to be captioned.

    Its saliency is the span head's probability that something happens.
    """
    if writer.head is not None:
        spans, inside_T, seconds = writer.timing(video.sentences, video.duration)
        last = len(inside_T) - 1
        prediction = replace(
            prediction,
            events=tuple(
                Event(span.start, span.end, "", span.confidence, times_from=("speech",))
                for span in spans
            ),
            saliency=tuple(
                float(inside_T[min(last, int(time // seconds))]) for time in prediction.frame_times
            ),
        )
    if video.given is None:
        return prediction
    events = [Event(*span, "", times_from=("person",)) for span in sorted(video.given)]
    return replace(prediction, events=tuple(events))


def _captioned(
    loaded: Loaded, writer: CaptionWriter, prediction: Prediction, captions: Sequence[Caption]
) -> Prediction:
    retrieves = _retrieves(loaded, writer.settings.retrieved)
    sources = ("speech", "pictures", "datastore") if retrieves else ("speech",)
    events = [
        replace(
            event,
            caption=one.text,
            confidence=writer.confidence(event.confidence, one),
            words_from=sources,
        )
        for event, one in zip(prediction.events, captions, strict=True)
    ]
    return replace(prediction, events=tuple(mark_repeated(events)))


def write_captions(
    loaded: Loaded,
    writer: CaptionWriter,
    videos: Sequence[VideoInputs],
    predictions: Sequence[Prediction],
    on_step: Callable[[], None] = lambda: None,
) -> list[list[Caption]]:
    """The caption writer's words for each event; none for a video in which nothing is said."""
    spoken = [n for n, video in enumerate(videos) if video.sentences and predictions[n].events]
    requests = [
        Request(
            videos[n].sentences,
            [(event.start, event.end) for event in predictions[n].events],
            _retrieved(loaded, writer.settings.retrieved, predictions[n]),
        )
        for n in spoken
    ]
    captions: list[list[Caption]] = [[] for _ in videos]
    for n, written in zip(spoken, writer.write(requests, on_step), strict=True):
        captions[n] = written
    return captions


def _retrieves(loaded: Loaded, most: int) -> bool:
    """Whether a caption writer that reads `most` retrieved captions gets any."""
    return bool(
        most and loaded.store is not None and len(loaded.store) and loaded.config.inputs.video
    )


def _retrieved(loaded: Loaded, most: int, prediction: Prediction) -> list[list[str]]:
    """The captions of the datastore nearest to the frames of each event."""
    if loaded.store is None or not _retrieves(loaded, most):
        return []
    time_T = torch.tensor(prediction.frame_times)
    query_SD = torch.stack(
        [
            prediction.features_TD[(event.start <= time_T) & (time_T <= event.end)].sum(0)
            for event in prediction.events
        ]
    )
    rows = loaded.store.search(query_SD, k=most).index_SR.tolist()
    return [
        [plain(loaded.store.captions[n]) for n in row] if query_D.any() else []
        for row, query_D in zip(rows, query_SD, strict=True)
    ]


def _times(
    collate: Collator, share: Sequence[tuple[float, float]], window: tuple[float, float]
) -> list[int]:
    """Given events as the time ids of a window."""
    start, end = window
    return collate.times([(a - start, b - start) for a, b in share], end - start)


def _window(
    loaded: Loaded,
    collate: Collator,
    example: Example,
    span: tuple[float, float],
    generated: Generated,
) -> WindowPrediction:
    (decoded,), video = generated.decoded, generated.encoded.video
    frames, scores = len(example.clip_TD), list[float]()
    if video.saliency_BT is not None and loaded.config.saliency is not None:
        standardise = loaded.config.saliency.standardise
        prior_BT = saliency.prior(video.saliency_BT.float(), video.mask_BT, standardise=standardise)
        scores = prior_BT[0, :frames].tolist()
    # Where padding counts as video (published), segments may reach beyond its end.
    segments = [
        replace(segment, stop=min(segment.stop, frames))
        for segment in video.segments[0]
        if segment.first < frames
    ]
    events = [
        event
        if event.confidence is None
        else replace(event, confidence=round(event.confidence, CONFIDENCE_DIGITS))
        for event in collate.events(decoded, example.duration)
    ]
    return WindowPrediction(*span, events, scores, segments, frames)


def _merged(video: VideoWindows, windows: Sequence[WindowPrediction]) -> Prediction:
    if not windows:
        return Prediction((), video.times, video.features_TD, (), (), ())
    ranges, events = video.plan.windows, windows[0].events
    if video.given is not None:
        events = [event for one in windows for event in one.events]
    elif len(windows) > 1:
        moved = [long_videos.shifted(one.events, one.start, one.end) for one in windows]
        events = long_videos.merge_events(video.spans, moved)
    return Prediction(
        events=tuple(events),
        frame_times=video.times,
        features_TD=video.features_TD,
        saliency=tuple(long_videos.merge_frames(ranges, [one.saliency for one in windows])),
        segments=tuple(long_videos.merge_segments(ranges, [one.segments for one in windows])),
        windows=tuple(windows),
    )
