"""The two consoles of the command line, and its progress bars (on stderr, on a terminal only)."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from starc_eval.terminal import visible

out = Console()
err = Console(stderr=True)
UNITS = {"watching": "frames", "listening": "seconds"}


def bar(name: str, *more: str) -> Progress:
    """A bar that counts; `more` are further columns, such as "{task.fields[loss]}"."""
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    texts = (TextColumn(text) for text in more)
    return Progress(*columns, *texts, console=err, disable=not err.is_terminal)


@contextmanager
def stages() -> Iterator[Callable[[str, float, float], None]]:
    """The bar of one video, which shows what it is told: stage, how far, how far it goes."""
    with bar("{task.description}", "{task.fields[unit]}") as progress:
        progress.live.transient = True
        task = progress.add_task("loading", total=None, unit="")

        def on_progress(stage: str, done: float, total: float) -> None:
            unit, whole = UNITS.get(stage, ""), int(total) or None
            progress.update(task, description=stage, completed=int(done), total=whole, unit=unit)

        yield on_progress


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    """A line of results on stdout, as it is: paths and captions may be long or hold brackets.

    A terminal is shown what it would otherwise obey.
    """
    text = visible(text) if out.is_terminal else text
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def tell(text: str) -> None:
    """A line for people, on stderr; whoever does not listen does not stop the work."""
    with suppress(OSError):
        err.print(visible(text), highlight=False, markup=False, soft_wrap=True)


def note(text: str, *, kind: str = "note") -> None:
    """A line for people that says what kind of line it is."""
    tell(f"{kind}: {text}")


class VisibleFormatter(logging.Formatter):
    """Formats the messages of the library, which name files."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record))
