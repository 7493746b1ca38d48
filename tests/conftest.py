"""Fixtures for all tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from support.needs import SHARED, skip

if TYPE_CHECKING:
    from starc.evaluation.meteor import Meteor

# The same examples in every run: a test that fails must fail for its author too.
settings.register_profile("starc", derandomize=True, deadline=None)
settings.load_profile("starc")

# Programs that tests start find tests/support as the tests do.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)

DATA = Path(__file__).resolve().parent / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with golden numbers and real data: $STARC_SHARED, or beside the checkout."""
    if not SHARED.is_dir():
        skip("no golden numbers and real data; set STARC_SHARED to the folder that has them")
    return SHARED


@pytest.fixture(scope="session")
def data() -> Path:
    """Small files that belong to the tests."""
    return DATA


@pytest.fixture(scope="session")
def meteor_backend() -> Callable[[str], Meteor]:
    """Makes a `Meteor` by back end; without the C extension its tests skip, but not in CI."""
    from starc.evaluation.meteor import Meteor

    made: dict[str, Meteor] = {}

    def make(backend: str) -> Meteor:
        if backend == "c" and importlib.util.find_spec("starc.evaluation._meteor") is None:
            if not shutil.which("cc"):
                pytest.skip("the C extension is not built: no C compiler")
            skip("the C extension is not built")
        if backend not in made:
            made[backend] = Meteor(backend=backend)  # type: ignore[arg-type]
        return made[backend]

    return make
