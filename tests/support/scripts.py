"""The scripts in recipes/, benchmarks/ and examples/ as modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDERS = [str(Path(__file__).parents[2] / name) for name in ("recipes", "benchmarks", "examples")]


def script(name: str) -> ModuleType:
    """A script by its name; those it imports are found beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*FOLDERS, *sys.path])
        if not getattr(sys.modules.get(name), "__file__", None):
            # pytest knows the folders of tests/ as modules: viewer may be one of them.
            patch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)
