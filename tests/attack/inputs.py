"""Damaged and hostile files, given to every reader. Each is refused in one line, or read.

`KINDS` maps a kind of input to a function that makes and reads the n-th of its inputs; what it
returns is what went wrong.
"""

from __future__ import annotations

import functools
import io
import json
import random
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes

from attack.mutate import mutated_bytes, mutated_json
from starc.errors import StarcError
from starc.files import pickles
from starc.inference.jobs import read_rows
from starc.media.container import MediaLimits
from starc.media.features import FeatureStore
from starc.media.subtitles import read_sentences, read_transcripts
from starc.media.video import probe, sample_frames
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.output.formats import FORMATS, render
from starc.retrieval.captions import read_captions
from starc.retrieval.captions import read_published as read_arrays
from starc.retrieval.datastore import open_datastore
from starc.viewer.library import Library
from starc.viewer.previews import thumbnail
from starc.viewer.records import read_captioned
from starc.viewer.search import search
from starc_eval import score
from starc_eval.annotations import read_annotations, read_references
from support import tiny
from support.clips import write_clip
from support.viewer_sample import captioned, reference

LIMITS = MediaLimits(file_bytes=10_000_000, pixels=4_000_000, duration=600.0, wall=20.0)
Read = Callable[[], object]


def refused(*reads: Read) -> str | None:
    """None if each read succeeds or is refused in one line; else what happened."""
    for read in reads:
        try:
            read()
        except StarcError as error:
            if "\n" in str(error):
                return f"more than a line: {error!r:.200}"
        except Exception as error:
            where = error.__traceback__
            while where and where.tb_next:
                where = where.tb_next
            place = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where else ""
            return f"{type(error).__name__}: {error} at {place}"[:300]
    return None


@functools.cache
def _clips(folder: Path) -> list[tuple[str, bytes]]:
    folder.mkdir(exist_ok=True)
    made = [
        write_clip(folder / "a.mp4", seconds=2, fps=5),
        write_clip(folder / "b.mkv", seconds=2, fps=5),
        write_clip(folder / "c.avi", seconds=2, fps=5, codec="mpeg4"),
        write_clip(folder / "d.mov", seconds=2, fps=5, codec="mjpeg", pixels="yuvj420p"),
    ]
    return [(path.suffix, path.read_bytes()) for path in made]


def video(folder: Path, rng: random.Random) -> str | None:
    ending, data = rng.choice(_clips(folder / "clips"))
    path = folder / f"video{ending}"
    path.write_bytes(mutated_bytes(data, rng))
    return refused(
        lambda: probe(path),
        lambda: sum(1 for _ in sample_frames(path, size=16, limits=LIMITS)),
        lambda: thumbnail(path, None, folder=folder / "thumbnails"),
    )


@functools.cache
def _documents() -> list[Any]:
    """One of every format that is read as JSON."""
    made = captioned("soup.mp4", 60.0).to_json()
    events = [
        {"start": e["start"], "end": e["end"], "caption": e["caption"]} for e in made["events"]
    ]
    spans = [{"segment": [e["start"], e["end"]], "sentence": e["caption"]} for e in events]
    timed = [{"timestamp": [e["start"], e["end"]], "sentence": e["caption"]} for e in events]
    sections = [{"timestamp": 1000 * e["start"], "tag": e["caption"]} for e in events]
    columns = {key: [e[old] for e in events] for key, old in
               (("start", "start"), ("end", "end"), ("text", "caption"))}  # fmt: skip
    return [
        made,
        reference("soup", 60.0),
        {"database": {"soup": {"subset": "training", "duration": 60, "annotations": spans}}},
        {"results": {"soup": timed}},
        {"soup": timed},
        [{"id": "soup", "duration": 60, "annotations": sections}],
        {"video": "soup", "duration": 60.0, "events": events},
        {"soup": columns},
        {"segments": [{"start": 0, "end": 2, "text": "hello"}]},
        [{"caption": e["caption"], "video": "soup"} for e in events],
        [e["caption"] for e in events],
    ]


