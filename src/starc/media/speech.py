"""From a video to what is said in it: subtitles first, then a recogniser, else nothing.

`transcribe` takes subtitles beside or inside the file; without any it listens, with
faster-whisper where that is installed, else with moonshine-voice, whose English model comes inside
its package. Transcripts of recognisers are cached by content. `Transcript.provenance` always says
where the words are from, or why there are none: wrong speech is the first suspect when captions
are wrong.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

from starc.errors import MissingExtra, SpeechError
from starc.files import cache as caches
from starc.media import audio, moonshine, subtitles
from starc.media.container import Limits
from starc.types import Sentence

log = logging.getLogger("starc")

Engine = Literal["auto", "none", "subtitles", "whisper", "moonshine"]
WHISPER_MODEL = "small"
WHISPER_SECONDS = 600.0
MOONSHINE_SECONDS = 30.0
TRANSCRIPT_VERSION = "1"
"""Changes when the same sound would give other sentences than before."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What is said in a video, and who says so."""

    sentences: tuple[Sentence, ...]
    provenance: str
    """Such as "subtitles talk.srt", "moonshine-voice 0.1.0 tiny-en" or "none: no sound"."""


@dataclass(frozen=True, slots=True)
class _Listener:
    """A recogniser that is installed; its model is loaded when it first listens."""

    name: str
    listen: Callable[[Path, str | None, Limits | None], Iterator[Sentence]]


def transcribe(
    path: Path,
    *,
    engine: Engine = "auto",
    language: str | None = None,
    model: str | None = None,
    cache: Path | None = None,
    limits: Limits | None = None,
) -> Transcript:
    """The speech of a video.

    "auto" takes the first of: subtitles, faster-whisper, moonshine, none; it never fails for want
    of speech. Any other engine is used alone, and an error says what it lacks. `language` ("en")
    chooses among subtitles and is told to the recogniser; `model` is faster-whisper's, a name or
    a folder; `cache` is a folder, $XDG_CACHE_HOME/starc/speech by default.
    """
    path = Path(path)
    if engine not in get_args(Engine):
        raise ValueError(f"engine must be one of {', '.join(get_args(Engine))}, got {engine!r}")
    if engine == "none":
        return Transcript((), "none: not asked for")
    if engine in {"auto", "subtitles"}:
        found = _subtitles(path, language, limits, strict=engine == "subtitles")
        if found is not None:
            return found
        if engine == "subtitles":
            raise SpeechError(f"{path}: no subtitles beside or inside it; let it be transcribed")
    if not audio.has_sound(path, limits=limits):
        return Transcript((), "none: no sound")
    if engine != "auto" or model is not None:
        name = "whisper" if engine == "auto" else engine
        return _cached(path, _LISTENERS[name](language, model), language, cache, limits)
    reasons = []
    for choose in _LISTENERS.values():
        try:
            return _cached(path, choose(language, None), language, cache, limits)
        except (MissingExtra, SpeechError) as reason:
            reasons.append(str(reason))
    log.warning("%s: speech is left out (%s)", path, "; ".join(reasons))
    return Transcript((), f"none: {reasons[-1]}")


def handed_in(transcript: Path, *, video: str | None = None) -> Transcript:
    """Speech from a file that the user names: subtitles, Whisper's JSON, a published file."""
    sentences = subtitles.read_sentences(transcript, video=video)
    return Transcript(tuple(sentences), f"handed in {Path(transcript).name}")


def _subtitles(
    path: Path, language: str | None, limits: Limits | None, *, strict: bool
) -> Transcript | None:
    """Subtitles beside the file, else inside it; without `strict`, bad ones are passed over."""
    sidecar = subtitles.find_sidecar(path, language=language)
    if sidecar is not None:
        try:
            sentences = subtitles.read_sentences(sidecar)
            if sentences or strict:
                return Transcript(tuple(sentences), f"subtitles {sidecar.name}")
        except SpeechError as error:
            if strict:
                raise
            log.warning("%s", error)
    sentences = subtitles.embedded_sentences(path, language=language, limits=limits)
    return Transcript(tuple(sentences), "subtitles inside the file") if sentences else None


