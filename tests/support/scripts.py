"""The scripts in recipes/, benchmarks/, examples/ and dev/ as modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

NAMES = ("recipes", "benchmarks", "examples", "dev")
FOLDERS = [str(Path(__file__).parents[2] / name) for name in NAMES]


def script(name: str) -> ModuleType:
    """A script by its name; those it imports are found beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*FOLDERS, *sys.path])
        if not getattr(sys.modules.get(name), "__file__", None):
            # pytest knows the folders of tests/ as modules: viewer may be one of them.
            patch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)
