"""`starc score`: a report as tables for the terminal, rows for a spreadsheet, JSON for a script.

Papers print scores × 100, and so do the tables; CSV and JSON keep the raw numbers.
"""

from __future__ import annotations

import csv
import gc
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from starc.cli.progress import err, note, out, print_json
from starc.errors import StarcError
from starc.files.cache import check_target, write_text

if TYPE_CHECKING:
    from starc.evaluation.meteor import Meteor
    from starc.evaluation.report import Difference, Report

_PRINTED = {
    "CIDEr": "CIDEr",
    "METEOR": "METEOR",
    "soda_c": "SODA_c",
    **{f"Bleu_{n}": f"BLEU_{n}" for n in (4, 3, 2, 1)},
    "Rouge-L": "ROUGE-L",
}
"""Caption metrics in the order of the table, as it writes them."""

AnnotatorsOption = Annotated[
    str,
    typer.Option(
        "--annotators",
        help="Several annotators in one file (ViTT) are scored [b]apart[/b], as published, or "
        "[b]together[/b].",
    ),
]


Protocol = Annotated[
    str,
    typer.Option(
        help="published, pdvc (missing videos count 0), pdvc2018, paragraph, proposals, chapters "
        "or titles (docs/evaluation.md)."
    ),
]


Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a file that starc did not write.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def check_protocol(name: str) -> None:
    """A usage error unless there is such a protocol."""
    from starc.evaluation.report import PROTOCOLS

    if name not in PROTOCOLS:
        message = f"{name!r} is not one of {', '.join(PROTOCOLS)}"
        raise typer.BadParameter(message, param_hint="--protocol")


