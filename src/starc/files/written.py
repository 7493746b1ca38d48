"""Files that we wrote, known by their content, so that nothing else is replaced unasked."""

from __future__ import annotations

import logging
from pathlib import Path

from starc.errors import ConfigError
from starc.files import cache
from starc.files.atomic import replacing_path

log = logging.getLogger("starc")


def write_text(path: Path, text: str, *, overwrite: bool) -> None:
    """A file of ours, whole or not at all; nothing of the user's is replaced unasked."""
    check_target(path, overwrite=overwrite)
    with replacing_path(path) as part:
        part.write_bytes(text.encode("utf-8", "replace"))
        remember(part)  # before it has its name: a kill must not leave a file that is not ours


def check_target(path: Path, *, overwrite: bool) -> None:
    """An error if `path` holds what we did not write, or what was changed since."""
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}; make it first")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: is not a file; name one, or leave out -o to print")
    if overwrite or not path.exists() or not path.stat().st_size or _record(path).exists():
        return
    raise ConfigError(f"{path}: is there and not as starc wrote it; --overwrite replaces it")


def remember(path: Path) -> None:
    """Know this content as ours from now on."""
    try:
        record = _record(path)
        cache.make_folder(record.parent)
        record.touch()
    except OSError as error:
        log.warning("%s: not known as ours next time (%s)", path.name, error.strerror)


def _record(path: Path) -> Path:
    """The empty file that says: this content was written by us."""
    return cache.cache_folder("written") / cache.fingerprint(path)
