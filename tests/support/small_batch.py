"""A captioner with real decoding and arithmetic for a model; also a program that tests kill."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np

from starc.inference import batch
from starc.inference.jobs import Manifest, find_videos, make_jobs
from starc.media.video import sample_frames
from starc.types import Captioned, Event


class BrightnessCaptioner:
    """Captions say how bright a clip is."""

    settings = "small"
    at_once = 1

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay

    def read_frames(self, video: Path, stop: threading.Event) -> list[float]:
        return [float(frame.rgb_HWC.mean()) for frame in sample_frames(video, size=16)]

    def read_speech(self, video: Path, stop: threading.Event) -> str:
        return f"speech of {video.name}"

    def caption_read(self, videos: Sequence[tuple[Path, list[float], str]]) -> list[Captioned]:
        return [self.caption(*video) for video in videos]

    def caption(self, video: Path, features: list[float], speech: str) -> Captioned:
        time.sleep(self.delay)
        event = Event(0, len(features), f"{speech}: {sum(features):.3f}", 0.5)
        return Captioned(video.name, float(len(features)), (event,))


def make_clip(path: Path, *, shade: int, frames: int = 4) -> None:
    """A few grey frames at two per second; the container is the path's ending, else mp4."""
    kind = None if path.suffix in (".mp4", ".mkv") else "mp4"
    with av.open(str(path), "w", format=kind) as container:
        stream = container.add_stream("mpeg4", rate=2)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for k in range(frames):
            picture = np.full((32, 32, 3), (shade + 3 * k) % 256, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def caption_folder(folder: Path, out: Path, delay: float = 0.0) -> batch.Counts:
    jobs = make_jobs(find_videos([folder], out=out), out, ["json", "vtt"])
    with Manifest(out) as manifest:
        return batch.run(jobs, BrightnessCaptioner(delay), manifest)


if __name__ == "__main__":
    # Under nohup, or behind `&` in a script, Ctrl-C is ignored from the start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(caption_folder(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])).exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