def document(folder: Path, rng: random.Random) -> str | None:
    path = folder / "document.json"
    path.write_bytes(mutated_json(rng.choice(_documents()), rng))

    def written() -> None:
        made, granularity = read_captioned(path), rng.choice((0.3, 1.0, 1e308))
        for name in [name for name, kind in FORMATS.items() if kind.render]:
            with suppress(StarcError):
                render(made, format=name, granularity=granularity)

    def scored() -> None:
        truth = read_annotations(path)
        score(truth, truth, metrics=["localisation"], allow_missing=True)

    return refused(
        scored,
        lambda: read_references(path),
        lambda: read_captions(path),
        lambda: read_sentences(path),
        lambda: read_transcripts(path),
        written,
        lambda: search(Library([path]).refresh(), "where do they add garlic?", limit=5),
    )


SUBTITLES = """WEBVTT

NOTE a note

1
00:00:01.000 --> 00:00:04.000 align:start
<c.yellow>now</c> we <00:00:02.000>add the garlic

00:00:04.000 --> 00:00:07.500
and stir
"""
ASS = "[Script Info]\nScriptType: v4.00+\n[Events]\nFormat: Start, End, Text\n"
ASS += "Dialogue: 0:00:01.00,0:00:02.00,{\\i1}stir\\N it\n"


def subtitles(folder: Path, rng: random.Random) -> str | None:
    path = folder / f"speech{rng.choice(('.vtt', '.srt', '.ass', '.txt', '.pkl', '.lst'))}"
    path.write_bytes(mutated_bytes(rng.choice((SUBTITLES, ASS)).encode(), rng))
    return refused(lambda: read_sentences(path), lambda: read_captions(path), lambda: path.exists())


@functools.cache
def _model(folder: Path) -> Path:
    torch.manual_seed(0)
    checkpoint.save(folder, STaRC(tiny.tiny()), store=tiny.store())
    return folder


@functools.cache
def _published(folder: Path) -> dict[str, bytes]:
    """A published file whole, and with tensors of odd kinds."""
    folder.mkdir(exist_ok=True)
    state = {
        f"t5_model.{name}" if name.startswith("shared") else name: torch.zeros(2, 2)
        for name in ("shared.weight", "decoder.block.0.layer.0.SelfAttention.q.weight", "anchors")
    }
    made = {}
    for name, tensor in {
        "whole": torch.zeros(2, 2),
        "scalar": torch.tensor(1.0),
        "empty": torch.zeros(0),
        "sparse": torch.zeros(2, 2).to_sparse(),
        "whole numbers": torch.zeros(2, 2, dtype=torch.int64),
        "nan": torch.full((2, 2), float("nan")),
    }.items():
        buffer = io.BytesIO()
        torch.save({"model": {**state, "t5_model.shared.weight": tensor}, "args": {"a": 1}}, buffer)
        made[name] = buffer.getvalue()
    return made


def model(folder: Path, rng: random.Random) -> str | None:
    whole, copy = _model(folder / "whole"), folder / "model"
    if rng.random() < 0.3:
        path = folder / "published.pth"
        data = rng.choice(list(_published(folder / "published").values()))
        path.write_bytes(mutated_bytes(data, rng) if rng.random() < 0.8 else data)
        shutil.rmtree(folder / "imported", ignore_errors=True)
        return refused(lambda: checkpoint.import_published(path, folder / "imported"))
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    name = rng.choice(("config.json", "config.json", "model.safetensors"))
    data = (whole / name).read_bytes()
    if name.endswith(".json"):
        (copy / name).write_bytes(mutated_json(json.loads(data), rng))
        # A size that is a size makes a model of that size: here only whether it is one is asked.
        return refused(lambda: checkpoint.read_config(copy))
    (copy / name).write_bytes(mutated_bytes(data, rng))
    return refused(lambda: checkpoint.load(copy, device="cpu"))


