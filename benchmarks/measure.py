"""What the benchmarks share: seconds, memory, one line per result, and data that may be missing."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

Result = TypeVar("Result")
SHARED = Path(os.environ.get("STARC_SHARED") or Path(__file__).resolve().parents[2] / "shared")
"""Data outside the repository: $STARC_SHARED, or `shared` beside the checkout."""


def shared(part: str) -> Path:
    """A part of the shared data; without it the benchmark says so and ends."""
    path = SHARED / part
    if not path.exists():
        print(f"skipped: no {part} in {SHARED}; set STARC_SHARED to the folder that has it")
        sys.exit(0)
    return path


class Best(NamedTuple):
    """The quickest of some runs."""

    cpu: float
    """Seconds of all threads of this process, user and system."""
    wall: float
    result: Any
    """Of the last run."""


def best(work: Callable[[], Any], runs: int = 3) -> Best:
    """Run `work` some times; least CPU and least wall seconds."""
    cpu, wall, result = [], [], None
    for _ in range(runs):
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        result = work()
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - wall_start)
    return Best(min(cpu), min(wall), result)


def cpu_seconds(*, children: bool = False) -> float:
    """CPU seconds of this process, or of its children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def machine_cpu_seconds() -> float:
    """CPU seconds of all processes since the machine started; 0 where the system does not say."""
    stat = Path("/proc/stat")
    if not stat.is_file():
        return 0.0
    user, nice, system = (int(ticks) for ticks in stat.read_text("utf-8").split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def peak_bytes() -> int:
    """The most memory that this process has held."""
    # Linux counts in kilobytes, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def resident_bytes(pid: int | str = "self") -> int:
    """The memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def session_bytes(session: int) -> int:
    """The memory that all processes of a session hold.

    A child that has not yet become another program shares its parent's memory and is not counted.
    """
    pages = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            line, parent = (process / "cmdline").read_bytes(), Path("/proc") / fields[1]
            if int(process.name) != session and line == (parent / "cmdline").read_bytes():
                continue
        except OSError:  # it ended meanwhile
            continue
        pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE")


def report(what: str, **figures: Any) -> None:
    """One line of results, as JSON; floats with three decimals, or as given when below that."""
    print(json.dumps({"what": what, **_rounded(figures)}), flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, float):
        return round(value, 3) if abs(value) >= 0.1 else float(f"{value:.3g}")
    return value


def row(cells: Sequence[object]) -> None:
    """One row of a table in Markdown."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
