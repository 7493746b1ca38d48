"""A slice of the attack; `make attack` is the whole of it (docs/security.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from attack.run import Notes, run
from starc.files import atomic


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("part", ["inputs", "requests", "kills", "disks"])
def test_a_hundredth_of_the_attack(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(atomic, "YOUNG", -1.0)
    notes = run(0.01, part, Notes(None), place=tmp_path)
    if part == "disks" and not notes.tried("full disk: datastores"):
        pytest.skip("no small disk can be mounted here: needs root")
    assert notes.rows and not notes.failed


def test_the_attack_goes_on_where_it_stopped(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes.json")
    notes.add("videos", 25, ["7: crash"])
    again = Notes(tmp_path / "notes.json")
    assert again.tried("videos") == 25 and again.failed == ["videos: 7: crash"]
    assert "| videos | 25 | 24 | 1 |" in again.table()
