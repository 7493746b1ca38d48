"""Reading files that may be anything: regular files up to a stated size, in bounded pieces.

Whatever may not be read is an OSError whose `strerror` says why, so that callers report it like a
missing file. A pipe is not waited for, a device not read, and a sparse or binary file that should
be text is given up at its first zero byte.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

LARGEST = 1 << 30
"""Bytes of an annotation, transcript or caption file; parsed, it takes some ten times as many."""
PIECE = 1 << 20


def regular(path: Path) -> Path:
    """The path, for libraries that open it themselves; OSError if it is a pipe or a device."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def read_bytes(path: Path, *, most: int = LARGEST, text: bool = False) -> bytes:
    """All of a file; `text` may hold no zero byte."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        pieces, size = [], 0
        while piece := file.read(PIECE):
            size += len(piece)
            if max(size, status.st_size) > most:
                raise OSError(errno.EFBIG, f"larger than {most >> 20} MB", str(path))
            if text and b"\0" in piece:
                raise OSError(errno.EILSEQ, "not text: it holds zero bytes", str(path))
            pieces.append(piece)
    return b"".join(pieces)


def read_text(path: Path, *, most: int = LARGEST) -> str:
    """All of a UTF-8 file, without a byte order mark; UnicodeDecodeError if it is no such text."""
    return read_bytes(path, most=most, text=True).decode("utf-8-sig")


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says; ValueError if it is none, or too deep to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
