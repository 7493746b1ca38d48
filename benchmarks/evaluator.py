"""CPU seconds of the evaluator against the published one, and its memory.

    python benchmarks/evaluator.py

Prints a JSON line per case: CPU seconds of a whole process on one thread (interpreter, imports,
reading, scoring; warm index) and of `score()` alone, the largest difference from the golden
numbers, and the published evaluator's time divided by ours. Needs the golden files in
$STARC_SHARED/parity/eval; STARC_SHARED is `../shared` beside the checkout unless it is set.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARED = Path(os.environ.get("STARC_SHARED") or Path(__file__).resolve().parents[2] / "shared")
GOLDEN = SHARED / "parity/eval"
# CPU seconds of the published evaluator on a machine of the same size (two runs of YouCook2 gave
# 55 and 56).
PUBLISHED = {"yc2_b_jitter": 55.0, "anet_b_jitter": 152.0}
REFERENCE = {"yc2_b_jitter": "yc2_val", "anet_b_jitter": "anet_val_1"}


def measure_case(case: str, backend: str) -> None:
    """Score one case in this process and print what it took."""
    from starc.evaluation import score
    from starc.evaluation.meteor import Meteor

    start = time.process_time()
    report = score(
        GOLDEN / f"{case}.json",
        GOLDEN / f"refs/{REFERENCE[case]}.json",
        allow_missing=True,
        meteor=lambda: Meteor(backend=backend),  # type: ignore[arg-type]
    )
    end = time.process_time()
    golden = json.loads((GOLDEN / "GOLDEN.json").read_text("utf-8"))[case]["metrics"]
    print(
        json.dumps(
            {
                "case": case,
                "backend": backend,
                "cpu_s": round(end, 2),
                "score_cpu_s": round(end - start, 2),
                "peak_mb": _peak_mb(),
                "largest_error": max(abs(report.metrics[name] - golden[name]) for name in golden),
                "times_published": round(PUBLISHED[case] / end, 1),
            }
        )
    )


def measure_index() -> None:
    """Build the paraphrase index in an empty cache."""
    from starc.evaluation.meteor import Meteor

    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        Meteor(cache=Path(folder))
        seconds = time.process_time() - start
    print(json.dumps({"case": "index", "cpu_s": round(seconds, 2), "peak_mb": _peak_mb()}))


def _peak_mb() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def best_of(runs: int, *arguments: str) -> str:
    """The line of the quickest of some processes of this script."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    lines = [
        subprocess.run(
            [sys.executable, __file__, *arguments],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads},
        ).stdout.strip()
        for _ in range(runs)
    ]
    return min(lines, key=lambda line: float(json.loads(line)["cpu_s"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one run of each instead of three")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--index", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        return measure_case(*arguments.case)
    if arguments.index:
        return measure_index()
    if not GOLDEN.is_dir():
        print(f"skipped: no parity/eval in {SHARED}; set STARC_SHARED to the folder that has it")
        return
    print(best_of(1, "--index"), flush=True)
    for case in PUBLISHED:
        for backend in ("c", "python"):
            print(best_of(1 if arguments.quick else 3, "--case", case, backend), flush=True)


if __name__ == "__main__":
    main()
