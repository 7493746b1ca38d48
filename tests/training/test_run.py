"""The folder of a run: nothing of others in it is replaced or removed."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from starc.errors import CheckpointError, ConfigError
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.training.run import CHECKSUMS, LOCK, MANIFEST, RECIPE, STATE, RunFolder
from support.crash import power_failures
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


@pytest.mark.parametrize("name", ["model.safetensors", STATE])
def test_a_flipped_bit_is_noticed_on_resume(tmp_path: Path, name: str) -> None:
    with RunFolder(tmp_path, resume=False) as run:
        run.write(RECIPE, {})
        save(run, 0)
    file, places = tmp_path / "last" / name, random.Random(1)
    whole = file.read_bytes()
    for _ in range(24):
        place = places.randrange(len(whole))
        flipped = bytes([whole[place] ^ 1 << places.randrange(8)])
        file.write_bytes(whole[:place] + flipped + whole[place + 1 :])
        with pytest.raises(CheckpointError, match=rf"{name}: damaged or edited"):
            RunFolder(tmp_path, resume=True)
    file.write_bytes(whole)
    RunFolder(tmp_path, resume=True).close()
    (tmp_path / "last" / CHECKSUMS).write_text('["nothing"')
    with pytest.raises(CheckpointError, match=rf"{CHECKSUMS}: cannot be compared"):
        RunFolder(tmp_path, resume=True)
    (tmp_path / "last" / CHECKSUMS).unlink()  # as steps of earlier versions are
    RunFolder(tmp_path, resume=True).close()


@pytest.mark.skipif(sys.platform != "linux", reason="the recorder reads /proc")
def test_a_power_failure_leaves_a_step_to_go_on_from(tmp_path: Path) -> None:
    disk, scratch, saved = tmp_path / "disk", tmp_path / "scratch", 0
    scratch.mkdir()

    def write(half: Path) -> None:
        half.mkdir()
        (half / "config.json").write_text('{"starc_model": 2}')
        (half / "model.safetensors").write_bytes(bytes(100))

    def check(left: Path) -> None:
        with RunFolder(left, resume=True) as run:  # compares the checksums
            state = run.state()
            assert state is not None and state["step"] in (saved, saved + 1)
            last = run.linked("last")
            assert last is not None and (last / "model.safetensors").stat().st_size == 100

    with RunFolder(disk, resume=False) as run:
        run.write(RECIPE, {})
        run.save(0, write, {"step": 0})
        with power_failures(disk, check, scratch) as steps:
            for step in (1, 2):
                run.save(step, write, {"step": step})
                saved = step
    assert any(name == "fsync" and path.endswith(STATE) for name, path in steps)
    assert [path.name for path in sorted(disk.glob("step-*"))] == ["step-000002"]