def score(
    predictions: Annotated[Path, typer.Argument(help="What a system predicted.")],
    references: Annotated[list[Path], typer.Argument(help="One or more annotation files.")],
    protocol: Protocol = "published",
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Skip reference videos without prediction.")
    ] = False,
    compare: Annotated[
        Path | None,
        typer.Option(
            help="Predictions of a second system, compared by a paired bootstrap over videos."
        ),
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Split of a YouCook2 file to use.")] = None,
    annotators: AnnotatorsOption = "apart",
    one_text: Annotated[
        bool,
        typer.Option("--one-text", help="Tokenise all captions as one text, as published."),
    ] = False,
    per_video: Annotated[
        Path | None, typer.Option("--per-video", help="Write a CSV with a row per video.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Score predictions: CIDEr, METEOR, SODA_c, BLEU, ROUGE-L, precision, recall, F1."""
    from starc import evaluation

    check_protocol(protocol)
    require_annotators(annotators)
    if per_video:
        check_target(per_video, overwrite=overwrite)
    files = [predictions] if compare is None else [predictions, compare]
    with _without_garbage_collection(), meteor_with_progress() as meteor:
        reports = [
            evaluation.score(
                file,
                references,
                protocol=protocol,  # type: ignore[arg-type]
                allow_missing=allow_missing,
                subset=subset,
                annotators=annotators,  # type: ignore[arg-type]
                one_text=one_text,
                meteor=meteor,
            )
            for file in files
        ]
    differences = evaluation.compare(*reports) if compare else []
    if per_video:
        write_per_video(reports[0], per_video, overwrite=overwrite)
    if not as_json:
        return show(reports, differences, names=[file.stem for file in files])
    if not compare:
        return print_json(reports[0].to_json())
    first, second = reports
    rows = [{**asdict(each), "difference": each.difference} for each in differences]
    print_json({"first": first.to_json(), "second": second.to_json(), "differences": rows})


def require_annotators(value: str) -> None:
    if value not in ("apart", "together"):
        message = f"{value!r} is not one of apart, together"
        raise typer.BadParameter(message, param_hint="--annotators")


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Looking for cycles among a million captions takes a tenth of the time and finds none."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def meteor_with_progress() -> Iterator[Callable[[], Meteor]]:
    """A maker of one `Meteor`, with a bar while its paraphrase index is built."""
    from starc.evaluation.meteor import Meteor

    title, percentage = "Indexing METEOR's paraphrases (once)", "{task.percentage:>3.0f} %"
    columns = (TextColumn(title), BarColumn(), TextColumn(percentage), TimeRemainingColumn())
    hidden = not err.is_terminal
    with Progress(*columns, console=err, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=1.0, visible=False)

        def advance(fraction: float) -> None:
            bar.update(task, completed=fraction, visible=fraction < 1)

        yield cache(lambda: Meteor(progress=advance))


def show(
    reports: Sequence[Report], differences: Sequence[Difference] = (), names: Sequence[str] = ()
) -> None:
    """Print the tables of the first report and the comparison to stdout, notes to stderr."""
    from starc.evaluation.report import LOCALISATION, SECONDS, TIOUS

    report = reports[0]
    at_tious, at_seconds = [f"@{t}" for t in TIOUS], [f"@{s}s" for s in SECONDS]
    tables = []
    if captions := [name for name in _PRINTED if name in report.metrics]:
        tables.append(
            _table("Captions", "mean", *at_tious) if report.per_tiou else _table("Text", "")
        )
    for name in captions:
        values = [report.metrics[name], *report.per_tiou.get(name, [])]
        tables[-1].add_row(_PRINTED[name], *map(_percent, values))
    places = {"Localisation": ["", *at_tious], "Start within": at_seconds}
    if report.protocol == "chapters":
        places = {"Boundaries": ["@5s", "@3s", "@0.5", "@0.7"]}
    for title, suffixes in places.items() if "F1" in report.metrics else ():
        tables.append(_table(title, *(suffix or "mean" for suffix in suffixes)))
        for name in LOCALISATION:
            values = [report.metrics[name + suffix] for suffix in suffixes]
            tables[-1].add_row(name, *map(_percent, values))
    if differences:
        tables.append(_table("Compared", *names, "difference", "95 % interval", "p", width=None))
    for each in differences:
        tables[-1].add_row(
            _PRINTED.get(each.metric, each.metric),
            _percent(each.first),
            _percent(each.second),
            f"{100 * each.difference:+.2f}",
            f"{100 * each.low:+.2f} … {100 * each.high:+.2f}",
            f"{each.probability:.3f}",
            style="" if each.clear else "dim",
        )
    for table in tables:
        out.print(table)
        out.print()
    if quality := report.segments:
        out.print(
            f"Segments: Recall@0.5 {_percent(quality['Recall@0.5'])} · mean IoU "
            f"{_percent(quality['Mean IoU'])} · {quality['Matched segments']:.0f} matched",
            highlight=False,
        )
    out.print(
        f"{report.predicted} of {report.total} videos predicted, {report.events} events",
        highlight=False,
    )
    out.print(report.signature, style="dim", highlight=False, soft_wrap=True)
    for text in dict.fromkeys(text for each in reports for text in each.notes):
        note(text)


def _table(title: str, *columns: str, width: int | None = 12) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title, min_width=width)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def write_per_video(report: Report, path: Path, *, overwrite: bool) -> None:
    """A CSV with a row per video; raw numbers."""
    from starc.output.formats import cell

    columns: dict[str, Any] = {name: x for name, x in report.per_video.items() if "@" not in name}
    columns |= report.per_video
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["video", *columns])
    values = [column.tolist() for column in columns.values()]
    writer.writerows(zip(map(cell, report.videos), *values, strict=True))
    save(path, file.getvalue(), overwrite=overwrite)


def save(path: Path, text: str, *, overwrite: bool) -> None:
    """A file of ours, or one line that says why not."""
    try:
        write_text(path, text, overwrite=overwrite)
    except OSError as error:
        raise StarcError(f"{path}: cannot be written ({error.strerror}); choose another") from None
