"""docs/paper.md and docs/deviations.md name things that exist, in every row."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from starc import config as configs
from starc.config import override
from starc.training import recipes

ROOT = Path(__file__).parents[1]
PAPER, DEVIATIONS = (
    (ROOT / "docs" / name).read_text("utf-8") for name in ("paper.md", "deviations.md")
)


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows, headings left out."""
    lines = text.splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line, before in zip(lines[1:], lines, strict=False)
        if line.startswith("| ") and before.startswith("|")
    ]


NUMBERED = [row for row in rows(DEVIATIONS) if row[0].isdecimal()]
OTHER_CODE = {
    "anchor_KD": "a parameter of STaRC",
    "config.json": "of a model folder",
    "int(99 t / duration)": "arithmetic of the published code",
    "torch.topk": "of PyTorch",
}
"""Spans of code that name nothing of ours that a test could look up."""


def existing(name: str) -> Any:
    """What a dotted name stands for."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        path = ".".join(parts[:cut])
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise
            continue
        return functools.reduce(getattr, parts[cut:], module)
    raise AttributeError(f"{name}: no such module")


def apply(whole: recipes.Recipe, setting: str) -> recipes.Recipe:
    """A setting as the documents write it: of the recipe, or of its model."""
    top = setting.partition("=")[0].partition(".")[0]
    inside = top not in ("model", "train")
    return override(whole, f"model.{setting}" if inside else setting)


def value_of(whole: recipes.Recipe, setting: str) -> Any:
    top = setting.partition(".")[0]
    part = whole if top in ("model", "train") else whole.model
    return functools.reduce(getattr, setting.split("."), part)


def check_code(span: str) -> None:
    """One span of code in the documents: a name, a file, a setting, a value or a command."""
    presets = (recipes.youcook2(), recipes.published())
    if span in OTHER_CODE or span in ("true", "false", "half", "tile", "plain", "refined"):
        return
    if re.fullmatch(r"starc(\.\w+)+", span):
        existing(span)
    elif re.fullmatch(r"[\w/]+/[\w.]+", span):
        assert (ROOT / span).exists(), f"{span}: no such file"
    elif span.startswith(("starc ", "--")):
        commands = "".join(path.read_text("utf-8") for path in (ROOT / "src/starc/cli").iterdir()
                           if path.suffix == ".py")  # fmt: skip
        for flag in re.findall(r"--([a-z-]+)", span):
            named = rf'"--{flag}"|\b{flag.replace("-", "_")}: Annotated'
            assert re.search(named, commands), f"{span}: no flag --{flag}"
        for setting in re.findall(r"--set (\S+)", span):
            recipes.apply_overrides(presets[0], [setting])
    elif "=" in span:
        apply(presets[0], span)
    elif span not in recipes.RECIPES and not callable(getattr(configs, span, None)):
        assert [value_of(whole, span) for whole in presets], f"{span}: no such setting"


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(starc\.[\w.]+)`", PAPER))))
def test_every_name_of_the_map_exists_and_is_described(name: str) -> None:
    assert existing(name).__doc__, f"{name} does not say which part of the paper it is"


def test_every_row_of_the_map_names_code() -> None:
    assert len(rows(PAPER)) >= 45
    for row in rows(PAPER):
        if not set(row[-1]) <= set("-: "):
            assert "`starc." in row[-1] or row[-1] == "code", row


@pytest.mark.parametrize("document", ["paper", "deviations"])
def test_all_code_in_the_documents_exists(document: str) -> None:
    text = {"paper": PAPER, "deviations": DEVIATIONS}[document]
    spans = re.findall(r"`([^`]+)`", text)
    assert len(spans) > 40
    prefix = ""
    for span in spans:
        if span.startswith(".") and document == "deviations":  # `transport.entropy`, `.structure`
            span = prefix + span
        elif re.fullmatch(r"[a-z]\w*\.\w+", span):
            prefix = span.partition(".")[0]
        try:
            check_code(span)
        except Exception as error:
            pytest.fail(f"docs/{document}.md: `{span}`: {error}")


def test_every_equation_of_the_paper_is_in_the_map(shared: Path) -> None:
    source = (shared / "paper/starc.tex").read_text("utf-8")
    labels = re.findall(r"\\label\{eq:(\w+)\}", source)
    assert len(labels) >= 11
    for label in labels:
        assert re.search(rf"\b{label}\b", PAPER), label


def test_all_deviations_are_there() -> None:
    assert [int(row[0]) for row in NUMBERED] == list(range(1, 33))
    assert all(len(row) == 7 for row in NUMBERED)


@pytest.mark.parametrize("row", NUMBERED, ids=lambda row: f"{row[0]} {row[1]}")
def test_the_settings_of_a_deviation_have_the_values_of_the_presets(row: list[str]) -> None:
    if row[4].startswith("follows"):
        return
    spans = re.findall(r"`([^`]+)`", row[4])
    presets = [recipes.youcook2(), recipes.published()]
    if row[4].startswith("recipe "):
        presets = [recipes.recipe(spans[0])] * 2
    prefix, settings = "", []
    for span in spans:
        if re.fullmatch(r"(\w+)?\.\w+|mask_padding", span):
            settings.append(prefix + span if span.startswith(".") else span)
            prefix = span.partition(".")[0] or prefix
    if not settings:
        assert row[4].startswith("none") and row[5] == row[6] == "", "say `none`, or name a setting"
        return
    for preset, cell in zip(presets, row[5:7], strict=True):
        if cell == "the same":
            assert all(value_of(preset, setting) is not None for setting in settings)
            continue
        values = [value.strip(" `") for value in cell.split(",")]
        for setting, value in zip(settings, values, strict=True):
            assert apply(preset, f"{setting}={value}") == preset, (setting, value)
