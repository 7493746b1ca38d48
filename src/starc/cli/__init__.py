"""The command line: parse, call the library, write. No logic, and no torch before it is needed.

Results go to stdout or a file, words to stderr. Exit 0 ok, 1 failed, 2 usage or bad input, 3 some
of a batch failed, 130 interrupted.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from starc.cli import research
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


@app.command()
def score(
    predictions: Annotated[Path, typer.Argument(help="What a system predicted.")],
    references: Annotated[list[Path], typer.Argument(help="One or more annotation files.")],
    protocol: Annotated[
        str, typer.Option(help="[b]published[/b], or [b]pdvc[/b]: missing videos count 0.")
    ] = "published",
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Skip reference videos without prediction.")
    ] = False,
    compare: Annotated[
        Path | None, typer.Option(help="A second system, with confidence over videos.")
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Split of a YouCook2 file to use.")] = None,
    per_video: Annotated[
        Path | None, typer.Option("--per-video", help="Write a CSV with a row per video.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Score predictions: CIDEr, METEOR, SODA_c, BLEU, ROUGE-L, precision, recall, F1."""
    from starc.evaluation import tables
    from starc.evaluation.compare import compare as compare_reports
    from starc.evaluation.report import score as score_files

    if protocol not in ("published", "pdvc"):
        raise typer.BadParameter(
            f"{protocol!r} is not one of published, pdvc", param_hint="--protocol"
        )
    with tables.meteor_with_progress(err) as meteor:
        reports = [
            score_files(
                file,
                references,
                protocol=protocol,  # type: ignore[arg-type]
                allow_missing=allow_missing,
                subset=subset,
                meteor=meteor,
            )
            for file in (predictions, compare)
            if file is not None
        ]
    differences = compare_reports(*reports) if compare else []
    if per_video:
        tables.write_per_video(reports[0], per_video)
    if as_json:
        _print_json(tables.as_json(reports, differences))
    else:
        tables.show(out, err, reports, differences, names=(predictions, compare))


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
def caption(
    inputs: Annotated[list[Path], typer.Argument(help="Videos, folders of them, lists (.txt).")],
    model: Annotated[
        str | None, typer.Option(help="A model folder or hub id; else the small embedded one.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file for one video, a folder for many.")
    ] = None,
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="json, vtt, srt, youtube, csv, html …")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="events, or chapters: no overlaps.")] = None,
    granularity: Annotated[float, typer.Option(help="Below 1 fewer and longer, above more.")] = 1.0,
    speech: Annotated[str, typer.Option(help="auto, none, an engine, or a file.")] = "auto",
    encoder: Annotated[
        str | None, typer.Option(help="Image encoder, if not the usual one.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray: many machines.")] = "local",
    resume: Annotated[bool, typer.Option(help="Skip what an earlier run has done.")] = True,
) -> None:
    """Caption videos. One video goes to a file or to stdout, many into a folder."""
    from starc.inference import caption as captions
    from starc.inference.batch import Output
    from starc.inference.pipeline import Options

    if model is None:
        model = str(captions.EMBEDDED)
        err.print(
            "Using the embedded model starc-tiny-youcook2: small, and it knows kitchens only. "
            "For a full-size one: --model FOLDER (docs/model-card.md)",
            highlight=False,
        )
    options = Options(**captions.hearing(speech))
    output = Output(mode=mode, granularity=granularity)  # type: ignore[arg-type]
    if captions.is_one(inputs, target):
        captioner = captions.open_captioner(model, options, encoder=encoder)
        done = captions.one(inputs[0], captioner, target, formats=formats or (), output=output)
        sys.stdout.write(done.text)
        for note in done.notes:
            err.print(f"note: {note}", highlight=False, markup=False)
        return
    with research.counting("Captioning") as bar:
        counts = captions.many(
            inputs, model, target, options, encoder=encoder, formats=formats or (), output=output,
            engine=engine, resume=resume, on_start=bar.begin, on_row=bar.row,
        )  # fmt: skip
    err.print(
        f"{counts.done} done, {counts.skipped} done before, {counts.failed} failed", highlight=False
    )
    raise typer.Exit(counts.exit_code)


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
    from starc.inference.caption import for_page, open_captioner
    from starc.inference.pipeline import Options

    return for_page(open_captioner(model, Options()))


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
