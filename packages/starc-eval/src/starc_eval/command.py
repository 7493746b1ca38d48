"""`starc-eval`: score a prediction file from the command line; `starc score` runs the same code.

Results go to stdout, notes and errors to stderr. Exit 0 ok, 1 failed, 2 usage or bad input, 130
interrupted.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from starc_eval.errors import StarcError
from starc_eval.terminal import open_closed_streams, visible

if TYPE_CHECKING:
    from starc_eval.meteor import Meteor
    from starc_eval.report import Annotators, Difference, Protocol, Report

TITLE = "Indexing METEOR's paraphrases (once)"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; one line on stderr for whatever a user can fix."""
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    options = parser().parse_args(arguments)
    code, words = 0, ""
    try:
        _score(options)
        sys.stdout.flush()
    except StarcError as error:
        code, words = error.exit_code, str(error)
    except KeyboardInterrupt:
        code, words = 130, "interrupted"
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        code, words = 1, f"{where}{error.strerror or error}; check the path and the disk"
    except MemoryError:
        code, words = 1, "out of memory; use a smaller file or close other programs"
    if words:
        sys.stderr.write(f"starc-eval: {visible(words)}\n")
    raise SystemExit(code)


def parser() -> argparse.ArgumentParser:
    """The options, which are those of `starc score`."""
    from starc_eval.report import METRICS, PROTOCOLS, USUAL_METRICS

    parser = argparse.ArgumentParser(
        prog="starc-eval",
        description="Score dense video captions: CIDEr, METEOR, SODA_c, BLEU, ROUGE-L, precision, "
        "recall, F1.",
    )
    add = parser.add_argument
    add("predictions", type=Path, help="what a system predicted")
    add("references", type=Path, nargs="+", help="one or more annotation files")
    add("--protocol", choices=PROTOCOLS, default="published", help="default: published")
    add(
        "--metrics",
        type=metric_names,
        metavar="A,B",
        help=f"what to compute, of {','.join(METRICS)}; default: {','.join(USUAL_METRICS)}",
    )
    add("--allow-missing", action="store_true", help="skip reference videos without prediction")
    add(
        "--compare",
        type=Path,
        help="predictions of a second system, compared by a paired bootstrap over videos",
    )
    add("--subset", help="split of a YouCook2 file to use")
    add(
        "--annotators",
        choices=["apart", "together"],
        default="apart",
        help="several annotators in one file (ViTT) are scored apart, as published, or together",
    )
    add("--one-text", action="store_true", help="tokenise all captions as one text, as published")
    add("--per-video", type=Path, help="write a CSV with a row per video")
    add("--overwrite", action="store_true", help="replace a file that is there")
    add("--json", action="store_true", help="print JSON instead of tables")
    add("--version", action="version", version=f"starc-eval {version('starc-eval')}")
    return parser


def metric_names(text: str) -> list[str]:
    """Metrics separated by commas; a usage error if one of them is unknown."""
    from starc_eval.report import METRICS

    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in METRICS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(METRICS)}")
    return names


def _score(options: argparse.Namespace) -> None:
    from starc_eval.atomic import replacing
    from starc_eval.tables import per_video_csv

    rows: Path | None = options.per_video
    if rows and not rows.absolute().parent.is_dir():
        raise StarcError(f"{rows}: there is no folder {rows.parent}; make it first")
    if rows and rows.exists() and not options.overwrite:
        raise StarcError(f"{rows}: is there already; --overwrite replaces it")
    reports, differences = run(
        options.predictions,
        options.references,
        compare=options.compare,
        protocol=options.protocol,
        metrics=options.metrics,
        allow_missing=options.allow_missing,
        subset=options.subset,
        annotators=options.annotators,
        one_text=options.one_text,
    )
    if rows:
        with replacing(rows) as file:
            file.write(per_video_csv(reports[0]))
    names = [file.stem for file in (options.predictions, options.compare) if file]
    print_reports(reports, differences, names, as_json=options.json)


def run(
    predictions: Path,
    references: Sequence[Path],
    *,
    compare: Path | None,
    protocol: Protocol,
    metrics: Sequence[str] | None,
    allow_missing: bool,
    subset: str | None,
    annotators: Annotators,
    one_text: bool,
) -> tuple[list[Report], list[Difference]]:
    """The report of one system or of two, and how these differ."""
    from starc_eval import report

    files = [predictions] if compare is None else [predictions, compare]
    with _without_garbage_collection(), meteor_with_progress() as meteor:
        reports = [
            report.score(
                file,
                references,
                protocol=protocol,
                metrics=metrics,
                allow_missing=allow_missing,
                subset=subset,
                annotators=annotators,
                one_text=one_text,
                meteor=meteor,
            )
            for file in files
        ]
    return reports, report.compare(*reports) if compare else []


def print_reports(
    reports: Sequence[Report],
    differences: Sequence[Difference],
    names: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """What `run` gives, as tables or as JSON."""
    from starc_eval.tables import show

    if not as_json:
        return show(reports, differences, names)
    content = reports[0].to_json()
    if len(reports) == 2:
        rows = [{**asdict(each), "difference": each.difference} for each in differences]
        content = {"first": content, "second": reports[1].to_json(), "differences": rows}
    print(json.dumps(content, indent=1, ensure_ascii=False))


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
    """A maker of one `Meteor`; on a terminal it tells how far its paraphrase index is built."""
    from starc_eval.meteor import Meteor

    shown = False

    def advance(fraction: float) -> None:
        nonlocal shown
        if fraction < 1 and sys.stderr.isatty():
            sys.stderr.write(f"\r{TITLE} {fraction:4.0%}")
            sys.stderr.flush()
            shown = True

    try:
        yield cache(lambda: Meteor(progress=advance))
    finally:
        if shown:
            sys.stderr.write("\r\033[K")
