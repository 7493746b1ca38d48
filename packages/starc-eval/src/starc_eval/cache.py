"""The user's cache folder, which starc and starc-eval share."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from starc_eval.errors import StarcError


def cache_folder(kind: str = "") -> Path:
    """$XDG_CACHE_HOME/starc, by default ~/.cache/starc; or where entries of a kind are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path("~/.cache").expanduser()) / "starc" / kind
    except RuntimeError as error:
        raise StarcError("cache: no home folder to keep it in; set XDG_CACHE_HOME") from error


def make_folder(folder: Path) -> Path:
    """`folder`, made if need be; what lies in our cache is nobody else's to read."""
    with suppress(StarcError):
        root = cache_folder()
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if root.stat().st_mode & 0o077:
            root.chmod(0o700)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
