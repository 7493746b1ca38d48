"""Commands for the files of a dataset: annotations of others, speech of many videos."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from starc.cli.progress import bar, err, note, say
from starc.errors import ConfigError, SpeechError, StarcError, VideoError


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
    target: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="File to write: .json holds the speech of all videos, .srt, .vtt and .txt that of "
            "one. With --format, a folder of texts.",
        ),
    ],
    speech: Annotated[
        str, typer.Option(help="auto, subtitles, whisper, whisper:MODEL or moonshine.")
    ] = "auto",
    language: Annotated[
        str | None, typer.Option(help="Language of the speech, such as en; else detected.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="json, srt, vtt or txt; else by the ending of -o.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace texts that starc did not write.")
    ] = False,
) -> None:
    """Write what is said in videos: subtitles or text of one, or JSON of many.

    The JSON is what train, evaluate, data check and caption take as --speech. A video that cannot
    be read is skipped (exit 3). Repeat the command after an interruption.
    """
    from starc.inference.jobs import find_videos, named_videos
    from starc.media.speech import parse_engine, transcribe_all

    engine, model = parse_engine(speech)
    kind = _transcript_format(target, format)
    named = named_videos([path for path, _ in find_videos(videos, out=target)])
    chosen: dict[str, Any] = {"engine": engine, "language": language, "model": model}
    if kind == "json":
        heard = transcribe_all(named, target, **chosen)
    else:
        heard = _write_texts(named, target, kind, overwrite, chosen)
    failed = 0
    with bar("Listening") as progress:
        for n, (path, said) in enumerate(progress.track(heard, total=len(named)), start=1):
            failed += isinstance(said, StarcError)
            if isinstance(said, StarcError):
                note(str(said), kind="skipped")
            elif not err.is_terminal:
                note(f"{path}: {said}", kind=f"{n}/{len(named)}")
    if failed < len(named):
        say(str(target))
    if failed:
        note(f"{failed} of {len(named)} videos have no speech; fix them and run this again")
        raise typer.Exit(3 if failed < len(named) else 1)


def _transcript_format(target: Path, format: str | None) -> str:
    from starc.output.transcripts import TEXTS

    known = ", ".join(("json", *TEXTS))
    kind = format or target.suffix[1:].lower()
    if kind == "json" or kind in TEXTS:
        return kind
    if format:
        raise ConfigError(f"--format {format}: unknown; known: {known}")
    raise ConfigError(f"{target}: no transcript ends like this; use --format, one of {known}")


def _write_texts(
    videos: Mapping[str, Path],
    target: Path,
    kind: str,
    overwrite: bool,
    chosen: Mapping[str, Any],
) -> Iterator[tuple[Path, str | StarcError]]:
    """A text of each video, into a folder if `target` is one; each with where its words are from.

    A video in which nothing is said gets no file.
    """
    from starc.files.cache import check_target, write_text
    from starc.media.speech import transcribe
    from starc.output.transcripts import TEXTS

    if len(videos) > 1 and not target.is_dir():
        raise ConfigError(
            f"{target}: holds one video, and {len(videos)} were given; name a .json file, or an "
            f"existing folder and --format {kind}"
        )
    for name, path in videos.items():
        file = target / f"{name}.{kind}" if target.is_dir() else target
        check_target(file, overwrite=overwrite)  # before the work
        try:
            transcript = transcribe(path, **chosen)
            if not transcript.sentences:
                why = transcript.provenance.removeprefix("none: ")
                raise SpeechError(f"{path}: no speech to write ({why})")
            write_text(file, TEXTS[kind](transcript.sentences), overwrite=overwrite)
            yield path, transcript.provenance
        except (VideoError, SpeechError) as error:
            yield path, error
