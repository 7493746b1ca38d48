"""One video: a file goes in, a captioned video comes out.

    file ─features→ FrameFeatures ┐
         ─speech→   Transcript    ┴ predict → Captioned

`Captioner` takes the steps one by one, so that many videos can overlap them (batch.py), or all at
once (`caption`). A model that captions speech alone (`Captioner.speech_only`) looks at frames only
where nothing is said, or where the lanes are asked for. Features, transcripts and results are kept
in the cache by the content of the video and everything that decides them. All that names them is
here and needs no torch, so a cached answer comes at once; what makes new ones is in models.py.
"""

from __future__ import annotations

import functools
import json
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from starc.config import BeamSearch, Config
from starc.errors import ConfigError, StarcError, Stopped
from starc.files import cache
from starc.inference.jobs import find_videos
from starc.media.container import MediaLimits
from starc.media.language import why_foreign
from starc.media.sources import check_local
from starc.media.speech import (
    Engine,
    Transcript,
    Unheard,
    parse_engine,
    printable_name,
    read_transcript,
    transcribe,
)
from starc.model import folder
from starc.processor import has_bfloat16, prepare
from starc.types import Captioned, Event

if TYPE_CHECKING:  # these bring torch, which a cached answer does without
    from starc.inference.models import Models
    from starc.media.encoders import ImageEncoder
    from starc.media.features import FrameFeatures
    from starc.model.checkpoint import Loaded

EMBEDDED = Path(__file__).parents[1] / "assets" / "small-youcook2"
"""The model that comes with the package; "embedded" is its name wherever a model is named."""
CACHE_VERSION = "5"
"""Changes when the same video and settings would give other features or captions than before."""
IN_BFLOAT16 = frozenset({"efficientnet-lite0"})
"""Image encoders that compute in bfloat16 where the processor does."""
GUESS = 0.25
"""Median confidence of a video's events below which a calibrated model does not show them."""
OUT_OF_DOMAIN, LOW_CONFIDENCE = "out of domain", "low confidence"
"""How the reasons begin for which events are not shown unless forced."""
VIDEOS_AT_ONCE = 4
"""Videos that a batch hands over together: four cost the decoder about as much as two."""


DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")
"""Kinds of devices; whether one is there is seen when a model is loaded."""


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
    """Show events also for a video that is out of domain, or that the model is unsure about."""
    lanes: bool = False
    """Also compute segments and retrieved captions that have no part in the events, for show."""
    limits: MediaLimits = field(default_factory=MediaLimits)
    cache: Path | None = None
    """A folder; $XDG_CACHE_HOME/starc by default."""

    def __post_init__(self) -> None:
        if self.device.partition(":")[0] not in DEVICES:
            raise ConfigError(f"--device {self.device}: is not available; use auto or cpu")


