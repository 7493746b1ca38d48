"""The scripts in recipes/ as modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"


def recipe(name: str) -> ModuleType:
    """A script by its name; those it imports are found beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(RECIPES), *sys.path])
        return importlib.import_module(name)
