"""Kill training at random moments, resume it, and compare the weights, byte for byte.

One process and two, from scratch and from other weights, and an ablation of two rows. A run is
killed (SIGKILL) at a random moment until it has lived through its share of kills, then it goes on
to its end; it counts when its last weights are those of a run that nobody disturbed.

    python benchmarks/kills.py [--kills 60] [--seed 0] [--cases 0 1 2 3 4]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from starc.training import ablations
from starc.training.run import RECIPE
from starc.training.tables import Ablation, Row
from starc.training.train import Files, run_training
from support.small_training import SMALL, files, given

SETTINGS = [*SMALL, "train.epochs=6", "train.save_every=1", "train.validate_every=0"]
TABLE = Ablation("Pooling", (Row("weighted"), Row("even", ("model.segments.pooling=uniform",))))
CASES = (
    "one process", "one process, --init", "two processes", "two processes, --init", "an ablation",
)  # fmt: skip
PER_RUN = 4
"""Kills that one run lives through."""
Start = Callable[[Path], list[int]]
"""Begins or resumes a run in a folder, and gives the ids of its processes."""


def forked(work: Callable[[], None], **environment: str) -> int:
    """The id of a child that does some work: forking saves importing torch for each run."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setpgid(0, 0)
        os.environ.update(environment)
        with open(os.devnull, "w") as silent:
            os.dup2(silent.fileno(), 2)
        work()
        status = 0
    finally:
        os._exit(status)


def training(given: Files, processes: int) -> Start:
    """`starc train` in so many processes."""

    def start(folder: Path) -> list[int]:
        resume = (folder / RECIPE).exists()

        def work() -> None:
            run_training("tiny", given, folder, SETTINGS, resume=resume, progress=lambda line: None)

        if processes == 1:
            return [forked(work)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
        return [forked(work, **world, RANK=str(n), LOCAL_RANK=str(n)) for n in range(processes)]

    return start


def ablation(data: Path) -> Start:
    """`starc ablate`, whose rows are processes of their own."""
    arguments = ["tiny", *files(data)]
    for setting in [*SMALL, "train.epochs=2", "train.save_every=1"]:
        arguments += ["--set", setting]

    def start(folder: Path) -> list[int]:
        def work() -> None:
            own = data / "datastore"
            results = ablations.run_rows(TABLE, arguments, folder, datastores={}, own=own)
            assert not any(result.problem for result in results)

        return [forked(work)]

    return start


def ended(children: list[int]) -> bool:
    """Wait for all; whether all ended well."""
    return all([os.waitpid(child, 0)[1] == 0 for child in children])


def killed(children: list[int]) -> bool:
    """Kill them with all they have started; whether they were still at work."""
    for child in children:
        for kill in (os.killpg, os.kill):  # it may have no group of its own yet
            with suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
    return not ended(children)


def weights(folder: Path) -> list[str]:
    """What the last weights and the metrics of a run, or of each row, are."""
    found = sorted(folder.glob("**/last/model.safetensors")) + sorted(
        folder.glob("**/metrics.jsonl")
    )
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in found]


def measure(start: Start, place: Path, kills: int, rng: random.Random) -> tuple[int, int]:
    """Runs that it took for so many kills of processes at work, and how many ended as they should.

    A run is killed up to `PER_RUN` times; a kill that comes too late ends it and does not count.
    """
    began = time.monotonic()
    if not ended(start(place / "whole")):
        raise SystemExit(f"{place.name}: the undisturbed run failed")
    took, met, runs, same = time.monotonic() - began, 0, 0, 0
    while met < kills:
        folder, goal, alive = place / f"killed{runs}", min(kills, met + PER_RUN), True
        while alive and met < goal:
            children = start(folder)
            time.sleep(rng.uniform(0, took))
            alive = killed(children)
            met += alive
        runs += 1
        same += ended(start(folder)) and weights(folder) == weights(place / "whole")
    return runs, same


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    every = range(len(CASES))
    parser.add_argument("--cases", type=int, nargs="+", choices=every, default=every)
    options = parser.parse_args()
    torch.set_num_threads(1)
    each = max(1, options.kills // len(options.cases))
    with tempfile.TemporaryDirectory() as folder:
        place, data = Path(folder), Path(folder) / "data"
        files(data)
        plain = given(data)
        ended(training(plain, 1)(place / "first"))
        other = replace(plain, init=place / "first/last")
        starts = [training(which, count) for count in (1, 2) for which in (plain, other)]
        starts.append(ablation(data))
        for case in options.cases:
            name, rng = CASES[case], random.Random(options.seed + case)
            runs, same = measure(starts[case], place / name, each, rng)
            print(f"{name}: {each} kills, {same} of {runs} runs with the same weights", flush=True)


if __name__ == "__main__":
    main()
