"""Fixtures of the evaluator's tests, which need neither torch nor starc."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

from starc_eval.meteor import Meteor

# The same examples in every run: a test that fails must fail for its author too.
settings.register_profile("starc-eval", derandomize=True, deadline=None)
settings.load_profile("starc-eval")

DATA = Path(__file__).resolve().parent / "data"
SHARED = Path(os.environ.get("STARC_SHARED") or DATA.parents[4] / "shared")


def _skip(reason: str) -> NoReturn:
    """Skip a test for want of something; in CI everything must be there."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with golden numbers and real data: $STARC_SHARED, or beside the checkout."""
    if not SHARED.is_dir():
        _skip("no golden numbers and real data; set STARC_SHARED to the folder that has them")
    return SHARED


@pytest.fixture(scope="session")
def data() -> Path:
    """Small files that belong to the tests."""
    return DATA


@pytest.fixture(scope="session")
def meteor_backend() -> Callable[[str], Meteor]:
    """Makes a `Meteor` by back end; without the C extension its tests skip, but not in CI."""
    made: dict[str, Meteor] = {}

    def make(backend: str) -> Meteor:
        if backend == "c" and importlib.util.find_spec("starc_eval._meteor") is None:
            if not shutil.which("cc"):
                pytest.skip("the C extension is not built: no C compiler")
            _skip("the C extension is not built")
        if backend not in made:
            made[backend] = Meteor(backend=backend)  # type: ignore[arg-type]
        return made[backend]

    return make
