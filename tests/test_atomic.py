"""A file is whole or not there."""

from pathlib import Path

import pytest

from starc.atomic import replacing


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
