"""CPU seconds of the evaluator against the published one, and its memory.

    python benchmarks/evaluator.py

Prints a JSON line per case: CPU seconds of a whole `starc score` process (interpreter, imports,
reading, scoring; warm index), of `score()` alone, the published evaluator's own time on the same
size of machine and the ratio of whole processes. Needs the golden files beside the checkout.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[2] / "shared/parity/eval"
# CPU seconds of the published evaluator (spec/speed.md; two runs of YouCook2 gave 55 and 56).
PUBLISHED = {"yc2_b_jitter": 55.0, "anet_b_jitter": 152.0}
REFERENCE = {"yc2_b_jitter": "yc2_val", "anet_b_jitter": "anet_val_1"}


def child(case: str, backend: str) -> None:
    """Score one case in this process and print what it took."""
    from starc.evaluation import score
    from starc.evaluation.meteor import Meteor

    imported = time.process_time()
    report = score(
        GOLDEN / f"{case}.json",
        GOLDEN / f"refs/{REFERENCE[case]}.json",
        allow_missing=True,
        meteor=lambda: Meteor(backend=backend),  # type: ignore[arg-type]
    )
    golden = json.loads((GOLDEN / "GOLDEN.json").read_text())[case]["metrics"]
    print(
        json.dumps(
            {
                "case": case,
                "backend": backend,
                "cpu_s": round(time.process_time(), 3),
                "score_cpu_s": round(time.process_time() - imported, 3),
                "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                "largest_error": max(
                    abs(report.metrics[name] - golden[name]) for name in golden if name != "soda_d"
                ),
                "ratio_to_published": round(PUBLISHED[case] / time.process_time(), 1),
            }
        )
    )


def index() -> None:
    """Build the paraphrase index in an empty cache."""
    from starc.evaluation.meteor import Meteor

    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        Meteor(cache=Path(folder))
        seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"case": "index", "cpu_s": round(seconds, 2), "peak_mb": round(peak)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="best of this many runs")
    parser.add_argument("--child", nargs=2, metavar=("CASE", "BACKEND"))
    parser.add_argument("--index", action="store_true", help="time the first index build only")
    arguments = parser.parse_args()
    if arguments.child:
        return child(*arguments.child)
    if arguments.index:
        return index()
    if not GOLDEN.is_dir():
        raise SystemExit("no golden files: shared/parity/eval is not beside the checkout")
    subprocess.run([sys.executable, __file__, "--index"], check=True)
    for case, backend in [
        ("yc2_b_jitter", "c"),
        ("anet_b_jitter", "c"),
        ("yc2_b_jitter", "python"),
    ]:
        runs = [
            subprocess.run(
                [sys.executable, __file__, "--child", case, backend],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            for _ in range(arguments.repeat)
        ]
        print(min(runs, key=lambda line: json.loads(line)["cpu_s"]), end="", flush=True)


if __name__ == "__main__":
    main()
