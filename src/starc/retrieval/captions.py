"""The files of a datastore: captions to build it from, published arrays, its own folder.

Captions come from a text file with one per line, a JSON list, JSON Lines, COCO's captions, CC3M's
table of captions and addresses, any annotation file, or the arrays that published datastores come
as (`*_clip_token_embeds.npy` with `*_scene_sentences.npy` or `.json`; a `.pt` tensor). Nothing in a
file is ever executed: arrays of Python strings are
pickles, and are read by an unpickler that knows strings and lists alone. A datastore folder holds

    captions.jsonl           {"caption", "video"} per line, for people to read and correct
    embeddings.safetensors   embedding_ND in float32 or float16, and what else a datastore keeps
    datastore.json           version, kind, encoder, counts, SHA-256 of the other files

It is written beside its target and takes its place at the end; only a folder of our own files is
ever replaced. Loading maps the embeddings into memory; a file that was cut short or altered is a
DatastoreError.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from starc.errors import DatastoreError
from starc.files import pickles
from starc.files.atomic import recover, replacing_folder, require_ours
from starc_eval.annotations import read_references
from starc_eval.reading import parse_json, read_text, regular

VERSION, MARK = 1, "starc_datastore"
FACTS, CAPTIONS, TENSORS = "datastore.json", "captions.jsonl", "embeddings.safetensors"
MAPPED = 1 << 28
"""Bytes from which a file is mapped without being read."""


@dataclass(frozen=True, slots=True)
class CaptionList:
    """Captions and the video each belongs to, without blank ones."""

    captions: tuple[str, ...]
    videos: tuple[str | None, ...]
    blank: int = 0
    """Empty captions that were left out."""

    @classmethod
    def of(cls, captions: Iterable[str], videos: Iterable[str | None] | None = None) -> CaptionList:
        """Strip the captions and leave out the empty ones."""
        texts = [caption.strip() for caption in captions]
        owners = [None] * len(texts) if videos is None else list(videos)
        if len(owners) != len(texts):
            raise ValueError(f"one video per caption, got {len(owners)} for {len(texts)}")
        kept = [owner for text, owner in zip(texts, owners, strict=True) if text]
        return cls(tuple(filter(None, texts)), tuple(kept), len(texts) - len(kept))


class Duplicates(NamedTuple):
    """Groups of two or more captions, by index, in order."""

    exact: list[list[int]]
    """The same text."""
    near: list[list[int]]
    """The same text but for case, spacing and punctuation."""


def same_text(caption: str) -> str:
    """The caption without case, spacing and punctuation: equal for captions that say the same."""
    return " ".join(re.findall(r"\w+", caption.casefold())) or caption.strip()


def duplicates(captions: Sequence[str]) -> Duplicates:
    """Captions that occur more than once."""
    exact: dict[str, list[int]] = {}
    near: dict[str, list[int]] = {}
    for n, caption in enumerate(captions):
        exact.setdefault(caption, []).append(n)
        near.setdefault(same_text(caption), []).append(n)
    return Duplicates(
        [group for group in exact.values() if len(group) > 1],
        [group for group in near.values() if len({captions[n] for n in group}) > 1],
    )


def read_captions(path: str | Path, *, subset: str | None = None) -> CaptionList:
    """The captions of a file; `subset` keeps one split of an annotation file (`training`)."""
    path = Path(path)
    if path.suffix.lower() in (".json", ".jsonl"):
        captions = _json_captions(path, subset)
    else:
        captions = CaptionList.of(map(_without_address, _text(path).split("\n")))
    if not captions.captions:
        raise DatastoreError(
            f"{path}: no captions in it ({captions.blank} blank); nothing to retrieve"
        )
    return captions


def _without_address(line: str) -> str:
    """CC3M's lines are a caption, a tab and the address of its picture."""
    caption, _, address = line.partition("\t")
    is_heading = (caption.strip(), address.strip()) == ("caption", "url")
    return "" if is_heading else caption if address.startswith(("http://", "https://")) else line


