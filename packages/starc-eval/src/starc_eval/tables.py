"""A report as tables for the terminal and as rows for a spreadsheet.

Papers print scores × 100, and so do the tables; the rows keep the raw numbers.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from starc_eval.annotations import cell
from starc_eval.queries import GROUNDING_TIOUS
from starc_eval.repetition import REPETITION
from starc_eval.report import (
    LOCALISATION,
    LOCALISED_DUPLICATES,
    QUERIES,
    SECONDS,
    TIOUS,
    Difference,
    Report,
)
from starc_eval.segmentation import SEGMENTATION
from starc_eval.terminal import visible

BOLD, DIM = "\033[1m", "\033[2m"
_PRINTED = {
    "CIDEr": "CIDEr",
    "METEOR": "METEOR",
    "soda_c": "SODA_c",
    "soda_m": "SODA_m",
    **{f"Bleu_{n}": f"BLEU_{n}" for n in (4, 3, 2, 1)},
    "Rouge-L": "ROUGE-L",
}
"""Caption metrics in the order of the table, as it writes them."""
Row = tuple[list[str], str]


def show(
    reports: Sequence[Report], differences: Sequence[Difference] = (), names: Sequence[str] = ()
) -> None:
    """Print the tables of the first report and the comparison to stdout, notes to stderr."""
    report = reports[0]
    at_tious, at_seconds = [f"@{t}" for t in TIOUS], [f"@{s}s" for s in SECONDS]
    if captions := [name for name in _PRINTED if name in report.metrics]:
        title = ["Captions", "mean", *at_tious] if report.per_tiou else ["Text", ""]
        values = {name: [report.metrics[name], *report.per_tiou.get(name, [])] for name in captions}
        _print_table(
            title, [([_PRINTED[name], *map(_percent, values[name])], "") for name in values]
        )
    places = {"Localisation": ["", *at_tious], "Start within": at_seconds}
    if report.protocol in ("chapters", "vidchapters2023"):
        places = {"Boundaries": ["@5s", "@3s", "@0.5", "@0.7"]}
    for place, suffixes in places.items():
        if f"Recall{suffixes[-1]}" in report.metrics:
            rows = [([name, *_row(report.metrics, name, suffixes)], "") for name in LOCALISATION]
            _print_table([place, *(suffix or "mean" for suffix in suffixes)], rows)
    _show_more(report)
    if differences:
        title = ["Compared", *map(visible, names), "difference", "95 % interval", "p"]
        _print_table(title, [_compared(each) for each in differences], width=0)
    if quality := report.segments:
        print(
            f"Segments: Recall@0.5 {_percent(quality['Recall@0.5'])} · mean IoU "
            f"{_percent(quality['Mean IoU'])} · {quality['Matched segments']:.0f} matched"
        )
    print(
        f"{report.predicted} of {report.total} {report.counted} predicted, {report.events} events"
    )
    print(_styled(report.signature, DIM))
    for text in dict.fromkeys(text for each in reports for text in each.notes):
        print(f"note: {visible(text)}", file=sys.stderr)


def _show_more(report: Report) -> None:
    """Tables of what is not computed unless asked for, and of queries."""
    metrics = report.metrics
    if "Pk" in metrics:
        _print_table(
            ["Boundaries", ""],
            [([name.replace("_", " "), _percent(metrics[name])], "") for name in SEGMENTATION],
        )
    if "Rep_4" in metrics:
        names = (*REPETITION, LOCALISED_DUPLICATES)
        rows = [
            [name.replace("_", " "), *_row(metrics, name), *_row(report.reference_repetition, name)]
            for name in names
        ]
        _print_table(["Repetition", "predicted", "references"], [(row, "") for row in rows])
    if report.protocol == "grounding":
        suffixes = [f"@{t}" for t in GROUNDING_TIOUS]
        rows = [[name, *_row(metrics, name, suffixes)] for name in ("R1", "R5")]
        rows.append(["mIoU", _percent(metrics["mIoU"])])
        _print_table(["Grounding", *suffixes], [(row, "") for row in rows])
    elif report.protocol in QUERIES:
        _print_table(["Queries", ""], [([name, _percent(metrics[name])], "") for name in metrics])


def _row(values: Mapping[str, float], name: str, suffixes: Sequence[str] = ("",)) -> list[str]:
    """Cells of a metric with each suffix; empty where it is not there."""
    return [_percent(values[key]) if key in values else "" for key in (name + x for x in suffixes)]


def per_video_csv(report: Report) -> str:
    """A table with a row per video, or per query; raw numbers."""
    columns: dict[str, Any] = {name: x for name, x in report.per_video.items() if "@" not in name}
    columns |= report.per_video
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["query" if report.protocol in QUERIES else "video", *columns])
    values = [column.tolist() for column in columns.values()]
    writer.writerows(zip(map(cell, report.videos), *values, strict=True))
    return file.getvalue()


def _compared(each: Difference) -> Row:
    cells = [
        _PRINTED.get(each.metric, each.metric),
        _percent(each.first),
        _percent(each.second),
        f"{100 * each.difference:+.2f}",
        f"{100 * each.low:+.2f} … {100 * each.high:+.2f}",
        f"{each.probability:.3f}",
    ]
    return cells, "" if each.clear else DIM


def _print_table(title: list[str], rows: Sequence[Row], width: int = 12) -> None:
    """Aligned columns, the first to the left, and an empty line."""
    filled = [(cells + [""] * (len(title) - len(cells)), style) for cells, style in rows]
    lines: list[Row] = [(title, BOLD), *filled]
    widths = [max(map(len, column)) for column in zip(*(cells for cells, _ in lines), strict=True)]
    widths[0] = max(widths[0], width)
    for (name, *values), style in lines:
        aligned = [value.rjust(size) for value, size in zip(values, widths[1:], strict=True)]
        print(_styled("  ".join([name.ljust(widths[0]), *aligned]).rstrip(), style))
    print()


def _styled(text: str, style: str) -> str:
    plain = not style or "NO_COLOR" in os.environ or not sys.stdout.isatty()
    return text if plain else f"{style}{text}\033[0m"


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"
