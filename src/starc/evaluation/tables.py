"""A report as people read it: tables for the terminal, rows for a spreadsheet, JSON for a script.

Papers print scores × 100, and so do the tables; CSV and JSON keep the raw numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from starc.errors import StarcError
from starc.evaluation.compare import Difference
from starc.evaluation.meteor import Meteor
from starc.evaluation.report import CAPTION_METRICS, SECONDS, TIOUS, Report
from starc.files.atomic import replacing

_ORDER = ("CIDEr", "METEOR", "soda_c", "Bleu_4", "Bleu_3", "Bleu_2", "Bleu_1", "Rouge-L")
_PRINTED = {"soda_c": "SODA_c", "Rouge-L": "ROUGE-L"} | {
    f"Bleu_{n}": f"BLEU_{n}" for n in range(1, 5)
}


@contextmanager
def meteor_with_progress(console: Console) -> Iterator[Callable[[], Meteor]]:
    """A maker of one `Meteor`, with a bar while its paraphrase index is built."""
    bar = Progress(
        TextColumn("Indexing METEOR's paraphrases (once)"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tasks: list[Any] = []

    def advance(fraction: float) -> None:
        if not tasks:
            bar.start()
            tasks.append(bar.add_task("", total=1.0))
        bar.update(tasks[0], completed=fraction)
        if fraction >= 1:
            bar.stop()

    try:
        yield cache(lambda: Meteor(progress=advance))
    finally:
        bar.stop()


def show(
    out: Console,
    err: Console,
    reports: Sequence[Report],
    differences: Sequence[Difference],
    names: Sequence[object],
) -> None:
    """Print the tables to `out`, remarks to `err`."""
    report = reports[0]
    out.print(_captions(report))
    out.print()
    out.print(_places(report, "Localisation", [f"@{t}" for t in TIOUS], "mean"))
    out.print()
    out.print(_places(report, "Start within", [f"@{s}s" for s in SECONDS]))
    if differences:
        out.print()
        out.print(_differences(differences, names))
    quality = report.segments
    out.print(
        f"\nSegments: Recall@0.5 {100 * quality['Recall@0.5']:.2f} · mean IoU "
        f"{100 * quality['Mean IoU']:.2f} · {quality['Matched segments']:.0f} matched",
        highlight=False,
    )
    out.print(
        f"{report.predicted} of {report.total} videos predicted, {report.events} events",
        highlight=False,
    )
    out.print(report.signature, style="dim", highlight=False, soft_wrap=True)
    for note in dict.fromkeys(note for each in reports for note in each.notes):
        err.print(f"note: {note}", style="yellow", highlight=False, soft_wrap=True)


def _captions(report: Report) -> Table:
    table = _table("Captions", "mean", *(f"@{t}" for t in TIOUS))
    for name in _ORDER:
        if name in report.metrics:
            cells = [_percent(value) for value in report.per_tiou.get(name, [])]
            table.add_row(_PRINTED.get(name, name), _percent(report.metrics[name]), *cells)
    return table


def _places(report: Report, title: str, suffixes: Sequence[str], *means: str) -> Table:
    table = _table(title, *means, *suffixes)
    for name in ("F1", "Precision", "Recall"):
        if name in report.metrics:
            keys = [name for _ in means] + [f"{name}{suffix}" for suffix in suffixes]
            table.add_row(name, *(_percent(report.metrics[key]) for key in keys))
    return table


def _differences(differences: Sequence[Difference], names: Sequence[object]) -> Table:
    first, second = (Path(str(name)).stem for name in names)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Compared")
    for column in (first, second, "difference", "95 % interval", "p"):
        table.add_column(column, justify="right")
    for found in differences:
        style = "" if found.clear else "dim"
        table.add_row(
            _PRINTED.get(found.metric, found.metric),
            _percent(found.first),
            _percent(found.second),
            f"{100 * found.difference:+.2f}",
            f"{100 * found.low:+.2f} … {100 * found.high:+.2f}",
            f"{found.probability:.3f}",
            style=style,
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title, min_width=12)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def as_json(reports: Sequence[Report], differences: Sequence[Difference]) -> dict[str, Any]:
    """One report, or two and their differences."""
    if len(reports) == 1:
        return reports[0].to_json()
    return {
        "first": reports[0].to_json(),
        "second": reports[1].to_json(),
        "differences": [
            {
                "metric": found.metric,
                "difference": found.difference,
                "low": found.low,
                "high": found.high,
                "probability": found.probability,
            }
            for found in differences
        ],
    }


def write_per_video(report: Report, path: Path) -> None:
    """A CSV with a row per video; raw numbers."""
    columns = [name for name in (*CAPTION_METRICS, "soda_c") if name in report.per_video]
    columns += [name for name in report.per_video if "@" in name]
    try:
        with replacing(path) as file:
            writer = csv.writer(file)
            writer.writerow(["video", *columns])
            for v, video in enumerate(report.videos):
                writer.writerow([video, *(float(report.per_video[name][v]) for name in columns)])
    except OSError as error:
        raise StarcError(f"{path}: cannot be written ({error.strerror}); choose another") from None
