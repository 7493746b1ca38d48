"""Sampling of frames: the same bytes as ffmpeg, true times, and a line for whatever is wrong."""

import dataclasses
import hashlib
import logging
import os
import re
import shutil
import tracemalloc
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.filter import Graph
from hypothesis import given, settings
from hypothesis import strategies as st

import starc
from starc.errors import ConfigError, VideoError
from starc.media import video
from starc.media.container import MediaLimits
from starc.media.sampling import Shown, on_ticks
from starc.media.video import count_frames, open_video, probe, sample_frames
from starc.model.inputs import spread
from starc.output.mp4 import embed_chapters
from starc.types import Event
from support.clips import command_line_frames, picture, turn, write_clip, write_sound

VARIABLE = [0, 0.1, 0.2, 1.9, 2.0, 2.7, 5.1, 5.5, 5.9, 6.4, 9.9]
SIZE = 32

CLIPS = {
    "constant.mp4": {},
    "variable.mp4": {"times": VARIABLE},
    "variable.mkv": {"times": VARIABLE, "codec": "ffv1"},
    "late.mp4": {"start": 2.6, "audio": "aac"},
    "high.mp4": {"size": (48, 86)},
    "odd.mkv": {"size": (67, 49), "codec": "ffv1", "pixels": "yuv444p"},
    "tiny.mp4": {"size": (16, 18)},
    "deep.mp4": {"pixels": "yuv420p10le"},
    "full-range.mp4": {"pixels": "yuvj420p"},
    "grey.mkv": {"pixels": "gray", "codec": "ffv1"},
    "bgr.mkv": {"pixels": "bgr0", "codec": "ffv1"},
    "planar.mp4": {"pixels": "yuv444p"},
    "b-frames.mp4": {"seconds": 6, "options": {"bf": "3", "g": "20", "b-pyramid": "none"}},
    "open.mkv": {"seconds": 6, "options": {"x264-params": "open-gop=1:keyint=15:min-keyint=5"}},
    "refresh.mp4": {"seconds": 9, "options": {"x264-params": "intra-refresh=1:keyint=15"}},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": "log-level=none:keyint=12"}},
    "vp8.webm": {"codec": "libvpx", "options": {"auto-alt-ref": "1", "lag-in-frames": "8"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"deadline": "realtime", "cpu-used": "8"}},
    "stream.ts": {"audio": "aac"},
    "old.avi": {"codec": "mjpeg", "pixels": "yuvj420p"},
}
STORED = {
    # sha256 of ffmpeg 5.1's frames of two lossless clips, for machines without ffmpeg.
    "odd.mkv": "bab00db7138e13cbaeb073270a440131796368cb828617359c13d2176694ce10",
    "variable.mkv": "94dff6db7b35acb0a096f15c22dac83b8175cc0d6e654e9b5d8a81cb6196d88c",
}


def clip(name: str, folder: Path) -> Path:
    try:
        return write_clip(folder / name, **CLIPS[name])
    except (av.codec.codec.UnknownCodecError, av.FFmpegError) as error:
        pytest.skip(f"this PyAV cannot write {name}: {error}")


def pixels(path: Path, **options: object) -> np.ndarray:
    return np.stack([frame.rgb_HWC for frame in sample_frames(path, size=SIZE, **options)])


def end_to_end(path: Path, size: int = SIZE) -> list[video.Frame]:
    with open_video(path) as opened:
        opened._open(careful=True)
        return list(opened._scaled(opened._ticks(Fraction(1)), Fraction(1), size))


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


needs_ffmpeg = pytest.mark.skipif(not shutil.which("ffmpeg"), reason="ffmpeg is not installed")


@needs_ffmpeg
@pytest.mark.parametrize("name", CLIPS)
def test_frames_equal_ffmpegs(name: str, tmp_path: Path) -> None:
    path = clip(name, tmp_path)
    np.testing.assert_array_equal(pixels(path), command_line_frames(path, SIZE))


@needs_ffmpeg
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_rotation_equals_ffmpegs(degrees: int, mirrored: bool, tmp_path: Path) -> None:
    path = turn(write_clip(tmp_path / "turned.mp4", size=(80, 48)), degrees, mirrored=mirrored)
    np.testing.assert_array_equal(pixels(path), command_line_frames(path, SIZE))


