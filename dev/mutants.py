"""Changes of one line that must turn a test red: are the tests of the shipped path any good?

    python dev/mutants.py [--jobs N] [WORD ...]        (make mutants)

Each mutant changes one text, which its file must hold exactly once, in a copy of src; then the test
that is to notice runs on that copy. First the same tests run on an unchanged copy. With words, only
mutants whose file or texts hold one of them. Exit 0: every mutant was killed. 1: some survived;
write a test, or drop a mutant that changes nothing. 2: the list or the tests need a fix first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 600
"""Seconds after which a mutant that hangs its test is given up; it counts as a problem."""


class Mutant(NamedTuple):
    """A change that must not go unnoticed."""

    file: str
    """Below src/starc."""
    old: str
    new: str
    test: str
    """Below tests: the smallest file, or one test of it, that notices."""


WRITER, HEAD = "decoder/caption_writer.py", "decoder/span_head.py"
PREDICT, LONG = "inference/predict.py", "inference/long_videos.py"
MODELS, PIPELINE = "inference/models.py", "inference/pipeline.py"
BEAMS, TIMES = "decoder/beam_search.py", "decoder/time_tokens.py"
BY_DEFINITION = "inference/test_predict.py::test_events_are_those_of_the_definitions"
GIVEN = "inference/test_predict.py::test_given_spans_are_kept_and_captioned"
SALIENCY = "inference/test_predict.py::test_shown_saliency_is_that_of_the_span_head"
SPANS, READS, GRAMMAR = (f"decoder/test_{name}.py" for name in ("span_head", "reader", "grammar"))
TRANSPORT, PLANS = "model/transport.py", "model/test_transport.py"
DOMAIN = "inference/test_models.py"
WINDOWS = "inference/test_long_videos.py"

MUTANTS = [
    # The caption writer: what it reads, what it may write, how sure it is.
    Mutant(WRITER, "INSIDE, AFTER = 24, 28, 70, 10", "INSIDE, AFTER = 24, 28, 70, 7", GIVEN),
    Mutant(WRITER, "INSIDE, AFTER = 24, 28, 70, 10", "INSIDE, AFTER = 24, 25, 70, 10", GIVEN),
    Mutant(WRITER, "INSIDE, AFTER = 24, 28, 70, 10", "INSIDE, AFTER = 24, 28, 66, 10", GIVEN),
    Mutant(WRITER, "INSIDE, AFTER = 24, 28, 70, 10", "INSIDE, AFTER = 21, 28, 70, 10", GIVEN),
    Mutant(WRITER, "SCRIPT_EVENTS = 6", "SCRIPT_EVENTS = 7", GIVEN),
    Mutant(WRITER, "range(len(caption) - longest)", "range(len(caption) - longest - 1)", GIVEN),
    Mutant(WRITER, "[len(caption) - longest :]", "[len(caption) - longest - 1 :]", GIVEN),
    Mutant(WRITER, "(n + 0.5) / len(texts)", "n / len(texts)", GIVEN),
    Mutant(WRITER, "shown = max(shown, stop)", "shown = max(shown, first)", GIVEN),
    Mutant(WRITER, "log / (len(ids) + 1)", "log / len(ids)", GIVEN),
    Mutant(WRITER, "row.logs[-1] += float(score_V[self.newline])", "pass", GIVEN),
    Mutant(WRITER, "== self.settings.max_tokens", "== self.settings.max_tokens - 1", GIVEN),
    Mutant(WRITER, "bisect_right(times, end)", "bisect_right(times, start)", GIVEN),
    Mutant(WRITER, "0.5 if span is None", "0.9 if span is None", GIVEN),
    Mutant(WRITER, "logit(caption.probability) + offset", "logit(caption.probability)", GIVEN),
    Mutant("decoder/reader.py", "place_C <= place_C", "place_C < place_C", READS),
    # The span head: when things happen.
    Mutant(HEAD, "stop - 1] + settings.reward", "stop - 1]", SPANS),
    Mutant(HEAD, "* min(1.0, length / SHORT)", "", SPANS),
    Mutant(HEAD, "mean() <= self", "mean() >= self", SPANS),
    Mutant(HEAD, "context = max(0, first - CONTEXT)", "context = first", SPANS),
    Mutant(HEAD, "tokens_T.log1p()", "tokens_T", SPANS),
    Mutant(HEAD, "logits_T3[:, INSIDE].sigmoid()", "logits_T3[:, START].sigmoid()", SALIENCY),
    Mutant(HEAD, "in self.members]).mean(0)", "in self.members])[0]", BY_DEFINITION),
    Mutant(HEAD, "end[stop - 1]) / 2)", "end[stop - 1]))", BY_DEFINITION),
    Mutant(HEAD, "min(stop * seconds, duration)", "stop * seconds", BY_DEFINITION),
    Mutant(HEAD, "settings.longest / settings.bin)", "settings.longest)", SPANS),
    # Prediction: who makes which part of the answer.
    Mutant(PREDICT, "abs(sum(span) - sum(window))", "abs(span[0] - window[0])",
           "inference/test_predict.py::test_a_given_event_goes_where_its_middle_is"),
    Mutant(PREDICT, "int(time // seconds)", "int(time)", SALIENCY),
    Mutant(PREDICT, "if loaded.config.inputs.speech else", "if True else",
           "inference/test_predict.py::test_a_model_that_does_not_listen_captions_what_it_sees"),
    Mutant(PREDICT, "[lanes or not each for each in by_writer]", "[True for each in by_writer]",
           "inference/test_predict.py::test_lanes_are_computed_where_asked_for_and_change_no_event"),
    Mutant(PREDICT, 'else ("speech",)\n    events', 'else ("pictures",)\n    events', GIVEN),
    Mutant(PREDICT, 'Event(*span, "", times_from=("person",))', 'Event(*span, "")', GIVEN),
    # What is refused: out of domain, or not sure enough.
    Mutant(MODELS, "QUANTILE = 0.75", "QUANTILE = 0.5", DOMAIN),
    Mutant(MODELS, ".square().mean(1).median()", ".square().mean(1).mean()", DOMAIN),
    Mutant(MODELS, "if far <= limit", "if far >= limit", DOMAIN),
    Mutant(MODELS, "    if near is not None:", "    if near is not None and near >= 0.6:", DOMAIN),
    Mutant(PIPELINE, "GUESS = 0.25", "GUESS = 0.2", DOMAIN),
    Mutant(PIPELINE, "= statistics.median(sure)", "= max(sure)", DOMAIN),
    Mutant(PIPELINE, "if force and can_be_forced(reason):", "if can_be_forced(reason):", DOMAIN),
    # Silent videos: the method, from frames to retrieved captions.
    Mutant(TRANSPORT, "frames + anchors))", "frames))", PLANS),
    Mutant(TRANSPORT, "alpha=structure)", "alpha=1 - structure)", PLANS),
    Mutant(TRANSPORT, "= 1 - similarity_BTK", "= 2 - similarity_BTK", PLANS),
    Mutant("model/segments.py", "math.log1p(length)", "math.log(length)", "model/test_segments.py"),
    Mutant("model/segments.py", "[:top_k])", "[: top_k - 1])", "model/test_segments.py"),
    Mutant("model/saliency.py", "sigmoid() * mask_BT", "sigmoid()", "model/test_saliency.py"),
    Mutant("model/joint_space.py", "REACH = 6.0", "REACH = 3.0", "model/test_joint_space.py"),
    Mutant("retrieval/search.py", "* self.length + 1e-5", "* self.length / 2 + 1e-5",
           "retrieval/test_search.py::test_the_bound_of_a_half_scan_covers_the_worst_rounding"),
    Mutant("retrieval/search.py", "sort(descending=True, stable=True)", "sort(descending=True)",
           "retrieval/test_search.py"),
    Mutant(BEAMS, "(2 * search.beams)\n", "(search.beams)\n", "decoder/test_beam_search.py"),
    Mutant(BEAMS, "passed = bin_V <= start_BK", "passed = bin_V < start_BK", GRAMMAR),
    Mutant(TIMES, "if end <= start or not caption", "if end < start or not caption",
           "decoder/test_time_tokens.py"),
    Mutant(TIMES, "math.fsum(logs) / len(logs)", "math.fsum(logs)", "decoder/test_time_tokens.py"),
    # Long videos.
    Mutant(LONG, "(one.start + one.end) / 2 < end", "one.start < end", WINDOWS),
    Mutant(LONG, "SAME = 0.5", "SAME = 0.9", WINDOWS),
    Mutant(LONG, "(before.stop + after.first) // 2", "before.stop", WINDOWS),
    Mutant(LONG, "chosen = b if seen[1] > seen[0] else a", "chosen = a", WINDOWS),
    Mutant(LONG, "event.start + event.end <= start + end", "event.end <= end", WINDOWS),
]  # fmt: skip


def problems(mutants: Sequence[Mutant], root: Path = ROOT) -> list[str]:
    """What is wrong with the list: texts that are not there exactly once, tests that are not."""
    found = []
    for one in mutants:
        path, test = root / "src" / "starc" / one.file, root / "tests" / one.test.partition("::")[0]
        count = path.read_text("utf-8").count(one.old) if path.is_file() else 0
        if count != 1:
            found.append(f"{one.file}: {one.old!r} is there {count} times; it must be once")
        if one.old == one.new:
            found.append(f"{one.file}: {one.old!r} is changed into itself")
        if not test.is_file():
            found.append(f"{one.file}: no test file {one.test}")
    return found


def exit_code(root: Path, tests: Sequence[str], change: Mutant | None, jobs: int = 0) -> int:
    """pytest's exit code for these tests on a copy of src, with the change; -1 if it hangs."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        source = shutil.copytree(root / "src", Path(folder) / "src", copy_function=_copy)
        if change is not None:
            path = source / "starc" / change.file
            text = path.read_text("utf-8").replace(change.old, change.new)
            path.unlink()
            path.write_text(text, "utf-8")
        paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
        # One thread each: tests of several mutants run at a time.
        environment = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        try:
            return subprocess.run(
                [
                    *command,
                    "-n",
                    str(jobs if jobs > 1 else 0),
                    *(f"tests/{test}" for test in tests),
                ],
                cwd=root,
                env={**os.environ, **environment},
                stdout=None if change is None else subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE,
            ).returncode
        except subprocess.TimeoutExpired:
            return -1