def _json_captions(path: Path, subset: str | None) -> CaptionList:
    """Strings, records with a `caption` and perhaps a `video`, or annotations."""
    text = _text(path)
    try:
        records = parse_json(text)
    except ValueError:
        try:
            records = [parse_json(line) for line in text.split("\n") if line.strip()]
        except ValueError as error:
            raise DatastoreError(f"{path}: not valid JSON ({error})") from None
    if isinstance(records, dict) and {"images", "annotations"} <= records.keys():  # COCO's
        records = [{"caption": one.get("caption")} for one in records["annotations"]]
    if isinstance(records, list) and records:
        if all(isinstance(record, str) for record in records):
            return CaptionList.of(records)
        if all(isinstance(record, dict) and "caption" in record for record in records):
            pairs = [(record["caption"], record.get("video")) for record in records]
            for number, (caption, video) in enumerate(pairs, start=1):
                if not isinstance(caption, str) or not isinstance(video, str | None):
                    raise DatastoreError(
                        f"{path}: record {number} needs text as caption and video "
                        f"(found {records[number - 1]!r:.60})"
                    )
            return CaptionList.of(*zip(*pairs, strict=True))
    annotated = read_references(path, subset=subset)
    return CaptionList.of(
        (sentence for annotation in annotated.values() for sentence in annotation.sentences),
        (each.video or key for key, each in annotated.items() for _ in each.sentences),
    )


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise DatastoreError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise DatastoreError(
            f"{path}: not a text file (byte {error.start} is not UTF-8); "
            "give captions as text, JSON or an annotation file"
        ) from None


def read_published(
    embeddings: str | Path, sentences: str | Path | None = None
) -> tuple[list[str], Tensor]:
    """A published datastore: its captions, and embedding_ND as stored (not of unit length).

    Embeddings are [N, D] or [N, 1, D]. Without a file of sentences the captions are `#0`, `#1`, …:
    the model uses embeddings alone, but what it retrieves cannot be read.
    """
    path = Path(embeddings)
    embedding_ND = _array(path).float()
    if embedding_ND.ndim == 3 and embedding_ND.shape[1] == 1:
        embedding_ND = embedding_ND[:, 0]
    if embedding_ND.ndim != 2 or not embedding_ND.numel():
        raise DatastoreError(
            f"{path}: expected embeddings [captions, width], found {tuple(embedding_ND.shape)}"
        )
    if sentences is None:
        return [f"#{n}" for n in range(len(embedding_ND))], embedding_ND
    captions = _sentences(Path(sentences))
    if len(captions) != len(embedding_ND):
        raise DatastoreError(
            f"{sentences}: {len(captions)} sentences for {len(embedding_ND)} embeddings "
            f"in {path.name}; these files do not belong together"
        )
    return captions, embedding_ND


def _array(path: Path) -> Tensor:
    try:
        if path.suffix == ".npy":
            array = np.load(regular(path), allow_pickle=False)
            if array.dtype not in (np.float16, np.float32, np.float64):
                raise DatastoreError(f"{path}: expected numbers, found an array of {array.dtype}")
            return torch.from_numpy(array)
        loaded = torch.load(regular(path), map_location="cpu", weights_only=True)
    except DatastoreError:
        raise
    except Exception as error:  # damaged headers and pickles can raise anything
        reason = str(error).split("\n")[0][:100]
        raise DatastoreError(f"{path}: cannot be read as an array ({reason})") from None
    if isinstance(loaded, dict) and len(loaded) == 1:
        loaded = next(iter(loaded.values()))
    if not isinstance(loaded, Tensor):
        raise DatastoreError(f"{path}: expected one tensor, found {type(loaded).__name__}")
    return loaded


def _sentences(path: Path) -> list[str]:
    if path.suffix.lower() == ".json":
        try:
            texts = parse_json(_text(path))
        except ValueError as error:
            raise DatastoreError(f"{path}: not valid JSON ({error})") from None
    else:
        try:
            with path.open("rb") as file:
                texts = pickles.load_strings(file)
        except OSError as error:
            raise DatastoreError(f"{path}: cannot be read ({error.strerror})") from None
        except Exception as error:  # a damaged pickle can raise anything
            raise DatastoreError(
                f"{path}: not an array of strings ({str(error)[:80]}); "
                "save the sentences as a JSON list"
            ) from None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DatastoreError(f"{path}: expected a list of sentences; save them as a JSON list")
    return [str(text).strip() for text in texts]


