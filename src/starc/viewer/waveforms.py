"""How loud a video is from moment to moment: peaks for one more lane of the timeline.

The sound is read once, in pieces, and only its peaks are kept, at most `MOST` of them; they lie in
the cache afterwards.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from starc.files import cache
from starc.media import audio
from starc.media.container import MICROSECONDS, MediaLimits, open_container

MOST = 12_000
PER_SECOND = 20
LIMITS = MediaLimits(wall=180.0)
PIECE = 30.0
"""Seconds of sound at a time."""
_READERS = threading.BoundedSemaphore(1)


def peaks(video: Path, *, folder: Path | None = None) -> dict[str, object]:
    """{"every": seconds per peak, "peaks": [0 to 255]}; no peaks for a video without sound."""
    name = cache.key_of_file(video, "peaks", str(MOST), str(PER_SECOND))
    entry = (folder or cache.cache_folder("peaks")) / f"{name}.json"
    kept = cache.read(entry)
    if isinstance(kept, dict) and isinstance(kept.get("peaks"), list):
        return kept
    with _READERS:
        made = _read(video)
    cache.write(entry, made)
    return made


def _read(video: Path) -> dict[str, object]:
    with open_container(video, LIMITS) as container:
        seconds = (container.duration or 0) / MICROSECONDS
        step = max(audio.RATE // PER_SECOND, round(seconds * audio.RATE / MOST))
        highest = np.zeros(MOST + 1, np.float32)
        heard = 0
        for window in audio.windows(container, video, seconds=PIECE, limits=LIMITS):
            places = round(window.start * audio.RATE) + np.arange(len(window.samples))
            places = np.clip(places // step, 0, MOST)
            np.maximum.at(highest, places, np.abs(window.samples))
            heard = max(heard, int(places[-1]) + 1)
    loudest = float(highest.max()) or 1.0
    scaled = np.minimum(255, highest[:heard] / loudest * 255).astype(int)
    return {"every": step / audio.RATE, "peaks": scaled.tolist()}
