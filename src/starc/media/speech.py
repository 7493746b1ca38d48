"""From a video to what is said in it: subtitles first, then a recogniser, else nothing.

`transcribe` takes subtitles beside or inside the file; without any it listens, with
faster-whisper where that is installed, else with moonshine-voice, whose English model comes inside
its package. Transcripts of recognisers are cached by content. `Transcript.provenance` always says
where the words are from, or why there are none: wrong speech is the first suspect when captions
are wrong.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from av.stream import Disposition

from starc.errors import ConfigError, MissingExtra, SpeechError, StarcError, VideoError
from starc.files import cache as caches
from starc.files.atomic import replacing
from starc.media import audio, moonshine, subtitles
from starc.media.container import MICROSECONDS, MediaLimits, open_container
from starc.media.sources import check_local
from starc.types import Sentence

log = logging.getLogger("starc")

Engine = Literal["auto", "none", "subtitles", "whisper", "moonshine"]
WHISPER_MODEL = "small"
WHISPER_SECONDS = 600.0
MOONSHINE_SECONDS = 30.0
SAVE_SECONDS, SLOW_SECONDS = 10.0, 1.0
"""The speech of many videos is written so often, and after each that took longer to hear."""
SURE_LANGUAGE = 0.5
"""Probability from which Whisper's guess at the language counts for the rest of the file."""
HEARD_AGAIN = 20.0
"""Seconds of sound that moonshine hears again, at each of `SPEEDS`."""
SPEEDS = (0.9, 1.1)
MIN_WORDS = 8
"""Fewer words say nothing about the language."""
ENGLISH = 0.5
"""Share of words that hearings of English have in common at least."""
LONG_SECONDS, FEWEST_PER_MINUTE = 30.0, 10.0
"""From so many seconds on, fewer words per minute are no speech."""
MANY_WORDS, FEWEST_DISTINCT = 20, 0.4
"""From so many words on, a smaller share of distinct word triples is a recogniser in a loop."""
MANY_TIMES = 4
"""A line said so often that makes up half of all lines is one, too."""
INVENTED = re.compile(
    r"you|bye( bye)?|thank(s| you)( (so|very) much)?( for (watching|listening|your attention))?"
    r"|(please )?(like and )?subscribe( to .*)?|see you (next time|in the next video)"
    r"|(subtitles|captions|transcription|transcribed|translated) (are |is )?(made |provided )?by .*"
)
"""Whole lines, in plain words, that recognisers are known to make of noise."""
TRANSCRIPT_VERSION = "4"
"""Changes when the same sound would give other sentences than before."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What is said in a video, and who says so."""

    sentences: tuple[Sentence, ...]
    provenance: str
    """Such as "subtitles talk.srt", "moonshine-voice 0.1.0 tiny-en" or "none: no sound"."""


Sound = Callable[[float], Iterator[audio.Window]]
"""The sound of an open file in windows of at most so many seconds; to be asked for once."""


class Unheard(Exception):
    """A recogniser would have to listen first."""


class Heard(NamedTuple):
    """What a recogniser made of the sound."""

    sentences: tuple[Sentence, ...]
    remark: str = ""
    """For the provenance."""
    agreement: float = 1.0
    """Share of words that further hearings confirm."""


class Recogniser(NamedTuple):
    """A recogniser that is installed; its model is loaded when it first listens."""

    name: str
    listen: Callable[[Sound], Heard]


def printable_name(path: Path) -> str:
    """The name of a file as text; bytes that are no UTF-8 become �."""
    return path.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def parse_engine(text: str) -> tuple[Engine, str | None]:
    """Engine and model of a text such as "auto", "whisper" or "whisper:small"."""
    engine, colon, model = text.partition(":")
    for known in get_args(Engine):
        if engine == known and bool(model) == bool(colon) and (not model or known == "whisper"):
            return known, model or None
    names = ", ".join(get_args(Engine))
    raise ConfigError(f"--speech {text}: neither a file nor one of {names}, whisper:MODEL")