OnProgress = Callable[[str, float, float], None]
"""Called with a stage (watching, listening, captioning), the progress and the total: in frames,
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
    """A video with its speech, and with the features of its frames if they are used."""

    video: Path
    features: FrameFeatures
    speech: Transcript


class Captioner:
    """A model that captions files: `starc.load(folder).caption("recipe.mp4").events`.

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
        self._models: Models | None = None
        # Two threads must not load a model twice, nor speak to one recogniser at a time.
        self._loading, self._listening = threading.Lock(), threading.Lock()

    @property
    def models(self) -> Models:
        """The models, each of which is loaded when it is first asked for."""
        prepare()
        from starc.inference.models import Models

        with self._loading:
            if self._models is None:
                given = self._folder if isinstance(self._model, str | Path) else self._model
                names = (self.encoder_name, self._encoder_precision)
                self._models = Models(given, self.options, self.config, *names, self._encoder)
            return self._models

    @property
    def loaded(self) -> Loaded:
        """The model."""
        return self.models.loaded

    @property
    def encoder(self) -> ImageEncoder:
        """The image encoder."""
        return self.models.encoder

    @functools.cached_property
    def _folder(self) -> Path:
        assert isinstance(self._model, str | Path)
        return folder.find(self._model)

    @functools.cached_property
    def config(self) -> Config:
        """The model's settings."""
        if isinstance(self._model, str | Path):
            return folder.read_config(self._folder)
        return self._model.config

    @property
    def speech_only(self) -> bool:
        """Whether the events of a video with speech are made from the speech alone."""
        writer = self.config.writer
        if writer is None or writer.spans is None or not self.config.inputs.speech:
            return False
        return not (writer.retrieved and self.config.inputs.video)

    def _uses_frames(self, speech: Transcript) -> bool:
        """Whether anything in the answer for a video with this speech depends on its frames."""
        return self.options.lanes or not (self.speech_only and speech.sentences)

    @functools.cached_property
    def _model_fingerprint(self) -> str | None:
        """A name for the model folder; None where the model may change: nothing is cached."""
        if not isinstance(self._model, str | Path):
            return self.loaded.fingerprint
        return folder.fingerprint(self._folder)

    @functools.cached_property
    def _fingerprint(self) -> str | None:
        """A name for model and datastore; None where they may change: nothing is cached."""
        name, chosen = self._model_fingerprint, self.options.datastore
        if chosen is None or not isinstance(self._model, str | Path):
            return name
        captions = folder.datastore_fingerprint(chosen)
        return cache.key(name, captions) if name and captions else None

    @property
    def encoder_name(self) -> str:
        """The image encoder's name: the user's choice, else the model's own."""
        if self._encoder is not None:
            return self._encoder.name
        return self.options.image_encoder or self.config.inputs.image_encoder

    @property
    def _encoder_precision(self) -> str:
        if self._encoder is None and self.encoder_name in IN_BFLOAT16 and has_bfloat16():
            return "bfloat16"
        return "float32"

    @property
    def decoding(self) -> BeamSearch:
        """How events are searched for."""
        search = self.options.decoding or self.config.decoding
        return replace(search, beams=self.options.beams or search.beams)

    @property
    def settings(self) -> str:
        """A name for all that decides the captions of a given video, a speech file included."""
        chosen = self.options
        given = chosen.transcript
        heard = (chosen.engine, chosen.language or "", chosen.whisper_model or "")
        content = "" if given is None else printable_name(given) + cache.fingerprint(given)
        shown = [name for name in ("force", "lanes") if getattr(chosen, name)]
        name = self._key(frames=True) or f"in memory {id(self.loaded.model)}"
        return cache.key(name, *heard, content, *shown)

    def _key(self, *, frames: bool) -> str | None:
        """A name for all that decides what the model says of given speech, and of given frames.

        None where nothing is cached: the model or its datastore may change.
        """
        name = self._fingerprint if frames else self._model_fingerprint
        if name is None:
            return None
        parts = [CACHE_VERSION, version("starc"), name, self.options.precision]
        if frames:
            parts += [self.encoder_name, self._encoder_precision, repr(self.decoding)]
        return cache.key(*parts, *(["lanes"] if self.options.lanes else []))

    def read_frames(
        self,
        video: Path,
        stop: threading.Event | None = None,
        on_progress: OnProgress = lambda stage, done, total: None,
    ) -> FrameFeatures:
        """Decode the frames that are needed and encode them; or take them from the cache.

        Frames that nobody looks at have no width: those of a sound file, and, until its speech is
        known to be missing (`with_frames`), those of a video that is captioned by speech alone.
        """
        if self.speech_only and not self.options.lanes:
            return self.models.probe(video)
        return self._watch(video, stop, on_progress)

    def with_frames(
        self,
        read: ReadVideo,
        stop: threading.Event | None = None,
        on_progress: OnProgress = lambda stage, done, total: None,
    ) -> ReadVideo:
        """The same video with its frames encoded, if the answer depends on them."""
        if not self._uses_frames(read.speech) or read.features.features_TD.shape[1]:
            return read
        return read._replace(features=self._watch(read.video, stop, on_progress))

    def _watch(
        self, video: Path, stop: threading.Event | None, on_progress: OnProgress
    ) -> FrameFeatures:
        choice = repr((self.config.inputs.frames, self.config.windowing))
        seen = (self.encoder_name, self._encoder_precision, choice)
        key = cache.key(cache.fingerprint(video), *seen, CACHE_VERSION)
        entry = self._place("features") / f"{key}.safetensors"
        return self.models.watch(video, entry, stop, on_progress)

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
        with self._listening:
            if stop is not None and stop.is_set():
                raise Stopped(str(video))
            return self._speech(video, chosen, on_heard=on_heard)

    def _speech(
        self,
        video: Path,
        options: Options,
        *,
        listen: bool = True,
        on_heard: Callable[[float], None] = lambda seconds: None,
    ) -> Transcript:
        if options.transcript is not None:
            return self._readable(read_transcript(options.transcript, video=video.name), options)
        found = transcribe(
            video,
            engine=options.engine,
            language=options.language,
            model=options.whisper_model,
            cache=self._place("speech"),
            limits=options.limits,
            listen=listen,
            on_heard=on_heard,
        )
        return self._readable(found, options)

    def _readable(self, speech: Transcript, options: Options) -> Transcript:
        """The speech, or none where the model reads English and this is another language."""
        if not self.config.inputs.familiar_speech or (options.language or "").startswith("en"):
            return speech
        why = why_foreign(sentence.text for sentence in speech.sentences)
        if why is None:
            return speech
        return Transcript(
            (),
            f"none: not English: {speech.provenance}, {why}; --speech FILE hands over a "
            "translation, --language en takes it for English",
        )

    def caption(
        self,
        video: str | Path,
        *,
        speech: str | Path | None = None,
        language: str | None = None,
        force: bool | None = None,
        stop: threading.Event | None = None,
        on_progress: OnProgress = lambda stage, done, total: None,
    ) -> Captioned:
        """Caption one video; its frames are encoded only if they are used.

        `speech` (a subtitle file, or an engine such as "whisper:small"), `language` and `force`
        take the place of those in the options. `on_progress` is called in this thread; setting
        `stop` ends watching, listening and captioning soon. Where the video is not captioned, the
        result has no events and a `reason`.
        """
        video, ended = check_local(video), stop or threading.Event()
        options = replace(
            self.options,
            language=language or self.options.language,
            force=self.options.force if force is None else force,
        )
        if speech is not None:
            options = replace(options, **speech_options(speech))
        if (kept := self.kept(video, options=options)) is not None:
            on_progress("captioning", 1.0, 1.0)
            return kept
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
        if not self.speech_only or self.options.lanes:
            on_progress("watching", 0.0, 0.0)
        try:
            features = self.read_frames(video, ended, on_progress)
            on_progress("listening", min(heard[0], features.duration), features.duration)
            while not wait([transcript], POLL).done:
                on_progress("listening", min(heard[0], features.duration), features.duration)
            read = ReadVideo(video, features, transcript.result())
            read = self.with_frames(read, ended, on_progress)
        except BaseException:
            ended.set()
            raise

        def on_step() -> None:
            if ended.is_set():
                raise Stopped(str(video))

        on_progress("captioning", 0.0, 1.0)
        captioned = self.caption_read([read], on_step, force=options.force)[0]
        on_progress("captioning", 1.0, 1.0)
        return captioned

    def kept(self, video: Path, *, options: Options | None = None) -> Captioned | None:
        """The answer of an earlier time, where nothing that decides it has changed."""
        chosen = options or self.options
        if self._model_fingerprint is None:
            return None
        try:
            entry = self._entry(video, self._speech(video, chosen, listen=False))
        except (Unheard, StarcError):  # what is wrong is said by those who read the video
            return None
        captioned = None if entry is None else _read_captioned(entry)
        return None if captioned is None else self._shown(captioned, video, force=chosen.force)

    def caption_all(
        self,
        videos: str | Path | Iterable[str | Path],
        *,
        on_error: Callable[[Path, StarcError], None] | None = None,
        on_progress: OnProgress = lambda stage, done, total: None,
    ) -> Iterator[Captioned]:
        """Caption videos, folders of them and lists, one after another as they are asked for.

        `on_progress` is also called with "videos", how many are done and how many there are;
        `on_error` for each that fails. Without it the first failure raises.
        """
        given = [videos] if isinstance(videos, str | Path) else videos
        paths = [video for video, _ in find_videos([Path(one) for one in given])]
        for n, video in enumerate(paths):
            on_progress("videos", n, len(paths))
            try:
                captioned = self.caption(video, on_progress=on_progress)
            except StarcError as error:
                if on_error is None:
                    raise
                on_error(video, error)
            else:
                yield captioned
        on_progress("videos", len(paths), len(paths))

    def caption_read(
        self,
        videos: Sequence[ReadVideo],
        on_step: Callable[[], None] = lambda: None,
        *,
        force: bool | None = None,
    ) -> list[Captioned]:
        """The model's part for several videos, which are decoded together; all or an error."""
        force = self.options.force if force is None else force
        entries = [self._entry(one.video, one.speech) for one in videos]
        kept = [None if entry is None else _read_captioned(entry) for entry in entries]
        missing = [
            self.with_frames(one)
            for one, before in zip(videos, kept, strict=True)
            if before is None
        ]
        fresh = iter(self.models.caption(missing, self.decoding, on_step) if missing else ())
        captioned = []
        for one, entry, before in zip(videos, entries, kept, strict=True):
            made = before or next(fresh)
            if entry is not None and before is None:
                cache.write(entry, made.to_json())
            captioned.append(self._shown(made, one.video, force=force))
        return captioned

    def _entry(self, video: Path, speech: Transcript) -> Path | None:
        """Where the answer is kept; nowhere if the model or its datastore may change."""
        name = self._key(frames=self._uses_frames(speech))
        if name is None:
            return None
        said = json.dumps([[s.start, s.end, s.text] for s in speech.sentences])
        key = cache.key(name, cache.fingerprint(video), said, speech.provenance)
        return self._place("captions") / f"{key}.json"

    def _shown(self, captioned: Captioned, video: Path, *, force: bool) -> Captioned:
        """An answer for this very file; without events, but with a reason, where there is none."""
        events, known = captioned.events, captioned.provenance
        if len(captioned.frame_times) == 1:
            events = _of_one_picture(captioned)
        reason = self._why_not(captioned)
        if force and can_be_forced(reason):
            known, reason = {**known, "forced": reason}, ""
        return replace(
            captioned,
            video=printable_name(video),
            events=() if reason else events,
            provenance=known,
            reason=reason,
        )

    def _why_not(self, captioned: Captioned) -> str:
        """Why a video should not be captioned; empty where it should.

        Only a model with a caption writer has a calibrated confidence; others show what they find.
        """
        speech = captioned.provenance.get("speech", "").removeprefix("none: ")
        why, _, _ = speech.partition("; ")  # what follows names options
        silent = "" if captioned.sentences else f" (no speech: {why})"
        unlike = ""
        if "unfamiliar" in captioned.provenance:
            what = "what is said" if captioned.sentences else "what is seen"
            unlike = f": {what} is unlike the videos that the model was trained on"
        if not captioned.events:
            return f"no event was found{silent}{unlike}"
        if unlike:
            return f"{OUT_OF_DOMAIN}{silent}{unlike}"
        sure = [event.confidence for event in captioned.events if event.confidence is not None]
        median = statistics.median(sure) if sure else 1.0
        if self.config.writer is not None and median < GUESS:
            return f"{LOW_CONFIDENCE}{silent}: the median of the events is {median:.0%}"
        return ""

    def _place(self, kind: str) -> Path:
        return (self.options.cache or cache.cache_folder()) / kind


def load(
    model: str | Path = EMBEDDED,
    *,
    device: str = "auto",
    force: bool = False,
    options: Options | None = None,
) -> Captioner:
    """The model of a folder or of the hub, or the embedded one, ready to caption.

    `force` shows events also for videos that are out of domain or that the model is unsure about.
    """
    options = options or Options()
    captioner = Captioner(model, replace(options, device=device, force=force or options.force))
    captioner.loaded, captioner.encoder  # noqa: B018  a wrong name is said now, not at the first video
    return captioner


def can_be_forced(reason: str) -> bool:
    """Whether there are events that were withheld for this reason and that `force` shows."""
    return reason.startswith((OUT_OF_DOMAIN, LOW_CONFIDENCE))


def _read_captioned(entry: Path) -> Captioned | None:
    try:
        return Captioned.from_json(cache.read(entry) or {})
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _of_one_picture(captioned: Captioned) -> tuple[Event, ...]:
    """The surest event, all along: parts of a single picture cannot be told apart in time."""
    best = max(captioned.events, key=lambda event: event.confidence or 0.0, default=None)
    return () if best is None else (replace(best, start=0.0, end=captioned.duration),)