@needs_ffmpeg
def test_real_videos_equal_ffmpegs(shared: Path) -> None:
    for path in sorted((shared / "data/videos").iterdir()):
        if path.suffix not in {".srt", ".vtt"}:
            ours = np.stack([frame.rgb_HWC for frame in sample_frames(path)])
            np.testing.assert_array_equal(ours, command_line_frames(path, 224), str(path))


@pytest.mark.parametrize("name", STORED)
def test_frames_equal_stored_hashes(name: str, tmp_path: Path) -> None:
    assert digest(pixels(clip(name, tmp_path))) == STORED[name]


@pytest.mark.parametrize("name", CLIPS)
def test_plan_equals_end_to_end(name: str, tmp_path: Path) -> None:
    path = clip(name, tmp_path)
    everything = end_to_end(path)
    assert count_frames(path) == len(everything)
    for indices in (None, [0], [len(everything) - 1], list(range(1, len(everything), 2))):
        chosen = list(sample_frames(path, size=SIZE, indices=indices))
        expected = everything if indices is None else [everything[index] for index in indices]
        assert [frame.time for frame in chosen] == [frame.time for frame in expected]
        for ours, theirs in zip(chosen, expected, strict=True):
            np.testing.assert_array_equal(ours.rgb_HWC, theirs.rgb_HWC)