def _cached(
    path: Path,
    listener: _Listener,
    language: str | None,
    folder: Path | None,
    limits: Limits | None,
) -> Transcript:
    name = caches.key(caches.fingerprint(path), listener.name, language or "", TRANSCRIPT_VERSION)
    entry = (folder or caches.folder("speech")) / f"{name}.json"
    kept = _kept(caches.read(entry))
    if kept is not None:
        return kept
    log.info("%s: listening with %s", path, listener.name)
    sentences = tuple(listener.listen(path, language, limits))
    rows = [[said.start, said.end, said.text] for said in sentences]
    caches.write(entry, {"provenance": listener.name, "sentences": rows})
    return Transcript(sentences, listener.name)


def _kept(value: Any) -> Transcript | None:
    try:
        return Transcript(tuple(Sentence(*row) for row in value["sentences"]), value["provenance"])
    except (TypeError, KeyError, ValueError):
        return None


def _whisper(language: str | None, model: str | None) -> _Listener:
    _require("faster_whisper", "faster-whisper", "whisper")
    chosen = model or WHISPER_MODEL

    def listen(path: Path, language: str | None, limits: Limits | None) -> Iterator[Sentence]:
        whisper = _whisper_model(chosen)
        for window in audio.windows(
            path, seconds=WHISPER_SECONDS, language=language, limits=limits
        ):
            segments, info = whisper.transcribe(
                window.samples, language=language, vad_filter=True, condition_on_previous_text=False
            )
            for part in segments:
                yield from _said(window.start + part.start, window.start + part.end, part.text)
            # A language is heard once; short or silent windows would guess another.
            language = language or (info.language if window.start == 0 else None)

    return _Listener(f"faster-whisper {version('faster-whisper')} {chosen}", listen)


@functools.lru_cache(maxsize=1)
def _whisper_model(model: str) -> Any:
    try:
        return importlib.import_module("faster_whisper").WhisperModel(model)
    except Exception as error:  # the hub's client, ctranslate2 and the disk each fail their own way
        reason = " ".join(str(error).split())[:160]
        raise SpeechError(
            f"faster-whisper: model {model!r} cannot be loaded ({reason}); "
            "offline, name a folder that holds it"
        ) from error


def _moonshine(language: str | None, model: str | None) -> _Listener:
    _require("moonshine_voice", "moonshine-voice==0.1.0")
    if model is not None:
        raise SpeechError(f"moonshine: has one model, not {model!r}; leave the model out")
    if language is not None and not language.startswith("en"):
        raise SpeechError(
            f"moonshine: understands only English, not {language!r}; install faster-whisper"
        )

    def listen(path: Path, language: str | None, limits: Limits | None) -> Iterator[Sentence]:
        heard, shifts = 0, [(0.0, 0.0)]
        try:
            with moonshine.Listener() as listener:
                for window in audio.windows(
                    path, seconds=MOONSHINE_SECONDS, language=language, limits=limits
                ):
                    # The recogniser counts the seconds it is given; gaps are ours to add.
                    shifts.append((heard / audio.RATE, window.start - heard / audio.RATE))
                    listener.hear(window.samples)
                    heard += len(window.samples)
                for start, duration, text in listener.lines():
                    shift = next(shift for begin, shift in reversed(shifts) if begin <= start)
                    yield from _said(start + shift, start + shift + duration, text)
        except moonshine.Failed as error:
            raise SpeechError(
                f"moonshine: stopped ({error}); pip install moonshine-voice==0.1.0"
            ) from error

    return _Listener(f"moonshine-voice {version('moonshine-voice')} {moonshine.MODEL}", listen)


def _said(start: float, end: float, text: str) -> Iterator[Sentence]:
    text = " ".join(text.split())
    start, end = round(max(start, 0.0), 3), round(end, 3)
    if text and end > start:
        yield Sentence(start, end, text)


def _require(module: str, what: str, extra: str | None = None) -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingExtra(what, extra)


_LISTENERS: dict[str, Callable[[str | None, str | None], _Listener]] = {
    "whisper": _whisper,
    "moonshine": _moonshine,
}
