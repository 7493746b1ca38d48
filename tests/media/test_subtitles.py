"""Subtitles and transcripts: every format gives the same sentences; nothing in them is run."""

import json
import os
import pickle
import subprocess
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starc.errors import SpeechError
from starc.media.container import open_container
from starc.media.subtitles import (
    Cue,
    embedded_sentences,
    find_sidecar,
    read_sentences,
    read_transcripts,
    said_once,
    without_markup,
)
from starc.types import Sentence
from support.clips import write_clip
from support.growth import NEAR_LINEAR, growth

TWO = [Sentence(1.5, 2.75, "Crack two eggs."), Sentence(3.0, 4.0, "Stir & fold.")]

SRT = """\ufeff1\r
00:00:03,000 --> 00:00:04,000 X1:10 X2:20\r
{\\an8}<font color="red">Stir</font> &amp;\r
<i>fold.</i>\r
\r
2\r
00:00:01,500 --> 00:00:02,750\r
Crack two eggs.\r
"""
VTT = """WEBVTT - title

STYLE
::cue { color: red }

NOTE this is
no cue

first
00:01.500 --> 00:02.750 align:start position:0%
Crack<00:00:01.900><c> two</c><00:00:02.100><c.loud> eggs.</c>

NOTE nor is this

2
00:00:03.000 --> 00:00:04.000
<v Cook>Stir &amp; fold.</v>
"""
ASS = """[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour
Style: Default,Arial,20,&H00FFFFFF

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Dialogue: 0,0:00:01.50,0:00:02.75,Default,,0,0,0,,{\\i1}Crack{\\i0} two\\Neggs.
Comment: 0,0:00:01.50,0:00:02.75,Default,,0,0,0,,not said
Dialogue: 0,0:00:03.00,0:00:04.00,Default,,0,0,0,,Stir & fold.
Dialogue: 0,0:00:03.00,0:00:04.00,Default,,0,0,0,,{\\p1}m 0 0 l 1 1{\\p0}
"""
ROWS = [{"start": s.start, "end": s.end, "text": f" {s.text}", "id": 0} for s in TWO]
COLUMNS = {key: [row[key] for row in ROWS] for key in ("start", "end", "text")}


def save(path: Path, content: object) -> Path:
    if path.suffix == ".pkl":
        path.write_bytes(pickle.dumps(content))
    else:
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, "utf-8", newline="")
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.srt", SRT),
        ("a.vtt", VTT),
        ("a.ass", ASS),
        ("whisper.json", {"text": "...", "language": "en", "segments": ROWS[::-1]}),
        ("ours.json", {"starc": 1, "sentences": ROWS}),
        ("rows.json", ROWS),
        ("columns.json", COLUMNS),
        ("published.json", {"xyz": COLUMNS}),
        ("published.pkl", {"xyz": COLUMNS}),
        ("arrays.pkl", {"xyz": {key: np.array(value) for key, value in COLUMNS.items()}}),
        ("scalars.pkl", {"xyz": {**COLUMNS, "start": [np.float64(1.5), np.float32(3)]}}),
        (
            "objects.pkl",
            {"xyz": {**COLUMNS, "text": np.array([row["text"] for row in ROWS], dtype=object)}},
        ),
    ],
)
def test_formats_agree(name: str, content: object, tmp_path: Path) -> None:
    assert read_sentences(save(tmp_path / name, content)) == TWO


