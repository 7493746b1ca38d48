"""What the processor can do for us: arithmetic in bfloat16, memory that is used again.

No torch here: the precision of features is part of a cached answer's name.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})
"""Of x86 processors; those without multiply in bfloat16 more slowly than in float32."""
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Parameters of glibc's mallopt."""
LARGEST = 32 * 2**20
"""Bytes; glibc takes no larger threshold."""
KEPT = 2**28
"""Bytes at the end of the heap that are kept though they are free."""


@functools.cache
def has_bfloat16() -> bool:
    """The processor multiplies in bfloat16."""
    with suppress(OSError), CPUINFO.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("flags"):
                return not BFLOAT16.isdisjoint(line.split())
    return False


@contextmanager
def kept_memory() -> Iterator[None]:
    """Let freed memory be used again, and give it back to the system only in the end.

    A network asks for the same megabytes again and again; each time that they come from the system
    every page of them is a fault. Elsewhere than on glibc nothing happens.
    """
    libc = _glibc()
    if libc is not None:
        libc.mallopt(MMAP_THRESHOLD, LARGEST)
        libc.mallopt(TRIM_THRESHOLD, KEPT)
    yield
    if libc is not None:
        libc.malloc_trim(0)


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


def set_threads(count: int) -> None:
    """Threads of the arithmetic, whether torch has been imported or not."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
