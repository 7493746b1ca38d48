"""What tests need from outside, and what happens without it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

SHARED = Path(os.environ.get("STARC_SHARED") or Path(__file__).resolve().parents[3] / "shared")
"""Golden numbers and real data: $STARC_SHARED, or `shared` beside the checkout."""


def skip(reason: str) -> NoReturn:
    """Skip a test for want of something; in CI everything must be there."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
