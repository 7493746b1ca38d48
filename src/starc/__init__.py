"""Dense video captioning: a long video in, timestamped captions out.

import starc
for event in starc.load().caption("recipe.mp4").events:
    print(event)
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from starc.errors import StarcError
from starc.types import Captioned, Event, Segment, Sentence

if TYPE_CHECKING:
    from starc.inference.pipeline import Captioner, Options, load
    from starc_eval import score

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
_HOMES = {
    "Captioner": "starc.inference.pipeline",
    "Options": "starc.inference.pipeline",
    "load": "starc.inference.pipeline",
    "score": "starc_eval",
}
"""Names that bring torch or numpy with them are imported when they are asked for."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'starc' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, also those that are imported only when they are asked for."""
    return [*__all__, "__version__"]
