"""The table of docs/data.md: commands on real files give what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from starc.cli import app

PAGE = (Path(__file__).parents[2] / "docs/data.md").read_text("utf-8")
ROWS = re.findall(r"^\| [^|]+ \| `starc (data convert [^`]+)` \| ([^|]+) \|$", PAGE, flags=re.M)


def test_the_table_is_found() -> None:
    assert len([line for _, line in ROWS if "accounts of" in line]) == 5
    for name in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (Path(__file__).parents[2] / name).is_file(), name


@pytest.mark.parametrize(("command", "said"), [row for row in ROWS if "accounts of" in row[1]])
def test_annotations_are_converted(
    command: str, said: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shared / "data")
    arguments = shlex.split(command.replace("OUT.jsonl", str(tmp_path / "out.jsonl")))
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    assert said in " ".join(ended.output.split())
