"""METEOR's C aligner against the Python one on seeded hostile input, under AddressSanitizer.

    make fuzz    or:  python packages/starc-eval/tests/fuzz_meteor.py [--pairs 100000] [--seed 0]

Compiles `_meteor.c` with address and undefined-behaviour checks into a temporary folder and runs
itself with that build. Every pair of captions must give the same 23 counts in C and in Python;
a damaged index must be refused, or be as harmless as Python finds it. Exits 1 on any difference
and on any report of a sanitiser.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
from array import array
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/starc_eval/_meteor.c"
NAME = "starc_eval._meteor"
CHECKS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"]
PAIRS_PER_METEOR = 5000  # a Meteor keeps all that it has seen; a new one also tests the clean-up

VOCABULARY = """the a of to in and is was on it he she they man woman person people dog dogs hound
    car cars auto automobile big large child kids boy girl run runs running ran walk walks goes went
    put puts place places add adds stir mix cut cuts chop slice food foods in front of at once
    right away shows showing seen see begins starts start then while into pan pot bowl oil water
    salt 1 2 5 10 first second up down cat5 cats cat play plays playing game ball"""
WORDS = VOCABULARY.split()
HOSTILE = [
    *("", " ", "  ", "\t", "\n", "\r\x0b\x0c", "\0", "\0\0", "\x7f", "\xa0", "\u3000", "\u200b"),
    *("\ud800", "\udfff", "\ud83d\ude00", "\U0001f600", "\U0010ffff", "é", "e\u0301", "ß", "İ"),
    *("Привет", "你好", "مرحبا", "“", "’s", "n't", "'s", "''", "--", "-", "—", "...", ".", ","),
    *("e.g.", "Mr.", "No.", "No. 5", "1,000", "1\xa01/2", "-lrb-", "|||", "||||", "a|||b", "&amp;"),
    *("%s%n", "../..", "'ve"),
]
LONG = ["a" * 5000, "é" * 300, ".a" * 200, "'" * 99, "-a" * 99, "\0a" * 50]


def ordinary(rng: random.Random) -> tuple[str, str]:
    """A sentence and a copy of it with words swapped, dropped and replaced."""
    words = rng.choices(WORDS, k=rng.randint(0, 25))
    other = words.copy()
    for _ in range(rng.randint(0, 8)):
        if other:
            a, b = rng.randrange(len(other)), rng.randrange(len(other))
            other[a], other[b] = other[b], rng.choice([other[a], *rng.choices(WORDS, k=2)])
            del other[a : a + rng.randint(0, 2)]
    return " ".join(words), " ".join(other)


def hostile(rng: random.Random) -> tuple[str, str]:
    """Words between signs, spaces and characters that text should not have."""

    def text() -> str:
        parts = rng.choices([*HOSTILE, *WORDS], k=rng.randint(0, 10))
        parts += [chr(rng.randrange(0x110000)) for _ in range(rng.randint(0, 4))]
        parts += rng.choices(LONG, k=rng.random() < 0.03)
        rng.shuffle(parts)
        return rng.choice(["", " ", " "]).join(parts)

    first = text()
    return first, rng.choice([first, text(), text() + first, first[::-1]])


def repeated(rng: random.Random) -> tuple[str, str]:
    """Few words many times: more alignments than the beam holds."""
    few = rng.choices(WORDS, k=rng.randint(1, 6))
    longest = 90 if rng.random() < 0.02 else 20
    first, second = (" ".join(rng.choices(few, k=rng.randint(0, longest))) for _ in range(2))
    return first, second


def huge(rng: random.Random) -> tuple[str, str]:
    """Thousands of words, most of them unique."""

    def text() -> str:
        unique = [f"w{rng.randrange(50_000)}" for _ in range(rng.randint(500, 2500))]
        return " ".join(unique + rng.choices(WORDS, k=20))

    first = text()
    return rng.choice([(first, first), (first, text()), (first, ""), ("", first)])


CAPTIONS = {ordinary: 60, hostile: 25, repeated: 8, huge: 0.1}


def index_sections(rng: random.Random) -> list[array[int]]:
    """A small sound index: node words, child starts, target starts, targets (meteor_data.Index)."""
    nodes = rng.randint(1, 14)
    cuts = sorted(rng.randint(1, nodes) for _ in range(nodes - 1))
    child_starts = [1, *cuts, nodes]
    node_words = [0]
    for first, last in pairwise(child_starts):
        node_words += sorted(rng.sample(range(20), last - first))
    targets = [rng.sample(range(nodes), rng.randint(0, min(nodes, 4))) for _ in range(nodes)]
    target_starts = [0]
    for some in targets:
        target_starts.append(target_starts[-1] + len(some))
    flat = [target for some in targets for target in some]
    return [
        array("H", node_words),
        *(array("I", values) for values in (child_starts, target_starts, flat)),
    ]


def damaged(rng: random.Random, sections: list[array[int]]) -> list[array[int]]:
    """The same with one to three faults."""
    sections = [section[:] for section in sections]
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(4)
        section = sections[place]
        most = (1 << 8 * section.itemsize) - 1
        value = rng.choice([0, 1, 2, len(section), len(section) + 1, most // 2 + 1, most])
        fault = rng.randrange(5)
        if fault < 2 and section:
            section[rng.randrange(len(section))] = value
        elif fault == 2:
            section.append(value)
        elif fault == 3:
            del section[rng.randint(0, len(section)) :]
        else:
            values = [number & 0xFFFF for number in section]
            sections[place] = array("I" if section.itemsize == 2 else "H", values)
    return sections


def index_case(rng: random.Random, c_aligner: Any) -> str:
    """One index with one pair of sentences: what became of it."""
    from starc_eval.alignment import Aligner

    sections, sound = index_sections(rng), rng.random() < 0.3
    if not sound:
        sections = damaged(rng, sections)
    views = [memoryview(np.array(section)) for section in sections]  # in memory that ASan watches
    try:
        in_c = c_aligner(*views)
    except ValueError:
        return "failed: a sound index is refused" if sound else "refused"
    aligners = [in_c]
    _, _, starts, targets = sections
    spans = pairwise(starts)
    if all(len(set(targets[first:last])) == last - first for first, last in spans):
        aligners.append(Aligner(*views))  # it relies on distinct targets
    words = [
        (rng.randrange(6), rng.randrange(5), rng.random() < 0.3, synsets, rng.randint(-1, 19))
        for synsets in (rng.sample(range(8), rng.randint(0, 3)) for _ in range(12))
    ]
    longest = rng.choice([4, 12, 12, 70])
    sentences = [rng.choices(range(12), k=rng.randint(0, longest)) for _ in range(2)]
    answers = []
    for aligner in aligners:
        for word in words:
            aligner.add_word(*word)
        pair = tuple(aligner.add_sentence(sentence) for sentence in sentences)
        answers.append(aligner.statistics([pair, pair[::-1], (pair[0], pair[0])]))
    if answers[0] != answers[-1]:
        return f"failed: {sections} {words} {sentences}: C {answers[0]}, Python {answers[1]}"
    return "ok" if len(aligners) == 2 else "survived"


def fuzz(pairs: int, seed: int, extension: ModuleType) -> Counter[str]:
    """Try this many pairs; counts of ok (C and Python agree), refused and survived (damaged
    indices: not taken; taken by C alone) and failed."""
    from starc_eval.meteor import Meteor

    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    kinds, weights = [*CAPTIONS, None], [*CAPTIONS.values(), 7]
    for number in range(pairs):
        if number % PAIRS_PER_METEOR == 0:
            in_c, in_python = Meteor(backend="c"), Meteor(backend="python")
            print(f"{number} tried, {counts['failed']} failed", flush=True)
        kind = rng.choices(kinds, weights)[0]
        if kind is None:
            outcome = index_case(rng, extension.Aligner)
        else:
            pair = kind(rng)
            c_counts, python_counts = in_c.statistics(*pair), in_python.statistics(*pair)
            same = c_counts == python_counts
            outcome = "ok" if same else f"failed: {pair!a}: C {c_counts}, Python {python_counts}"
        if outcome.startswith("failed"):
            print(f"pair {number}, {outcome[:2000]}", flush=True)
        counts[outcome.split(":")[0]] += 1
    return counts


def compile_checked(folder: Path) -> Path:
    """The extension with the sanitisers in it."""
    library = folder / f"_meteor{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    command = ["cc", *CHECKS, "-shared", "-fPIC", f"-I{include}", str(SOURCE), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


def load(library: Path) -> ModuleType:
    """Make this build the extension that `starc_eval` imports."""
    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None and spec.loader is not None
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.library:
        counts = fuzz(arguments.pairs, arguments.seed, load(arguments.library))
        print(
            f"{counts.total()} tried, {counts['ok']} ok, {counts['refused']} damaged indices "
            f"refused, {counts['survived']} survived, {counts['failed']} failed"
        )
        return int(counts["failed"] > 0)
    with tempfile.TemporaryDirectory() as folder:
        library = compile_checked(Path(folder))
        asan = subprocess.run(
            ["cc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
        )
        environment = {
            **os.environ,
            "LD_PRELOAD": asan.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
        }
        command = [sys.executable, __file__, "--library", str(library)]
        command += ["--pairs", str(arguments.pairs), "--seed", str(arguments.seed)]
        code = subprocess.run(command, env=environment).returncode
    if code:
        print(f"fuzzing stopped with exit code {code}", file=sys.stderr)
    return int(code != 0)


if __name__ == "__main__":
    sys.exit(main())
