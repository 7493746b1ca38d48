"""Sound as peaks, previews of what no browser plays, and the figures of the cards."""

from __future__ import annotations

import random
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from starlette.testclient import TestClient

from starc.errors import VideoError
from starc.types import Captioned, Event
from starc.viewer import previews
from starc.viewer.comparison import Comparison, overlaps
from starc.viewer.library import Library
from starc.viewer.previews import MOST_PEAKS, Preview, Previews, peaks
from starc.viewer.server import create_app
from support import clips
from support.viewer_sample import write_clip, write_record

BASE = "http://127.0.0.1:8350"


def test_peaks_follow_the_sound_and_are_kept(tmp_path: Path) -> None:
    path, cache = tmp_path / "tone.wav", tmp_path / "cache"
    tone = np.sin(np.arange(16_000 * 6) / 5) * np.repeat([0, 1, 0, 0.25, 0, 0], 16_000)
    with av.open(str(path), "w") as target:
        stream = target.add_stream("pcm_s16le", rate=16_000, layout="mono")
        samples = (tone * 20_000).astype(np.int16)[None]
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.rate = 16_000
        target.mux([*stream.encode(frame), *stream.encode(None)])
    made = peaks(path, folder=cache)
    seconds = np.array(made["peaks"]).reshape(6, -1)
    assert made["every"] == 0.05 and seconds.shape == (6, 20)
    assert seconds[1].min() > 240 and 55 < seconds[3].min() <= seconds[3].max() < 70
    assert seconds[[0, 2, 4, 5]].max() < 10
    (entry,) = cache.iterdir()
    entry.write_text('{"every": 1, "peaks": [7]}')
    assert peaks(path, folder=cache)["peaks"] == [7]


def test_peaks_are_bounded_and_silence_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = clips.write_sound(tmp_path / "long.mp3", seconds=30, codec="mp3")
    monkeypatch.setattr("starc.viewer.previews.MOST_PEAKS", 100)
    assert MOST_PEAKS > 100 and 95 <= len(peaks(clip, folder=tmp_path)["peaks"]) <= 101
    silent = write_clip(tmp_path / "silent.mp4", 2.0)
    assert peaks(silent, folder=tmp_path)["peaks"] == []
    (tmp_path / "no.mp4").write_text("no video")
    with pytest.raises(VideoError):
        peaks(tmp_path / "no.mp4", folder=tmp_path)


def old_avi(path: Path, *, seconds: int = 3) -> Path:
    """A video in a codec and a container that browsers have dropped, larger than a preview."""
    with av.open(str(path), "w") as target:
        stream = target.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 960, 540, "yuv420p"
        sound = target.add_stream("mp3", rate=44_100)
        for n in range(seconds * 5):
            picture = np.full((540, 960, 3), n * 10 % 255, np.uint8)
            target.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        for n in range(seconds * 10):
            frame = av.AudioFrame.from_ndarray(
                np.zeros((2, 4_410), np.float32), format="fltp", layout="stereo"
            )
            frame.rate, frame.pts, frame.time_base = 44_100, n * 4_410, Fraction(1, 44_100)
            target.mux(sound.encode(frame))
        target.mux([*stream.encode(None), *sound.encode(None)])
    return path


def test_a_preview_is_small_complete_and_kept(tmp_path: Path) -> None:
    video = old_avi(tmp_path / "old.avi")
    making = Previews(tmp_path / "cache")
    assert making.of(video, start=False) is None
    limit = time.monotonic() + 60
    while making.of(video, start=True).as_row()["state"] == "making":
        assert time.monotonic() < limit
        time.sleep(0.01)
    made = making.of(video, start=False)
    assert made is not None and made.as_row() == {"state": "ready", "done": 1.0, "message": None}
    with av.open(str(made.path)) as copy:
        codec = copy.streams.video[0].codec_context
        assert (codec.name, codec.width, codec.height) == ("h264", 640, 360)
        assert copy.streams.audio[0].codec_context.name == "aac"
        assert copy.duration / av.time_base == pytest.approx(3.0, abs=0.3)
        frames = list(copy.decode(video=0))
        assert len(frames) == 15 and frames[-1].time == pytest.approx(2.8, abs=0.25)
    assert made.path.read_bytes()[4:8] == b"ftyp"
    assert [path.name for path in made.path.parent.iterdir()] == [made.path.name]


