"""From a video file to a captioned video: frames, features, speech, model, events.

`Captioner` does it in the three steps that a batch overlaps (batch.py); `caption_video` is the
short way for one file. Features, transcripts and results are kept in the cache by the content of
the video and everything that decides them. Videos too long for one look of the model are captioned
in overlapping windows (long_videos.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import safetensors.torch as safetensors
import torch
from safetensors import SafetensorError
from torch import Tensor

from starc.decoder.beam_search import SEARCH, BeamSearch
from starc.files import cache as caches
from starc.files.atomic import replacing
from starc.inference import long_videos
from starc.inference.long_videos import FrameRange, WindowEvents, Windowing
from starc.inference.predict import Prediction, tell
from starc.media.container import MediaLimits
from starc.media.encoders import ImageEncoder
from starc.media.features import Stopped, extract
from starc.media.speech import Engine, Transcript, handed_in, transcribe
from starc.model.checkpoint import Loaded
from starc.model.collate import FRAMES, Example
from starc.retrieval.datastore import CaptionStore
from starc.types import Captioned, Event, Sentence

log = logging.getLogger("starc")

CACHE_VERSION = "2"
"""Changes when the same video and settings would give other features or captions than before."""
VIDEOS_AT_ONCE = 4
"""Videos that a batch hands over together: four cost the decoder about as much as two."""
FPS = 1.0


@dataclass(frozen=True, slots=True)
class FrameFeatures:
    """What the model sees of a video."""

    clip_TD: Tensor
    times: tuple[float, ...]
    """Of the frames used."""
    duration: float
    windows: tuple[FrameRange, ...]
    key: str
    """Names video, encoder and choice of frames."""


class VideoInputs(NamedTuple):
    """A video with all that is known of it before the model looks."""

    video: Path
    features: FrameFeatures
    speech: Transcript


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to caption, beside the model."""

    search: BeamSearch = SEARCH
    engine: Engine = "auto"
    """Where speech comes from."""
    language: str | None = None
    """Of the speech, such as "en"."""
    transcript: Path | None = None
    """A speech file for these videos, instead of `engine`."""
    long: Windowing | Literal["auto"] | None = "auto"
    """How long videos are cut; "auto": as the model learnt; None looks at any video once."""
    limits: MediaLimits = field(default_factory=MediaLimits)
    cache: Path | None = None
    """A folder; $XDG_CACHE_HOME/starc by default."""