class Folder(NamedTuple):
    """What a datastore folder holds."""

    facts: Mapping[str, Any]
    """`kind`, `encoder`, `version` and what else the kind of datastore notes down."""
    captions: Sequence[str]
    videos: Sequence[str | None]
    tensors: Mapping[str, Tensor]
    digest: str
    """SHA-256 of datastore.json, and so of all files."""


def write_folder(
    folder: str | Path, facts: Mapping[str, Any], files: Mapping[str, Callable[[Path], Any]]
) -> None:
    """Write a datastore folder of `files`, each by its function; replaces only a datastore."""
    require_replaceable(folder)
    try:
        with replacing_folder(folder) as new:
            for name, write in files.items():
                write(new / name)
            digests = {name: digest_of(new / name) for name in sorted(files)}
            facts = {MARK: VERSION, **facts, "sha256": digests}
            (new / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError, RuntimeError) as error:  # a full disk is any of them
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:100]
        raise DatastoreError(f"{folder}: cannot be written ({reason})") from None


def require_replaceable(folder: str | Path) -> None:
    """DatastoreError unless `folder` is new, empty, or holds a datastore and nothing else."""
    require_ours(recover(folder), FACTS, MARK, lambda facts: facts["sha256"], DatastoreError)


def own_files(folder: Path) -> list[str]:
    """The files in a datastore folder that make it up; none if it is not one."""
    try:
        return [FACTS, *read_facts(folder)["sha256"]]
    except DatastoreError:
        return []


def read_folder(folder: str | Path, *, verify: bool | None = None) -> Folder:
    """Read a datastore folder; embeddings are mapped, not read.

    Checksums take a second per gigabyte: they are compared for all files (`verify=True`), for none
    (False), or for those of up to MAPPED bytes.
    """
    folder = recover(folder)
    facts = read_facts(folder)
    for name, digest in facts["sha256"].items() if verify is not False else ():
        if not (folder / name).is_file():
            raise DatastoreError(f"{folder}: {name} is missing; copy or build it again")
        if verify is None and (folder / name).stat().st_size > MAPPED:
            continue
        if digest_of(folder / name) != digest:
            raise DatastoreError(
                f"{folder / name}: damaged or edited (its checksum differs); "
                "build it again, or load with verify=False"
            )
    captions: list[str] = []
    videos: list[str | None] = []
    path = folder / CAPTIONS
    try:
        with regular(path).open(encoding="utf-8") as lines:
            for line in lines:
                record = parse_json(line)
                captions.append(record["caption"])
                videos.append(record["video"])
    except OSError as error:
        raise DatastoreError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise DatastoreError(
            f"{path}: line {len(videos) + 1} is not a caption with its video; build it again"
        ) from None
    try:
        with safe_open(regular(folder / TENSORS), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DatastoreError(f"{folder / TENSORS}: cannot be read ({error})") from None
    if "embedding_ND" not in tensors or len(tensors["embedding_ND"]) != len(captions):
        raise DatastoreError(
            f"{folder}: {len(captions)} captions but not as many embeddings; build it again"
        )
    return Folder(facts, captions, videos, tensors, digest_of(folder / FACTS))


def read_facts(folder: str | Path) -> dict[str, Any]:
    """What datastore.json says: `kind`, `encoder`, `sha256` and the rest."""
    folder = recover(folder)
    try:
        facts: Any = parse_json(read_text(folder / FACTS))
    except OSError:
        raise DatastoreError(
            f"{folder}: not a datastore (no {FACTS}); build one with starc datastore build"
        ) from None
    except ValueError:
        raise DatastoreError(f"{folder / FACTS}: not valid JSON; build it again") from None
    version = facts.get(MARK) if isinstance(facts, dict) else None
    if version != VERSION:
        raise DatastoreError(f"{folder}: datastore version {version!r}, this starc reads {VERSION}")
    types = {"sha256": dict, "kind": str, "encoder": str}
    if wrong := [name for name, kind in types.items() if not isinstance(facts.get(name), kind)]:
        raise DatastoreError(f"{folder / FACTS}: incomplete ({wrong[0]}); build it again")
    return dict(facts)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, all of it."""
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
