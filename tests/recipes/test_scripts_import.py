"""Scripts outside the package import only what the package has."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from support.scripts import FOLDERS, script

SCRIPTS = sorted(path for folder in FOLDERS for path in Path(folder).glob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_script_imports(path: Path) -> None:
    """Its top, and what its functions import of starc and take from its modules."""
    assert script(path.stem).__doc__
    modules = dict[str, str]()
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("starc"):
            continue
        module = importlib.import_module(str(node.module))
        for name in node.names:
            if not hasattr(module, name.name):
                importlib.import_module(f"{node.module}.{name.name}")
            if isinstance(getattr(module, name.name), type(ast)):
                modules[name.asname or name.name] = f"{node.module}.{name.name}"
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
        ):
            module = importlib.import_module(modules[node.value.id])
            assert hasattr(module, node.attr), f"{modules[node.value.id]} has no {node.attr}"
