"""A file or a folder is whole or not there."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from starc.files import atomic
from starc.files.atomic import recover, replacing, replacing_folder, replacing_path, sweep
from support.crash import power_failures


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


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name, held in (("there", True), ("to come", False)):
        link, target = tmp_path / f"{name}.csv", tmp_path / "elsewhere" / name
        link.symlink_to(target)
        if held:
            target.write_text("old")
        with replacing(link) as file:
            file.write("new")
        assert link.is_symlink() and target.read_text() == "new"
    link = tmp_path / "model"
    link.symlink_to(tmp_path / "elsewhere")
    with replacing_folder(link) as fresh:
        (fresh / "new").write_text("new")
    assert link.is_symlink() and [path.name for path in link.iterdir()] == ["new"]
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_device_a_pipe_and_a_folder_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "null").symlink_to("/dev/null")
    for path in ("pipe", "folder", "loop", "null", "/dev/full"):
        with pytest.raises(OSError, match="is a"), replacing(tmp_path / path) as file:
            file.write("x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
    assert len(list(tmp_path.iterdir())) == 4


def test_the_current_folder_is_not_replaced(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (".", "..", ""):
        with pytest.raises(OSError, match="the folder itself"), replacing_folder(name):
            pass
    assert not list(tmp_path.iterdir())


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("old")
    for mode in (0o600, 0o640, 0o664):
        secret.chmod(mode)
        with replacing(secret) as file:
            file.write("new")
        assert stat.S_IMODE(secret.stat().st_mode) == mode


def test_a_new_file_replaces_nothing(tmp_path: Path) -> None:
    target, first = tmp_path / "0001.json", threading.Barrier(8)
    won = []

    def write(number: int) -> None:
        first.wait()
        try:
            with replacing(target, new=True) as file:
                file.write(f"{number}" * 1000)
            won.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and target.read_text() == f"{won[0]}" * 1000
    assert list(tmp_path.iterdir()) == [target]


def test_what_a_kill_left_is_swept_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "YOUNG", -1.0)
    left = tmp_path / ".model.abcd1234.part"
    left.mkdir()
    (left / "weights").write_bytes(b"x")
    others = [".model2.abcd1234.part", ".model.part", ".model.mine.part", "model.abcd1234.part"]
    for name in others:
        (tmp_path / name).write_text("another's")
    with replacing_folder(tmp_path / "model") as alive:
        sweep([tmp_path / "model"])
        assert not left.exists() and alive.is_dir()
    with replacing_path(tmp_path / "model2") as part:
        sweep([tmp_path / "model2"])
        assert part.exists()
    assert {path.name for path in tmp_path.iterdir()} == {*others[1:], "model", "model2"}


def test_the_longest_name_there_is(tmp_path: Path) -> None:
    for name in ("a" * 255, "ü" * 127):
        with replacing(tmp_path / name) as file:
            file.write("x")
        assert (tmp_path / name).read_text() == "x"
        (tmp_path / name).unlink()
        for text in ("old", "new"):
            with replacing_folder(tmp_path / name) as folder:
                (folder / "file").write_text(text)
        assert (tmp_path / name / "file").read_text() == "new"
        sweep([tmp_path / name], alone=True)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_a_killed_writer_of_a_long_name_left_is_swept(tmp_path: Path) -> None:
    target = tmp_path / ("a" * 255)
    with replacing_path(target) as part:
        left = tmp_path / part.name.replace(".part", "x")
        os.link(part, left)
    left.rename(part)
    sweep([target], alone=True)
    assert not part.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the recorder reads /proc")
@pytest.mark.parametrize("new", [False, True])
def test_a_power_failure_leaves_the_old_file_or_the_new(tmp_path: Path, new: bool) -> None:
    disk, scratch = tmp_path / "disk", tmp_path / "scratch"
    disk.mkdir(), scratch.mkdir()
    target, saved = disk / "scores.csv", False
    if not new:
        target.write_text("old")

    def check(left: Path) -> None:
        file = left / target.name
        found = file.read_text() if file.exists() else None
        assert found in (("new",) if saved else (None, "new") if new else ("old", "new"))

    with power_failures(disk, check, scratch) as steps:
        with replacing(target, new=new) as file:
            file.write("new")
        saved = True
    assert [name for name, _ in steps if name != "unlink"] == [
        "fsync", "link" if new else "replace", "fsync",
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="the recorder reads /proc")
@pytest.mark.parametrize("killed", [False, True])
def test_a_power_failure_leaves_the_old_folder_or_the_new(tmp_path: Path, killed: bool) -> None:
    disk, scratch = tmp_path / "disk", tmp_path / "scratch"
    (disk / "model" / "datastore").mkdir(parents=True), scratch.mkdir()
    for name in ("config", "datastore/captions"):
        (disk / "model" / name).write_text("old")
    if killed:  # after a swap, before the old one was gone
        (disk / ".model.old").mkdir()
    saved = False

    def check(left: Path) -> None:
        folder = recover(left / "model")
        held = {
            str(path.relative_to(folder)): path.read_text()
            for path in folder.rglob("*")
            if path.is_file()
        }
        whole = [dict.fromkeys(("config", "datastore/captions"), text) for text in ("old", "new")]
        assert held in (whole[1:] if saved else whole)

    with power_failures(disk, check, scratch):
        with replacing_folder(disk / "model") as fresh:
            (fresh / "datastore").mkdir()
            for name in ("config", "datastore/captions"):
                (fresh / name).write_text("new")
        saved = True
