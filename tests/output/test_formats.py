"""Every format is read back by a reader that is not ours."""

from __future__ import annotations

import csv
import errno
import io
import itertools
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import av
import numpy as np
import pysubs2
import pytest
import webvtt
from av.stream import AttachmentStream, Disposition
from hypothesis import given, settings
from hypothesis import strategies as st

from starc.errors import ConfigError, VideoError
from starc.media.subtitles import SRT_MARK, is_captions
from starc.media.video import sample_frames
from starc.output import formats, mp4
from starc.output.chapters import clock, one_line, stamp
from starc.output.transcripts import TEXTS
from starc.types import Captioned, Event, Sentence
from support.clips import turn, write_clip

NASTY = (
    'Stir = ; # \\ <b>"bold"</b> & {\\an8} --> 100 % | `x` *y* _z_\n\n2\nnext'
    "\x00line Zürich 寿司 🍣"
)
CLEAN = one_line(NASTY)


@pytest.fixture
def captioned() -> Captioned:
    events = (
        Event(0.0, 20.0, "Crack the eggs.", 0.9),
        Event(15.5, 42.0004, NASTY, 0.4),
        Event(50.0, 3725.25, "Serve, with salt.", None, repeated=False),
    )
    return Captioned('a "b" ü.mp4', 3800.0, events)


def times(events: tuple[Event, ...]) -> list[tuple[int, int]]:
    return [(round(e.start * 1000), round(e.end * 1000)) for e in events]


def test_json_is_ours_again(captioned: Captioned, tmp_path: Path) -> None:
    formats.write(captioned, tmp_path / "a.json")
    assert Captioned.from_json(json.loads((tmp_path / "a.json").read_text("utf-8"))) == captioned


def test_predictions_of_one_video(captioned: Captioned, tmp_path: Path) -> None:
    formats.write(captioned, tmp_path / "a.predictions.json")
    results = json.loads((tmp_path / "a.predictions.json").read_text("utf-8"))["results"]
    assert list(results) == ['a "b" ü']
    assert results['a "b" ü'][1] == {"sentence": CLEAN, "timestamp": [15.5, 42.0004]}


@pytest.mark.parametrize("reader", ["pysubs2", "webvtt-py"])
def test_vtt(captioned: Captioned, tmp_path: Path, reader: str) -> None:
    path = tmp_path / "a.vtt"
    assert formats.write(captioned, path) == ()
    if reader == "pysubs2":
        lines = pysubs2.load(str(path))
        assert [(line.start, line.end) for line in lines] == times(captioned.events)
        return
    cues = webvtt.read(str(path)).captions
    assert [cue.text for cue in cues][0::2] == ["Crack the eggs.", "Serve, with salt."]
    assert cues[1].raw_text.count("&lt;") == 2 and "\n" not in cues[1].raw_text
    assert cues[2].end == "01:02:05.250"


def test_srt(captioned: Captioned, tmp_path: Path) -> None:
    formats.write(captioned, tmp_path / "a.srt")
    lines = pysubs2.load(str(tmp_path / "a.srt"))
    assert [(line.start, line.end) for line in lines] == times(captioned.events)
    assert [line.plaintext for line in lines][0::2] == ["Crack the eggs.", "Serve, with salt."]
    assert "‹b›" in lines[1].plaintext and "(\\an8)" in lines[1].plaintext
    assert len(webvtt.from_srt(str(tmp_path / "a.srt")).captions) == 3


def test_the_mark_of_an_srt_file_is_in_no_cue(captioned: Captioned, tmp_path: Path) -> None:
    path = tmp_path / "a.srt"
    formats.write(captioned, path)
    with av.open(str(path)) as file:
        cues = [bytes(packet).decode() for packet in file.demux(subtitles=0) if packet.size]
    assert len(cues) == 3 and cues[-1] == "Serve, with salt."
    assert is_captions(path)
    formats.write(captioned, path)  # still known as ours
    path.write_text(path.read_text("utf-8").replace(SRT_MARK, ""), "utf-8")
    assert not is_captions(path)
    with pytest.raises(ConfigError, match="not as starc wrote it"):
        formats.write(captioned, path)


