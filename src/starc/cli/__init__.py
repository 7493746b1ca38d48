"""The command line: parse, call the library, write. No logic, and no torch before it is needed.

Results go to stdout or a file, words to stderr. Exit 0 ok, 1 failed, 2 usage or bad input, 3 some
of a batch failed, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from starc.cli import caption as captioning
from starc.cli import research, score
from starc.errors import MissingExtra, StarcError

app = typer.Typer(
    help="Dense video captioning: a long video in, timestamped captions out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
out = Console()
err = Console(stderr=True)
_state = {"debug": False}


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    _state["debug"] = debug


app.command()(score.score)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Tell what is installed, what is missing, and the command that adds it."""
    from dataclasses import asdict

    from rich.table import Table

    from starc.cli.doctor import examine

    findings = examine()
    if as_json:
        return _print_json([asdict(finding) for finding in findings])
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        mark = "[green]✓[/green]" if finding.ok else "[yellow]–[/yellow]"
        advice = "" if finding.ok else f"[dim]→ {finding.advice}[/dim]"
        table.add_row(
            mark,
            finding.name.replace("[", r"\["),
            finding.found,
            advice.replace("starc[", r"starc\["),
        )
    out.print(table)


@app.command()
def view(
    what: Annotated[list[Path], typer.Argument(help="Captioned JSON, a video, or folders.")],
    host: Annotated[
        str, typer.Option(help="Other than this machine: wants a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option()] = 8350,
    token: Annotated[str | None, typer.Option(help="Made up where one is needed.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Annotations to show beside.")] = None,
    compare: Annotated[Path | None, typer.Option(help="A second system's folder.")] = None,
    model: Annotated[str | None, typer.Option(help="Caption from the page with this.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the page at once.")] = True,
) -> None:
    """Watch, check and correct captions in a page on this machine."""
    try:
        from starc.viewer.server import serve
    except ModuleNotFoundError:
        raise MissingExtra("the viewer", "viewer") from None
    from starc.output import formats

    kinds = {
        n: f.ending.lstrip(".") for n, f in formats.FORMATS.items() if f.render and n != "json"
    }
    serve(
        what, host=host, port=port, token=token, reference=reference, compare=compare,
        announce=lambda url: err.print(f"starc: {url}"), open_browser=browser, formats=kinds,
        export=lambda c, f: (formats.render(c, format=f)[0].encode(), "text/plain; charset=utf-8"),
        caption=_captioning(model) if model else None,
    )  # fmt: skip


def _captioning(model: str) -> Any:
    """Captioning as the page wants it: told of each stage, and stopped when it is cancelled."""
    from starc.inference.pipeline import Captioner

    captioner = Captioner(research.model_name(model))

    class Cancelled(threading.Event):
        def __init__(self, asked: Callable[[], bool]) -> None:
            super().__init__()
            self.asked = asked

        def is_set(self) -> bool:
            return self.asked() or super().is_set()

    return lambda path, progress, cancelled: captioner.caption(
        path, stop=Cancelled(cancelled), on_progress=progress
    )


app.command()(captioning.caption)
app.command()(research.features)
app.command("import")(research.import_checkpoint)
app.command()(research.train)
app.command()(research.evaluate)
app.command()(research.ablate)
app.command()(research.analyse)
app.add_typer(research.data, name="data")
app.add_typer(research.datastore, name="datastore")


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    """Run the command line; one line on stderr for whatever a user can mend."""
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
