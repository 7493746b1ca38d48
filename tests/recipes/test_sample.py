"""The sample video of examples/ and its reference annotation."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import av
import numpy as np
import pytest

from starc.media.video import probe, sample_frames
from starc_eval.annotations import VideoAnnotation, read_references

EXAMPLES = Path(__file__).parents[2] / "examples"
VIDEO = EXAMPLES / "scrambled_eggs.mp4"
FPS = 15


@pytest.fixture(scope="module")
def reference() -> VideoAnnotation:
    (found,) = read_references(EXAMPLES / "scrambled_eggs.json").values()
    return found


@pytest.fixture(scope="module")
def scenes() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
        return importlib.import_module("scenes")


def test_the_video_lasts_as_long_as_the_annotation_says(reference: VideoAnnotation) -> None:
    info = probe(VIDEO)
    assert reference.duration == pytest.approx(info.duration, abs=0.1)
    assert (info.codec, info.width_px, info.height_px) == ("h264", 640, 360)
    assert info.has_audio and info.fps == pytest.approx(FPS)
    assert VIDEO.stat().st_size < 3_000_000
    frames = list(sample_frames(VIDEO))
    assert len(frames) == pytest.approx(info.duration, abs=1)
    assert frames[-1].time <= info.duration


def test_the_sound_lasts_as_long_as_the_pictures(reference: VideoAnnotation) -> None:
    with av.open(str(VIDEO)) as container:
        samples = sum(frame.samples for frame in container.decode(audio=0))
        rate = container.streams.audio[0].rate
    assert samples / rate == pytest.approx(reference.duration, abs=0.2)


def test_events_are_steps_inside_the_video_in_order(reference: VideoAnnotation) -> None:
    assert list(read_references(EXAMPLES / "scrambled_eggs.json")) == ["scrambled_eggs"]
    assert len(reference.spans) == 6 and reference.backwards == 0
    times = [time for span in reference.spans for time in span]
    assert times == sorted(times) and times[0] > 0 and times[-1] < (reference.duration or 0)
    covered = sum(end - start for start, end in reference.spans) / (reference.duration or 0)
    assert 0.4 < covered < 0.8
    assert all(sentence == sentence.lower().strip(" .") for sentence in reference.sentences)


@pytest.mark.parametrize(
    ("event", "scene"), list(enumerate(["crack", "whisk", "melt", "pour", "stir", "plate"]))
)
def test_an_event_shows_its_scene(
    reference: VideoAnnotation, scenes: ModuleType, event: int, scene: str
) -> None:
    """The picture at an event's edges and middle is the one drawn for that moment."""
    first, last = (round(time * FPS) for time in reference.spans[event])
    wanted = {first, (first + last) // 2, last - 1}
    with av.open(str(VIDEO)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                drawn = getattr(scenes, scene)((number - first) / (last - first - 1)).picture()
                shown = frame.to_ndarray(format="rgb24")
                assert np.abs(shown.astype(int) - drawn.astype(int)).mean() < 4