def test_captions_of_earlier_versions_are_still_known(tmp_path: Path) -> None:
    cue = "1\n00:00:00,000 --> 00:00:02,000\nCrack the eggs.\n"
    (tmp_path / "a.srt").write_text(f"{cue}\n{SRT_MARK}\n")
    note = "NOTE Captions by starc: what is seen, not what is said"
    (tmp_path / "a.vtt").write_text(f"WEBVTT\n\n{note}\n\n{cue}")
    assert is_captions(tmp_path / "a.srt") and is_captions(tmp_path / "a.vtt")


@pytest.mark.parametrize(
    ("origins", "note"),
    [
        ((("speech",),), "NOTE Captions by starc, written from the speech by small"),
        (
            (("pictures", "datastore"),),
            "NOTE Captions by starc, written from the pictures and the datastore by small",
        ),
        ((("person",),), "NOTE Captions by starc, written by a person"),
        (
            (("speech",), ("person",)),
            "NOTE Captions by starc, written from the speech by small; written by a person",
        ),
        (((),), "NOTE Captions by starc"),
        (
            (("speech",), ()),
            "NOTE Captions by starc, written from the speech by small; of unknown origin",
        ),
    ],
)
def test_the_note_of_a_vtt_says_what_the_record_says(
    origins: tuple[tuple[str, ...], ...], note: str, tmp_path: Path
) -> None:
    events = tuple(
        Event(20.0 * n, 20.0 * n + 9, "stir", words_from=one) for n, one in enumerate(origins, 1)
    )
    video = Captioned("a.mp4", 99.0, events, provenance={"model": "small"})
    for name in ("a.vtt", "a.chapters.vtt"):  # which has an introduction that nobody wrote
        formats.write(video, tmp_path / name)
        assert (tmp_path / name).read_text("utf-8").splitlines()[2] == note
        assert is_captions(tmp_path / name)


def test_no_model_name_breaks_a_vtt() -> None:
    event = Event(0.0, 2.0, "stir", words_from=("speech",))
    video = Captioned("a.mp4", 9.0, (event,), provenance={"model": "a\n\n0 --> 1"})
    text, _ = formats.render(video, format="vtt")
    assert [cue.text for cue in webvtt.from_string(text).captions] == ["stir"]


def test_files_say_why_a_video_was_not_captioned() -> None:
    nothing = Captioned("n.mp4", 3.0, (), reason="The speech is not about cooking.")
    for name in ("vtt", "html", "markdown", "json"):
        text, _ = formats.render(nothing, format=name)
        assert "The speech is not about cooking." in text, name
    assert webvtt.from_string(formats.render(nothing, format="vtt")[0]).captions == []


def test_chapters_vtt_do_not_overlap(captioned: Captioned, tmp_path: Path) -> None:
    formats.write(captioned, tmp_path / "a.chapters.vtt")
    cues = webvtt.read(str(tmp_path / "a.chapters.vtt")).captions
    assert cues[0].start == "00:00:00.000" and cues[-1].end == "01:03:20.000"
    assert all(a.end == b.start for a, b in itertools.pairwise(cues))


def test_youtube(captioned: Captioned, tmp_path: Path) -> None:
    assert formats.write(captioned, tmp_path / "a.txt") == ()
    lines = (tmp_path / "a.txt").read_text("utf-8").splitlines()
    assert [re.match(r"(\d\d:\d\d) \S", line)[1] for line in lines] == ["00:00", "00:15", "00:50"]  # type: ignore[index]
    assert not set("<>") & set("".join(lines))


def test_csv(captioned: Captioned, tmp_path: Path) -> None:
    formats.write(captioned, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["caption"] for row in rows] == ["Crack the eggs.", CLEAN, "Serve, with salt."]
    assert [row["confidence"] for row in rows] == ["0.9000", "0.4000", ""]
    assert float(rows[2]["end"]) == 3725.25


