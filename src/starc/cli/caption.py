"""`starc caption`: one video to a file or to stdout, or many into a folder."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from starc.cli.progress import VisibleFormatter, bar, err, note, stages, tell
from starc.config import MOST_BEAMS
from starc.errors import ConfigError, StarcError
from starc.types import Captioned
from starc_eval.terminal import visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from starc.inference.batch import Counts, Output
    from starc.inference.jobs import Job, Manifest, ManifestRow
    from starc.inference.pipeline import Captioner, Options

FOLDER_FORMATS = ("json", "vtt")
"""Written for many videos, where the user names none."""
PREDICTIONS = "predictions.json"
ENGINES = ("local", "ray")


def caption(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Videos, folders of them, lists (.txt), addresses (https://…, with yt-dlp), or - "
            "for standard input."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Model folder or hub id; without it, the small model in the package."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file for one video, a folder for many.")
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="json, vtt, srt, chapters, youtube, ffmetadata, csv, md, html, predictions "
            "(one file for all videos), video (a copy with chapters). May be given several times.",
        ),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="events (may overlap), or chapters (follow one another).")
    ] = None,
    granularity: Annotated[
        float, typer.Option(help="Below 1: fewer and longer events; 1: all that the model found.")
    ] = 1.0,
    speech: Annotated[
        str,
        typer.Option(
            help="auto, none, subtitles, moonshine, whisper, whisper:SIZE, or a subtitle file."
        ),
    ] = "auto",
    language: Annotated[
        str | None, typer.Option(help="Language of the speech, such as en; else detected.")
    ] = None,
    datastore: Annotated[
        str | None,
        typer.Option(help="Another datastore: a folder, or qdrant:LOCATION/COLLECTION."),
    ] = None,
    image_encoder: Annotated[
        str | None, typer.Option(help="Another image encoder than the model names.")
    ] = None,
    beams: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_BEAMS, help="Beams of the search; 1 is greedy and fastest."),
    ] = None,
    lanes: Annotated[
        bool,
        typer.Option(
            "--lanes", help="Also compute segments and retrieved captions that are not used."
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Processor threads; without it, one per core."),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="float32, bfloat16 or int8: arithmetic of the decoder.")
    ] = "float32",
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            help="What one file may cost: file_bytes, pixels, duration or wall (seconds), as "
            "duration=172800.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray: on all machines of a Ray cluster.")
    ] = "local",
    resume: Annotated[bool, typer.Option(help="Skip what an earlier run has done.")] = True,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on with videos that come into the folders.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that starc did not write.")
    ] = False,
    replace_chapters: Annotated[
        bool,
        typer.Option(
            "--replace-chapters",
            help="In a copy of a video that has chapters, put ours in their place.",
        ),
    ] = False,
    min_confidence: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Leave out events with a lower confidence.")
    ] = 0.0,
    force: Annotated[
        bool,
        typer.Option("--force", help="Show captions also where they are likely wrong, and say so."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say what is done, with which model and speech.")
    ] = False,
) -> None:
    """Caption videos. One video goes to a file or to stdout, many into a folder.

    Exit 0 captioned, 4 not captioned (no file is written), 1 failed, 3 some of many failed.
    """
    configure_logging(quiet=quiet, verbose=verbose)
    from starc.inference.batch import NOT_CAPTIONED, Output
    from starc.inference.pipeline import Captioner, Options, speech_options
    from starc.media.container import MediaLimits
    from starc.media.sources import local_files
    from starc.processor import set_threads

    if threads is not None:
        set_threads(threads)
    if model is None:
        model = "embedded"
        err.print(
            "Using the embedded model starc-small-youcook2: trained on cooking videos, which it "
            "captions from their speech (silent ones from pictures); other videos get no captions. "
            "For another model: --model FOLDER (docs/model-card.md)",
            highlight=False,
            soft_wrap=True,
        )
    options = Options(
        beams=beams,
        language=language,
        datastore=datastore,
        image_encoder=image_encoder,
        device=device,
        precision=precision,
        force=force,
        lanes=lanes,
        limits=MediaLimits.parse(limits or ()),
        **speech_options(speech),
    )
    output = Output(
        mode=mode,  # type: ignore[arg-type]
        granularity=granularity,
        overwrite=overwrite,
        replace_chapters=replace_chapters,
        min_confidence=min_confidence,
        limits=options.limits,
    )
    with local_files(inputs, options.limits, language=language, on_fetch=_say_fetching) as videos:
        if is_single(videos, target) and not watch:
            captioner = Captioner(model, options)
            captioned = caption_file(videos[0], captioner, target, formats or (), output)
            for what, value in captioned.provenance.items() if verbose else ():
                note(value, kind=what)
            raise typer.Exit(NOT_CAPTIONED if captioned.reason else 0)
        counts = caption_folder(
            videos, model, target, options, formats or (), output, engine=engine, resume=resume,
            watch=watch,
        )  # fmt: skip
    tell(str(counts))
    raise typer.Exit(counts.exit_code)


def _say_fetching(address: str) -> None:
    tell(f"Fetching {address} with yt-dlp")


def configure_logging(*, quiet: bool, verbose: bool) -> None:
    """How much is said on stderr. Results and errors always are."""
    err.quiet = quiet
    log = logging.getLogger("starc")
    log.setLevel(logging.ERROR if quiet else logging.INFO if verbose else logging.WARNING)
    if verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(VisibleFormatter())
        logging.basicConfig(handlers=[handler])


def is_single(inputs: Sequence[Path], out: Path | None) -> bool:
    """Whether this is one video for one file or for stdout, and not a batch for a folder."""
    from starc.inference.jobs import LIST_ENDINGS

    if len(inputs) != 1 or inputs[0].is_dir() or inputs[0].suffix.lower() in LIST_ENDINGS:
        return False
    return out is None or (not out.is_dir() and bool(out.suffix))


def caption_file(
    video: Path, captioner: Captioner, out: Path | None, formats: Sequence[str], output: Output
) -> Captioned:
    """Caption one video into `out`, or onto stdout (WebVTT if no format is named).

    Nothing is written where the result has a `reason`, which is said also by a quiet run. Warnings
    are said before the file is written, which may fail.
    """
    from starc.files.cache import check_target
    from starc.inference.batch import left_as_it_was, not_captioned
    from starc.output.formats import check_format, infer, render, write
    from starc.output.mp4 import check_copy

    if len(formats) > 1:
        raise ConfigError(f"--format {', '.join(formats)}: one file has one format; name a folder")
    format = formats[0] if formats else infer(out) if out else "vtt"
    # What is wrong is said before the work, not after it.
    format = check_format(format, output.mode, out)
    if out is None and format == "video":
        raise ConfigError("--format video: is a video file, not text; name a file to write")
    if out is not None:
        check_target(out, overwrite=output.overwrite)
        if format == "video":
            check_copy(video, out, limits=captioner.options.limits)
    try:
        with stages() as on_progress:
            found = captioner.caption(video, on_progress=on_progress)
    except KeyboardInterrupt:
        note("nothing was written; stages that were finished are kept, the same command goes on")
        raise
    captioned, warnings = replace(output, picture_options=_given(captioner)).select(found)
    if captioned.reason:
        sys.stderr.write(visible(f"{captioned.video}: {not_captioned(captioned.reason)}") + "\n")
        if out is not None and out.exists():
            note(left_as_it_was(out))
        return captioned
    for line in warnings:
        note(line)
    chosen: dict[str, Any] = {
        "format": format,
        "mode": output.mode,
        "granularity": output.granularity,
    }
    if out is None:
        text, notes = render(captioned, **chosen)
        sys.stdout.write(text)
    else:
        chosen |= {
            "source": video,
            "overwrite": output.overwrite,
            "replace_chapters": output.replace_chapters,
            "limits": output.limits,
        }
        try:
            notes = write(captioned, out, **chosen)
        except OSError as error:
            raise StarcError(f"{out}: cannot be written ({error.strerror})") from error
    for line in notes:
        note(line)
    if out is not None:
        tell(f"{_contents(captioned, format, output)} → {out}")
    return captioned


def _contents(captioned: Captioned, format: str, output: Output) -> str:
    """How many events or chapters a file holds."""
    from starc.output import chapters
    from starc.output.formats import FORMATS

    if format == "youtube":
        kind, held = "chapter", chapters.for_youtube(captioned, output.granularity).chapters
    elif FORMATS[format].only_chapters or output.mode == "chapters":
        kind, held = "chapter", chapters.chapters(captioned, output.granularity)
    else:
        kind, held = "event", chapters.regroup(captioned, output.granularity)
    return f"{len(held)} {kind}{'' if len(held) == 1 else 's'}"


def _given(captioner: Captioner) -> tuple[str, ...]:
    """The options given that take no part where this model captions from speech alone."""
    chosen = captioner.options
    shown = {"--datastore": chosen.datastore, "--image-encoder": chosen.image_encoder}
    values = {"--beams": chosen.beams, **({} if chosen.lanes else shown)}
    given = tuple(f"{name} {value}" for name, value in values.items() if value is not None)
    return given if given and captioner.speech_only else ()


def caption_folder(
    inputs: Sequence[Path],
    model: str,
    out: Path | None,
    options: Options,
    formats: Sequence[str],
    output: Output,
    *,
    engine: str = "local",
    resume: bool = True,
    watch: bool = False,
) -> Counts:
    """Caption videos, folders and lists into a folder; with `watch`, until Ctrl-C.

    Our JSON is always among the formats: the viewer and `predictions`, which is one file for all
    videos, are made of it.
    """
    from starc.inference import batch, cluster
    from starc.inference.jobs import Manifest, find_jobs
    from starc.inference.pipeline import Captioner
    from starc.output.formats import check_format, is_file_name

    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine}: unknown; known: {', '.join(ENGINES)}")
    if out is None or (not out.is_dir() and is_file_name(out)):
        given = "none given" if out is None else f"found {out}"
        raise ConfigError(f"-o: many videos need a folder for their files ({given}); name one")
    wanted = [check_format(format, output.mode) for format in formats or FOLDER_FORMATS]
    chosen = dict.fromkeys(["json", *wanted])
    files = [f for f in chosen if f != "predictions"]
    looks = _looks(inputs, out, files, engine) if watch else iter([find_jobs(inputs, out, files)])
    captioner, counts = Captioner(model, options), batch.Counts()
    output = replace(output, picture_options=_given(captioner))
    jobs: dict[str, Job] = {}
    with bar("Captioning") as progress, Manifest(out) as manifest, _what_is_kept(manifest, watch):
        task = progress.add_task("", total=None if watch else 0)
        on_row = functools.partial(_say_row, progress, task, dict(manifest.rows))
        common: dict[str, Any] = {"output": output, "resume": resume, "on_row": on_row}
        for look in looks:
            # A watched video that failed half written is tried again, and counts once.
            again = sum(
                job.name in jobs and manifest.rows[job.name].status == "failed" for job in look
            )
            counts = replace(counts, failed=counts.failed - again)
            jobs |= {job.name: job for job in look}
            progress.update(task, total=len(jobs))
            if engine == "ray":
                make = functools.partial(Captioner, model, options)
                settings = batch.settings_of(captioner, output)
                counts += cluster.run(look, make, manifest, settings=settings, **common)
            else:
                with batch.shared_cores():
                    counts += batch.run(look, captioner, manifest, **common)
            if "predictions" in chosen:
                batch.write_predictions(
                    [*jobs.values()], manifest, out / PREDICTIONS, overwrite=output.overwrite
                )
    return counts


def _looks(
    inputs: Sequence[Path], out: Path, formats: Sequence[str], engine: str
) -> Iterator[list[Job]]:
    from starc.inference.jobs import watched

    if engine != "local":
        raise ConfigError(f"--watch: works on this machine alone, not with --engine {engine}")
    for folder in inputs:
        if not folder.is_dir():
            raise ConfigError(f"--watch {folder}: not a folder; name one that videos come into")
    err.print("Watching for videos; Ctrl-C ends it", highlight=False)
    return watched(inputs, out, formats)


def _say_row(
    progress: Progress, task: TaskID, before: dict[str, ManifestRow], row: ManifestRow
) -> None:
    from starc.inference.batch import not_captioned

    progress.advance(task)
    if before.get(row.name) is row:
        return  # said by the run that wrote it
    lines = {
        "done": row.notes,
        "not captioned": (not_captioned(row.reason), *row.notes),
        "failed": (row.error,),
    }
    for line in lines[row.status]:
        named = line if Path(row.video).name in line else f"{row.video}: {line}"
        named = visible(named.encode("utf-8", "replace").decode())
        progress.console.print(named, highlight=False, markup=False, soft_wrap=True)
        if err.quiet and line not in row.notes:
            sys.stderr.write(f"{named}\n")


@contextmanager
def _what_is_kept(manifest: Manifest, watch: bool) -> Iterator[None]:
    """On Ctrl-C, say what is done and how to go on; it is the way to end watching."""
    try:
        yield
    except KeyboardInterrupt:
        done = sum(row.finished for row in manifest.rows.values())
        what = "1 video is" if done == 1 else f"{done} videos are"
        note(f"{what} done and kept in {manifest.folder}; the same command goes on")
        if not watch:
            raise