@pytest.mark.parametrize("name", CLIPS)
def test_one_opening_answers_every_question(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going back to the start of an open file gives the frames of a file just opened."""
    path = clip(name, tmp_path)
    fresh, info, count = list(sample_frames(path, size=SIZE)), probe(path), count_frames(path)
    opened = []
    monkeypatch.setattr(av, "open", lambda *a, open=av.open, **k: opened.append(a) or open(*a, **k))
    with open_video(path) as asked:
        assert (asked.info, asked.count(), asked.count(2)) == (
            info,
            count,
            count_frames(path, fps=2),
        )
        opened.clear()
        frames = list(asked.frames(size=SIZE))
        assert len(opened) == (name == "stream.ts")
        assert [frame.time for frame in frames] == [frame.time for frame in fresh]
        for ours, theirs in zip(frames, fresh, strict=True):
            np.testing.assert_array_equal(ours.rgb_HWC, theirs.rgb_HWC)
        # A second passage, after one that was broken off.
        next(asked.frames(size=SIZE))
        again = list(asked.frames(size=SIZE, indices=[count - 1]))
        np.testing.assert_array_equal(again[0].rgb_HWC, fresh[-1].rgb_HWC)


def test_indexed_files_are_opened_once(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unstated = tmp_path / "no-length.mkv"  # as from a live recording, with neither length nor index
    with (
        av.open(str(write_clip(tmp_path / "a.mp4", seconds=9))) as source,
        av.open(str(unstated), "w", format="matroska", options={"live": "1"}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    with av.open(str(unstated)) as written:
        assert not written.duration
    fresh = {}
    paths = [unstated, *sorted((shared / "data/videos").glob("*_*.m??"))]
    for path in paths:
        fresh[path] = [frame.rgb_HWC for frame in sample_frames(path, size=SIZE)]
    opened = []
    monkeypatch.setattr(av, "open", lambda *a, open=av.open, **k: opened.append(a) or open(*a, **k))
    for path in paths:
        opened.clear()
        with open_video(path) as asked:
            assert asked.count() == len(fresh[path]) == pytest.approx(asked.info.duration, abs=1)
            ours = [frame.rgb_HWC for frame in asked.frames(size=SIZE)]
        np.testing.assert_array_equal(ours, fresh[path])
        assert len(opened) == 1, path


def test_a_start_that_cannot_be_found_again_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_clip(tmp_path / "a.mp4", seconds=6)
    fresh = pixels(path)
    monkeypatch.setattr(video, "_identity", lambda packet, seen=[]: seen.append(0) or (len(seen),))
    np.testing.assert_array_equal(pixels(path), fresh)


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_seeking_equals_end_to_end(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "WORTH_SEEKING", 10)
    keys = {"x265-params": "log-level=none:keyint=20"} if codec == "libx265" else {"g": "20"}
    for suffix in ("mp4", "mkv"):
        path = write_clip(tmp_path / f"long.{suffix}", seconds=60, codec=codec, options=keys)
        decoded = 0
        original = video.Video._decoded_runs

        def counted(self, runs, wanted, original=original):
            nonlocal decoded
            for frame in original(self, runs, wanted):
                decoded += 1
                yield frame

        monkeypatch.setattr(video.Video, "_decoded_runs", counted)
        indices = spread(count_frames(path), 7)
        everything = end_to_end(path)
        for index, frame in zip(
            indices, sample_frames(path, size=SIZE, indices=indices), strict=True
        ):
            assert frame.time == everything[index].time
            np.testing.assert_array_equal(frame.rgb_HWC, everything[index].rgb_HWC)
        assert 7 <= decoded <= 7 * 20
        monkeypatch.setattr(video.Video, "_decoded_runs", original)


def test_published_choice() -> None:
    assert spread(100, 100) == list(range(100))
    assert spread(37, 100) == list(range(37))
    assert spread(250, 100) == [(j * 250) // 100 for j in range(100)]


@given(
    gaps=st.lists(st.integers(1, 2500), min_size=1, max_size=40),
    start=st.integers(0, 3000),
    last=st.integers(1, 2500),
    fps=st.sampled_from([Fraction(1), Fraction(2), Fraction(1, 3), Fraction(30000, 1001)]),
)
@settings(deadline=None, max_examples=60)
def test_rule_is_that_of_ffmpegs_filter(
    gaps: list[int], start: int, last: int, fps: Fraction
) -> None:
    starts = np.cumsum([start, *gaps]).tolist()
    shown = [Shown(a, b) for a, b in zip(starts, [*starts[1:], starts[-1] + last], strict=True)]
    ours = [(tick, starts.index(picture.start)) for tick, picture in on_ticks(shown, fps / 1000)]
    theirs = filtered(shown, fps)
    if theirs:
        assert ours[-len(theirs) :] == theirs
        # The command line fills the time before the first picture; the filter does not.
        first_tick, first_picture = theirs[0]
        assert ours[: -len(theirs)] == [(tick, first_picture) for tick in range(first_tick)]
    else:
        assert {index for _, index in ours} == {len(starts) - 1}


def filtered(shown: list[Shown], fps: Fraction) -> list[tuple[int, int]]:
    graph = Graph()
    nodes = [
        graph.add("buffer", "video_size=2x2:pix_fmt=gray:time_base=1/1000"),
        graph.add("fps", str(fps)),
        graph.add("buffersink"),
    ]
    graph.link_nodes(*nodes).configure()
    found = []
    for number, (start, end, _) in enumerate([*shown, Shown(0, 0)]):
        if number < len(shown):
            frame = av.VideoFrame.from_ndarray(np.full((2, 2), number, np.uint8), format="gray")
            frame.pts, frame.time_base, frame.duration = start, Fraction(1, 1000), end - start
            graph.vpush(frame)
        else:
            graph.vpush(None)
        while True:
            try:
                out = graph.vpull()
            except (av.BlockingIOError, av.EOFError):
                break
            found.append((out.pts, int(out.to_ndarray()[0, 0])))
    return found


def test_times_are_those_of_the_pictures(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "variable.mkv", times=VARIABLE, codec="ffv1", size=(32, 32))
    for frame in sample_frames(path, size=SIZE):
        index = max(n for n, time in enumerate(VARIABLE) if time <= frame.time + 1e-9)
        expected = picture(index, 32, 32)
        assert np.abs(frame.rgb_HWC.astype(int) - expected).mean() < 20
    times = [frame.time for frame in sample_frames(path)]
    assert times == sorted(set(times))


def test_no_copy_of_a_picture_is_converted_twice(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "still.mkv", times=[0, 20, 20.1], codec="ffv1")
    frames = list(sample_frames(path))
    assert len(frames) == 20
    assert all(frame.rgb_HWC is frames[0].rgb_HWC for frame in frames[:19])


def test_other_rates(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", seconds=4)
    assert count_frames(path, fps=2) == len(list(sample_frames(path, fps=2))) == 8
    assert count_frames(path, fps=0.5) == 2


def test_probe(shared: Path, tmp_path: Path) -> None:
    nasa = probe(shared / "data/videos/nasa_13013.mp4")
    assert (nasa.width_px, nasa.height_px, nasa.has_audio) == (480, 270, True)
    assert nasa.duration == pytest.approx(13.013)
    assert nasa.fps == pytest.approx(29.97, abs=0.01)
    assert nasa.codec == "h264"
    assert probe(shared / "data/videos/flipping_a_pancake.mkv").duration == pytest.approx(10, abs=1)
    raw = write_clip(tmp_path / "raw.h264")
    # Without timestamps, 25 pictures make a second, as for ffmpeg.
    assert probe(raw).duration == pytest.approx(30 / 25)
    assert len(list(sample_frames(raw))) == 1


@pytest.mark.parametrize(
    "name", ['it\'s a "clip" 100%.mp4', "日本 café.mp4", "concat:a|b.mp4", "-i.mp4"]
)
def test_strange_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_clip(tmp_path / "plain.mp4").rename(tmp_path / name)
    assert len(list(sample_frames(tmp_path / name, size=SIZE))) == 3
    monkeypatch.chdir(tmp_path)
    assert count_frames(Path(name)) == 3


@pytest.mark.parametrize("pictures", [1, 3])
def test_clip_too_short_for_the_rule(pictures: int, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "short.mp4", times=[n / 10 for n in range(pictures)])
    (frame,) = sample_frames(path, size=SIZE)
    assert count_frames(path) == 1
    assert frame.time == pytest.approx((pictures - 1) / 10)


def failure(path: Path, **options: object) -> str:
    with pytest.raises(VideoError) as caught:
        list(sample_frames(path, **options))
    message = str(caught.value)
    assert "\n" not in message and message.startswith(str(path)), message
    return message


def test_not_a_video(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_text("just a few words\n" * 40)
    assert "not a video" in failure(path)
    path.write_text("1\n00:00:00,000 --> 00:00:02,000\nhello\n\n" * 40)
    assert "not a media file" in failure(path)
    path.write_bytes(b"")
    assert "empty file" in failure(path)
    path.write_bytes(np.random.default_rng(0).bytes(5000))
    assert "not a video" in failure(path)
    assert "no such file" in failure(tmp_path / "missing.mp4")
    assert "is a directory" in failure(tmp_path)
    os.mkfifo(tmp_path / "pipe.mp4")
    assert "not a regular file" in failure(tmp_path / "pipe.mp4")


def test_playlists_open_nothing(tmp_path: Path) -> None:
    write_clip(tmp_path / "inner.mp4")
    for text in ("ffconcat version 1.0\nfile inner.mp4\n", "#EXTM3U\n#EXTINF:3,\ninner.mp4\n"):
        path = tmp_path / "list.mp4"
        path.write_text(text)
        assert "not a" in failure(path)


def test_media_is_opened_in_one_place() -> None:
    root = Path(starc.__file__).parent
    readers = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        for call in re.findall(r"\bav\.open\(([^)]*)", file.read_text())
        if '"w"' not in call
    }
    assert readers == {"media/container.py"}


def test_chapters_are_not_copied_out_of_a_playlist(tmp_path: Path) -> None:
    write_clip(tmp_path / "inner.mp4")
    (tmp_path / "list.mp4").write_text("ffconcat version 1.0\nfile inner.mp4\n")
    with pytest.raises(VideoError, match="not a media file"):
        embed_chapters(tmp_path / "list.mp4", tmp_path / "copy.mp4", [Event(0, 1, "a")])
    assert not (tmp_path / "copy.mp4").exists()


def test_audio_only(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "a.flac")
    assert "no video stream (found: audio)" in failure(path)
    with pytest.raises(VideoError, match="no video stream"):
        probe(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4")
    path.chmod(0)
    assert "no permission" in failure(path)


def test_permission_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "a.mp4")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(av, "open", refuse)
    assert "no permission" in failure(path)


def test_limits(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4")
    assert "limit: pixels = 100" in failure(path, limits=MediaLimits(pixels=100))
    assert "limit: duration = 2" in failure(path, limits=MediaLimits(duration=2))
    assert "limit: file_bytes = 10" in failure(path, limits=MediaLimits(file_bytes=10))
    assert "limit: wall" in failure(path, limits=MediaLimits(wall=0))


def test_limits_from_the_command_line(tmp_path: Path) -> None:
    limits = MediaLimits.parse(["pixels=1e8", "wall=0.5"])
    assert limits == MediaLimits(pixels=100_000_000, wall=0.5)
    assert MediaLimits.parse([]) == MediaLimits()
    for text in ("pixels", "pixels=", "pixels=-1", "pixels=nan", "colour=3", "wall=long"):
        with pytest.raises(ConfigError, match=f"--limit {text}: not a limit.* file_bytes, pixels"):
            MediaLimits.parse([text])
    # What an error suggests is enough.
    path = write_clip(tmp_path / "a.mp4")
    strict = MediaLimits(pixels=1, file_bytes=1, duration=1)
    while True:
        try:
            assert len(list(sample_frames(path, size=SIZE, limits=strict))) == 3
            break
        except VideoError as error:
            name, value = str(error).split("--limit ")[1].split("=")
            assert getattr(strict, name) < int(value)
            strict = dataclasses.replace(strict, **{name: int(value)})


def test_a_lie_about_time_is_bounded(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mkv", times=[0, 0.1, 9_000_000], codec="ffv1")
    assert "limit: duration" in failure(path)


def test_8k(tmp_path: Path) -> None:
    path = write_clip(
        tmp_path / "8k.mov", size=(7680, 4320), seconds=1, fps=1, codec="mjpeg", pixels="yuvj420p"
    )
    (frame,) = sample_frames(path)
    assert frame.rgb_HWC.shape == (224, 224, 3)
    assert "picture too large (7680 x 4320" in failure(path, limits=MediaLimits(pixels=4096 * 2304))


def fast_start(path: Path) -> Path:
    """A copy whose index comes first, so that it can be cut."""
    copy = path.with_name("index-first.mp4")
    with (
        av.open(str(path)) as source,
        av.open(str(copy), "w", options={"movflags": "faststart"}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    return copy


def test_truncated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_clip(tmp_path / "a.mp4", seconds=20, size=(320, 240))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "is it complete?" in failure(path)
    path.write_bytes(whole)
    copy = fast_start(path)
    copy.write_bytes(copy.read_bytes()[: len(whole) // 2])
    with caplog.at_level(logging.WARNING, "starc"):
        frames = list(sample_frames(copy, size=SIZE))
    assert 5 < len(frames) < 15
    assert "of 20.0 s; cut off?" in caplog.text


def damage(path: Path, first: int, stop: int) -> None:
    """Overwrite packets [first, stop) of an intra-only clip."""
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        spans = [(packet.pos, packet.size) for packet in packets[first:stop]]
    data = bytearray(path.read_bytes())
    for position, size in spans:
        data[position : position + size] = b"\x00" * size
    path.write_bytes(data)


def test_broken_frames(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for count in (1, 8):
        path = write_clip(tmp_path / "a.mov", codec="png", pixels="rgb24")
        whole = end_to_end(path)
        damage(path, 12, 12 + count)
        with caplog.at_level(logging.WARNING, "starc"):
            frames = list(sample_frames(path, size=SIZE))
        assert len(frames) == len(whole)
        assert f"skipped {count} broken frames" in caplog.text
    path = write_clip(tmp_path / "a.mov", codec="png", pixels="rgb24")
    damage(path, 12, 21)
    assert "9 broken frames in a row" in failure(path)


def test_a_damaged_end_gives_fewer_frames(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_clip(tmp_path / "a.mp4", seconds=20, options={"g": "10", "bf": "0"})
    indices = spread(count_frames(path), 10)
    damage(path, 192, 200)
    assert count_frames(path) == 20
    with caplog.at_level(logging.WARNING, "starc"):
        frames = list(sample_frames(path, size=SIZE, indices=[*indices, 19]))
    assert 10 <= len(frames) <= 11


def test_damage_ends_in_frames_or_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("constant.mp4", "open.mkv", "stream.ts"):
        whole = clip(name, tmp_path).read_bytes()
        for trial in range(12):
            data = bytearray(whole)
            for at in rng.integers(0, len(data), 2 + 4 * trial):
                data[at] = rng.integers(256)
            path = tmp_path / f"damaged{Path(name).suffix}"
            path.write_bytes(data)
            try:
                frames = list(
                    sample_frames(path, size=SIZE, limits=MediaLimits(duration=60, wall=20))
                )
                assert frames
            except VideoError as error:
                assert "\n" not in str(error)


def test_memory_does_not_grow_with_length(tmp_path: Path) -> None:
    peaks = []
    for seconds in (20, 200):
        path = write_clip(tmp_path / f"{seconds}.mp4", seconds=seconds, fps=5)
        tracemalloc.start()
        for _ in sample_frames(path):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 500_000


def test_wrong_calls(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4")
    with pytest.raises(ValueError, match="fps"):
        list(sample_frames(path, fps=0))
    with pytest.raises(ValueError, match="size"):
        list(sample_frames(path, size=0))
    with pytest.raises(ValueError, match="ascending"):
        list(sample_frames(path, indices=[2, 1]))
    with pytest.raises(ValueError, match="3 frames"):
        list(sample_frames(path, indices=[7]))
    with pytest.raises(ValueError, match="3 frames"):
        list(
            sample_frames(
                write_clip(tmp_path / "a.avi", codec="mjpeg", pixels="yuvj420p"), indices=[7]
            )
        )