def test_no_cell_is_a_formula(captioned: Captioned) -> None:
    texts = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "stir = mix"]
    events = tuple(Event(float(n), n + 1.0, text) for n, text in enumerate(texts))
    text, _ = formats.render(replace(captioned, events=events, video="=a.mp4"), format="csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["caption"] for row in rows] == [*(f"'{text}" for text in texts[:4]), texts[4]]
    assert {row["video"] for row in rows} == {"'=a.mp4"}


@pytest.mark.parametrize("granularity", [1.0, 1e308])
def test_no_granularity_is_too_large(captioned: Captioned, granularity: float) -> None:
    text, _ = formats.render(captioned, format="vtt", granularity=granularity)
    assert text.count("-->") == len(captioned.events)


def test_a_device_is_no_output(captioned: Captioned, tmp_path: Path) -> None:
    for path in (Path("/dev/full"), tmp_path):
        with pytest.raises(ConfigError, match="is not a file"):
            formats.write(captioned, path, format="csv", overwrite=True)


def test_markdown_keeps_its_columns(captioned: Captioned, tmp_path: Path) -> None:
    formats.write(captioned, tmp_path / "a.md")
    rows = (tmp_path / "a.md").read_text("utf-8").splitlines()[2:]
    assert all(len(re.split(r"(?<!\\)\|", row)) == 5 for row in rows)
    assert "<b>" not in "".join(rows) and "\\*y\\*" in rows[3]


def titles_of(path: Path) -> list[tuple[int, int, str]]:
    with av.open(str(path)) as container:
        return [
            (
                round(chapter["start"] * (chapter["time_base"] or 1) * 1000),
                round(chapter["end"] * (chapter["time_base"] or 1) * 1000),
                chapter["metadata"]["title"],
            )
            for chapter in container.chapters()
        ]


def test_ffmetadata_is_read_by_ffmpeg(captioned: Captioned, tmp_path: Path) -> None:
    formats.write(captioned, tmp_path / "a.ffmetadata")
    expected = [
        (0, 15500, "Crack the eggs."),
        (15500, 50000, CLEAN),
        (50000, 3800000, "Serve, with salt."),
    ]
    assert titles_of(tmp_path / "a.ffmetadata") == expected


def colour_clip(path: Path, *, seconds: int = 4, audio: bool = True) -> None:
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg4", rate=5)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        sound = container.add_stream("aac", rate=16000) if audio else None
        for k in range(seconds * 5):
            picture = np.full((48, 64, 3), 10 * k % 255, np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode())
        if sound is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.float32), "fltp", "mono")
            silence.sample_rate = 16000
            container.mux(sound.encode(silence))
            container.mux(sound.encode())


def packets(path: Path) -> list[bytes]:
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux() if packet.size]


@pytest.mark.parametrize("ending", [".mp4", ".mkv", ".mov"])
def test_chapters_go_into_a_copy_of_the_video(tmp_path: Path, ending: str) -> None:
    source, target = tmp_path / "in 'a' ü.mp4", tmp_path / f'out "b" 寿司{ending}'
    colour_clip(source)
    events = (Event(0, 1.5, "Crack"), Event(1.5, 3, NASTY), Event(3, 4, "Serve"))
    notes = formats.write(Captioned(source.name, 4.0, events), target, source=source)
    assert notes == ()
    assert titles_of(target) == [(0, 1500, "Crack"), (1500, 3000, CLEAN), (3000, 4000, "Serve")]
    assert packets(target) == packets(source)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([source.name, target.name])
    if shutil.which("ffprobe"):
        command = ["ffprobe", "-v", "error", "-show_chapters", "-of", "json", str(target)]
        shown = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert [chapter["tags"]["title"] for chapter in shown["chapters"]][1] == CLEAN


def make_film(path: Path) -> None:
    """A film as it is sold: two languages, titles, flags, a cover, and in Matroska a font."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg4", rate=5)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        video.metadata["title"] = "Director's cut"
        for language, flag in (("ger", Disposition.comment), ("eng", Disposition.default)):
            sound = container.add_stream("aac", rate=16000, layout="mono")
            sound.metadata.update(language=language, title=f"Sound {language}")
            sound.disposition = flag
        cover = container.add_stream("mjpeg")
        cover.width, cover.height, cover.pix_fmt = 16, 16, "yuvj420p"
        cover.disposition = Disposition.attached_pic
        if path.suffix == ".mkv":
            container.add_attachment("font.ttf", "font/ttf", b"glyphs")
        container.metadata.update(title="Eggs", artist="A Cook")
        grey = np.full((48, 64, 3), 90, np.uint8)
        for _ in range(15):
            container.mux(video.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        picture = av.VideoFrame.from_ndarray(grey[:16, :16].copy(), format="rgb24")
        container.mux(cover.encode(picture.reformat(format="yuvj420p")))
        for sound in container.streams.audio:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 48000), np.float32), "fltp", "mono")
            silence.sample_rate = 16000
            container.mux(sound.encode(silence))
        for stream in (video, *container.streams.audio):
            container.mux(stream.encode())


def described(path: Path) -> tuple[list[tuple[object, ...]], set[tuple[str, str]]]:
    """What a file says of its streams and of itself; the chapters' own stream is left out."""
    with av.open(str(path)) as container:
        streams = [
            (
                stream.type,
                stream.language,
                stream.metadata.get("title", stream.metadata.get("name")),
                stream.disposition,
                stream.data if isinstance(stream, AttachmentStream) else b"",
            )
            for stream in container.streams
            if stream.type != "data"
        ]
        tags = {(key.lower(), value) for key, value in container.metadata.items()}
    return streams, {(key, value) for key, value in tags if key in ("title", "artist")}


