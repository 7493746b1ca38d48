"""One video: a file goes in, a captioned video comes out.

    file ─features→ FrameFeatures ┐
         ─speech→   Transcript    ┴ predict → Captioned

`Captioner` takes the steps one by one, so that many videos can overlap them (batch.py), or all at
once (`caption`). Features, transcripts and results are kept in the cache by the content of the
video and everything that decides them.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch as safetensors
import torch
from safetensors import SafetensorError
from torch import Tensor

from starc.config import BeamSearch
from starc.decoder import precision
from starc.errors import StarcError, VideoError
from starc.files import cache
from starc.files.atomic import replacing
from starc.inference.familiarity import why_unfamiliar
from starc.inference.jobs import find_videos
from starc.inference.predict import Prediction, VideoInputs, frame_plan, predict
from starc.media.container import MediaLimits
from starc.media.encoders import ImageEncoder, load_image_encoder
from starc.media.features import FrameFeatures, Stopped, extract
from starc.media.speech import (
    Engine,
    Transcript,
    parse_engine,
    printable_name,
    read_transcript,
    sound_only,
    transcribe,
)
from starc.model import checkpoint
from starc.model.checkpoint import Loaded
from starc.retrieval.datastore import open_datastore
from starc.types import Captioned, Event, Frame

log = logging.getLogger("starc")

EMBEDDED = Path(__file__).parents[1] / "assets" / "small-youcook2"
"""The model that comes with the package; "embedded" is its name wherever a model is named."""
CACHE_VERSION = "3"
"""Changes when the same video and settings would give other features or captions than before."""
VIDEOS_AT_ONCE = 4
"""Videos that a batch hands over together: four cost the decoder about as much as two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to caption, beside the model."""

    decoding: BeamSearch | None = None
    """Another search than the model's own."""
    beams: int | None = None
    """Another number of beams than that search has; 1 is greedy."""
    engine: Engine = "auto"
    """Where speech comes from."""
    language: str | None = None
    """Of the speech, such as "en"."""
    whisper_model: str | None = None
    """Size or folder of faster-whisper's model."""
    transcript: Path | None = None
    """A speech file for these videos, instead of `engine`."""
    datastore: str | None = None
    """Another datastore than the model's own: a folder, or qdrant:LOCATION/COLLECTION."""
    image_encoder: str | None = None
    """Another image encoder than the model's own."""
    device: str = "auto"
    """cpu, cuda or auto."""
    precision: str = "float32"
    """float32, bfloat16 or int8, of the decoder's arithmetic."""
    force: bool = False
    """Show events also for a video that is not of the model's kind."""
    limits: MediaLimits = field(default_factory=MediaLimits)
    cache: Path | None = None
    """A folder; $XDG_CACHE_HOME/starc by default."""


OnProgress = Callable[[str, float, float], None]
"""Hears of a stage (watching, listening, captioning), how far it is and how far it goes: frames,
seconds, and 0 or 1."""
POLL = 0.2
"""Seconds between two looks at how far the listener is."""


def speech_options(speech: str | Path) -> dict[str, Any]:
    """Options for a source of speech: an engine's name, or a file with the speech."""
    if Path(speech).is_file():
        return {"transcript": Path(speech)}
    engine, model = parse_engine(str(speech))
    return {"engine": engine, "whisper_model": model, "transcript": None}


class ReadVideo(NamedTuple):
    """A video that was watched and listened to."""

    video: Path
    features: FrameFeatures
    speech: Transcript


