"""The models of a captioner, and what they make of one video: features, then captions.

Loaded when they are first needed; pipeline.py knows what has been made before.

Is a video in domain? Where something is said, its speech decides: how near its sentences are to
their nearest captions in the model's own datastore, at the upper quartile (a quarter of what is
said about cooking names food or tools, chatter or not). Where nothing is said, its frames decide:
the mean square of their image features, standardised by those of training (1 is an ordinary
training frame). Each model folder holds the limits (`inputs.familiar_speech`,
`inputs.familiar_frames`); benchmarks/familiarity.py prints the distributions.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch as safetensors
import torch
from safetensors import SafetensorError
from torch import Tensor

from starc.config import BeamSearch, Config
from starc.decoder import precision
from starc.errors import VideoError
from starc.files import cache
from starc.files.atomic import replacing
from starc.inference import long_videos
from starc.inference.predict import Prediction, VideoInputs, predict
from starc.media.encoders import ImageEncoder, load_image_encoder
from starc.media.features import FrameFeatures, count_frames, extract
from starc.media.speech import printable_name, sound_only
from starc.model import checkpoint
from starc.model.checkpoint import Loaded
from starc.model.joint_space import JointSpace
from starc.retrieval.datastore import open_datastore
from starc.types import Captioned, Frame, Sentence

if TYPE_CHECKING:
    from starc.inference.pipeline import OnProgress, Options, ReadVideo

log = logging.getLogger("starc")
QUANTILE = 0.75


@dataclass(eq=False)
class Models:
    """The model and the image encoder; serves several threads."""

    given: Path | Loaded
    """The model's folder, or the model itself."""
    options: Options
    config: Config
    """The model's settings."""
    encoder_name: str
    encoder_precision: str
    given_encoder: ImageEncoder | None = None
    _loading: threading.RLock = field(default_factory=threading.RLock)

    @property
    def loaded(self) -> Loaded:
        """The model."""
        with self._loading:
            return self._loaded

    @property
    def encoder(self) -> ImageEncoder:
        """The image encoder."""
        with self._loading:
            return self._encoder

    @functools.cached_property
    def _own(self) -> Loaded:
        """The model with its own datastore, by which videos are known to be in domain."""
        loaded, options = self.given, self.options
        if isinstance(loaded, Path):
            loaded = checkpoint.load(loaded, device=options.device, precision=options.precision)
        elif options.precision != "float32":
            precision.convert(loaded.model, options.precision)
        return loaded

    @functools.cached_property
    def _loaded(self) -> Loaded:
        chosen = self.options.datastore
        return self._own if chosen is None else self._own.with_store(open_datastore(chosen))

    @functools.cached_property
    def _encoder(self) -> ImageEncoder:
        if self.given_encoder is not None:
            return self.given_encoder
        device = str(checkpoint.find_device(self.options.device))
        return load_image_encoder(
            self.encoder_name, device=device, precision=self.encoder_precision
        )

    def watch(
        self,
        video: Path,
        entry: Path,
        stop: threading.Event | None,
        on_progress: OnProgress,
    ) -> FrameFeatures:
        """Features of the frames that the model sees; kept at `entry`.

        A sound file has a frame per second, of no width.
        """
        features = _read_features(entry)
        if features is None:
            watched = _Watched(self.encoder, on_progress)

            def choose(frames: int) -> list[int]:
                # The settings are enough: what writes captions is not in memory meanwhile.
                most, windowing = self.config.inputs.frames, self.config.windowing
                indices = long_videos.plan(frames, most=most, windowing=windowing).indices
                watched.total = len(indices)
                return indices

            limits = self.options.limits
            try:
                features = extract(video, watched, choose=choose, limits=limits, stop=stop)
            except VideoError:
                seconds = sound_only(video, limits)
                if seconds is None:
                    raise
                features = _of_sound(seconds)
            _write_features(entry, features)
        return features

    def probe(self, video: Path) -> FrameFeatures:
        """A frame per second, of no width: length and times of a file whose frames are not used."""
        limits = self.options.limits
        try:
            return count_frames(video, limits=limits)
        except VideoError:
            seconds = sound_only(video, limits)
            if seconds is None:
                raise
            return _of_sound(seconds)

    def caption(
        self, videos: Sequence[ReadVideo], search: BeamSearch, on_step: Callable[[], None]
    ) -> Iterator[Captioned]:
        """What the model says of videos, which are decoded together; `on_step` as in predict."""
        inputs = [
            VideoInputs(
                id=str(one.video),
                features_TD=self._features(one),
                times=tuple(one.features.times_T.tolist()),
                frames=one.features.frames,
                duration=one.features.duration,
                sentences=one.speech.sentences,
                has_pictures=bool(one.features.features_TD.shape[1]),
            )
            for one in videos
        ]
        lanes = self.options.lanes
        predictions = predict(self.loaded, inputs, search=search, lanes=lanes, on_step=on_step)
        for one, prediction in zip(videos, predictions, strict=True):
            if len(prediction.windows) > 1:
                log.warning(
                    "%s: %.0f s exceed the context window; captioned in %d overlapping windows",
                    one.video, one.features.duration, len(prediction.windows),
                )  # fmt: skip
            unfamiliar = why_unfamiliar(self._own, one.features.features_TD, one.speech.sentences)
            provenance = self._provenance(prediction, one, search)
            yield Captioned(
                video=printable_name(one.video),
                duration=one.features.duration,
                events=prediction.events,
                sentences=one.speech.sentences,
                frame_times=prediction.frame_times,
                saliency=prediction.saliency,
                segments=prediction.segments,
                provenance=provenance | ({"unfamiliar": unfamiliar} if unfamiliar else {}),
            )

    def _features(self, one: ReadVideo) -> Tensor:
        """Features of the frames; those of a sound file are made of its speech, else zero."""
        features_TD, joint = one.features.features_TD, self.loaded.joint
        if features_TD.shape[1] or one.features.provenance:  # frames that are not used
            return features_TD
        if not one.speech.sentences:
            raise VideoError(
                f"{one.video}: has no pictures, and no speech was found ({one.speech.provenance}); "
                "nothing to caption"
            )
        if joint is not None:
            return joint.combine(None, one.features.times_T.tolist(), one.speech.sentences)
        return torch.zeros(len(features_TD), self.loaded.config.temporal.features)

    def _provenance(
        self, prediction: Prediction, one: ReadVideo, search: BeamSearch
    ) -> dict[str, str]:
        """What made the answer: only what took part in it, or was asked for as lanes."""
        made = {
            "starc": version("starc"),
            "model": self.loaded.folder.name,
            "weights": (self.loaded.fingerprint or "in memory")[:12],
            "speech": one.speech.provenance,
        }
        if one.features.features_TD.shape[1]:
            made["encoder"] = self.encoder_name
            if self.encoder_precision != "float32":
                made["encoder precision"] = self.encoder_precision
            made["frames"] = f"{len(prediction.frame_times)} of 1 per second"
        else:
            made["frames"] = one.features.provenance.get("frames", "none: sound only")
        if prediction.windows:
            made["windows"] = str(len(prediction.windows))
        writer = self.loaded.writer if one.speech.sentences else None
        spans_by_head = writer is not None and writer.head is not None
        made["times by"] = "the span head" if spans_by_head else "the decoder"
        made["words by"] = "the decoder" if writer is None else "the caption writer, greedy"
        if not spans_by_head:
            made["search"] = f"{search.beams} beams" if search.beams > 1 else "greedy"
        return made


