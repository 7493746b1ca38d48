"""Where we keep what can be made again: indices, transcripts, features, thumbnails."""

from __future__ import annotations

import os
from pathlib import Path

from starc.errors import StarcError


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/starc, by default ~/.cache/starc."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path("~/.cache").expanduser()) / "starc"
    except RuntimeError as error:
        raise StarcError("cache: no home folder to keep it in; set XDG_CACHE_HOME") from error