def _copy(source: str, target: str) -> None:
    """Python is copied with its time, so that what is compiled counts; weights are linked."""
    if source.endswith((".py", ".pyc")):
        shutil.copy2(source, target)
    else:
        os.symlink(source, target)


def run(mutants: Sequence[Mutant], jobs: int, root: Path = ROOT) -> int:
    """Test every mutant and say what became of it; the exit code of the command."""
    wrong = problems(mutants, root)
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        return 2
    tests = list(dict.fromkeys(one.test for one in mutants))
    print(f"{len(tests)} tests or files of tests without a change:", flush=True)
    if exit_code(root, tests, None, jobs):
        print("red before anything was changed: fix these first", file=sys.stderr)
        return 2
    survived, broken = list[Mutant](), list[Mutant]()
    with ThreadPoolExecutor(jobs) as pool:
        begun = time.monotonic()
        futures = {pool.submit(exit_code, root, [one.test], one): one for one in mutants}
        for count, future in enumerate(as_completed(futures), 1):
            one, code = futures[future], future.result()
            fate = {0: "SURVIVED", 1: "killed"}.get(code, f"broken (pytest says {code})")
            if code == 0:
                survived.append(one)
            elif code != 1:
                broken.append(one)
            seconds = time.monotonic() - begun
            print(
                f"[{count:2}/{len(mutants)} {seconds:4.0f} s] {fate}: {one.file}: "
                f"{' '.join(one.old.split())!r} -> {' '.join(one.new.split())!r}",
                flush=True,
            )
    print(f"{len(mutants)} mutants, {len(survived)} survived, {len(broken)} broken")
    for one in survived:
        print(f"  survived: {one.file}: {one.old!r} -> {one.new!r}; {one.test} does not notice")
    return 1 if survived else 2 if broken else 0


def main() -> None:
    """The command."""
    arguments = argparse.ArgumentParser(description="Mutants of the shipped path")
    arguments.add_argument("words", nargs="*", metavar="WORD", help="only mutants that hold one")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = arguments.parse_args()
    chosen = [
        one
        for one in MUTANTS
        if not options.words or any(word in " ".join(one[:3]) for word in options.words)
    ]
    if not chosen:
        sys.exit(f"no mutant holds {' or '.join(options.words)}")
    sys.exit(run(chosen, max(1, options.jobs)))


if __name__ == "__main__":
    main()
