"""The grammar of cooking steps and the file it wrote."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from starc.retrieval.captions import duplicates, read_captions
from support import scripts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return scripts.script("cooking_steps")


@pytest.fixture(scope="module")
def steps(recipe: ModuleType) -> list[str]:
    found: list[str] = recipe.cooking_steps()
    return found


def test_the_same_seed_gives_the_same_steps(recipe: ModuleType, steps: list[str]) -> None:
    assert recipe.cooking_steps(300) == steps[:300]
    assert recipe.cooking_steps(300, seed=1) != steps[:300]


def test_the_shipped_datastore_is_what_the_script_writes(steps: list[str]) -> None:
    shipped = ROOT / "src/starc/assets/small-youcook2/datastore/captions.jsonl"
    lines = shipped.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"caption": step, "video": None} for step in steps
    ]
    assert read_captions(shipped).captions == tuple(steps)


def test_steps_are_distinct_and_of_a_cooks_length(recipe: ModuleType, steps: list[str]) -> None:
    assert len(steps) == recipe.COUNT
    assert duplicates(steps).exact == duplicates(steps).near == []
    shortest, longest = recipe.WORDS
    assert all(shortest <= len(step.split()) <= longest for step in steps)
    assert all(step == " ".join(step.lower().split()) for step in steps)


def test_no_sign_of_the_grammar_is_left(steps: list[str]) -> None:
    text = "\n".join(steps)
    assert not set(text) & set("[]{}|@*+,.")
    for clumsy in ("the some ", "the a ", "and and ", " and\n", "some the ", "some some "):
        assert clumsy not in text


def test_a_dish_with_what_it_does_not_have_is_left_out(recipe: ModuleType) -> None:
    grammar = recipe.read_grammar()
    meatless = recipe.Dish(
        1.0, frozenset({"eggs"}), {}, {"add": [("whisk {egg}", 1.0), ("fry {meat}", 1.0)]}
    )
    written = set()
    for seed in range(20):
        try:
            written.add(recipe.Writer(grammar, meatless, recipe.random.Random(seed)).step())
        except recipe.Absent:
            written.add("")
    assert written == {"", "whisk eggs", "whisk egg", "whisk two eggs"}


def test_an_unknown_ingredient_is_named(recipe: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "grammar.toml"
    text = recipe.GRAMMAR.read_text(encoding="utf-8")
    path.write_text(text.replace('has = "ground beef, ', 'has = "unobtainium, ', 1), "utf-8")
    with pytest.raises(SystemExit, match=r"hamburger has 'unobtainium'"):
        recipe.read_grammar(path)


def test_no_step_is_a_caption_of_youcook2(
    recipe: ModuleType, steps: list[str], shared: Path
) -> None:
    youcook2 = [shared / f"data/yc2/vid2seq_{split}.json" for split in ("train", "val")]
    assert recipe.met(steps, youcook2) == []
