"""Dense video captioning: a long video and its speech in, timestamped captions out.

import starc
for event in starc.load("my-model").caption("talk.mp4").events:
    print(event)
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from starc.errors import StarcError
from starc.types import Captioned, Event, Segment, Sentence

if TYPE_CHECKING:
    from starc.evaluation import score
    from starc.inference.pipeline import Captioner, Options, load

__all__ = [
    "Captioned",
    "Captioner",
    "Event",
    "Options",
    "Segment",
    "Sentence",
    "StarcError",
    "load",
    "score",
]
__version__ = version("starc")
# Before torch is imported: threads that wait for each other sleep instead of spinning. On a busy
# machine spinning threads keep those they wait for from running.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("KMP_BLOCKTIME", "0")
# Virtual machines say that they have AMX and are killed at its first instruction. Without it only
# large products in bfloat16 take longer.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
_HOMES = {
    "Captioner": "starc.inference.pipeline",
    "Options": "starc.inference.pipeline",
    "load": "starc.inference.pipeline",
    "score": "starc.evaluation",
}
"""Names that bring torch or numpy with them are imported when they are asked for."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'starc' has no attribute {name!r}")
