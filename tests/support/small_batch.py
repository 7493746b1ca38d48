"""A captioner with real decoding and arithmetic for a model; also a program that tests kill."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

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

    def kept(self, video: Path) -> None:
        """It remembers nothing."""

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
