"""CPU seconds of `starc score` against the published evaluator, and its memory.

    python benchmarks/evaluator.py [--published FOLDER] [--quick]

Prints a JSON line per case: CPU seconds and memory of the whole command on one thread (interpreter,
imports, reading, scoring, printing; warm index), the largest difference from the golden numbers,
and the published evaluator's seconds divided by ours. FOLDER holds the published evaluator
(`dvc_eval` of VidChapters); with it and Java the published one runs here, beside ours. Without, the
seconds are those stated in PUBLISHED. `growth` scores ActivityNet four times over, 20,000 videos.
Needs the golden files in $STARC_SHARED/parity/eval.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from measure import report, shared

PUBLISHED = {"yc2_b_jitter": 55.0, "anet_b_jitter": 152.0}
"""CPU seconds of the published evaluator on another machine of this size, two AVX-512 cores."""
REFERENCE = {"yc2_b_jitter": "yc2_val", "anet_b_jitter": "anet_val_1"}
SCORE = "from starc.cli import main; main()"
SCORE_IN_PYTHON = f"import sys; sys.modules['starc_eval._meteor'] = None; {SCORE}"
BUILD = (
    "import sys; from pathlib import Path; from starc_eval.meteor import Meteor; "
    "Meteor(cache=Path(sys.argv[1]))"
)
PEER = (
    "import sys; sys.path.insert(0, sys.argv[1]); from dvc_eval import eval_dvc, eval_soda; "
    "eval_dvc(sys.argv[2], [sys.argv[3]]); eval_soda(sys.argv[2], [sys.argv[3]])"
)


class Ran(NamedTuple):
    """A whole process and those it waited for."""

    cpu: float
    megabytes: int
    output: str


def run(code: str, *arguments: str | Path, runs: int = 1) -> Ran:
    """The quickest of some runs of Python code on one thread."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    found = []
    for _ in range(runs):
        with tempfile.TemporaryFile("w+") as output:
            command = [sys.executable, "-c", code, *map(str, arguments)]
            process = subprocess.Popen(command, stdout=output, env={**os.environ, **threads})
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                sys.exit(f"failed: {command[2][:60]} … {' '.join(command[3:])}")
            output.seek(0)
            megabytes = round(used.ru_maxrss / 1024)
            found.append(Ran(used.ru_utime + used.ru_stime, megabytes, output.read()))
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--published", type=Path, help="folder with the published dvc_eval")
    parser.add_argument("--quick", action="store_true", help="one run of each instead of three")
    options = parser.parse_args()
    golden = shared("parity/eval")
    numbers = json.loads((golden / "GOLDEN.json").read_text("utf-8"))
    runs = 1 if options.quick else 3
    with tempfile.TemporaryDirectory() as folder:
        built = run(BUILD, folder)
        report("index, built once", cpu_s=built.cpu, peak_mb=built.megabytes)
    for case, reference in REFERENCE.items():
        files = golden / f"{case}.json", golden / f"refs/{reference}.json"
        whose, seconds = "stated", PUBLISHED[case]
        if options.published and shutil.which("java"):
            whose, seconds = "measured here", run(PEER, options.published, *files).cpu
        for backend, code in {"c": SCORE, "python": SCORE_IN_PYTHON}.items():
            ran = run(code, "score", *files, "--allow-missing", "--json", runs=runs)
            scores, wanted = json.loads(ran.output)["metrics"], numbers[case]["metrics"]
            report(
                case,
                backend=backend,
                cpu_s=ran.cpu,
                peak_mb=ran.megabytes,
                largest_error=max(abs(scores[name] - wanted[name]) for name in wanted),
                published_cpu_s=seconds,
                published=whose,
                ratio=seconds / ran.cpu,
                load=os.getloadavg()[0],
            )
    growth(golden)


def growth(golden: Path) -> None:
    """Four times as many videos, their captions not the same."""
    predicted = json.loads((golden / "anet_b_jitter.json").read_text("utf-8"))["results"]
    wanted = json.loads((golden / "refs/anet_val_1.json").read_text("utf-8"))
    more: tuple[dict[str, object], dict[str, object]] = {}, {}
    for n in range(4):
        word = f" {'abcd'[n] * 3}"
        for video, events in predicted.items():
            more[0][f"{video}{n}"] = [{**e, "sentence": e["sentence"] + word} for e in events]
        for video, entry in wanted.items():
            sentences = [sentence + word for sentence in entry["sentences"]]
            more[1][f"{video}{n}"] = {**entry, "sentences": sentences}
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "predictions.json", Path(folder) / "references.json"
        files[0].write_text(json.dumps({"results": more[0]}), "utf-8")
        files[1].write_text(json.dumps(more[1]), "utf-8")
        ran = run(SCORE, "score", *files, "--allow-missing", "--json")
        report("growth", videos=len(more[1]), cpu_s=ran.cpu, peak_mb=ran.megabytes)


if __name__ == "__main__":
    main()