def transcribe(
    path: Path,
    *,
    engine: Engine = "auto",
    language: str | None = None,
    model: str | None = None,
    cache: Path | None = None,
    limits: MediaLimits | None = None,
    listen: bool = True,
    on_heard: Callable[[float], None] = lambda seconds: None,
) -> Transcript:
    """The speech of a video.

    "auto" takes the first of: subtitles, faster-whisper, moonshine, none; it never fails for want
    of speech. Any other engine is used alone, and an error says what it lacks. `language` ("en")
    chooses among subtitles and is told to the recogniser; `model` is faster-whisper's, a name or
    a folder; `cache` is a folder, $XDG_CACHE_HOME/starc/speech by default. `on_heard` is told how
    many seconds a recogniser has heard. Without `listen`, `Unheard` says that one would have to.
    """
    if engine not in get_args(Engine):
        raise ValueError(f"engine must be one of {', '.join(get_args(Engine))}, got {engine!r}")
    if engine == "none":
        return Transcript((), "none: not asked for")
    path = check_local(path)
    with_subtitles = engine in {"auto", "subtitles"}
    if with_subtitles:
        transcript = _sidecar(path, language, strict=engine == "subtitles", warn=listen)
        if transcript is not None:
            return transcript
    with ExitStack() as stack:
        container = stack.enter_context(open_container(path, limits))
        if with_subtitles:
            sentences = subtitles.embedded_sentences(container, language=language)
            if sentences:
                return Transcript(tuple(sentences), "subtitles inside the file")
            if engine == "subtitles":
                raise SpeechError(f"{path}: no subtitles beside or inside it; use --speech auto")
        if not container.streams.audio:
            return Transcript((), "none: no sound")
        if with_subtitles and subtitles.text_streams(container):
            # Empty subtitles were read to the end of the file; sound is at its beginning.
            stack.close()
            container = stack.enter_context(open_container(path, limits))

        def sound(seconds: float) -> Iterator[audio.Window]:
            given = {"seconds": seconds, "language": language, "limits": limits}
            for window in audio.windows(container, path, **given):  # type: ignore[arg-type]
                yield window
                on_heard(window.start + len(window.samples) / audio.RATE)

        chosen = "whisper" if engine == "auto" and model is not None else engine
        heard = sound if listen else None
        seconds = (container.duration or 0) / MICROSECONDS
        if chosen != "auto":
            recogniser = _RECOGNISERS[chosen](language, model)
            return _checked(_cached(path, recogniser, language, cache, heard), seconds)
        reasons, failed = list[str](), ""
        for choose in _RECOGNISERS.values():
            try:
                found = _cached(path, choose(language, None), language, cache, heard)
                if failed:
                    log.warning("%s: %s%s", path, found.provenance, failed)
                return _checked(found, seconds, failed)
            except MissingExtra as reason:
                reasons.append(str(reason))
            except SpeechError as reason:
                reasons.append(str(reason))
                failed = f" (instead of {reason})"
        log.info("%s: speech is left out (%s)", path, "; ".join(reasons))
        return Transcript((), f"none: {reasons[-1]}")


def trusted(sentences: Sequence[Sentence], duration: float) -> str | None:
    """Why recognised sentences are not speech that one can trust; None if they are.

    Recognisers make words of noise and music: few of them, the ends of videos they were trained
    on, or the same words over and over.
    """
    lines = [" ".join(_words([one.text])) for one in sentences]
    words = " ".join(lines).split()
    if not words:
        return None
    if all(INVENTED.fullmatch(line) for line in lines if line):
        return f"only {sentences[0].text!r:.60}, which recognisers make of noise"
    minutes = max(duration, sentences[-1].end) / 60
    if minutes * 60 >= LONG_SECONDS and len(words) < FEWEST_PER_MINUTE * minutes:
        return f"only {len(words)} words were recognised in {minutes:.1f} minutes"
    line, times = Counter(lines).most_common(1)[0]
    triples = [*zip(words, words[1:], words[2:], strict=False)]
    looped = len(words) >= MANY_WORDS and len({*triples}) < FEWEST_DISTINCT * len(triples)
    if (times >= MANY_TIMES and times >= len(lines) / 2) or looped:
        line = line if times >= MANY_TIMES else " ".join(Counter(triples).most_common(1)[0][0])
        return f"the recogniser repeats the same words ({line!r:.60})"
    return None


def _checked(found: Transcript, duration: float, failed: str = "") -> Transcript:
    """A recogniser's transcript, or none with the reason; and which recogniser failed before."""
    why = trusted(found.sentences, duration)
    if why is None:
        return replace(found, provenance=found.provenance + failed)
    return Transcript((), f"none: {why} ({found.provenance}); --speech FILE hands speech over")


