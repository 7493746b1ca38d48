"""From a video file to a captioned video: frames, features, speech, model, events.

`Captioner` does it in the three steps that a batch overlaps (batch.py); `caption_video` is the
short way for one file. Features, transcripts and results are kept in the cache by the content of
the video and everything that decides them. Videos too long for one look of the model are captioned
in overlapping windows (longform.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import safetensors.torch as safetensors
import torch
from safetensors import SafetensorError
from torch import Tensor

from starc import longform
from starc.atomic import replacing
from starc.errors import CheckpointError
from starc.longform import LongForm, Positions, Said
from starc.media import cache as caches
from starc.media.speech import Engine, Speech, handed_in, transcribe
from starc.media.video import Limits, count_frames, probe, sample_frames
from starc.media.vision import ImageTower
from starc.model import saliency
from starc.model.checkpoint import Loaded
from starc.model.collate import FRAMES, Collator, Example
from starc.model.datastore import CaptionStore
from starc.model.decoding import BeamSearch
from starc.types import Captioned, Event, Frame, Segment, Sentence

log = logging.getLogger("starc")

CACHE_VERSION = "1"
"""Changes when the same video and settings would give other features or captions than before."""
WINDOWS_AT_ONCE = 8
"""Windows of a long video that go through the model as one batch."""
FPS = 1.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What the model sees of a video."""

    clip_TD: Tensor
    times: tuple[float, ...]
    """Of the frames used."""
    duration: float
    windows: tuple[Positions, ...]
    key: str
    """Names video, tower and choice of frames."""


class Stopped(Exception):
    """The run has ended while a video was being read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to caption, beside the model."""

    search: BeamSearch = field(default_factory=BeamSearch)
    engine: Engine = "auto"
    """Where speech comes from."""
    language: str | None = None
    """Of the speech, such as "en"."""
    transcript: Path | None = None
    """A speech file for these videos, instead of `engine`."""
    long: LongForm | None = field(default_factory=LongForm)
    """How long videos are cut; None looks at any video once."""
    limits: Limits = field(default_factory=Limits)
    cache: Path | None = None
    """A folder; $XDG_CACHE_HOME/starc by default."""


class Captioner:
    """One video in three steps, for one thread or several; models are loaded when first used."""

    def __init__(
        self,
        model: Callable[[], Loaded],
        tower: Callable[[], ImageTower],
        options: Options | None = None,
    ) -> None:
        self.options = options or Options()
        self._load_model, self._load_tower = model, tower
        self._loaded: Loaded | None = None
        self._tower: ImageTower | None = None
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
    def tower(self) -> ImageTower:
        """The image tower."""
        with self._loading:
            if self._tower is None:
                self._tower = self._load_tower()
            return self._tower

    @property
    def model_key(self) -> str:
        """A name for the numbers of the model."""
        with self._loading:
            if not self._model_key:
                self._model_key = model_key(self.loaded)
            return self._model_key

    @property
    def settings(self) -> str:
        """A name for all that decides the captions of a given video."""
        chosen = self.options
        parts = (chosen.search, chosen.long, chosen.engine, chosen.language, chosen.transcript)
        return caches.key(
            CACHE_VERSION, version("starc"), self.model_key, self.tower.name, *map(repr, parts)
        )

    def features(self, video: Path, stop: threading.Event | None = None) -> Sight:
        """Decode the frames that are needed and encode them; or take them from the cache."""
        content = caches.fingerprint(video)
        key = caches.key(
            content, self.tower.name, repr((FPS, FRAMES, self.options.long)), CACHE_VERSION
        )
        entry = self._folder("features") / f"{key}.safetensors"
        kept = _read_sight(entry, key)
        if kept is not None:
            return kept
        frames = count_frames(video, fps=FPS, limits=self.options.limits)
        duration = _true_duration(probe(video, limits=self.options.limits).duration, frames)
        plan = longform.plan(frames, fps=FPS, most=FRAMES, long=self.options.long)
        times: list[float] = []

        def watched() -> Iterator[Frame]:
            for frame in sample_frames(
                video,
                fps=FPS,
                size=self.tower.size,
                indices=plan.indices,
                limits=self.options.limits,
            ):
                if stop is not None and stop.is_set():
                    raise Stopped(str(video))
                times.append(frame.time)
                yield frame

        clip_TD = self.tower.images(watched()).detach().float().cpu()
        sight = Sight(clip_TD, tuple(times), duration, tuple(plan.windows), key)
        _write_sight(entry, sight)
        return sight

    def speech(self, video: Path, stop: threading.Event | None = None) -> Speech:
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

    def caption(self, video: Path, features: Sight, speech: Speech) -> Captioned:
        """The model's part; or what it said about the same video before."""
        said = json.dumps([[s.start, s.end, s.text] for s in speech.sentences])
        key = caches.key(self.settings, features.key, said, speech.provenance)
        entry = self._folder("captions") / f"{key}.json"
        cacheable = isinstance(self.loaded.store, CaptionStore | None)
        if cacheable and (kept := _read_captioned(entry)) is not None:
            return replace(kept, video=video.name)
        captioned = self._caption(video, features, speech)
        if cacheable:
            caches.write(entry, captioned.to_json())
        return captioned

    def _caption(self, video: Path, sight: Sight, speech: Speech) -> Captioned:
        loaded, windows = self.loaded, sight.windows
        if loaded.tokenizer is None:
            raise CheckpointError(f"{loaded.folder}: no tokenizer.json; copy the model's own")
        collate = Collator(loaded.config, loaded.tokenizer)
        spans = [longform.seconds(window, sight.times, sight.duration) for window in windows]
        if len(windows) > 1:
            log.warning(
                "%s: %.0f s are too long for one look; captioned in %d overlapping windows of "
                "about %.0f s", video, sight.duration, len(windows), spans[0][1] - spans[0][0],
            )  # fmt: skip
        examples = [
            _example(video, sight.clip_TD, window, span, speech.sentences)
            for window, span in zip(windows, spans, strict=True)
        ]
        told = [
            one
            for first in range(0, len(examples), WINDOWS_AT_ONCE)
            for one in _tell(
                loaded, collate, examples[first : first + WINDOWS_AT_ONCE], self.options.search
            )
        ]
        return Captioned(
            video=video.name,
            duration=sight.duration,
            events=tuple(_events(told, spans)),
            sentences=speech.sentences,
            frame_times=sight.times,
            saliency=tuple(longform.merge_saliency(windows, [one.saliency for one in told])),
            segments=tuple(longform.merge_segments(windows, [one.segments for one in told])),
            provenance=self._provenance(sight, speech),
        )

    def _provenance(self, sight: Sight, speech: Speech) -> dict[str, str]:
        beams = self.options.search.beams
        return {
            "starc": version("starc"),
            "model": self.loaded.folder.name,
            "weights": self.model_key[:12],
            "tower": self.tower.name,
            "frames": f"{len(sight.times)} of {FPS:g} per second",
            "windows": str(len(sight.windows)),
            "speech": speech.provenance,
            "search": f"{beams} beams" if beams > 1 else "greedy",
        }

    def _folder(self, kind: str) -> Path:
        return caches.folder(kind) if self.options.cache is None else self.options.cache / kind


