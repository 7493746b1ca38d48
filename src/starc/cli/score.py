"""`starc score`: the command of starc-eval, with the files that starc wrote protected."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated

import typer

from starc.errors import StarcError
from starc.files.cache import check_target, write_text

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
        help="published, pdvc (missing videos count 0), pdvc2018, paragraph, proposals, chapters, "
        "titles, grounding, or as in a paper: vid2seq2023, pdvc2021, vidchapters2023, "
        "qvhighlights2021 (docs/evaluation.md)."
    ),
]


Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a file that starc did not write.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def check_protocol(name: str, *, queries: bool = True) -> None:
    """A usage error unless there is such a protocol; without `queries` it must score captions."""
    from starc_eval.report import PROTOCOLS, QUERIES

    known = [each for each in PROTOCOLS if queries or each not in QUERIES]
    if name not in known:
        message = f"{name!r} is not one of {', '.join(known)}"
        raise typer.BadParameter(message, param_hint="--protocol")


def score(
    predictions: Annotated[Path, typer.Argument(help="What a system predicted.")],
    references: Annotated[list[Path], typer.Argument(help="One or more annotation files.")],
    protocol: Protocol = "published",
    metrics: Annotated[
        str | None,
        typer.Option(
            help="What to compute, separated by commas: captions, localisation, soda (these three "
            "by default), soda_m, segmentation, repetition."
        ),
    ] = None,
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
    from starc_eval import command
    from starc_eval.tables import per_video_csv

    check_protocol(protocol)
    require_annotators(annotators)
    if per_video:
        check_target(per_video, overwrite=overwrite)
    reports, differences = command.run(
        predictions,
        references,
        compare=compare,
        protocol=protocol,  # type: ignore[arg-type]
        metrics=check_metrics(metrics),
        allow_missing=allow_missing,
        subset=subset,
        annotators=annotators,  # type: ignore[arg-type]
        one_text=one_text,
    )
    if per_video:
        save(per_video, per_video_csv(reports[0]), overwrite=overwrite)
    names = [file.stem for file in (predictions, compare) if file]
    command.print_reports(reports, differences, names, as_json=as_json)


def check_metrics(text: str | None) -> list[str] | None:
    """The metrics that are named; a usage error if one of them is unknown."""
    from starc_eval.command import metric_names

    try:
        return None if text is None else metric_names(text)
    except argparse.ArgumentTypeError as error:
        raise typer.BadParameter(str(error), param_hint="--metrics") from None


def require_annotators(value: str) -> None:
    if value not in ("apart", "together"):
        message = f"{value!r} is not one of apart, together"
        raise typer.BadParameter(message, param_hint="--annotators")


def save(path: Path, text: str, *, overwrite: bool) -> None:
    """A file of ours, or one line that says why not."""
    try:
        write_text(path, text, overwrite=overwrite)
    except OSError as error:
        raise StarcError(f"{path}: cannot be written ({error.strerror}); choose another") from None
