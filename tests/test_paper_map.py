"""docs/paper.md and docs/deviations.md name things that exist."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from pathlib import Path

import pytest

from starc import config as configs
from starc.settings import override

DOCS = Path(__file__).parents[1] / "docs"
NAMES = sorted(set(re.findall(r"`(starc\.[\w.]+)`", (DOCS / "paper.md").read_text("utf-8"))))
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (DOCS / "deviations.md").read_text("utf-8").splitlines()
    if re.match(r"\| \d", line)
]


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_the_map_exists(name: str) -> None:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        path = ".".join(parts[:cut])
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise
            continue
        found = functools.reduce(getattr, parts[cut:], module)
        assert found.__doc__, f"{name} does not say which part of the paper it is"
        return
    pytest.fail(f"{name}: no such module")


def test_every_equation_of_the_paper_is_in_the_map(shared: Path) -> None:
    text = (DOCS / "paper.md").read_text("utf-8")
    labels = re.findall(r"\\label\{eq:(\w+)\}", (shared / "paper/starc.tex").read_text("utf-8"))
    assert len(labels) >= 11
    for label in labels:
        assert re.search(rf"\b{label}\b", text), label


def test_all_deviations_are_there() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, 26))
    assert all(len(row) == 7 for row in ROWS)


def test_the_settings_of_the_deviations_have_the_values_of_the_presets() -> None:
    for row in ROWS:
        if row[4].startswith("follows"):
            continue
        settings = re.findall(r"`([a-z]\w*(?:\.\w+)?)`", row[4])
        values = [re.findall(r"`?([\w.]+)`?", cell) for cell in row[5:7]]
        for turn, name in enumerate(settings):
            part = name.split(".")[0]
            if part not in {field.name for field in dataclasses.fields(configs.Config)}:
                continue  # of a recipe, or a command
            for preset, cell in zip((configs.paper(), configs.published()), values, strict=True):
                assert functools.reduce(getattr, name.split("."), preset) is not None, name
                if cell and len(cell) == len(settings) and cell[0] != "the":
                    assert override(preset, f"{name}={cell[turn]}") == preset, (name, cell)