def transcribe_all(
    videos: Mapping[str, Path],
    target: Path,
    *,
    engine: Engine = "auto",
    language: str | None = None,
    model: str | None = None,
) -> Iterator[tuple[Path, str | StarcError]]:
    """Write the speech of many videos, {video: {start, end, text, source}}, as training takes it.

    Each video comes with where its words are from, or with what is wrong with it; others go on.
    What `target` holds already is kept, so an interrupted call goes on where it stopped.
    """
    spoken, written = _spoken_before(target), time.monotonic()
    try:
        for name, path in videos.items():
            began = time.monotonic()
            try:
                if name not in spoken:
                    transcript = transcribe(path, engine=engine, language=language, model=model)
                    sentences = transcript.sentences
                    spoken[name] = {
                        "start": [sentence.start for sentence in sentences],
                        "end": [sentence.end for sentence in sentences],
                        "text": [sentence.text for sentence in sentences],
                        "source": transcript.provenance,
                    }
                yield path, str(spoken[name]["source"])
            except (VideoError, SpeechError) as error:
                yield path, error
            now = time.monotonic()
            if now - began > SLOW_SECONDS or now - written > SAVE_SECONDS:
                _write_spoken(target, spoken)
                written = time.monotonic()
    finally:
        if spoken:
            _write_spoken(target, spoken)


def _spoken_before(target: Path) -> dict[str, dict[str, Any]]:
    if not target.exists():
        return {}
    before: Any = caches.read(target)
    if not isinstance(before, dict) or not all(
        isinstance(one, dict) and "source" in one for one in before.values()
    ):
        raise SpeechError(f"{target}: not a file that starc transcribe wrote; choose another")
    return before


def _write_spoken(target: Path, spoken: Mapping[str, Any]) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            json.dump(spoken, file, ensure_ascii=False)
    except OSError as error:
        raise SpeechError(
            f"{target}: cannot be written ({error.strerror}); choose another"
        ) from None


def sound_only(path: Path, limits: MediaLimits | None = None) -> float | None:
    """Seconds of a file that has sound and no pictures but a cover; None for any other."""
    with open_container(path, limits) as container:
        pictures = container.streams.video
        if not container.streams.audio or not all(
            stream.disposition & Disposition.attached_pic for stream in pictures
        ):
            return None
        if container.duration:
            return container.duration / MICROSECONDS
        packets = container.demux(container.streams.audio[0])
        return max(
            (float(packet.pts * packet.time_base) for packet in packets if packet.pts), default=0.0
        )


def read_transcript(transcript: Path, *, video: str | None = None) -> Transcript:
    """Speech from a file that the user names: subtitles, Whisper's JSON, a published file."""
    sentences = subtitles.read_sentences(transcript, video=video)
    return Transcript(tuple(sentences), f"handed in {printable_name(Path(transcript))}")


def _sidecar(path: Path, language: str | None, *, strict: bool, warn: bool) -> Transcript | None:
    """Subtitles beside the file; without `strict`, bad ones are passed over."""
    sidecar = subtitles.find_sidecar(path, language=language)
    if sidecar is None:
        return None
    try:
        sentences = subtitles.read_sentences(sidecar)
    except SpeechError as error:
        if strict:
            raise
        log.log(logging.WARNING if warn else logging.DEBUG, "%s", error)
        return None
    usable = bool(sentences) or strict
    return Transcript(tuple(sentences), f"subtitles {printable_name(sidecar)}") if usable else None


def _cached(
    path: Path,
    recogniser: Recogniser,
    language: str | None,
    folder: Path | None,
    sound: Sound | None,
) -> Transcript:
    name = caches.key(caches.fingerprint(path), recogniser.name, language or "", TRANSCRIPT_VERSION)
    entry = (folder or caches.cache_folder("speech")) / f"{name}.json"
    kept: Any = caches.read(entry)
    try:
        sentences = tuple(Sentence(*row) for row in kept["sentences"])
        heard = Heard(sentences, kept["remark"], kept["agreement"])
    except (TypeError, KeyError, ValueError):  # absent or damaged
        if sound is None:
            raise Unheard(str(path)) from None
        log.info("%s: listening with %s", path, recogniser.name)
        heard = recogniser.listen(sound)
        rows = [[said.start, said.end, said.text] for said in heard.sentences]
        caches.write(entry, {**heard._asdict(), "sentences": rows})
    if heard.agreement < ENGLISH:
        raise SpeechError(
            f"{recogniser.name}: does not sound like English (heard again, it agrees on "
            f"{heard.agreement:.0%} of the words); --speech whisper understands other languages, "
            "--language en takes it for English"
        )
    return Transcript(heard.sentences, recogniser.name + heard.remark)


