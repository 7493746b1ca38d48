"""A file or a folder is whole or not there."""

import subprocess
import sys
from pathlib import Path

import pytest

from starc.files.atomic import recover, replacing, replacing_folder, replacing_path


def test_a_finished_block_replaces(tmp_path: Path) -> None:
    target = tmp_path / "scores.csv"
    target.write_text("old")
    with replacing(target) as file:
        file.write("neu ✓")
        assert target.read_text() == "old"
    assert target.read_text(encoding="utf-8") == "neu ✓"
    assert [path.name for path in tmp_path.iterdir()] == ["scores.csv"]


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_broken_block_leaves_nothing(tmp_path: Path, failure: BaseException) -> None:
    target = tmp_path / "scores.csv"
    target.write_bytes(b"old")
    with pytest.raises(type(failure)), replacing(target, binary=True) as file:
        file.write(b"half")
        raise failure
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["scores.csv"]


def test_a_file_that_others_write_replaces_too(tmp_path: Path) -> None:
    target = tmp_path / "a.h5"
    target.write_text("old")
    with replacing_path(target) as part:
        part.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new" and target.stat().st_mode & 0o400
    with pytest.raises(ZeroDivisionError), replacing_path(target) as part:
        part.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "new" and list(tmp_path.iterdir()) == [target]


def test_a_folder_replaces_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    for text in ("first", "second"):
        with replacing_folder(folder) as fresh:
            (fresh / text).write_text(text)
        assert [path.name for path in folder.iterdir()] == [text]
    with pytest.raises(KeyboardInterrupt), replacing_folder(folder) as fresh:
        (fresh / "third").write_text("half")
        raise KeyboardInterrupt
    assert [path.name for path in folder.iterdir()] == ["second"]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


KILLED = """
import os, sys
from starc.files.atomic import replacing_folder
calls, replace = [], os.replace
def dying(source, target):
    if len(calls) == int(sys.argv[2]):
        os._exit(9)
    calls.append(target)
    replace(source, target)
os.replace = dying
with replacing_folder(sys.argv[1]) as fresh:
    (fresh / "new").write_text("new")
    if sys.argv[2] == "2":
        import shutil
        shutil.rmtree = lambda *_, **__: calls and os._exit(9)
"""


@pytest.mark.parametrize(("renames", "left"), [(0, "old"), (1, "old"), (2, "new")])
def test_a_kill_at_any_rename_leaves_one_whole_folder(
    tmp_path: Path, renames: int, left: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, folder, str(renames)], check=False)
    assert done.returncode == 9
    assert folder.exists() == (renames != 1)
    assert [path.name for path in recover(folder).iterdir()] == [left]
    with replacing_folder(folder) as fresh:
        (fresh / "newest").write_text("newest")
    assert [path.name for path in folder.iterdir()] == ["newest"]
    assert not (tmp_path / ".model.old").exists()
