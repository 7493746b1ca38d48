"""Keeping what was expensive to make or fetch: named by the content of the file it was made from.

Entries are small JSON files under $XDG_CACHE_HOME/starc (else ~/.cache/starc), written so that a
reader never sees half of one. A damaged entry counts as absent, a folder that cannot be written
as no cache at all: a cache may make things faster but never wrong. The files that we wrote for the
user are remembered here too, by their content, so that nothing else is replaced unasked.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from starc.errors import ConfigError, VideoError
from starc.files.atomic import replacing, replacing_path
from starc_eval.cache import cache_folder, make_folder
from starc_eval.reading import parse_json, read_text

__all__ = [
    "cache_folder",
    "check_target",
    "content_name",
    "fingerprint",
    "hub_is_away",
    "key",
    "key_of_file",
    "make_folder",
    "read",
    "remember",
    "write",
    "write_text",
]

log = logging.getLogger("starc")

READ_WHOLE = 64 * 2**20
PIECES = 64
PIECE = 2**20
SETTLED_NS = 100_000_000
"""A file changed less than this ago may change again without its time stamp showing it."""
HUB_SECONDS = 3.0
"""So long the model hub may take to answer."""
_HASHING = threading.Lock()


def fingerprint(path: Path) -> str:
    """A name for the content of a file: the same for a copy, another for any likely change.

    Up to 64 MB all of it is hashed, beyond that 64 pieces of 1 MB spread evenly, and the size.
    A file is hashed once as long as its path, size and time of change stay the same.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a device or pipe may never end
            raise VideoError(f"{path}: not a regular file; name a file on disk")
        changed = status.st_mtime_ns
        settled = time.time_ns() - changed > SETTLED_NS
        digest = _digest if settled else _digest.__wrapped__
        with _HASHING:  # a second thread waits for the first instead of hashing too
            return digest(path.absolute(), status.st_size, changed)
    except OSError as error:
        raise VideoError(f"{path}: cannot be read ({error.strerror}); check the file") from error


def whole_fingerprint(path: Path) -> str:
    """`fingerprint` of every byte, however large the file: no change escapes it.

    It is kept as long as no write has touched the file, which nobody can hide (`st_ctime_ns`).
    """
    status = path.stat()
    facts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    entry = cache_folder("digests") / f"{key(str(path.absolute()), *map(str, facts))}.json"
    settled = time.time_ns() - status.st_ctime_ns > SETTLED_NS
    known = read(entry) if settled else None
    if not isinstance(known, str):
        known = _whole_digest(path)
        if settled:
            write(entry, known)
    return known


def content_name(path: Path) -> str:
    """Size and fingerprint: what a record keeps of the file it was made from."""
    content = fingerprint(path)
    return f"{path.stat().st_size}-{content}"


def _whole_digest(path: Path) -> str:
    """As `_digest` of a small file."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


@functools.lru_cache(maxsize=1024)
def _digest(path: Path, size: int, changed: int) -> str:
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    with path.open("rb") as file:
        if size <= READ_WHOLE:
            digest.update(file.read(READ_WHOLE))
        else:
            for piece in range(PIECES):
                file.seek(piece * (size - PIECE) // (PIECES - 1))
                digest.update(file.read(PIECE))
    return digest.hexdigest()


def key(*parts: str) -> str:
    """One name for content and everything else that decides the result."""
    return hashlib.blake2b(
        "\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


def key_of_file(path: Path, *parts: str) -> str:
    """One name for a file as it is now, by place, time and size, and for what is made of it."""
    status = path.stat()
    return key(str(path), str(status.st_mtime_ns), str(status.st_size), *parts)


def read(entry: Path) -> Any | None:
    """What was written, or None."""
    try:
        return parse_json(read_text(entry))
    except (OSError, ValueError):
        return None


def write(entry: Path, value: Any) -> None:
    """Keep a JSON value; whole or not at all."""
    try:
        make_folder(entry.parent)
        with replacing(entry) as file:
            json.dump(value, file)
    except OSError as error:
        log.warning("%s: nothing is cached (%s)", entry.parent, error.strerror)


@functools.cache
def hub_is_away() -> bool:
    """The model hub does not answer in a few seconds; its own library would try for a minute."""
    import socket
    import urllib.request
    from urllib.parse import urlsplit

    if urllib.request.getproxies():
        return False
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    answered = threading.Event()

    def ask() -> None:
        with suppress(OSError):
            port = address.port or (80 if address.scheme == "http" else 443)
            socket.create_connection((address.hostname or "", port), HUB_SECONDS).close()
            answered.set()

    asking = threading.Thread(target=ask, daemon=True)  # looking up a name knows no time limit
    asking.start()
    asking.join(HUB_SECONDS)
    return not answered.is_set()


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
        make_folder(record.parent)
        record.touch()
    except OSError as error:
        log.warning("%s: not known as ours next time (%s)", path.name, error.strerror)


def _record(path: Path) -> Path:
    """The empty file that says: this content was written by us."""
    return cache_folder("written") / _whole_digest(path)
