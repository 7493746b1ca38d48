"""The processor: what it can do, how its threads wait, memory that is used again.

Importing starc changes nothing. Whoever starts arithmetic calls `prepare` first, if possible before
torch is imported: the command line, `Captioner.models`, training. No torch here where the system
tells: the precision of features is part of a cached answer's name.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Parameters of glibc's mallopt."""
LARGEST = 32 * 2**20
"""Bytes; glibc takes no larger threshold."""
KEPT = 2**28
"""Bytes at the end of the heap that are kept though they are free."""


def has_bfloat16() -> bool:
    """The processor multiplies in bfloat16; others do it more slowly than in float32."""
    return not capabilities().isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})


def adds_bytes_in_32_bits() -> bool:
    """The processor adds products of bytes in 32 bits (VNNI, AMX), not in 16."""
    return not capabilities().isdisjoint({"avx512_vnni", "avx_vnni", "amx_int8"})


@functools.cache
def capabilities() -> frozenset[str]:
    """Names of the processor's instruction sets; oneDNN is kept from AMX where that is broken."""
    found = frozenset[str]()
    with suppress(OSError), CPUINFO.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(("flags", "Features")):
                found = frozenset(line.split())
                break
    if not CPUINFO.exists():
        import torch

        tell = getattr(torch.cpu, "get_capabilities", dict)  # torch 2.6 does not tell
        found = frozenset(name for name, has in tell().items() if has)
    if "amx_tile" in found and os.uname().machine == "x86_64":
        _avoid_broken_amx()
    return found


def _avoid_broken_amx() -> None:
    """Keep oneDNN, which multiplies for torch, from AMX whose tile layouts are hidden.

    Some virtual machines offer AMX and hide its layouts of tiles (leaf 0x1D, eax). oneDNN then sets
    up empty tiles, and the first product in bfloat16 or int8 is an illegal instruction. It reads
    this variable at its first use.
    """
    with suppress(OSError):  # a system without memory that may be executed
        if not _cpuid(0x1D):
            os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def _cpuid(leaf: int) -> int:
    """What an x86 processor says of itself: register eax."""
    # push rbx; mov eax, edi; xor ecx, ecx; cpuid; pop rbx; ret
    code = bytes.fromhex("53 89f8 31c9 0fa2 5b c3")
    with mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(code)
        first = ctypes.c_char.from_buffer(page)
        eax: int = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32)(ctypes.addressof(first))(leaf)
        del first
    return eax


def prepare() -> None:
    """Let threads that wait for each other sleep, and oneDNN avoid AMX where that is broken.

    On a busy machine spinning threads keep those they wait for from running. torch reads the
    variables of its threads when it is imported, and oneDNN its own at the first product; those
    that the user has set stay.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    if CPUINFO.exists():
        capabilities()


def set_threads(count: int) -> None:
    """Threads of the arithmetic, whether torch has been imported or not."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


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
