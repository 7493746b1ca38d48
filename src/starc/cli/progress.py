"""The two consoles of the command line, and its progress bars (on stderr, on a terminal only)."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

out = Console()
err = Console(stderr=True)


def bar(name: str, *more: str) -> Progress:
    """A bar that counts; `more` are further columns, such as "{task.fields[loss]}"."""
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    texts = (TextColumn(text) for text in more)
    return Progress(*columns, *texts, console=err, disable=not err.is_terminal)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def note(text: str, *, kind: str = "note") -> None:
    """A line for people, on stderr."""
    err.print(f"{kind}: {text}", highlight=False, markup=False, soft_wrap=True)
