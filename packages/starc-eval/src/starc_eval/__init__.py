"""The evaluator: the numbers of the published one, without Java, in about a second.

from starc_eval import score
print(score("predictions.json", "reference.json").metrics["CIDEr"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from starc_eval.errors import AnnotationError, StarcError

if TYPE_CHECKING:
    from starc_eval.report import Report, compare, score

__all__ = ["AnnotationError", "Report", "StarcError", "compare", "score"]


def __getattr__(name: str) -> Any:
    """What needs numpy is imported when it is asked for: `starc --help` needs none of it."""
    if name in __all__:
        return getattr(import_module("starc_eval.report"), name)
    raise AttributeError(f"module 'starc_eval' has no attribute {name!r}")