class Captioner:
    """A model that captions files: `starc.load(folder).caption("talk.mp4").events`.

    Serves one thread or several; models are loaded when they are first needed.
    """

    at_once = VIDEOS_AT_ONCE

    def __init__(
        self,
        model: str | Path | Loaded = EMBEDDED,
        options: Options | None = None,
        *,
        encoder: ImageEncoder | None = None,
    ) -> None:
        self.options = options or Options()
        self._model, self._encoder = EMBEDDED if model == "embedded" else model, encoder
        self._loaded: Loaded | None = None
        # Two threads must not load a model twice, nor speak to one recogniser at a time.
        self._loading, self._listening = threading.RLock(), threading.Lock()

    @property
    def loaded(self) -> Loaded:
        """The model."""
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> Loaded:
        loaded = self._model
        if not isinstance(loaded, Loaded):
            loaded = checkpoint.load(loaded, device=self.options.device)
        if self.options.datastore is not None:
            loaded = loaded.with_store(open_datastore(self.options.datastore))
        if self.options.precision != "float32":
            precision.convert(loaded.model, self.options.precision)
        return loaded

    @property
    def encoder(self) -> ImageEncoder:
        """The image encoder."""
        with self._loading:
            if self._encoder is None:
                device = checkpoint.find_device(self.options.device)
                self._encoder = load_image_encoder(self.encoder_name, device=str(device))
            return self._encoder

    @property
    def encoder_name(self) -> str:
        """The image encoder's name, by the model's own word unless the user gave another."""
        if self._encoder is not None:
            return self._encoder.name
        return self.options.image_encoder or self.loaded.config.inputs.image_encoder

    @property
    def decoding(self) -> BeamSearch:
        """How events are searched for."""
        search = self.options.decoding or self.loaded.config.decoding
        return replace(search, beams=self.options.beams or search.beams)

    @property
    def settings(self) -> str:
        """A name for all that decides the captions of a given video, a speech file included."""
        chosen = self.options
        given = chosen.transcript
        heard = (chosen.engine, chosen.language or "", chosen.whisper_model or "")
        content = "" if given is None else printable_name(given) + cache.fingerprint(given)
        return cache.key(self._key, *heard, content, *(["force"] if chosen.force else []))

    @property
    def _key(self) -> str:
        """A name for all that decides what the model says of given features and speech."""
        name = self.loaded.fingerprint or f"in memory {id(self.loaded.model)}"
        parts = (name, self.encoder_name, repr(self.decoding), self.options.precision)
        return cache.key(CACHE_VERSION, version("starc"), *parts)

    def read_frames(
        self,
        video: Path,
        stop: threading.Event | None = None,
        on_progress: OnProgress = lambda stage, done, total: None,
    ) -> FrameFeatures:
        """Decode the frames that are needed and encode them; or take them from the cache.

        A sound file has a frame per second, of no width.
        """
        config = self.loaded.config
        choice = repr((config.inputs.frames, config.windowing))
        key = cache.key(cache.fingerprint(video), self.encoder_name, choice, CACHE_VERSION)
        entry = self._folder("features") / f"{key}.safetensors"
        features = _read_features(entry)
        if features is None:
            watched = _Watched(self.encoder, on_progress)

            def choose(frames: int) -> list[int]:
                indices = frame_plan(self.loaded, frames).indices
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

    def read_speech(
        self,
        video: Path,
        stop: threading.Event | None = None,
        *,
        options: Options | None = None,
        on_heard: Callable[[float], None] = lambda seconds: None,
    ) -> Transcript:
        """What is said: handed in, subtitles, or recognised."""
        chosen = options or self.options
        if chosen.transcript is not None:
            return read_transcript(chosen.transcript, video=video.stem)
        with self._listening:
            if stop is not None and stop.is_set():
                raise Stopped(str(video))
            return transcribe(
                video,
                engine=chosen.engine,
                language=chosen.language,
                model=chosen.whisper_model,
                cache=self._folder("speech"),
                limits=chosen.limits,
                on_heard=on_heard,
            )

    def caption(
        self,
        video: str | Path,
        *,
        speech: str | Path | None = None,
        language: str | None = None,
        stop: threading.Event | None = None,
        on_progress: OnProgress = lambda stage, done, total: None,
    ) -> Captioned:
        """Caption one video, which is watched while it is listened to.

        `speech` (a subtitle file, or an engine such as "whisper:small") and `language` take the
        place of those in the options. `on_progress` is called in this thread; setting `stop` ends
        watching, listening and captioning soon.
        """
        video, ended = Path(video), stop or threading.Event()
        options = replace(self.options, language=language or self.options.language)
        if speech is not None:
            options = replace(options, **speech_options(speech))
        transcript: Future[Transcript] = Future()
        heard = [0.0]

        def listen() -> None:
            def on_heard(seconds: float) -> None:
                if ended.is_set():
                    raise Stopped(str(video))
                heard[0] = seconds

            try:
                transcript.set_result(
                    self.read_speech(video, ended, options=options, on_heard=on_heard)
                )
            except BaseException as error:
                transcript.set_exception(error)

        # A daemon: on Ctrl-C nobody waits for a recogniser under way.
        threading.Thread(target=listen, daemon=True).start()
        on_progress("watching", 0.0, 0.0)
        try:
            features = self.read_frames(video, ended, on_progress)
            on_progress("listening", min(heard[0], features.duration), features.duration)
            while not wait([transcript], POLL).done:
                on_progress("listening", min(heard[0], features.duration), features.duration)
        except BaseException:
            ended.set()
            raise
        read = ReadVideo(video, features, transcript.result())

        def on_step() -> None:
            if ended.is_set():
                raise Stopped(str(video))

        on_progress("captioning", 0.0, 1.0)
        captioned = self.caption_read([read], on_step)[0]
        on_progress("captioning", 1.0, 1.0)
        return captioned

    def caption_all(
        self,
        videos: str | Path | Iterable[str | Path],
        *,
        on_error: Callable[[Path, StarcError], None] | None = None,
        on_progress: OnProgress = lambda stage, done, total: None,
    ) -> Iterator[Captioned]:
        """Caption videos, folders of them and lists, one after another as they are asked for.

        `on_progress` also hears of "videos", how many are done and how many there are. `on_error`
        hears of those that cannot be captioned; without it the first one raises.
        """
        given = [videos] if isinstance(videos, str | Path) else videos
        found = [video for video, _ in find_videos([Path(one) for one in given])]
        for n, video in enumerate(found):
            on_progress("videos", n, len(found))
            try:
                captioned = self.caption(video, on_progress=on_progress)
            except StarcError as error:
                if on_error is None:
                    raise
                on_error(video, error)
            else:
                yield captioned
        on_progress("videos", len(found), len(found))

    def caption_read(
        self, videos: Sequence[ReadVideo], on_step: Callable[[], None] = lambda: None
    ) -> list[Captioned]:
        """The model's part for several videos, which are decoded together; all or an error."""
        entries = [self._entry(one) for one in videos]
        kept = [None if entry is None else _read_captioned(entry) for entry in entries]
        missing = [one for one, before in zip(videos, kept, strict=True) if before is None]
        fresh = iter(self._predicted(missing, on_step))
        captioned = []
        for one, entry, before in zip(videos, entries, kept, strict=True):
            made = before or next(fresh)
            if entry is not None and before is None:
                cache.write(entry, made.to_json())
            events = _of_one_picture(made) if one.features.frames == 1 else made.events
            if "unfamiliar" in made.provenance and not self.options.force:
                events = ()
            captioned.append(replace(made, video=printable_name(one.video), events=events))
        return captioned

    def _entry(self, one: ReadVideo) -> Path | None:
        """Where the answer is kept; nowhere if the model or its datastore may change."""
        if self.loaded.fingerprint is None:
            return None
        speech = json.dumps([[s.start, s.end, s.text] for s in one.speech.sentences])
        content = cache.fingerprint(one.video)
        key = cache.key(self._key, content, speech, one.speech.provenance)
        return self._folder("captions") / f"{key}.json"

    def _predicted(
        self, videos: Sequence[ReadVideo], on_step: Callable[[], None]
    ) -> Iterator[Captioned]:
        inputs = [
            VideoInputs(
                id=str(one.video),
                features_TD=self._features(one),
                times=tuple(one.features.times_T.tolist()),
                frames=one.features.frames,
                duration=one.features.duration,
                sentences=one.speech.sentences,
            )
            for one in videos
        ]
        predictions = predict(self.loaded, inputs, search=self.decoding, on_step=on_step)
        for one, prediction in zip(videos, predictions, strict=True):
            if len(prediction.windows) > 1:
                log.warning(
                    "%s: %.0f s are too long for one look; captioned in %d overlapping windows",
                    one.video, one.features.duration, len(prediction.windows),
                )  # fmt: skip
            unfamiliar = why_unfamiliar(self.loaded, one.features.features_TD, one.speech.sentences)
            provenance = self._provenance(prediction, one.features, one.speech)
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
        if features_TD.shape[1]:
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
        self, prediction: Prediction, features: FrameFeatures, speech: Transcript
    ) -> dict[str, str]:
        beams = self.decoding.beams
        frames = f"{len(prediction.frame_times)} of 1 per second"
        return {
            "starc": version("starc"),
            "model": self.loaded.folder.name,
            "weights": (self.loaded.fingerprint or "in memory")[:12],
            "encoder": self.encoder_name,
            "frames": frames if features.features_TD.shape[1] else "none: sound only",
            "windows": str(len(prediction.windows)),
            "speech": speech.provenance,
            "search": f"{beams} beams" if beams > 1 else "greedy",
        }

    def _folder(self, kind: str) -> Path:
        return (self.options.cache or cache.cache_folder()) / kind


def load(
    model: str | Path = EMBEDDED, *, device: str = "auto", options: Options | None = None
) -> Captioner:
    """The model of a folder or of the hub, or the embedded one, ready to caption."""
    captioner = Captioner(model, replace(options or Options(), device=device))
    captioner.loaded, captioner.encoder  # noqa: B018  a wrong name is said now, not at the first video
    return captioner


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


def _of_one_picture(captioned: Captioned) -> tuple[Event, ...]:
    """The surest event, all along: parts of a single picture cannot be told apart in time."""
    best = max(captioned.events, key=lambda event: event.confidence or 0.0, default=None)
    return () if best is None else (replace(best, start=0.0, end=captioned.duration),)


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


def _read_captioned(entry: Path) -> Captioned | None:
    try:
        return Captioned.from_json(cache.read(entry) or {})
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
