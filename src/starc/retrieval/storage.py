"""Datastore folders: whole or not there.

    captions.jsonl           {"caption", "video"} per line, for people to read and mend
    embeddings.safetensors   embedding_ND in float32 or float16, and what else a datastore keeps
    datastore.json           version, kind, encoder, counts, SHA-256 of the other files

A folder is written beside its target and takes its place at the end. Loading maps the embeddings
into memory; a file that was cut short or altered is a DatastoreError.
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

__all__ = ["Stored", "kind_of", "read_folder", "write_folder"]

VERSION = 1
_FACTS, _CAPTIONS, _TENSORS = "datastore.json", "captions.jsonl", "embeddings.safetensors"


@dataclass(frozen=True, slots=True)
class Stored:
    """What a datastore folder holds."""

    facts: Mapping[str, Any]
    """`kind`, `encoder`, `version` and what else the kind of datastore notes down."""
    captions: Sequence[str]
    videos: Sequence[str | None]
    tensors: Mapping[str, Tensor]


def write_folder(
    folder: str | Path, stored: Stored, *, extra: Mapping[str, Callable[[Path], None]] | None = None
) -> None:
    """Write a datastore folder; `extra` names further files and who writes them."""
    folder = recover(folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _FACTS).exists():
        raise DatastoreError(f"{folder}: holds other files; give a new folder for the datastore")
    try:
        with replacing_folder(folder) as new:
            _write_captions(new / _CAPTIONS, stored)
            save_file({name: x.contiguous() for name, x in stored.tensors.items()}, new / _TENSORS)
            for name, write in (extra or {}).items():
                write(new / name)
            facts = {
                "starc_datastore": VERSION,
                **stored.facts,
                "captions": len(stored.captions),
                "sha256": {file.name: digest_of(file) for file in sorted(new.iterdir())},
            }
            (new / _FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise DatastoreError(f"{folder}: cannot be written ({error.strerror})") from None


def read_folder(folder: str | Path, *, verify: bool = True) -> Stored:
    """Read a datastore folder; `verify=False` skips the checksums (seconds per gigabyte)."""
    folder = recover(folder)
    facts = _read_facts(folder)
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
    return Stored(facts, captions, videos, tensors)


def kind_of(folder: str | Path) -> str:
    """Which kind of datastore a folder holds."""
    return str(_read_facts(recover(folder))["kind"])


def _read_facts(folder: Path) -> dict[str, Any]:
    try:
        facts: Any = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    except OSError:
        raise DatastoreError(
            f"{folder}: not a datastore (no {_FACTS}); build one with starc datastore build"
        ) from None
    except ValueError:
        raise DatastoreError(f"{folder / _FACTS}: not valid JSON; build it again") from None
    found = facts.get("starc_datastore") if isinstance(facts, dict) else None
    if found != VERSION:
        raise DatastoreError(f"{folder}: datastore version {found!r}, this starc reads {VERSION}")
    if not isinstance(facts.get("sha256"), dict) or not isinstance(facts.get("kind"), str):
        raise DatastoreError(f"{folder / _FACTS}: incomplete (kind or sha256); build it again")
    return dict(facts)


def _write_captions(path: Path, stored: Stored) -> None:
    with path.open("wb") as file:
        for caption, video in zip(stored.captions, stored.videos, strict=True):
            line = json.dumps({"caption": caption, "video": video}, ensure_ascii=False) + "\n"
            file.write(line.encode("utf-8", "backslashreplace"))  # half a surrogate pair stays JSON


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