class Captioner:
    """One video in three steps, for one thread or several; models are loaded when first used."""

    at_once = VIDEOS_AT_ONCE

    def __init__(
        self,
        model: Callable[[], Loaded],
        encoder: Callable[[], ImageEncoder],
        options: Options | None = None,
    ) -> None:
        self.options = options or Options()
        self._load_model, self._load_encoder = model, encoder
        self._loaded: Loaded | None = None
        self._encoder: ImageEncoder | None = None
        self._model_key = ""
        # Two threads must not load a model twice, nor speak to one recogniser at a time.
        self._loading, self._listening = threading.RLock(), threading.Lock()

    @property
    def loaded(self) -> Loaded:
        """The model."""
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load_model()
            return self._loaded

    @property
    def encoder(self) -> ImageEncoder:
        """The image encoder."""
        with self._loading:
            if self._encoder is None:
                self._encoder = self._load_encoder()
            return self._encoder

    @property
    def model_key(self) -> str:
        """A name for the numbers of the model."""
        with self._loading:
            if not self._model_key:
                self._model_key = model_key(self.loaded)
            return self._model_key

    @property
    def long(self) -> Windowing | None:
        """How long videos are cut."""
        if self.options.long == "auto":
            return long_videos.for_window(self.loaded.config.window, most=FRAMES)
        return self.options.long

    @property
    def settings(self) -> str:
        """A name for all that decides the captions of a given video, a speech file included."""
        chosen = self.options
        given = chosen.transcript
        heard = (chosen.engine, chosen.language or "", "" if given is None else given.name)
        content = "" if given is None else caches.fingerprint(given)
        return caches.key(self._telling, *heard, content)

    @property
    def _telling(self) -> str:
        """A name for all that decides what the model says of given features and speech."""
        parts = (self.model_key, self.encoder.name, repr(self.options.search))
        return caches.key(CACHE_VERSION, version("starc"), *parts, repr(self.long))

    def features(self, video: Path, stop: threading.Event | None = None) -> FrameFeatures:
        """Decode the frames that are needed and encode them; or take them from the cache."""
        content = caches.fingerprint(video)
        key = caches.key(content, self.encoder.name, repr((FPS, FRAMES, self.long)), CACHE_VERSION)
        entry = self._folder("features") / f"{key}.safetensors"
        kept = _read_sight(entry, key)
        if kept is not None:
            return kept

        def plan(frames: int) -> long_videos.Plan:
            return long_videos.plan(frames, fps=FPS, most=FRAMES, long=self.long)

        seen = extract(
            video,
            self.encoder,
            choose=lambda frames: plan(frames).indices,
            limits=self.options.limits,
            stop=stop,
        )
        times, windows = tuple(seen.times_T.tolist()), tuple(plan(seen.frames).windows)
        sight = FrameFeatures(seen.features_TD, times, seen.duration, windows, key)
        _write_sight(entry, sight)
        return sight

    def speech(self, video: Path, stop: threading.Event | None = None) -> Transcript:
        """What is said: handed in, subtitles, or heard."""
        if self.options.transcript is not None:
            return handed_in(self.options.transcript, video=video.stem)
        with self._listening:
            if stop is not None and stop.is_set():
                raise Stopped(str(video))
            return transcribe(
                video,
                engine=self.options.engine,
                language=self.options.language,
                cache=self._folder("speech"),
                limits=self.options.limits,
            )

    def caption(self, video: Path, features: FrameFeatures, speech: Transcript) -> Captioned:
        """The model's part; or what it said about the same video before."""
        return self.captions([VideoInputs(video, features, speech)])[0]

    def captions(self, read: Sequence[tuple[Path, FrameFeatures, Transcript]]) -> list[Captioned]:
        """The model's part for several videos, which are decoded together; all or an error."""
        videos = [VideoInputs(*one) for one in read]
        cacheable = isinstance(self.loaded.store, CaptionStore | None)
        entries = [self._entry(one) for one in videos]
        found = [_read_captioned(entry) if cacheable else None for entry in entries]
        missing = [n for n, kept in enumerate(found) if kept is None]
        for n, captioned in zip(missing, self._caption([videos[n] for n in missing]), strict=True):
            found[n] = captioned
            if cacheable:
                caches.write(entries[n], captioned.to_json())
        pairs = zip(videos, found, strict=True)
        return [replace(one, video=given.video.name) for given, one in pairs if one is not None]

    def _entry(self, one: VideoInputs) -> Path:
        said = json.dumps([[s.start, s.end, s.text] for s in one.speech.sentences])
        key = caches.key(self._telling, one.features.key, said, one.speech.provenance)
        return self._folder("captions") / f"{key}.json"

    def _caption(self, videos: Sequence[VideoInputs]) -> Iterator[Captioned]:
        """Captions of videos that no cache knows, in order."""
        examples = [self._examples(one) for one in videos]
        told = iter(
            tell(self.loaded, [one for windows in examples for one in windows], self.options.search)
        )
        for (video, sight, speech), windows in zip(videos, examples, strict=True):
            mine = list(islice(told, len(windows)))
            yield Captioned(
                video=video.name,
                duration=sight.duration,
                events=tuple(_events(mine, _spans(sight))),
                sentences=speech.sentences,
                frame_times=sight.times,
                saliency=tuple(
                    long_videos.merge_saliency(sight.windows, [t.saliency for t in mine])
                ),
                segments=tuple(
                    long_videos.merge_segments(sight.windows, [t.segments for t in mine])
                ),
                provenance=self._provenance(sight, speech),
            )

    def _examples(self, one: VideoInputs) -> list[Example]:
        """What the model is given: an example per window."""
        video, sight, speech = one
        spans = _spans(sight)
        if len(spans) > 1:
            log.warning(
                "%s: %.0f s are too long for one look; captioned in %d overlapping windows of "
                "about %.0f s", video, sight.duration, len(spans), spans[0][1] - spans[0][0],
            )  # fmt: skip
        clip_TD = sight.clip_TD
        if self.loaded.joint is not None:
            clip_TD = self.loaded.joint.frames(clip_TD, sight.times, speech.sentences)
        return [
            _example(video, clip_TD, window, span, speech.sentences)
            for window, span in zip(sight.windows, spans, strict=True)
        ]

    def _provenance(self, sight: FrameFeatures, speech: Transcript) -> dict[str, str]:
        beams = self.options.search.beams
        return {
            "starc": version("starc"),
            "model": self.loaded.folder.name,
            "weights": self.model_key[:12],
            "encoder": self.encoder.name,
            "frames": f"{len(sight.times)} of {FPS:g} per second",
            "windows": str(len(sight.windows)),
            "speech": speech.provenance,
            "search": f"{beams} beams" if beams > 1 else "greedy",
        }

    def _folder(self, kind: str) -> Path:
        return (
            caches.cache_folder(kind) if self.options.cache is None else self.options.cache / kind
        )