@pytest.mark.parametrize("ending", [".mp4", ".mkv", ".mov"])
def test_a_copy_keeps_everything_but_the_chapters(tmp_path: Path, ending: str) -> None:
    source, copy, again = (tmp_path / f"{name}{ending}" for name in "abc")
    make_film(source)
    events = [Event(0, 1, "a"), Event(1, 3, "b")]
    assert mp4.embed_chapters(source, copy, events) == ()
    assert described(copy) == described(source)
    assert sorted(packets(source)) == sorted(p for p in packets(copy) if p in packets(source))
    mp4.embed_chapters(source, again, events)
    assert again.read_bytes() == copy.read_bytes()


@pytest.mark.parametrize("ending", [".mp4", ".mkv", ".mov"])
def test_a_copy_keeps_the_chapters_that_a_video_has(tmp_path: Path, ending: str) -> None:
    plain, source, copy = (tmp_path / f"{name}{ending}" for name in "abc")
    make_film(plain)
    mp4.embed_chapters(plain, source, [Event(0, 1, "theirs"), Event(1, 3, "theirs too")])
    captioned = Captioned("b", 3.0, (Event(0, 3, "ours"),))
    kept = formats.write(captioned, copy, source=source)
    assert titles_of(copy) == titles_of(source) and titles_of(source)[0][-1] == "theirs"
    assert kept[0] == (
        "kept the 2 chapters that the video had and left ours out; "
        "--replace-chapters puts ours in their place"
    )
    replaced = formats.write(captioned, copy, source=source, replace_chapters=True)
    assert [title for *_, title in titles_of(copy)] == ["ours"]
    assert replaced[0] == "replaced the 2 chapters that the video had"
    assert not any("left out" in note for note in (*kept[1:], *replaced))


def test_a_copy_stays_upright(tmp_path: Path) -> None:
    source = turn(write_clip(tmp_path / "a.mp4", seconds=1, codec="mpeg4"), 90)
    mp4.embed_chapters(source, tmp_path / "b.mp4", [Event(0, 1, "a")])
    first, second = (next(sample_frames(tmp_path / name, size=32)) for name in ("a.mp4", "b.mp4"))
    assert np.array_equal(first.rgb_HWC, second.rgb_HWC)
    plain = write_clip(tmp_path / "c.mp4", seconds=1, codec="mpeg4")
    assert not np.array_equal(first.rgb_HWC, next(sample_frames(plain, size=32)).rgb_HWC)


def test_a_stream_that_does_not_fit_is_left_out_and_said(tmp_path: Path, shared: Path) -> None:
    source = shared / "data/videos/nasa_13013.mp4"
    notes = mp4.embed_chapters(source, tmp_path / "a.mkv", [Event(0, 5, "a"), Event(5, 13, "b")])
    assert any("subtitle" in note and "left out" in note for note in notes)
    assert len(titles_of(tmp_path / "a.mkv")) == 2


def test_a_codec_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    colour_clip(tmp_path / "a.mp4", audio=False)
    with pytest.raises(VideoError, match=r"cannot be copied into a webm file .*try \.mkv"):
        mp4.embed_chapters(tmp_path / "a.mp4", tmp_path / "b.webm", [Event(0, 4, "a")])
    assert not (tmp_path / "b.webm").exists()


def test_a_copy_never_replaces_its_source(tmp_path: Path) -> None:
    colour_clip(tmp_path / "a.mp4", audio=False)
    with pytest.raises(VideoError, match="is the video itself"):
        mp4.embed_chapters(tmp_path / "a.mp4", tmp_path / "a.mp4", [Event(0, 4, "a")])


