"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from support.needs import SHARED, skip

if TYPE_CHECKING:
    from starc_eval.meteor import Meteor

# The same examples in every run: a test that fails must fail for its author too.
settings.register_profile("starc", derandomize=True, deadline=None)
settings.load_profile("starc")

# Programs that tests start find tests/support as the tests do.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# A shell without job control, and nohup, start programs that ignore these; those that tests start
# must not inherit it.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (getattr(signal, "SIGHUP", None), signal.SIG_DFL),
):
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

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
def eval_data() -> Path:
    """Small prediction and reference files, which belong to the tests of starc-eval."""
    return DATA.parents[1] / "packages/starc-eval/tests/data/eval"


@pytest.fixture(scope="session")
def meteor_backend() -> Callable[[str], Meteor]:
    """Makes a `Meteor` by back end, once."""
    from starc_eval.meteor import Meteor

    return cache(lambda backend: Meteor(backend=backend))
