"""Datastore folders: whole or not there.

    captions.jsonl           {"caption", "video"} per line, for people to read and mend
    embeddings.safetensors   embedding_ND in float32 or float16, and what else a datastore keeps
    datastore.json           version, kind, encoder, counts, SHA-256 of the other files

A folder is written beside its target and takes its place at the end; only a folder of our own files
is ever replaced. Loading maps the embeddings into memory; a file that was cut short or altered is a
DatastoreError.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from starc.errors import DatastoreError
from starc.files.atomic import recover, replacing_folder

VERSION = 1
_FACTS, _CAPTIONS, _TENSORS = "datastore.json", "captions.jsonl", "embeddings.safetensors"

FileWriters = Mapping[str, Callable[[Path], None]]
"""Files of a folder by name, and what writes each."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a datastore folder holds."""

    facts: Mapping[str, Any]
    """`kind`, `encoder`, `version` and what else the kind of datastore notes down."""
    captions: Sequence[str]
    videos: Sequence[str | None]
    tensors: Mapping[str, Tensor]
    digest: str
    """SHA-256 of datastore.json, and so of all files."""


def write_folder(folder: str | Path, facts: Mapping[str, Any], files: FileWriters) -> None:
    """Write a datastore folder; refuses to replace anything but a datastore."""
    require_replaceable(folder)
    try:
        with replacing_folder(folder) as new:
            for name, write in files.items():
                write(new / name)
            digests = {name: digest_of(new / name) for name in sorted(files)}
            facts = {"starc_datastore": VERSION, **facts, "sha256": digests}
            (new / _FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise DatastoreError(f"{folder}: cannot be written ({error.strerror})") from None


def caption_files(
    captions: Sequence[str], videos: Sequence[str | None], tensors: Mapping[str, Tensor]
) -> FileWriters:
    """The files that hold captions and their embeddings."""

    def write_captions(path: Path) -> None:
        with path.open("wb") as file:
            for caption, video in zip(captions, videos, strict=True):
                line = json.dumps({"caption": caption, "video": video}, ensure_ascii=False) + "\n"
                file.write(line.encode("utf-8", "backslashreplace"))  # lone surrogates stay JSON

    def write_tensors(path: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)

    return {_CAPTIONS: write_captions, _TENSORS: write_tensors}


def require_replaceable(folder: str | Path) -> None:
    """DatastoreError unless `folder` is new, empty, or holds a datastore and nothing else."""
    folder = recover(folder)
    try:
        files = list(folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise DatastoreError(f"{folder}: not a folder ({error.strerror}); name another") from None
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        facts = None
    ours = isinstance(facts, dict) and "starc_datastore" in facts
    digests = facts.get("sha256") if ours else None
    known = {_FACTS, *digests} if isinstance(digests, dict) else set()
    foreign = sorted(file.name for file in files if file.name not in known or not file.is_file())
    if foreign:
        raise DatastoreError(
            f"{folder}: holds other files ({foreign[0]}); give a new folder for the datastore"
        )


def read_folder(folder: str | Path, *, verify: bool = True) -> Stored:
    """Read a datastore folder; `verify=False` skips the checksums (seconds per gigabyte)."""
    folder = recover(folder)
    facts = read_facts(folder)
    if verify:
        for name, digest in facts["sha256"].items():
            if not (folder / name).is_file():
                raise DatastoreError(f"{folder}: {name} is missing; copy or build it again")
            if digest_of(folder / name) != digest:
                raise DatastoreError(
                    f"{folder / name}: damaged or edited (its checksum differs); "
                    "build it again, or load with verify=False"
                )
    captions, videos = _read_captions(folder / _CAPTIONS)
    try:
        with safe_open(folder / _TENSORS, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DatastoreError(f"{folder / _TENSORS}: cannot be read ({error})") from None
    if "embedding_ND" not in tensors or len(tensors["embedding_ND"]) != len(captions):
        raise DatastoreError(
            f"{folder}: {len(captions)} captions but not as many embeddings; build it again"
        )
    return Stored(facts, captions, videos, tensors, digest_of(folder / _FACTS))


def read_facts(folder: str | Path) -> dict[str, Any]:
    """What datastore.json says: `kind`, `encoder`, `sha256` and the rest."""
    folder = recover(folder)
    try:
        facts: Any = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    except OSError:
        raise DatastoreError(
            f"{folder}: not a datastore (no {_FACTS}); build one with starc datastore build"
        ) from None
    except ValueError:
        raise DatastoreError(f"{folder / _FACTS}: not valid JSON; build it again") from None
    version = facts.get("starc_datastore") if isinstance(facts, dict) else None
    if version != VERSION:
        raise DatastoreError(f"{folder}: datastore version {version!r}, this starc reads {VERSION}")
    types = {"sha256": dict, "kind": str, "encoder": str}
    if wrong := [name for name, kind in types.items() if not isinstance(facts.get(name), kind)]:
        raise DatastoreError(f"{folder / _FACTS}: incomplete ({wrong[0]}); build it again")
    return dict(facts)


def _read_captions(path: Path) -> tuple[list[str], list[str | None]]:
    captions: list[str] = []
    videos: list[str | None] = []
    try:
        with path.open("rb") as file:
            for line in file:
                record = json.loads(line)
                captions.append(record["caption"])
                videos.append(record["video"])
    except OSError as error:
        raise DatastoreError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise DatastoreError(
            f"{path}: line {len(captions) + 1} is not a caption with its video; build it again"
        ) from None
    return captions, videos


def digest_of(path: Path) -> str:
    """SHA-256 of a file, all of it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