def test_a_full_disk_leaves_the_old_file(
    captioned: Captioned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.vtt"
    path.write_text("old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("starc.files.atomic.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        formats.write(captioned, path, overwrite=True)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_disk_that_fills_under_a_video_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    colour_clip(tmp_path / "a.mp4")

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    usual = Path.open

    def opened(path: Path, *how: Any, **more: Any) -> Any:
        return Full(path, "w") if path.suffix == ".part" else usual(path, *how, **more)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(OSError, match="No space left") as caught:
        mp4.embed_chapters(tmp_path / "a.mp4", tmp_path / "b.mp4", [Event(0, 4, "a")])
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.json", "json"),
        ("a.predictions.json", "predictions"),
        ("a.VTT", "vtt"),
        ("a.chapters.vtt", "chapters"),
        ("a.txt", "youtube"),
        ("a.transcript.txt", "transcript"),
        ("a.chapters.mp4", "video"),
        ("a.webm", "video"),
        ("a.html", "html"),
    ],
)
def test_the_ending_names_the_format(name: str, format: str) -> None:
    assert formats.infer(name) == format


def test_unknown_formats_and_modes_say_what_there_is(captioned: Captioned, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no format ends like this.*\.vtt"):
        formats.write(captioned, tmp_path / "a.doc")
    with pytest.raises(ConfigError, match="unknown; known: json"):
        formats.write(captioned, tmp_path / "a", format="doc")
    with pytest.raises(ConfigError, match="youtube holds only chapters"):
        formats.write(captioned, tmp_path / "a.txt", mode="events")


def test_mode_chapters_works_for_every_format(captioned: Captioned) -> None:
    captioned = replace(captioned, sentences=(Sentence(0, 1, "Crack the eggs, says she"),))
    for name, format in formats.FORMATS.items():
        if format.render is not None:
            text, _ = formats.render(captioned, format=name, mode="chapters")
            assert "Crack the eggs" in text


def test_a_transcript_of_silence_is_not_written(captioned: Captioned, tmp_path: Path) -> None:
    with pytest.raises(VideoError, match=r"nothing is said in it; choose another format"):
        formats.write(captioned, tmp_path / "a.transcript.txt")
    assert not (tmp_path / "a.transcript.txt").exists()


def test_a_video_without_events_is_a_valid_file(tmp_path: Path) -> None:
    nothing = Captioned("n.mp4", 3.0, ())
    for name in ("a.vtt", "a.srt", "a.csv", "a.md", "a.html", "a.chapters.vtt", "a.ffmetadata"):
        formats.write(nothing, tmp_path / name)
    assert webvtt.read(str(tmp_path / "a.vtt")).captions == []
    assert (tmp_path / "a.srt").read_text().strip() == ""


class Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=80))
def test_any_caption_survives_every_text_format(caption: str) -> None:
    events = (Event(0, 20, caption), Event(20, 40, "b"), Event(40, 60, "c"))
    video = Captioned("v.mp4", 60, events, (Sentence(0, 1, caption), Sentence(1, 2, "c")))
    texts = {
        name: formats.render(video, format=name)[0]
        for name, f in formats.FORMATS.items()
        if f.render
    }
    for text in texts.values():
        text.encode()
    assert len(pysubs2.SSAFile.from_string(texts["srt"])) == 3
    assert len(webvtt.from_string(texts["vtt"]).captions) == 3
    assert len(list(csv.reader(io.StringIO(texts["csv"], newline="")))) == 4
    assert len(texts["youtube"].splitlines()) == 3
    assert len(texts["transcript"].splitlines()) == 2
    for kind, render in TEXTS.items():
        if kind != "txt":
            assert len(pysubs2.SSAFile.from_string(render(video.sentences))) == 2
    parsed = Texts()
    parsed.feed(texts["html"])
    assert one_line(caption) in parsed.text
    assert not parsed.tags & {"script", "img", "iframe", "object", "link"}


@given(st.integers(0, 400_000_000))
def test_stamps_read_back(time_ms: int) -> None:
    hours, minutes, seconds = stamp(time_ms).split(":")
    assert (int(hours) * 60 + int(minutes)) * 60000 + round(float(seconds) * 1000) == time_ms
    assert clock(time_ms / 1000).count(":") == (2 if time_ms >= 3_600_000 else 1)


def test_a_clock_cuts_what_a_stamp_shows() -> None:
    for time in (0.9996, 59.9994, 59.9996, 3599.9999):
        shown = stamp(round(time * 1000))[:8]
        assert clock(time) == (shown.lstrip("0") if shown > "01" else shown[3:])