def test_previews_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = old_avi(tmp_path / "old.avi")
    monkeypatch.setattr(previews, "LONGEST", 1.0)
    preview = Preview(tmp_path / "x.mp4")
    with preview.path.open("wb") as file:
        previews.write_preview(video, file, preview)
    with av.open(str(preview.path)) as copy:
        assert copy.duration / av.time_base < 2.0
    for name in "abc":
        (tmp_path / f"{name}.mp4").write_bytes(b"x" * 100)
    monkeypatch.setattr(previews, "MOST_BYTES", 250)
    preview.path.unlink()
    previews._sweep(tmp_path)
    assert len(list(tmp_path.glob("*.mp4"))) == 2


def test_a_preview_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.avi").write_bytes(b"RIFF\x00\x00\x00\x00AVI " + b"\0" * 100)
    client = TestClient(create_app([tmp_path]), base_url=BASE, headers={"Origin": BASE})
    (row,) = client.get("/api/library").json()["videos"]
    address = f"/api/videos/{row['id']}/preview"
    assert client.get(address).status_code == 404
    limit = time.monotonic() + 30
    while (said := client.post(address).json())["state"] == "making":
        assert time.monotonic() < limit
    assert said["state"] == "failed" and "broken.avi" in said["message"]
    assert str(tmp_path) not in said["message"]


def brute_force(ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> int:
    """Pairs of the highest overlap first, each used once, from IoU 0.5 on."""
    pairs = []
    for i, (a, b) in enumerate(ours):
        for j, (c, d) in enumerate(sorted(theirs)):
            shared = (min(b, d) - max(a, c)) / (max(b, d) - min(a, c))
            if shared >= 0.5:
                pairs.append((-shared, i, j))
    used: list[tuple[int, int]] = []
    for _, i, j in sorted(pairs):
        if all(i != a and j != b for a, b in used):
            used.append((i, j))
    return len(used)


def test_the_figures_of_a_card() -> None:
    draw = random.Random(3)
    for _ in range(200):
        ours, theirs = (
            [
                (s := draw.uniform(0, 30), s + draw.uniform(0.1, 12))
                for _ in range(draw.randint(0, 9))
            ]
            for _ in range(2)
        )
        good, scored = brute_force(ours, theirs), overlaps(ours, theirs)
        assert scored.recall == pytest.approx(good / len(theirs) if theirs else 0)
        assert scored.precision == pytest.approx(good / len(ours) if ours else 0)
        both = len(ours) + len(theirs)
        assert scored.f1 == pytest.approx(2 * good / both if both else 0)


def test_each_video_is_scored_against_its_own_reference(tmp_path: Path) -> None:
    lib, truth = tmp_path / "lib", tmp_path / "truth"
    lib.mkdir()
    truth.mkdir()
    for name, end in (("good", 10.0), ("bad", 3.0), ("unknown", 10.0)):
        write_record(lib / f"{name}.json", Captioned(f"{name}.mp4", 20.0, (Event(0, end, "x"),)))
        if name != "unknown":
            write_record(truth / f"{name}.json", Captioned(name, 20.0, (Event(0, 10, "y"),)))
    (lib / "broken.json").write_text("{")
    items = Library([lib]).refresh()
    names = {item.id: item.summary.title for item in items}
    scores = {names[id]: score.f1 for id, score in Comparison(truth).score(items).items()}
    assert scores == {"good": 1.0, "bad": 0.0}
    client = TestClient(create_app([lib], reference=truth), base_url=BASE)
    rows = {row["title"]: row["score"] for row in client.get("/api/library").json()["videos"]}
    assert rows["good"] == {"recall": 1.0, "precision": 1.0, "f1": 1.0}
    assert rows["unknown"] is None
