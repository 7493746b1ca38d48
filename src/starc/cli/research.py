"""Commands for researchers: features, checkpoints, data, training, ablations.

Like cli.py this only parses, calls the library and prints; torch is imported inside the commands.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from starc.cli.progress import bar, err, note, out, print_json, say, tell
from starc.cli.score import (
    AnnotatorsOption,
    AsJson,
    Overwrite,
    Protocol,
    check_protocol,
    require_annotators,
    save,
)
from starc.config import MOST_BEAMS

data = typer.Typer(help="Look at training data.", no_args_is_help=True)
recipes = typer.Typer(help="Recipes, ablations and settings.", invoke_without_command=True)

Annotations = Annotated[
    list[Path],
    typer.Option("--annotations", help="Annotation file; repeat for more references."),
]
FeaturesPath = Annotated[Path, typer.Option("--features", help="Frame features of all videos.")]
Speech = Annotated[
    Path | None,
    typer.Option("--speech", help="Speech of all videos, as starc transcribe writes it."),
]
Validation = Annotated[
    list[Path] | None,
    typer.Option(
        "--validation", help="Annotation file of held-out videos; repeat for more references."
    ),
]
Store = Annotated[
    Path | None,
    typer.Option("--datastore", help="A folder, or qdrant:URL/NAME."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting, such as train.epochs=3; repeatable."),
]
Subset = Annotated[
    str | None, typer.Option(help="Split of a YouCook2 file to use, such as training.")
]
ValidationSubset = Annotated[
    str | None, typer.Option(help="Split of the --validation file, such as validation.")
]
Tokenizer = Annotated[
    Path | None, typer.Option(help="tokenizer.json of the T5; else that of --init.")
]
NoVideo = Annotated[bool, typer.Option("--no-video", help="Speech only.")]
NoSpeech = Annotated[bool, typer.Option("--no-speech", help="Video only.")]
RunFolder = Annotated[Path, typer.Option("--run", "--out", "-o", help="Folder of the run.")]


@data.command("check")
def data_check(
    annotations: Annotations,
    features: Annotated[
        Path | None, typer.Option("--features", help="Frame features of all videos.")
    ] = None,
    speech: Speech = None,
    store: Store = None,
    validation: Validation = None,
    subset: Subset = None,
    validation_subset: ValidationSubset = None,
    model: Annotated[
        str | None, typer.Option(help="Model folder that the features are for ('embedded').")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe that the features are for.")] = None,
) -> None:
    """Report what is missing, wrong or leaking, before anything is trained. Exit 1 if serious."""
    from starc.media.features import FeatureStore
    from starc.media.subtitles import read_transcripts
    from starc.model.checkpoint import load
    from starc.retrieval.datastore import open_datastore
    from starc.training.data_check import examine
    from starc.training.recipes import recipe as recipe_of
    from starc_eval.annotations import read_references

    width = recipe_of(recipe).model.temporal.features if recipe else None
    width = load(model_name(model)).image_width if model else width
    findings = examine(
        [read_references(file, subset=subset) for file in annotations],
        FeatureStore.open(features) if features else None,
        read_transcripts(speech) if speech else None,
        width=width,
        store=open_datastore(store).exact if store else None,
        held_out=[read_references(file, subset=validation_subset) for file in validation or []],
    )
    out.print(
        f"{findings.videos} videos, {findings.events} events, {findings.sentences} spoken sentences"
    )
    for name, counts in findings.histograms.items():
        table = Table(box=None, pad_edge=False, show_header=False, title=name, title_justify="left")
        most = max(counts.values(), default=1) or 1
        for label, count in counts.items():
            table.add_row(label, "█" * round(30 * count / most), str(count))
        out.print(table)
    for problem in findings.problems:
        note(str(problem), kind="error" if problem.serious else "note")
    raise typer.Exit(0 if findings.sound else 1)


def features(
    videos: Annotated[list[Path], typer.Argument(help="Videos, or folders of them.")],
    target: Annotated[Path, typer.Option("--out", "-o", help=".safetensors, .pth, or a folder.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="Use the image encoder of this model folder or hub id ('embedded': the one in the "
            "package), so that the model can be evaluated or fine-tuned on the features."
        ),
    ] = None,
    encoder: Annotated[
        str, typer.Option(help="CLIP folder or hub id, or efficientnet-lite0.")
    ] = "openai/clip-vit-large-patch14",
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare OUT with a fresh extraction; write nothing.")
    ] = False,
) -> None:
    """Extract frame features, one frame per second; --verify compares a file with a fresh run.

    A video that cannot be read is skipped (exit 3). Repeat the command after an interruption.
    """
    from starc.inference.jobs import find_videos, named_videos
    from starc.inference.pipeline import Captioner
    from starc.media.encoders import load_image_encoder
    from starc.media.features import extract_all
    from starc.media.features import verify as difference

    chosen = load_image_encoder(Captioner(model_name(model)).encoder_name if model else encoder)
    paths = [path for path, _ in find_videos(videos, out=target)]
    named = named_videos(paths)
    failed = 0
    with bar("Extracting") as progress:
        if verify:
            for path in progress.track(paths):
                say(f"{path}: largest difference {difference(target, path, chosen):.2e}")
            return
        done = extract_all(named, target, chosen)
        for n, (path, error) in enumerate(progress.track(done, total=len(named)), start=1):
            failed += error is not None
            if error is not None:
                note(str(error), kind="skipped")
            elif not err.is_terminal:
                note(str(path), kind=f"{n}/{len(named)}")
    if failed:
        note(f"{failed} of {len(named)} videos have no features; fix them and run this again")
        raise typer.Exit(3 if failed < len(named) else 1)


def model_name(name: str) -> str:
    """A model as users name it: "embedded" is the one in the package."""
    from starc.inference.pipeline import EMBEDDED

    return str(EMBEDDED) if name == "embedded" else name


def inputs(no_video: bool, no_speech: bool) -> list[str]:
    """The settings that leave a sense out."""
    from starc.training.recipes import NO_SPEECH, NO_VIDEO

    return [*(NO_VIDEO if no_video else ()), *(NO_SPEECH if no_speech else ())]


def import_checkpoint(
    file: Annotated[Path, typer.Argument(help="A published .pth of Vid2Seq, STaRC, PDVC or CM².")],
    folder: Annotated[Path, typer.Option("--out", "-o", help="Model folder to write.")],
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings of the folder: paper, to fine-tune a Vid2Seq file; pdvc or cm2 for a "
            "file of PDVC or CM²."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="tokenizer.json of its T5; the published vocabulary of PDVC or CM²."),
    ] = None,
    store: Store = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the folder: windowing=on.")
    ] = None,
) -> None:
    """Make a model folder of a published weight file; nothing in it is executed."""
    from starc import config
    from starc.model import checkpoint
    from starc.retrieval.datastore import open_datastore

    if preset in ("pdvc", "pdvc_light", "cm2"):
        return import_method(file, folder, tokenizer, store, settings or [])
    imported = checkpoint.import_published(
        file,
        folder,
        config=config.preset(preset) if preset else None,
        tokenizer=checkpoint.read_tokenizer(tokenizer) if tokenizer else None,
        store=open_datastore(store) if store else None,
        overrides=settings or (),
    )
    for kind in ("taken", "fresh", "unknown"):
        names = getattr(imported, kind)
        tell(f"{kind}: {len(names)}")
        for name in names if kind != "taken" else ():
            tell(f"  {name}")
    say(str(folder))


def import_method(
    file: Path, folder: Path, words: Path | None, store: Path | None, settings: list[str]
) -> None:
    """Make a model folder of a published file of PDVC or CM²."""
    from starc import methods
    from starc.config import override
    from starc.errors import ConfigError
    from starc.methods.folder import save as save_method
    from starc.retrieval.datastore import open_datastore

    if words is None:
        raise ConfigError("--tokenizer: name the published vocabulary (vocabulary_youcook2.json)")
    published = store is None or store.suffix == ".npy"
    bank = store if store is None or published else open_datastore(store).exact.embedding_ND
    model = methods.load(file, words=words, bank=bank)
    if model.config.text is not None and bank is None:
        raise ConfigError("--datastore: CM² needs its memory bank (.npy) or a datastore")
    for setting in settings:
        model.config = override(model.config, setting)
    save_method(folder, model)
    say(str(folder))


def train(
    recipe: Annotated[
        str,
        typer.Argument(help="youcook2, vitt, activitynet, vid2seq, pretrain, tiny, pdvc, cm2 …"),
    ],
    features: FeaturesPath,
    run: RunFolder,
    annotations: Annotated[
        list[Path] | None,
        typer.Option(
            "--annotations",
            help="Annotation file; repeat for more references. pretrain needs none.",
        ),
    ] = None,
    tokenizer: Tokenizer = None,
    speech: Speech = None,
    store: Store = None,
    validation: Validation = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Model folder to start from (weights, sizes, windows, decoding), embedded, or a "
            "plain language model: t5:google-t5/t5-base, t5:FOLDER, llama:FOLDER, llama:X.gguf."
        ),
    ] = None,
    subset: Subset = None,
    validation_subset: ValidationSubset = None,
    settings: Settings = None,
    no_video: NoVideo = False,
    no_speech: NoSpeech = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run stopped.")] = False,
) -> None:
    """Train a model. Several GPUs, or CPUs: torchrun --nproc-per-node 2 -m starc train … -o RUN."""
    from starc.training.train import Files, run_training

    init = Path(model_name(str(init))) if init else None
    files = Files(
        annotations or None,
        features,
        speech,
        validation,
        store,
        tokenizer,
        init,
        subset,
        validation_subset,
    )
    with bar("Training", "{task.fields[scores]}") as progress:
        task = progress.add_task("", total=None, scores="")

        def on_line(line: dict[str, Any]) -> None:
            scores = line.get("validation") or {"loss": line.get("loss")}
            text = "  ".join(f"{name} {value:.4g}" for name, value in scores.items())
            progress.update(task, total=line.get("steps"), completed=line["step"], scores=text)
            if "validation" in line and not err.is_terminal:
                say(f"epoch {line['epoch']}, step {line['step']}: {text}")

        run_training(
            recipe,
            files,
            run,
            [*inputs(no_video, no_speech), *(settings or [])],
            resume=resume,
            progress=on_line,
            on_note=tell,
        )
    if os.environ.get("RANK", "0") == "0":
        say(str(run / "best"))


@recipes.callback()
def list_recipes(context: typer.Context) -> None:
    """List recipes and ablations; `show NAME` prints all settings of a recipe."""
    from starc.training.recipes import METHODS, RECIPES
    from starc.training.tables import ABLATIONS

    if context.invoked_subcommand is not None:
        return
    for title, entries in (
        ("Recipes (starc train)", {n: (made.__doc__ or "").strip() for n, made in RECIPES.items()}),
        ("Other methods (starc train)", {n: made.__doc__ or "" for n, made in METHODS.items()}),
        ("Ablations (starc ablate)", {name: one.title for name, one in ABLATIONS.items()}),
    ):
        out.print(_table(title, [list(entry) for entry in entries.items()]))
    out.print("starc recipes show NAME prints every setting with its value and meaning.")


@recipes.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(help="A recipe or an ablation.")],
    overrides: Settings = None,
) -> None:
    """Every setting of a recipe as --set names it, with value and meaning; or rows of a table."""
    from starc.config import suggest
    from starc.errors import ConfigError
    from starc.training.recipes import METHODS, RECIPES, apply_overrides, settings
    from starc.training.tables import ABLATIONS

    known = [*RECIPES, *METHODS, *ABLATIONS]
    if name not in known:
        raise ConfigError(f"{name!r}: unknown; {suggest(name, known)}")
    if name in ABLATIONS:
        rows = [[row.name, " ".join(row.overrides) or "as it is"] for row in ABLATIONS[name].rows]
        out.print(_table(ABLATIONS[name].title, rows))
        return
    made: Any = METHODS.get(name) or RECIPES[name]
    whole = apply_overrides(made(), overrides or [])
    rows = [[one.name, one.value, one.meaning] for one in settings(whole)]
    out.print(_table((made.__doc__ or "").strip(), rows))


def _table(title: str, rows: list[list[str]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, title=title, title_justify="left")
    table.add_column(no_wrap=True)
    for _ in rows[0][1:]:
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def evaluate(
    model: Annotated[
        Path, typer.Argument(help="A model folder, such as RUN/best; or the word embedded.")
    ],
    annotations: Annotations,
    features: FeaturesPath,
    speech: Speech = None,
    store: Annotated[
        str | None,
        typer.Option("--datastore", help="Another datastore than the model's own."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the predictions here.")
    ] = None,
    beams: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_BEAMS, help="Beams, if not the model's own number; 1 is greedy."
        ),
    ] = None,
    subset: Subset = None,
    annotators: AnnotatorsOption = "apart",
    protocol: Protocol = "published",
    given_boundaries: Annotated[
        bool,
        typer.Option(
            "--given-boundaries",
            help="Give the model the annotated spans; it only writes their captions.",
        ),
    ] = False,
    no_video: NoVideo = False,
    no_speech: NoSpeech = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Caption annotated videos from their features, as `starc caption` would, and score that."""
    from starc.files.cache import check_target
    from starc.training import evaluate as evaluation
    from starc_eval import score
    from starc_eval.annotations import prediction_file
    from starc_eval.command import meteor_with_progress
    from starc_eval.tables import show

    require_annotators(annotators)
    check_protocol(protocol, queries=False)
    given_boundaries = given_boundaries or protocol == "titles"
    if given_boundaries and annotators == "together":
        message = "given boundaries are those of one annotator; score annotators apart"
        raise typer.BadParameter(message, param_hint="--annotators")
    if target is not None:
        check_target(target, overwrite=overwrite)
    begun = time.perf_counter()
    folder = Path(model_name(str(model)))
    with bar("Captioning") as progress:
        task = progress.add_task("", total=None)
        answers = evaluation.evaluate(
            folder,
            annotations,
            features,
            speech,
            store=store,
            beams=beams,
            subset=subset,
            given_boundaries=given_boundaries,
            settings=inputs(no_video, no_speech),
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    captioned = time.perf_counter()
    if target is not None:
        save(target, prediction_file(answers.predictions), overwrite=overwrite)
    with meteor_with_progress() as meteor:
        report = score(
            answers.predictions,
            answers.references,
            protocol=protocol,  # type: ignore[arg-type]
            annotators=annotators,  # type: ignore[arg-type]
            meteor=meteor,
        )
    if as_json:
        seconds = {
            "load": answers.loading,
            "caption": captioned - begun - answers.loading,
            "score": time.perf_counter() - captioned,
        }
        auc = {"saliency_auc": answers.saliency_auc}
        return print_json(report.to_json() | auc | {"seconds": seconds})
    show([report])
    if answers.saliency_auc is not None:
        out.print(f"Saliency: {answers.saliency_auc:.3f} AUC, inside events against outside")


def ablate(
    name: Annotated[str, typer.Argument(help="components, windows, clustering, pooling …")],
    recipe: Annotated[str, typer.Argument(help="The recipe that the rows vary.")],
    run: RunFolder,
    annotations: Annotations,
    features: FeaturesPath,
    validation: Annotated[
        list[Path],
        typer.Option(
            "--validation", help="Annotation file of held-out videos; repeat for more references."
        ),
    ],
    tokenizer: Tokenizer = None,
    speech: Speech = None,
    store: Store = None,
    init: Annotated[
        Path | None, typer.Option(help="Where all rows start from, as in starc train.")
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="A datastore that a row uses: coco=FOLDER; hierarchical alone is built from "
            "--datastore.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings per row, each with its own seed.")] = 1,
    jobs: Annotated[int, typer.Option(help="Rows trained at the same time.")] = 1,
    subset: Subset = None,
    validation_subset: ValidationSubset = None,
    settings: Settings = None,
) -> None:
    """Run the rows of a table of the paper and write it, with the paper's figures beside ours."""
    from starc.training.ablations import named_datastores, run_rows, write
    from starc.training.tables import ablation

    chosen = ablation(name)
    arguments = [recipe, "--features", str(features)]
    arguments += ["--tokenizer", str(tokenizer)] if tokenizer else []
    for file in annotations:
        arguments += ["--annotations", str(file)]
    for file in validation:
        arguments += ["--validation", str(file)]
    arguments += ["--speech", str(speech)] if speech else []
    arguments += ["--init", str(init)] if init else []
    arguments += ["--subset", subset] if subset else []
    arguments += ["--validation-subset", validation_subset] if validation_subset else []
    for setting in settings or []:
        arguments += ["--set", setting]
    results = run_rows(
        chosen,
        arguments,
        run,
        datastores=named_datastores(chosen, others or []),
        own=store,
        seeds=range(seeds),
        jobs=jobs,
        on_line=tell,
    )
    for path in write(chosen, results, run, references=validation, subset=validation_subset):
        say(str(path))
    raise typer.Exit(3 if any(result.problem for result in results) else 0)


def analyse(
    models: Annotated[
        list[Path], typer.Argument(help="Model folders, such as RUN/best; or the word embedded.")
    ],
    annotations: Annotations,
    features: FeaturesPath,
    target: Annotated[Path, typer.Option("--out", "-o", help="Folder for the figures.")],
    speech: Speech = None,
    videos: Annotated[
        int | None,
        typer.Option(
            min=1, help="Videos to analyse; default 4, or all if there are several models."
        ),
    ] = None,
    subset: Subset = None,
) -> None:
    """Draw the paper's figures from a trained model; from several, how their scores correlate."""
    from starc.training.figures import correlate, draw

    models = [Path(model_name(str(model))) for model in models]
    if len(models) > 1:
        drawn = correlate(
            models, annotations, features, speech, target, videos=videos, subset=subset
        )
    else:
        drawn = draw(
            models[0], annotations, features, speech, target, videos=videos or 4, subset=subset
        )
    for path in drawn:
        say(str(path))