def _whisper(language: str | None, model: str | None) -> Recogniser:
    """Any language; what is not English is translated, since our models read English."""
    _require("faster_whisper", "faster-whisper", "whisper")
    chosen = model or WHISPER_MODEL

    def listen(sound: Sound) -> Heard:
        whisper, spoken, sentences = _whisper_model(chosen), language, list[Sentence]()
        foreign = set[str]()
        for window in sound(WHISPER_SECONDS):
            now = spoken or "en"
            if spoken is None and whisper.model.is_multilingual:
                now, sure, _ = whisper.detect_language(window.samples)
                # A language is heard once; short or silent windows would guess another.
                spoken = now if sure >= SURE_LANGUAGE else None
            if now != "en":
                foreign.add(now)
            try:
                segments, _ = whisper.transcribe(
                    window.samples,
                    language=now,
                    task="transcribe" if now == "en" else "translate",
                    vad_filter=True,
                    condition_on_previous_text=False,
                )
                parts = list(segments)
            except (RuntimeError, ValueError, OSError, MemoryError) as error:
                reason = " ".join(str(error).split())[:160]
                raise SpeechError(f"faster-whisper: stopped ({reason})") from error
            stop = window.start + len(window.samples) / audio.RATE
            for part in parts:  # which may be said to end after the sound
                end = min(window.start + part.end, stop)
                sentences += _said(window.start + part.start, end, part.text)
        translated = f", translated from {', '.join(sorted(foreign))}" if foreign else ""
        return Heard(tuple(sentences), translated)

    return Recogniser(f"faster-whisper {version('faster-whisper')} {chosen}", listen)


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


def _moonshine(language: str | None, model: str | None) -> Recogniser:
    _require("moonshine_voice", "moonshine-voice==0.1.0")
    if model is not None:
        raise SpeechError(f"moonshine: has one model, not {model!r}; leave the model out")
    if language is not None and not language.startswith("en"):
        raise SpeechError(
            f"moonshine: understands only English, not {language!r}; install faster-whisper"
        )

    def listen(sound: Sound) -> Heard:
        pieces, kept = list[tuple[float, Future[list[moonshine.Line]]]](), list[audio.Window]()
        try:
            with moonshine.Listener() as listener:
                for window in sound(MOONSHINE_SECONDS):
                    for part in audio.eventful(window):
                        pieces.append((part.start, listener.hear(part.samples)))
                        if len(pieces).bit_count() == 1:  # the first, second, fourth, eighth …
                            kept.append(part)
                sentences = [
                    sentence
                    for begin, heard in pieces
                    for start, duration, text in heard.result()
                    for sentence in _said(begin + start, begin + start + duration, text)
                ]
                agreement = 1.0 if language else _agreement(sentences, kept, listener)
        except moonshine.Failed as error:
            raise SpeechError(
                f"moonshine: stopped ({error}); pip install moonshine-voice==0.1.0"
            ) from error
        return Heard(tuple(sentences), agreement=agreement)

    return Recogniser(f"moonshine-voice {version('moonshine-voice')} {moonshine.MODEL}", listen)


def _agreement(
    sentences: Sequence[Sentence], windows: Sequence[audio.Window], listener: moonshine.Listener
) -> float:
    """Share of words that moonshine finds again in the liveliest window, slower and faster.

    It makes English words of whatever it hears. Those of English speech are the same when the
    sound is changed a little; those of another language are others each time, or nearly: one
    hearing alone may agree by chance.
    """

    def words(window: audio.Window) -> list[str]:
        stop = window.start + HEARD_AGAIN
        return _words(one.text for one in sentences if window.start <= one.start < stop)

    window = max(windows, key=lambda window: len(words(window)), default=None)
    if window is None or len(words(window)) < MIN_WORDS:
        return 1.0
    samples = window.samples[: round(HEARD_AGAIN * audio.RATE)]
    first, shares = words(window), list[float]()
    for speed in SPEEDS:
        places = np.arange(0, len(samples), speed)
        other = np.interp(places, np.arange(len(samples)), samples).astype(np.float32)
        again = _words(text for _, _, text in listener.hear(other).result())
        blocks = difflib.SequenceMatcher(None, first, again, autojunk=False).get_matching_blocks()
        shares.append(2 * sum(block.size for block in blocks) / (len(first) + len(again)))
    return sum(shares) / len(shares)


def _words(texts: Iterable[str]) -> list[str]:
    return re.findall(r"[\w']+", " ".join(texts).lower())


def _said(start: float, end: float, text: str) -> Iterator[Sentence]:
    text = " ".join(text.split())
    start, end = round(max(start, 0.0), 3), round(end, 3)
    if text and end > start:
        yield Sentence(start, end, text)


def _require(module: str, what: str, extra: str | None = None) -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingExtra(what, extra)


_RECOGNISERS: dict[str, Callable[[str | None, str | None], Recogniser]] = {
    "whisper": _whisper,
    "moonshine": _moonshine,
}
