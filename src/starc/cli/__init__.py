"""The command line: parse, call the library, print. No logic, and no torch before it is needed.

Results go to stdout or a file, words to stderr. Exit 0 ok, 1 failed, 2 usage or bad input, 3 some
of a batch failed, 4 not captioned, 70 a bug of ours, 130 interrupted, 143 terminated. SIGTERM and
SIGHUP clean up as Ctrl-C does.
"""

from __future__ import annotations

import io
import logging
import os
import shlex
import signal
import sys
import time
import traceback
from contextlib import suppress
from types import FrameType
from typing import Annotated, NoReturn

import typer

from starc.cli import caption, data, datastore, doctor, research, score, view
from starc.cli.progress import VisibleFormatter
from starc.errors import StarcError
from starc.processor import prepare
from starc_eval.terminal import open_closed_streams, visible

app = typer.Typer(
    help="Dense video captioning: a long video in, timestamped captions out.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
ISSUES = "https://github.com/starc-captioning/starc/issues"
_state = {"debug": False, "terminated": False}


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"starc {version('starc')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    _state["debug"] = debug


app.command()(caption.caption)
app.command()(view.view)
app.command()(score.score)
app.command()(research.features)
app.command()(data.transcribe)
app.command("import")(research.import_checkpoint)
app.command()(research.train)
app.command()(research.evaluate)
app.command()(research.ablate)
app.command()(research.analyse)
app.command()(doctor.doctor)
research.data.command("convert")(data.convert)
app.add_typer(datastore.app, name="datastore")
app.add_typer(research.data, name="data")
app.add_typer(research.recipes, name="recipes")


def main() -> None:
    """Run the command line; one line on stderr for whatever a user can fix."""
    open_closed_streams()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(VisibleFormatter())
    prepare()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What the formats are in, in every locale; a name may hold bytes that are no text.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    _clean_up_on(signal.SIGTERM, getattr(signal, "SIGHUP", None))
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a full disk is told here and not at the very end
    except StarcError as error:
        if _state["debug"]:
            raise
        _end(str(error), error.exit_code)
    except (KeyboardInterrupt, SystemExit) as ended:
        if isinstance(ended, SystemExit) and ended.code != 130:  # what typer makes of Ctrl-C
            raise
        words, code = ("terminated", 143) if _state["terminated"] else ("interrupted", 130)
        with suppress(OSError, ValueError):  # the terminal may be gone
            sys.stderr.write(f"starc: {words}\n")
            sys.stderr.flush()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)  # files are whole by now; a recogniser under way would be waited for
    except BrokenPipeError:
        _drop_stdout()
        raise SystemExit(0) from None
    except OSError as error:
        if _state["debug"]:
            raise
        where = f"{error.filename}: " if error.filename is not None else ""
        _end(f"{where}{error.strerror or error}; check the path, its mode and the disk", 1)
    except MemoryError:
        _end("out of memory; use a smaller file or close other programs", 1)
    except Exception as error:
        if _state["debug"]:
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        _end(f"this is a bug ({what}); please report it at {ISSUES}{_kept_traceback()}", 70)


def _clean_up_on(*signals: int | None) -> None:
    """Let these signals end the program as Ctrl-C does, unless they are ignored (nohup)."""

    def handle(number: int, _: FrameType | None) -> None:
        for one in handled:
            signal.signal(one, signal.SIG_IGN)  # cleaning up is not interrupted by another
        _state["terminated"] = True
        raise KeyboardInterrupt

    def hang_up(number: int, _: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)  # for which the server of the page has its own handler

    found = [one for one in signals if one is not None]
    handled = [one for one in found if signal.getsignal(one) != signal.SIG_IGN]
    for one in handled:
        signal.signal(one, handle if one == signal.SIGTERM else hang_up)


def _end(words: str, code: int) -> NoReturn:
    """One line, and out; what stdout could not take is dropped."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"starc: {visible(words)}\n")
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _drop_stdout()
    raise SystemExit(code) from None


def _drop_stdout() -> None:
    """Let nothing of what is still to be written fail once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _kept_traceback() -> str:
    """Keep the traceback of what is being handled; words that say where."""
    from starc.files.cache import cache_folder, make_folder

    text = f"{shlex.join(sys.argv)}\n{traceback.format_exc()}"
    name = f"bug-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path = make_folder(cache_folder("bugs")) / name
        path.write_text(text, "utf-8", "backslashreplace")
    except (OSError, StarcError):
        return ", with what --debug shows"
    return f", with {path}"


if __name__ == "__main__":
    main()
