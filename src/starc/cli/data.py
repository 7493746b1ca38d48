"""Commands for the files of a dataset: annotations of others, speech of many videos."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from starc.cli.progress import bar, err, note, say


def convert(
    annotations: Annotated[Path, typer.Argument(help="An annotation file of any known format.")],
    target: Annotated[Path, typer.Option("--out", "-o", help="JSON Lines to write.")],
    videos: Annotated[
        list[Path] | None,
        typer.Option("--videos", help="Videos, or folders of them, to read durations from."),
    ] = None,
    durations: Annotated[
        Path | None, typer.Option(help="Durations in seconds: a JSON object, or a line per video.")
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(help="JSON that maps the file's ids to video names (id_mapping.json)."),
    ] = None,
    only: Annotated[
        Path | None, typer.Option(help="File of ids to keep, one per line (test_id.txt).")
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Split of a YouCook2 file to use.")] = None,
) -> None:
    """Convert annotations to JSON Lines; adds durations and names that ViTT's file leaves out."""
    from starc.errors import AnnotationError
    from starc.inference.jobs import find_videos
    from starc.training.convert import convert
    from starc_eval.annotations import write_annotations

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
    say(f"{target}: {len(converted.annotations)} accounts of {len(several)} videos")


def transcribe(
    videos: Annotated[list[Path], typer.Argument(help="Videos, or folders of them.")],
    target: Annotated[Path, typer.Option("--out", "-o", help="JSON file of all speech.")],
    speech: Annotated[
        str, typer.Option(help="auto, subtitles, whisper, whisper:MODEL or moonshine.")
    ] = "auto",
    language: Annotated[
        str | None, typer.Option(help="Language of the speech, such as en; else detected.")
    ] = None,
) -> None:
    """Write what is said in many videos, for train, evaluate and data check (--speech).

    A video that cannot be read is skipped (exit 3). Repeat the command after an interruption.
    """
    from starc.errors import StarcError
    from starc.inference.jobs import find_videos, named_videos
    from starc.media.speech import parse_engine, transcribe_all

    engine, model = parse_engine(speech)
    named = named_videos([path for path, _ in find_videos(videos, out=target)])
    failed = 0
    with bar("Listening") as progress:
        heard = transcribe_all(named, target, engine=engine, language=language, model=model)
        for n, (path, said) in enumerate(progress.track(heard, total=len(named)), start=1):
            failed += isinstance(said, StarcError)
            if isinstance(said, StarcError):
                note(str(said), kind="skipped")
            elif not err.is_terminal:
                note(f"{path}: {said}", kind=f"{n}/{len(named)}")
    say(str(target))
    if failed:
        note(f"{failed} of {len(named)} videos have no speech; mend them and run this again")
        raise typer.Exit(3 if failed < len(named) else 1)
