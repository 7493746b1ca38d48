"""What a command line needs of its terminal: streams that are open, and lines that are lines."""

from __future__ import annotations

import os
import re
import sys

_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""A line as a terminal shows it: a file's name may hold line breaks and escape sequences.

    Control characters and those that turn the direction of writing become `\n`, `\x1b` and so on.
    """
    return _UNSEEN.sub(lambda sign: sign[0].encode("unicode_escape").decode("ascii"), text)


def open_closed_streams() -> None:
    """Nothing is read from a closed stdin, and nothing can be written to a closed stdout.

    Left closed, its number would go to the next file that is opened.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken. Writing to what is open for reading fails.
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115
