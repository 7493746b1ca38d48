"""Commands for datastores of captions: build, search, add, remove, join, info.

A datastore is named by its folder, or `qdrant:LOCATION/COLLECTION`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from starc.cli.progress import say, tell
from starc.errors import ConfigError

if TYPE_CHECKING:
    from starc.media.encoders import TextEncoder
    from starc.retrieval.datastore import Datastore

err = Console(stderr=True, highlight=False, markup=False)
app = typer.Typer(help="Build, search and edit datastores of captions.", no_args_is_help=True)

INDICES = ("exact", "faiss", "qdrant")
QUIET_SECONDS = 2.0
"""Embedding that takes no longer shows no progress bar."""

Name = Annotated[
    str, typer.Argument(metavar="DATASTORE", help="A folder, or qdrant:LOCATION/COLLECTION.")
]
Captions = Annotated[Path, typer.Argument(help="A text, JSON or annotation file.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Datastore folder to write.")]
OwnEncoder = Annotated[
    str | None, typer.Option("--encoder", help="Text encoder; else the one that made it.")
]
Subset = Annotated[str | None, typer.Option(help="Split of a YouCook2 file to use.")]


@app.command()
def build(
    captions: Annotated[
        Path,
        typer.Argument(
            help="A text, JSON, CC3M or annotation file, published arrays (.npy), HiCM²'s memory."
        ),
    ],
    folder: Out,
    index: Annotated[str, typer.Option(help="exact, faiss (very large) or qdrant (shared).")] = (
        "exact"
    ),
    levels: Annotated[int, typer.Option(help="Levels of summaries above the captions.")] = 0,
    location: Annotated[
        str | None, typer.Option(help="Of Qdrant: a server's URL, or a folder.")
    ] = None,
    collection: Annotated[
        str | None, typer.Option(help="Name within Qdrant.  [dim]\\[default: captions][/dim]")
    ] = None,
    sentences: Annotated[
        Path | None, typer.Option(help="The texts of published arrays, .npy or .json.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="minilm, or a CLIP folder or hub id.  [dim]\\[default: minilm][/dim]"),
    ] = None,
    summaries: Annotated[
        list[Path] | None,
        typer.Option("--summaries", help="Summaries of a level, as a file; again for the next."),
    ] = None,
    summariser: Annotated[
        str | None,
        typer.Option(help="Server that sums up clusters, OpenAI-compatible: http://HOST:8000/v1."),
    ] = None,
    summariser_model: Annotated[str, typer.Option(help="Model to ask the server for.")] = "default",
    centre: Annotated[bool, typer.Option("--centre", help="Subtract the mean embedding.")] = False,
    subset: Subset = None,
) -> None:
    """Embed captions and keep them for retrieval. Published arrays are embedded already."""
    arrays = captions.suffix.lower() in (".npy", ".pt", ".pth")
    memory = captions.suffix.lower() in (".pkl", ".pickle")
    qdrant = index == "qdrant"
    place = Path(location).resolve() if location and "://" not in location else Path()
    _refuse(
        {
            f"--index: expected {', '.join(INDICES)} (found {index!r})": index not in INDICES,
            f"--levels: expected 0 to 9 (found {levels})": not 0 <= levels <= 9,
            f"--levels: not with --index {index}": bool(levels) and index != "exact",
            "--location: Qdrant needs a server's URL or a folder": qdrant and not location,
            "--location: only with --index qdrant": bool(location) and not qdrant,
            "--location: choose a place outside --out": place.is_relative_to(folder.resolve()),
            "--collection: only with --index qdrant": bool(collection) and not qdrant,
            "--sentences: only with published arrays (.npy, .pt)": bool(sentences) and not arrays,
            "--centre: not with published arrays": centre and (arrays or memory),
            "--subset: not with published arrays": bool(subset) and (arrays or memory),
            "--summaries: not with --levels": bool(summaries) and levels > 0,
            "--summaries: only with --index exact": bool(summaries) and index != "exact",
            "--summaries, --summariser: not with published files": (arrays or memory)
            and bool(summaries or summariser),
            "--summariser: needs --levels, such as 2": bool(summariser) and not levels,
            "--levels, --index: HiCM²'s memory has its own": memory
            and (levels > 0 or index != "exact"),
        }
    )
    from starc.retrieval.approximate import FaissStore, QdrantStore
    from starc.retrieval.captions import duplicates, read_captions, require_replaceable
    from starc.retrieval.datastore import CaptionStore
    from starc.retrieval.hierarchy import (
        HierarchicalStore,
        read_hicm2,
        server,
        summarised,
        with_summaries,
    )

    require_replaceable(folder)  # said now, not after embedding
    options = {} if encoder is None else {"encoder": encoder}
    if memory:
        indexed: Datastore = read_hicm2(captions, **options)
    elif arrays:
        indexed = CaptionStore.from_published(captions, sentences, **options)
    else:
        model = _text_encoder(encoder or "minilm")
        with embedding_progress() as on_progress:
            listed = read_captions(captions, subset=subset)
            indexed = CaptionStore.build(listed, model, centre=centre, on_progress=on_progress)
    store = indexed.exact
    sizes = [max(1, len(store) // 10**level) for level in range(1, levels + 1)]
    if index == "faiss":
        indexed = FaissStore(store)
    elif qdrant:
        indexed = QdrantStore.upload(store, location, collection or "captions")
    elif summaries:
        indexed = with_summaries(store, summaries, model)
    elif summariser:
        ask = server(summariser, summariser_model)
        with embedding_progress("Summing up") as on_progress:
            indexed = summarised(
                store,
                sizes,
                model,
                ask,
                f"{summariser_model} at {summariser}",
                on_progress=on_progress,
            )
    elif levels:
        indexed = HierarchicalStore(store, levels=sizes)
    with closing(indexed):
        indexed.save(folder)
        repeated = len(duplicates(store.captions).exact)
        tell(f"{folder}: {len(store)} captions, {repeated} of them more than once")


@app.command()
def search(
    name: Name,
    text: Annotated[str, typer.Argument(help="What to look for.")],
    count: Annotated[int, typer.Option("-k", help="How many captions (of every level).")] = 10,
    encoder: OwnEncoder = None,
) -> None:
    """Show the captions nearest to a text."""
    _refuse({f"-k: expected 1 or more (found {count})": count < 1})
    with _opened(name) as store:
        query_SD = _text_encoder(encoder or store.encoder).encode([text])
        query_SD = query_SD if store.mean_D is None else query_SD - store.mean_D
        index_SR, score_SR = store.search(query_SD, k=count)
        for index, score in zip(index_SR[0].tolist(), score_SR[0].tolist(), strict=True):
            say(f"{score:.3f}  {store.captions[index]}")


@app.command()
def add(name: Name, captions: Captions, encoder: OwnEncoder = None, subset: Subset = None) -> None:
    """Add captions to a datastore, embedded by its own text encoder."""
    from starc.retrieval.captions import read_captions

    new = read_captions(captions, subset=subset)
    with _opened(name) as store:
        model = _text_encoder(encoder or store.encoder)
        with embedding_progress() as on_progress:
            edited = store.add(new, model, on_progress)
        _save(edited, name)
        tell(f"{name}: {len(new.captions)} captions added, {edited.facts['captions']} in all")


@app.command()
def remove(
    name: Name,
    videos: Annotated[
        list[str] | None, typer.Option("--video", help="Remove the captions of this video.")
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="Remove the captions in this text, JSON or annotation file.")
    ] = None,
) -> None:
    """Remove captions from a datastore, by video or by text (whatever case and punctuation)."""
    _refuse({"remove: give --video ID or --captions FILE": not videos and not captions})

    from starc.retrieval.captions import read_captions

    texts = read_captions(captions).captions if captions else ()
    with _opened(name) as store:
        before = store.facts["captions"]
        edited = store.remove(videos=videos or (), captions=texts)
        after = edited.facts["captions"]
        _save(edited, name)
        tell(f"{name}: {before - after} captions removed, {after} left")


@app.command()
def join(
    names: Annotated[list[str], typer.Argument(metavar="DATASTORE...", help="Two or more.")],
    folder: Out,
) -> None:
    """Join datastores of one text encoder into a new one."""
    _refuse({"join: expected two datastores or more (found 1)": len(names) < 2})

    from starc.retrieval.captions import require_replaceable
    from starc.retrieval.datastore import joined

    require_replaceable(folder)
    stores = []
    for name in names:
        with _opened(name) as store:
            stores.append(store.exact)
    whole = joined(stores)
    whole.save(folder)
    tell(f"{folder}: {len(whole)} captions")


@app.command()
def info(name: Name) -> None:
    """Tell the kind, encoder, size, duplicates and, of approximate search, the recall."""
    from starc.retrieval.captions import duplicates
    from starc_eval.annotations import video_id

    with _opened(name) as store:
        listed = store.listing()
        repeated = duplicates(listed.captions)
        kind = store.facts["kind"]
        levels = " + ".join(map(str, store.facts.get("levels", ())))
        lines = {
            "kind": "exact" if kind == "captions" else kind,
            "encoder": store.encoder + ("" if store.mean_D is None else ", centred"),
            "width": store.width,
            "captions": len(listed.captions),
            "summaries": levels and f"{levels} ({store.facts.get('summaries', 'medoids')})",
            "videos": len({video_id(video) for video in listed.videos if video is not None}),
            "duplicates": f"{len(repeated.exact)} equal, {len(repeated.near)} nearly equal",
            "recall": store.recall,
        }
    for label, value in lines.items():
        if value not in (None, ""):
            say(f"{label:<12}{value}")


@contextmanager
def embedding_progress(doing: str = "Embedding") -> Iterator[Callable[[int, int], None]]:
    """A function to call with (done, all): a bar on stderr, if it takes long and someone looks."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(TextColumn(doing), *columns, console=err, disable=not err.is_terminal)
    task, began = bar.add_task("", total=None), monotonic()

    def on_progress(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if monotonic() - began > QUIET_SECONDS:
            bar.start()

    try:
        yield on_progress
    finally:
        bar.stop()


def _opened(name: str) -> closing[Datastore]:
    from starc.retrieval.datastore import open_datastore

    return closing(open_datastore(name))


def _save(store: Datastore, name: str) -> None:
    if Path(name).is_dir():  # a name of Qdrant is no folder, and is changed already
        store.save(name)


def _text_encoder(name: str) -> TextEncoder:
    from starc.media.encoders import load_text_encoder

    return load_text_encoder("minilm" if name == "unknown" else name)


def _refuse(problems: Mapping[str, bool]) -> None:
    """One line for the first problem there is."""
    for message, wrong in problems.items():
        if wrong:
            raise ConfigError(message)