class Evil:
    def __init__(self, call: object, *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize(
    "call", [os.system, eval, exec, open, getattr, subprocess.call, __import__, np.load, np.ndarray]
)
def test_pickles_run_nothing(call: object, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    argument = (5,) if call is np.ndarray else f"touch {marker}"
    path = save(tmp_path / "evil.pkl", {"a": Evil(call, argument)})
    with pytest.raises(SpeechError, match="not a plain pickle"):
        read_sentences(path)
    assert not marker.exists()


def test_manifesto(shared: Path) -> None:
    folder = shared / "data/videos"
    assert find_sidecar(folder / "manifesto.mp4") == folder / "manifesto.srt"
    clean = read_sentences(folder / "manifesto.srt")
    rolling = read_sentences(folder / "manifesto.vtt")
    assert [s.text for s in rolling] == [s.text for s in clean]
    assert [s.start for s in rolling] == [s.start for s in clean]
    assert sum(a.end == b.end for a, b in zip(rolling, clean, strict=True)) == 35


def test_repetition_that_was_said_stays() -> None:
    cues = [Cue(0, 1, ("Yes.",)), Cue(1.5, 2, ("Yes.",)), Cue(2, 3, ("Yes.",))]
    assert said_once(cues) == [Sentence(0, 1, "Yes."), Sentence(1.5, 3, "Yes.")]


@given(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=20))
@settings(deadline=None, max_examples=60)
def test_rolling_lines_are_said_once(lines: list[str]) -> None:
    lines = [f"{n} {line}" for n, line in enumerate(lines)]
    cues = []
    for n, line in enumerate(lines):
        cues.append(Cue(2 * n, 2 * n + 1.99, (*lines[max(n - 1, 0) : n], line)))
        cues.append(Cue(2 * n + 1.99, 2 * n + 2, (line, " ")))
    expected = [Sentence(2 * n, 2 * n + 2, line) for n, line in enumerate(lines)]
    assert said_once(cues) == expected


def test_lines_are_plain() -> None:
    assert without_markup("<c.yellow>a</c> {\\an8}b \u200b&lt;c&gt;\u00a0d") == "a b <c> d"
    assert without_markup("3 < 4 and 5 > 2") == "3 < 4 and 5 > 2"


def test_cues_without_length_get_some() -> None:
    assert said_once([Cue(2, 2, ("a",)), Cue(-3, -1, ("b",))]) == [
        Sentence(0, 0.1, "b"),
        Sentence(2, 2.1, "a"),
    ]


@pytest.mark.parametrize(
    ("files", "language", "expected"),
    [
        (["talk.srt", "talk.vtt", "talk.en.srt"], None, "talk.srt"),
        (["talk.vtt", "talk.en.srt"], None, "talk.vtt"),
        (["talk.en.srt", "talk.de.srt", "talk.de.vtt"], None, "talk.en.srt"),
        (["talk.en.srt", "talk.de.vtt"], "de", "talk.de.vtt"),
        (["talk.pt-BR.vtt"], None, "talk.pt-BR.vtt"),
        (["talk.en-orig.auto.vtt"], None, "talk.en-orig.auto.vtt"),
        (["talk.mp4.srt"], None, "talk.mp4.srt"),
        (["talk2.srt", "talk.part two.srt", "talk.json", "other.srt"], None, None),
    ],
)
def test_sidecar(
    files: list[str], language: str | None, expected: str | None, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).write_text(SRT, "utf-8")
    found = find_sidecar(tmp_path / "talk.mp4", language=language)
    assert found == (tmp_path / expected if expected else None)


def embedded(path: Path) -> list[Sentence]:
    with open_container(path) as container:
        return embedded_sentences(container)


def test_embedded(shared: Path, tmp_path: Path) -> None:
    said = embedded(shared / "data/videos/nasa_13013.mp4")
    assert [s.text for s in said][:2] == [
        "NAR: This is the optical and science segment of the Webb",
        "space telescope in one of the largest cleanrooms in the world",
    ]
    assert said[0].start == pytest.approx(0.21)
    assert embedded(write_clip(tmp_path / "silent.mp4")) == []


def test_embedded_in_matroska(tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text(SRT, "utf-8")
    path = tmp_path / "a.mkv"
    with av.open(str(tmp_path / "a.srt")) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.subtitles[0])
        for packet in source.demux():
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    assert [s.text for s in embedded(path)] == [s.text for s in TWO]
    assert [s.start for s in embedded(path)] == [1.5, 3.0]


def test_published_file_of_many_videos(tmp_path: Path) -> None:
    path = save(tmp_path / "asr.json", {"a": COLUMNS, "b": {"start": [], "end": [], "text": []}})
    assert read_transcripts(path) == {"a": TWO, "b": []}
    assert read_sentences(path, video="a") == TWO
    with pytest.raises(SpeechError, match="no speech of 'c' among its 2 videos"):
        read_sentences(path, video="c")
    with pytest.raises(SpeechError, match="not a speech file of many videos"):
        read_transcripts(save(tmp_path / "w.json", {"segments": ROWS}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "not valid JSON"),
        ("a.json", {"hello": 1}, "no speech in it"),
        ("a.json", '[{"start": NaN, "end": 2, "text": "x"}]', "a time that is no number"),
        ("a.json", [{"start": "1", "end": 2, "text": "x"}], "a time that is no number"),
        ("a.json", [{"start": 1, "end": 10**400, "text": "x"}], "a time that is no number"),
        ("a.json", [{"start": 1, "end": 2, "text": 3}], "a text that is no text"),
        ("a.json", {"segments": [{"start": 1}]}, "without start, end or text"),
        ("a.json", {"v": {"start": [1], "end": [2, 3], "text": ["x"]}}, "1 starts, 2 ends"),
        ("a.srt", "some words\n", "no subtitles in it"),
        ("a.ass", "some words\n", "not a subtitle file"),
        ("a.srt", "1\0" * 9, "not text"),
    ],
)
def test_bad_files(name: str, content: object, message: str, tmp_path: Path) -> None:
    path = save(tmp_path / name, content)
    with pytest.raises(SpeechError, match=message) as caught:
        read_sentences(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_missing_and_directory(tmp_path: Path) -> None:
    with pytest.raises(SpeechError, match="no such file"):
        read_sentences(tmp_path / "a.srt")
    with pytest.raises(SpeechError, match="is a directory"):
        read_sentences(tmp_path)


def test_encodings(tmp_path: Path) -> None:
    for encoding in ("utf-16", "cp1252", "utf-8"):
        path = tmp_path / "a.srt"
        path.write_bytes(SRT.lstrip("\ufeff").replace("eggs", "œufs").encode(encoding))
        assert read_sentences(path)[0].text == "Crack two œufs."


def test_empty_file_has_no_sentences(tmp_path: Path) -> None:
    assert read_sentences(save(tmp_path / "a.srt", "")) == []


def touching_cues(n: int) -> list[Cue]:
    """The second begins as the first ended for half of its lines, and then goes on otherwise."""
    return [Cue(0, 1, ("x",) * n), Cue(1, 2, ("x",) * (n // 2) + ("y",) * (n // 2))]


def test_work_grows_with_the_lines_of_touching_cues() -> None:
    assert growth(touching_cues, said_once, 4000) < NEAR_LINEAR


@given(st.lists(st.sampled_from("ab"), max_size=8), st.lists(st.sampled_from("ab"), max_size=8))
def test_repeated_lines_are_the_most_that_agree(before: list[str], lines: list[str]) -> None:
    most = next((n for n in range(len(lines), 0, -1) if before[-n:] == lines[:n]), 0)
    sentences = said_once([Cue(0, 1, tuple(before)), Cue(1, 2, tuple(lines))])
    new = " ".join(lines[most:])
    assert [one.text for one in sentences] == [*filter(None, [" ".join(before), new])]


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("a &#" + "7" * 5000 + "; b", "a \ufffd b"),
        ("a &#" + "0" * 5000 + "66; b", "a B b"),
        ("a &#x" + "0" * 5000 + "42; b", "a B b"),
    ],
)
def test_a_character_may_be_written_with_any_number_of_digits(line: str, plain: str) -> None:
    assert without_markup(line) == plain
