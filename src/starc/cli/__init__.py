"""The command line: parse, call the library, print. No logic, and no torch before it is needed.

Results go to stdout or a file, words to stderr. Exit 0 ok, 1 failed, 2 usage or bad input, 3 some
of a batch failed, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from starc.cli import caption, data, datastore, doctor, research, score, view
from starc.errors import StarcError

app = typer.Typer(
    help="Dense video captioning: a long video in, timestamped captions out.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_state = {"debug": False}


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
    """Run the command line; one line on stderr for whatever a user can mend."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # what the formats are in, in every locale
    try:
        app()
    except StarcError as error:
        if _state["debug"]:
            raise
        sys.stderr.write(f"starc: {error}\n")
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        sys.stderr.write("starc: interrupted\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)  # files are whole by now; a recogniser under way would be waited for
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(0) from None


if __name__ == "__main__":
    main()
