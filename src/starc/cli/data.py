"""Commands for the files of a dataset: annotations of others, speech of many videos."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from starc.cli.progress import note, out


def convert(
    annotations: Annotated[Path, typer.Argument(help="An annotation file of any known format.")],
    target: Annotated[Path, typer.Option("--out", "-o", help="JSON Lines to write.")],
    videos: Annotated[
        list[Path] | None, typer.Option("--videos", help="Videos or folders, for durations.")
    ] = None,
    durations: Annotated[
        Path | None, typer.Option(help="Seconds by video: JSON, or a line for each.")
    ] = None,
    names: Annotated[
        Path | None, typer.Option(help="JSON from the file's ids to the videos' (id_mapping.json).")
    ] = None,
    only: Annotated[
        Path | None, typer.Option(help="Ids to keep, one a line (test_id.txt).")
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Split of a YouCook2 file to use.")] = None,
) -> None:
    """Write annotations as ours; adds durations, and names, that ViTT's own file leaves out."""
    from starc.errors import AnnotationError
    from starc.files.annotations import write_annotations
    from starc.inference.jobs import find_videos
    from starc.training.convert import convert

    if target.exists():
        raise AnnotationError(f"{target}: exists already; choose another, or remove it")
    converted = convert(
        annotations,
        durations=durations,
        videos=[path for path, _ in find_videos(videos)] if videos else (),
        names=names,
        only=only,
        subset=subset,
    )
    write_annotations(converted.annotations, target)
    for reason, count in converted.left_out.items():
        note(f"{count} accounts {reason}; left out")
    several = {each.video or key for key, each in converted.annotations.items()}
    out.print(
        f"{target}: {len(converted.annotations)} accounts of {len(several)} videos", soft_wrap=True
    )
