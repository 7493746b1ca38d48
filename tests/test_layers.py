"""Data walks through the house in one direction: a file imports only from earlier rooms."""

import ast
import re
from pathlib import Path

import starc
import starc_eval

ROOT = Path(starc.__file__).parent
BASE = {"types", "errors", "config", "processor"}
# What each room may import besides itself and the base: the order in which data walks.
ROOMS: dict[str, set[str]] = {
    "files": set(),
    "media": {"files"},
    "decoder": set(),
    "retrieval": {"files", "media"},
    "model": {"files", "media", "decoder", "retrieval"},
    "output": {"files", "media"},
    "inference": {"files", "media", "decoder", "retrieval", "model", "output"},
    "methods": {"files"},
    "training": {"files", "media", "decoder", "retrieval", "model", "methods", "inference"},
    "viewer": {"files", "media"},
}
ROOMS["cli"] = {*ROOMS}
ROOMS["__main__"] = {"cli"}


def imported(file: Path) -> set[str]:
    """Names below `starc` that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: relative import"
            module = node.module or ""
            if module == "starc":
                found |= {alias.name for alias in node.names}
            elif module.startswith("starc."):
                found.add(module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("starc.")}
    return found


def test_imports_follow_the_layers() -> None:
    for file in ROOT.rglob("*.py"):
        room = file.relative_to(ROOT).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        allowed = BASE if room in BASE else BASE | {room} | ROOMS[room]
        assert imported(file) <= allowed | {"__version__"}, f"{file.relative_to(ROOT)} looks up"


def test_the_nouns_need_no_torch() -> None:
    for name in BASE:
        text = (ROOT / f"{name}.py").read_text("utf-8")
        assert "\nimport torch" not in text, f"{name}.py"


def test_no_room_for_odds_and_ends() -> None:
    names = {file.stem for file in ROOT.rglob("*.py")}
    assert not names & {"utils", "util", "misc", "common", "helpers"}


def test_the_tour_names_every_module_once() -> None:
    tour = (ROOT.parents[1] / "ARCHITECTURE.md").read_text("utf-8")
    rooms = dict(re.findall(r"^### `(\w+)/`.*?\n(.*?)(?=^##|\Z)", tour, flags=re.S | re.M))
    rooms[""] = re.search(r"^### The base.*?(?=^### )", tour, flags=re.S | re.M)[0]  # type: ignore[index]
    for folder in (ROOT, *(path for path in ROOT.iterdir() if (path / "__init__.py").is_file())):
        room = "" if folder == ROOT else folder.name
        named = re.findall(r"`(\w+\.py)`", rooms[room])
        files = {file.name for file in folder.glob("*.py")}
        if room not in ("", "cli"):
            files -= {"__init__.py"}
        assert sorted(named) == sorted(files), f"{room or 'the base'}: {set(named) ^ files}"
    evaluator = re.search(r"^### `packages/starc-eval/`.*?(?=^##)", tour, flags=re.S | re.M)
    files = {file.name for file in Path(starc_eval.__file__).parent.glob("[!_]*.py")}
    assert evaluator and sorted(re.findall(r"`(\w+\.py)`", evaluator[0])) == sorted(files)