def caption_video(
    path: Path | str, starc: Loaded, *, encoder: ImageEncoder, options: Options | None = None
) -> Captioned:
    """Caption one video."""
    return caption_one(Path(path), Captioner(lambda: starc, lambda: encoder, options))


def caption_one(video: Path, captioner: Captioner) -> Captioned:
    """Caption one video with a captioner that may serve others too; sees while it listens."""
    stop = threading.Event()
    heard: list[Transcript | BaseException] = []

    def listen() -> None:
        try:
            heard.append(captioner.speech(video, stop))
        except BaseException as error:
            heard.append(error)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        sight = captioner.features(video, stop)
        listener.join()
    finally:
        stop.set()
    speech = heard[0]
    if isinstance(speech, BaseException):
        raise speech
    return captioner.caption(video, sight, speech)


def _example(
    video: Path,
    clip_TD: Tensor,
    window: FrameRange,
    span: tuple[float, float],
    sentences: Sequence[Sentence],
) -> Example:
    return Example(
        id=str(video),
        clip_TD=clip_TD[window.first : window.stop],
        duration=span[1] - span[0],
        sentences=tuple(long_videos.sentences_within(sentences, *span)),
    )


def _spans(sight: FrameFeatures) -> list[tuple[float, float]]:
    """Seconds that each window covers."""
    return [long_videos.seconds(window, sight.times, sight.duration) for window in sight.windows]


def _events(told: Sequence[Prediction], spans: Sequence[tuple[float, float]]) -> list[Event]:
    if len(told) == 1:
        return told[0].events
    parts = [
        WindowEvents(start, end, long_videos.shifted(one.events, start, end))
        for one, (start, end) in zip(told, spans, strict=True)
    ]
    return long_videos.merge_events(parts)


def model_key(loaded: Loaded) -> str:
    """A name for the numbers of a model, its settings, its tokenizer and its datastore."""
    digest = hashlib.blake2b(repr(loaded.config).encode(), digest_size=16)
    for name, tensor in loaded.model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    if loaded.tokenizer is not None:
        digest.update(loaded.tokenizer.to_str().encode())
    if loaded.joint is not None:
        digest.update(loaded.joint.image_ID.numpy().tobytes())
    if isinstance(loaded.store, CaptionStore):
        digest.update(loaded.store.encoder.encode())
        for caption in loaded.store.captions:
            digest.update(caption.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _read_sight(entry: Path, key: str) -> FrameFeatures | None:
    try:
        kept = safetensors.load(entry.read_bytes())
        windows = tuple(FrameRange(*row) for row in kept["windows"].tolist())
        duration = kept["duration"].item()
        return FrameFeatures(kept["clip"], tuple(kept["times"].tolist()), duration, windows, key)
    except (OSError, SafetensorError, KeyError, TypeError, RuntimeError):
        return None


def _write_sight(entry: Path, sight: FrameFeatures) -> None:
    tensors = {
        "clip": sight.clip_TD.contiguous(),
        "times": torch.tensor(sight.times, dtype=torch.float64),
        "duration": torch.tensor(sight.duration, dtype=torch.float64),
        "windows": torch.tensor(sight.windows),
    }
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry, binary=True) as file:
            file.write(safetensors.save(tensors))
    except OSError as error:
        log.warning("%s: nothing is cached (%s)", entry.parent, error.strerror)


def _read_captioned(entry: Path) -> Captioned | None:
    try:
        return Captioned.from_json(caches.read(entry) or {})
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
