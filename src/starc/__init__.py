"""Dense video captioning: a long video and its speech in, timestamped captions out.

import starc
for event in starc.load("my-model").caption("talk.mp4").events:
    print(event)
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
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
# Before torch is imported: threads that wait for each other sleep instead of spinning. On a busy
# machine spinning threads keep those they wait for from running.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("KMP_BLOCKTIME", "0")
_HOMES = {
    "Captioner": "starc.inference.pipeline",
    "Options": "starc.inference.pipeline",
    "load": "starc.inference.pipeline",
    "score": "starc_eval",
}
"""Names that bring torch or numpy with them are imported when they are asked for."""


def _cpuid(leaf: int) -> tuple[int, int]:
    """What an x86 processor says of itself: registers eax and edx."""
    # push rbx; mov eax, edi; xor ecx, ecx; cpuid; shl rdx, 32; or rax, rdx; pop rbx; ret
    code = bytes.fromhex("53 89f8 31c9 0fa2 48c1e220 4809d0 5b c3")
    with mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(code)
        first = ctypes.c_char.from_buffer(page)
        call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint32)(ctypes.addressof(first))
        high, low = divmod(call(leaf), 2**32)
        del first
    return low, high


# Some virtual machines offer AMX (leaf 7, edx) and hide its layouts of tiles (leaf 0x1D, eax).
# oneDNN, which multiplies for torch, then sets up empty tiles, and the first product in bfloat16 or
# int8 is an illegal instruction. It reads this variable at its first use.
if os.name == "posix" and os.uname().machine == "x86_64":
    with suppress(OSError):  # a system without memory that may be executed
        if _cpuid(7)[1] >> 24 & 1 and not _cpuid(0x1D)[0]:
            os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'starc' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, also those that are imported only when they are asked for."""
    return [*__all__, "__version__"]