def store(folder: Path, rng: random.Random) -> str | None:
    whole, copy = folder / "whole store", folder / "store"
    if not whole.exists():
        tiny.store().save(whole)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    name = rng.choice(("datastore.json", "captions.jsonl", "embeddings.safetensors"))
    data = (whole / name).read_bytes()
    mutant = (
        mutated_json(json.loads(data), rng) if name.endswith("json") else mutated_bytes(data, rng)
    )
    (copy / name).write_bytes(mutant)

    def searched() -> None:
        found = open_datastore(copy, verify=False)
        found.search(torch.ones(1, found.width), k=3)
        found.listing()

    return refused(lambda: open_datastore(copy), searched)


@functools.cache
def _feature_files() -> dict[str, bytes]:
    tensors = {"soup": torch.ones(5, 4), "soup.times": torch.arange(5.0, dtype=torch.float64)}
    array, weights, hdf5 = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(array, tensors["soup"].numpy())
    torch.save(tensors, weights)
    with h5py.File(hdf5, "w") as file:
        file.attrs["provenance"] = '{"width": "4"}'
        for name, tensor in tensors.items():
            file.create_dataset(name, data=tensor.numpy())
    odd = io.BytesIO()
    torch.save({"soup": torch.ones(3, 3).to_sparse(), "b": torch.tensor(1.0)}, odd)
    metadata = {"provenance": '{"width": "4", "fps": "1"}'}
    return {
        "soup.npy": array.getvalue(),
        "a.pth": weights.getvalue(),
        "b.pth": odd.getvalue(),
        "a.h5": hdf5.getvalue(),
        "a.safetensors": safetensors_bytes(tensors, metadata=metadata),
    }


def features(folder: Path, rng: random.Random) -> str | None:
    name, data = rng.choice(list(_feature_files().items()))
    place = folder / "features"
    place.mkdir(exist_ok=True)
    path = place / name
    path.write_bytes(mutated_bytes(data, rng))
    opened = place if name.endswith(".npy") else path

    def read() -> None:
        with FeatureStore.open(opened) as found:
            for each in found:
                problem = refused(
                    lambda each=each: found[each],  # type: ignore[misc]
                    lambda each=each: found.times(each),  # type: ignore[misc]
                )
                if problem:
                    raise AssertionError(problem)

    reads: list[Read] = [read]
    if path.suffix in (".npy", ".pth"):
        reads.append(lambda: read_arrays(path))
    return refused(*reads)


ROW = {"name": "a", "video": "/v/a.mp4", "status": "done", "seconds": 1.0, "settings": "s",
       "outputs": ["a.json"], "notes": ["n"]}  # fmt: skip
PICKLE = b"\x80\x04\x95" + bytes(7) + b"}\x94\x8c\x04soup\x94]\x94(K\x01\x8c\x01xes."


def small(folder: Path, rng: random.Random) -> str | None:
    """Rows of a manifest, pickles, names: what is cheap to read."""

    def pickled() -> None:
        try:
            pickles.load(mutated_bytes(PICKLE, rng))
        except pickles.pickle.UnpicklingError as error:
            raise StarcError(re.sub(r"\s+", " ", str(error))) from None

    return refused(lambda: read_rows(mutated_json(ROW, rng) + b"\n"), pickled)


KINDS: dict[str, tuple[int, Callable[[Path, random.Random], str | None]]] = {
    "videos": (2000, video),
    "annotations, records, captions (JSON)": (4000, document),
    "subtitles": (1000, subtitles),
    "model folders and published weights": (1000, model),
    "datastores": (1000, store),
    "feature files": (1000, features),
    "manifest rows and pickles": (1000, small),
}
"""How many inputs of each kind the long attack tries."""