class _Watched:
    """An image encoder that says how many frames it has seen."""

    def __init__(self, encoder: ImageEncoder, on_progress: OnProgress) -> None:
        self.encoder, self.on_progress, self.total = encoder, on_progress, 0
        self.name, self.width, self.size = encoder.name, encoder.width, encoder.size

    def encode(self, frames: Iterable[Frame]) -> Tensor:
        def counted() -> Iterator[Frame]:
            for n, frame in enumerate(frames, 1):
                yield frame
                self.on_progress("watching", n, self.total)

        return self.encoder.encode(counted())


def _of_sound(seconds: float) -> FrameFeatures:
    """A frame per second that shows nothing."""
    frames = max(1, round(seconds))
    times_T = torch.arange(frames, dtype=torch.float64)
    return FrameFeatures(torch.zeros(frames, 0), times_T, duration=seconds or 1.0, frames=frames)


def _read_features(entry: Path) -> FrameFeatures | None:
    try:
        kept = safetensors.load(entry.read_bytes())
        facts = kept["facts"].tolist()
        return FrameFeatures(
            kept["features"], kept["times"], duration=facts[0], frames=int(facts[1])
        )
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, IndexError, RuntimeError):
        return None


def _write_features(entry: Path, features: FrameFeatures) -> None:
    tensors = {
        "features": features.features_TD.contiguous(),
        "times": features.times_T.contiguous(),
        "facts": torch.tensor([features.duration, features.frames], dtype=torch.float64),
    }
    try:
        cache.make_folder(entry.parent)
        with replacing(entry, binary=True) as file:
            file.write(safetensors.save(tensors))
    except OSError as error:
        log.warning("%s: nothing is cached (%s)", entry.parent, error.strerror)


def frame_distance(joint: JointSpace, image_TI: Tensor) -> float | None:
    """How far the frames of a video (the median one) are from those of training."""
    if not len(image_TI) or image_TI.shape[1] != len(joint.mean_I):
        return None
    standard_TI = (image_TI - joint.mean_I) / joint.deviation_I
    return float(standard_TI.square().mean(1).median())


def speech_likeness(loaded: Loaded, sentences: Sequence[Sentence]) -> float | None:
    """How near what is said comes to the captions of the datastore, 0 to 1."""
    if loaded.joint is None or loaded.store is None or not len(loaded.store) or not sentences:
        return None
    query_ND = torch.stack([loaded.joint.words(sentence.text) for sentence in sentences])
    query_ND = query_ND[query_ND.any(1)]
    if not len(query_ND):  # not a word that the model knows
        return 0.0
    nearest_N = loaded.store.search(query_ND, k=1).score_SR[:, 0]
    return float(nearest_N.float().quantile(QUANTILE))


def why_unfamiliar(loaded: Loaded, image_TI: Tensor, sentences: Sequence[Sentence]) -> str | None:
    """The measure by which a video is out of domain; None if it is not, or nobody can tell."""
    joint, inputs = loaded.joint, loaded.config.inputs
    if joint is None:
        return None
    near = speech_likeness(loaded, sentences) if inputs.familiar_speech else None
    if near is not None:
        limit = inputs.familiar_speech
        return None if near >= limit else f"speech similarity {near:.2f}, at least {limit:.2f}"
    far = frame_distance(joint, image_TI) if inputs.familiar_frames else None
    if far is not None:
        limit = inputs.familiar_frames
        return None if far <= limit else f"frame distance {far:.2f}, at most {limit:.2f}"
    return None