def caption_video(
    path: Path | str, starc: Loaded, *, tower: ImageTower, options: Options | None = None
) -> Captioned:
    """Caption one video."""
    return caption_one(Path(path), Captioner(lambda: starc, lambda: tower, options))


def caption_one(video: Path, captioner: Captioner) -> Captioned:
    """Caption one video with a captioner that may serve others too; sees while it listens."""
    stop = threading.Event()
    heard: list[Speech | BaseException] = []

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


def _true_duration(stated: float, frames: int) -> float:
    """Seconds of a video: what its header states, unless its pictures tell otherwise.

    A download that broke off states its whole length; times would then be stretched over it.
    """
    shown = frames / FPS
    return stated if abs(stated - shown) <= 1.5 / FPS else shown


class _Told(NamedTuple):
    """What the model makes of one window, in the window's own time and positions."""

    events: list[Event]
    saliency: list[float]
    segments: list[Segment]


def _example(
    video: Path,
    clip_TD: Tensor,
    window: Positions,
    span: tuple[float, float],
    sentences: Sequence[Sentence],
) -> Example:
    return Example(
        id=str(video),
        clip_TD=clip_TD[window.first : window.stop],
        duration=span[1] - span[0],
        sentences=tuple(longform.sentences_within(sentences, *span)),
    )


@torch.no_grad()
def _tell(
    loaded: Loaded, collate: Collator, examples: Sequence[Example], search: BeamSearch
) -> list[_Told]:
    device = next(loaded.model.parameters()).device
    generated = loaded.model.generate(collate(examples).to(device), loaded.store, search)
    seen, config = generated.encoded.seen, loaded.config.saliency
    prior_BT = None
    if seen.saliency_BT is not None and config is not None:
        prior_BT = saliency.prior(
            seen.saliency_BT.float(), seen.mask_BT, standardise=config.standardise
        )
    told = []
    for row, example in enumerate(examples):
        frames = len(example.clip_TD)
        events = collate.events(generated.decoded[row], example.duration)
        scores = [] if prior_BT is None else prior_BT[row, :frames].tolist()
        # Where padding counts as video (published), segments may reach beyond its end.
        segments = [
            replace(segment, stop=min(segment.stop, frames))
            for segment in seen.segments[row]
            if segment.first < frames
        ]
        told.append(_Told(events, scores, segments))
    return told


def _events(told: Sequence[_Told], spans: Sequence[tuple[float, float]]) -> list[Event]:
    if len(told) == 1:
        return told[0].events
    parts = [
        Said(start, end, longform.shifted(one.events, start, end))
        for one, (start, end) in zip(told, spans, strict=True)
    ]
    return longform.merge_events(parts)


def model_key(loaded: Loaded) -> str:
    """A name for the numbers of a model, its settings, its tokenizer and its datastore."""
    digest = hashlib.blake2b(repr(loaded.config).encode(), digest_size=16)
    for name, tensor in loaded.model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    if loaded.tokenizer is not None:
        digest.update(loaded.tokenizer.to_str().encode())
    if isinstance(loaded.store, CaptionStore):
        digest.update(loaded.store.tower.encode())
        for caption in loaded.store.captions:
            digest.update(caption.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _read_sight(entry: Path, key: str) -> Sight | None:
    try:
        kept = safetensors.load(entry.read_bytes())
        windows = tuple(Positions(*row) for row in kept["windows"].tolist())
        duration = kept["duration"].item()
        return Sight(kept["clip"], tuple(kept["times"].tolist()), duration, windows, key)
    except (OSError, SafetensorError, KeyError, TypeError, RuntimeError):
        return None


def _write_sight(entry: Path, sight: Sight) -> None:
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
