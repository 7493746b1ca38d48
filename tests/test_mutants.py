"""dev/mutants.py: its list fits the source, and it tells the killed from the survivors."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.scripts import script

mutants = script("mutants")
KILLED = mutants.Mutant("sums.py", "a + b", "a - b", "test_sums.py")
SURVIVES = mutants.Mutant("sums.py", "a * b", "a / b", "test_sums.py")
BREAKS = mutants.Mutant("sums.py", "a + b", "a + (b", "test_sums.py")
SOURCE = "def add(a, b):\n    return a + b\n\n\ndef multiply(a, b):\n    return a * b\n"
TEST = """
from starc import sums

def test_sums():
    assert sums.add(2, 3) == 5 and sums.multiply(1, 1) == 1
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout of its own."""
    for name, text in {
        "src/starc/__init__.py": "",
        "src/starc/sums.py": SOURCE,
        "tests/test_sums.py": TEST,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return tmp_path


def test_the_list_fits_the_source() -> None:
    assert mutants.problems(mutants.MUTANTS) == []
    assert len({one[:3] for one in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 40


@pytest.mark.parametrize(
    ("chosen", "code"),
    [([KILLED], 0), ([KILLED, SURVIVES], 1), ([BREAKS], 2)],
    ids=["killed", "survives", "breaks"],
)
def test_survivors_are_named(
    root: Path, chosen: list[object], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert mutants.run(chosen, 1, root) == code
    out = capfd.readouterr().out
    assert ("killed: sums.py: 'a + b' -> 'a - b'" in out) == (KILLED in chosen)
    assert ("survived: sums.py: 'a * b' -> 'a / b'" in out) == (SURVIVES in chosen)
    assert ("broken (pytest says 2)" in out) == (BREAKS in chosen)
    assert (root / "src/starc/sums.py").read_text("utf-8") == SOURCE


def test_a_text_that_is_not_there_once_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, often = KILLED._replace(old="a % b"), KILLED._replace(old="(a, b)")
    lost = KILLED._replace(test="test_none.py::test_it")
    assert mutants.run([gone, often, lost], 1, root) == 2
    assert capsys.readouterr().err.splitlines() == [
        "sums.py: 'a % b' is there 0 times; it must be once",
        "sums.py: '(a, b)' is there 2 times; it must be once",
        "sums.py: no test file test_none.py::test_it",
    ]


def test_nothing_is_judged_by_tests_that_are_red_already(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (root / "tests/test_sums.py").write_text("def test_sums():\n    assert False\n", "utf-8")
    assert mutants.run([KILLED], 1, root) == 2
    assert "red before anything was changed" in capfd.readouterr().err
