"""The folder of a run: nothing of others in it is replaced or removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from starc.errors import CheckpointError, ConfigError
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.training.run import LOCK, MANIFEST, RECIPE, RunFolder
from support.tiny import tiny


def save(run: RunFolder, *steps: int) -> None:
    for step in steps:
        run.save(step, lambda half: checkpoint.save(half, STaRC(tiny())), {"step": step})


@pytest.mark.parametrize("name", [MANIFEST, "metrics.jsonl", "step-thesis/a.txt", "lock", "last/a"])
def test_a_folder_of_the_users_is_not_trained_into(tmp_path: Path, name: str) -> None:
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(ConfigError, match=r"holds .*, which is not of a run"):
        RunFolder(tmp_path, resume=False)
    assert mine.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


def test_other_files_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with RunFolder(tmp_path, resume=False) as run:
        save(run, 0)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_only_steps_of_the_run_are_removed(tmp_path: Path) -> None:
    with RunFolder(tmp_path, resume=False) as run:
        save(run, 0)
        (tmp_path / "step-notes").mkdir()
        save(run, 1)
        (tmp_path / "step-000001/why.txt").write_text("mine")
        save(run, 2, 3)
    steps = sorted(path.name for path in tmp_path.glob("step-*"))
    assert steps == ["step-000001", "step-000003", "step-notes"]
    assert (tmp_path / "step-000001/why.txt").read_text() == "mine"


def test_a_run_killed_at_its_beginning_begins_again(tmp_path: Path) -> None:
    with RunFolder(tmp_path, resume=False) as run:
        run.write(MANIFEST, {"state": 1})
    with RunFolder(tmp_path, resume=False) as run:
        run.write(MANIFEST, {"state": 2})
        run.write(RECIPE, {})
        assert run.read(MANIFEST) == {"state": 2}


def test_what_a_killed_save_left_is_swept(tmp_path: Path) -> None:
    RunFolder(tmp_path, resume=False).close()
    for name in (".half-000007", "..half-000007.abcd1234.part", ".half-thoughts"):
        (tmp_path / name).mkdir()
    RunFolder(tmp_path, resume=False).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".half-thoughts", LOCK]


def test_a_disk_that_torch_finds_full(tmp_path: Path) -> None:
    def full(half: Path) -> None:
        half.mkdir()
        raise RuntimeError("PytorchStreamWriter failed writing file data/0")

    with (
        RunFolder(tmp_path, resume=False) as run,
        pytest.raises(CheckpointError, match="step-000001: cannot be saved"),
    ):
        run.save(1, full, {})
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_what_a_kill_left_is_swept(tmp_path: Path) -> None:
    with RunFolder(tmp_path, resume=False) as run:
        run.write(RECIPE, {})
        save(run, 0)
    half, others = tmp_path / f".{RECIPE}.8v7kjh2d.part", tmp_path / ".thesis.8v7kjh2d.part"
    half.write_text("{")
    others.write_text("mine")
    with RunFolder(tmp_path, resume=True):
        assert not half.exists() and others.exists()
