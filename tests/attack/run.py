"""The attack: damaged inputs, hostile requests, kills and full disks, with fixed seeds.

    make attack                                  all of it: an hour on two free cores
    python -m attack.run --share 0.01            a hundredth
    python -m attack.run --only kills            one part: inputs, requests, kills, disks, training

It prints a table: tried, ok, failed; and what failed, with its number: what the n-th input is
depends on nothing else. What is done is noted in `--notes`, and the same command goes on there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from attack import inputs, kills, visitors
from starc.files import atomic

HANG = 60
"""Seconds after which one input counts as a hang."""
MEMORY = 4 << 30
"""Bytes of address space beyond which reading one input fails."""
BATCH = 25
KILLS, DISKS, REQUESTS = 25, 5, 1000
"""Kills and full disks per kind of work, and requests, of the long attack."""
TRAINING_KILLS = 12
"""For each of:"""
KILLED_TRAININGS = ("one process", "one process, --init", "two", "two, --init", "an ablation")
"""The cases of benchmarks/kills.py."""
Try = Callable[[random.Random], str | None]


class Notes:
    """What was tried and what came of it, kept in a file."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.rows = path, dict[str, dict[str, object]]()
        if path is not None and path.exists():
            self.rows = json.loads(path.read_text())

    def tried(self, name: str) -> int:
        row = self.rows.setdefault(name, {"tried": 0, "failed": []})
        return int(str(row["tried"]))

    def add(self, name: str, number: int, problems: list[str]) -> None:
        row = self.rows.setdefault(name, {"tried": 0, "failed": []})
        row["tried"] = number
        row["failed"] = [*row["failed"], *problems]  # type: ignore[misc]
        if self.path is not None:
            self.path.write_text(json.dumps(self.rows, indent=1))

    def table(self) -> str:
        lines = ["| what | tried | ok | failed |", "|---|---:|---:|---:|"]
        total = [0, 0]
        for name, row in self.rows.items():
            tried, failed = int(str(row["tried"])), len(row["failed"])  # type: ignore[arg-type]
            total = [total[0] + tried, total[1] + failed]
            lines.append(f"| {name} | {tried:,} | {tried - failed:,} | {failed} |")
        lines.append(f"| all | {total[0]:,} | {total[0] - total[1]:,} | {total[1]} |")
        return "\n".join(lines)

    @property
    def failed(self) -> list[str]:
        return [
            f"{name}: {problem}"
            for name, row in self.rows.items()
            for problem in row["failed"]  # type: ignore[attr-defined]
        ]


def batches(notes: Notes, name: str, count: int, attempt: Try, end: float) -> None:
    """Try inputs in child processes, so that a crash, a hang or a glut is a failure and no more."""
    while (first := notes.tried(name)) < count and time.monotonic() < end:
        stop, problems, at = min(count, first + BATCH), list[str](), first
        while at < stop:
            reading, writing = os.pipe()

            def work(at: int = at, stop: int = stop, writing: int = writing) -> None:
                resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY,) * 2)
                for n in range(at, stop):
                    try:
                        problem = attempt(random.Random(f"{name}/{n}"))
                    except Exception as error:
                        problem = f"{type(error).__name__}: {error}"[:300]
                    os.write(writing, (json.dumps([n, problem]) + "\n").encode())

            process = kills.child(work)
            os.close(writing)
            at = _gather(reading, process, at, problems)
        notes.add(name, stop, problems)


def _gather(reading: int, process: int, at: int, problems: list[str]) -> int:
    """Hear what a child has tried, up to where it ended or hung; the number to go on with."""
    heard = b""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], HANG)[0]:
            said = pipe.read(65536)
            if not said:
                break
            heard += said
        else:
            os.kill(process, 9)
            hung = at + heard.count(b"\n")
            problems.append(f"{hung}: more than {HANG} s")
            at += 1
    status = os.waitpid(process, 0)[1]
    for line in heard.splitlines():
        number, problem = json.loads(line)
        at = max(at, number + 1)
        if problem:
            problems.append(f"{number}: {problem}")
    if status and not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == 9):
        problems.append(f"{at}: the process died ({status})")
        at += 1
    return at


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def one_by_one(notes: Notes, name: str, count: int, attempt: Try, end: float) -> None:
    while (n := notes.tried(name)) < count and time.monotonic() < end:
        try:
            problem = attempt(random.Random(f"{name}/{n}"))
        except PermissionError as error:
            print(f"{name}: {error}", flush=True)
            return
        notes.add(name, n + 1, [f"{n}: {problem}"] if problem else [])


def trainings(notes: Notes, count: int) -> None:
    """Kills of training, whose weights must be those of an undisturbed run."""
    program = Path(__file__).parents[2] / "benchmarks/kills.py"
    for case, name in enumerate(KILLED_TRAININGS):
        title = f"kills: training, {name}"
        if not notes.tried(title):
            command = [sys.executable, program, "--kills", str(count), "--cases", str(case)]
            done = subprocess.run(command, capture_output=True, text=True)
            said = re.search(r"(\d+) kills, (\d+) of (\d+) runs", done.stdout)
            problem = [] if said and said[2] == said[3] else [(done.stdout + done.stderr)[-300:]]
            notes.add(title, int(said[1]) if said else 1, problem)


def run(
    share: float, only: str | None, notes: Notes, *, minutes: float = 1e9, place: Path
) -> Notes:
    """All parts, or one, at a share of their full number."""
    end = time.monotonic() + 60 * minutes

    def many(whole: int) -> int:
        return max(1, round(whole * share))

    if only in (None, "inputs"):
        for n, (name, (count, attempt)) in enumerate(inputs.KINDS.items()):
            folder = place / f"inputs{n}"
            folder.mkdir(exist_ok=True)
            attempt(folder, random.Random(0))  # what all of them start from is made once
            batches(notes, name, many(count), lambda rng, a=attempt, f=folder: a(f, rng), end)  # type: ignore[misc]
    if only in (None, "requests"):
        with visitors.opened(place / "requests") as site:
            one_by_one(notes, "requests", many(REQUESTS), site.request, end)
        for name, visit in (
            ("slow visitors (260 at once)", visitors.slow_visitors),
            ("two servers, four editors", visitors.two_servers),
        ):
            folder = place / visit.__name__
            one_by_one(notes, name, many(20), lambda rng, v=visit, f=folder: v(f, rng), end)  # type: ignore[misc]
    for part, count, attack in (("kills", KILLS, kills.kill), ("disks", DISKS, kills.full_disk)):
        for n, work in enumerate(kills.WORKS if only in (None, part) else ()):
            title = f"kills: {work}" if part == "kills" else f"full disk: {work}"
            folder = place / f"{part}{n}"
            one_by_one(
                notes, title, many(count), lambda rng, a=attack, w=work, f=folder: a(f, rng, w), end
            )  # type: ignore[misc]
    if only == "training" or (only is None and share >= 1):
        trainings(notes, many(TRAINING_KILLS))
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--only", choices=["inputs", "requests", "kills", "disks", "training"])
    parser.add_argument("--minutes", type=float, default=1e9, help="stop then; go on another day")
    parser.add_argument("--notes", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    atomic.YOUNG = -1.0  # leftovers are swept at once
    notes = Notes(options.notes)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        run(options.share, options.only, notes, minutes=options.minutes, place=Path(folder))
    print(notes.table())
    for problem in notes.failed[:40]:
        print(problem)
    raise SystemExit(bool(notes.failed))


if __name__ == "__main__":
    main()
