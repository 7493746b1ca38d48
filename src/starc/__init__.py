"""Dense video captioning: a long video and its speech in, timestamped captions out.

import starc
for event in starc.load("my-model").caption("talk.mp4").events:
    print(event)
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from starc.types import Captioned, Event

if TYPE_CHECKING:
    from starc.inference.caption import load

__all__ = ["Captioned", "Event", "load"]
__version__ = version("starc")


def __getattr__(name: str) -> Any:
    """`starc.load` brings torch with it, so it is imported when it is asked for."""
    if name == "load":
        from starc.inference.caption import load

        return load
    raise AttributeError(f"module 'starc' has no attribute {name!r}")
