"""Captions for a datastore, out of files.

In: a text file with a caption per line, a JSON list, JSON Lines, any annotation file, or the arrays
that published datastores come as (`*_clip_token_embeds.npy` with `*_scene_sentences.npy` or
`.json`; a `.pt` tensor). Out: CaptionList, or captions with their embeddings. Nothing in a file is
ever executed: arrays of Python strings are pickles, and are read by an unpickler that knows strings
and lists alone.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from starc.errors import DatastoreError
from starc.files import pickles
from starc.files.annotations import read_references

__all__ = [
    "CaptionList",
    "Duplicates",
    "duplicates",
    "read_captions",
    "read_published",
    "same_text",
]


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
        stripped = [caption.strip() for caption in captions]
        owners = [None] * len(stripped) if videos is None else list(videos)
        if len(owners) != len(stripped):
            raise ValueError(f"one video per caption, got {len(owners)} for {len(stripped)}")
        real = [n for n, caption in enumerate(stripped) if caption]
        return cls(
            tuple(stripped[n] for n in real),
            tuple(owners[n] for n in real),
            len(stripped) - len(real),
        )


@dataclass(frozen=True, slots=True)
class Duplicates:
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
    if path.suffix.lower() not in (".json", ".jsonl"):
        captions = CaptionList.of(_text(path).split("\n"))
    else:
        captions = _plain_json(path) or _annotated(path, subset)
    if not captions.captions:
        raise DatastoreError(
            f"{path}: no captions in it ({captions.blank} blank); nothing to retrieve"
        )
    return captions


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DatastoreError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise DatastoreError(
            f"{path}: not a text file (byte {error.start} is not UTF-8); "
            "give captions as text, JSON or an annotation file"
        ) from None


def _plain_json(path: Path) -> CaptionList | None:
    """Captions that are not annotations: strings, or records with a `caption`; else None."""
    text = _text(path)
    try:
        records = json.loads(text)
    except ValueError:
        try:
            records = [json.loads(line) for line in text.split("\n") if line.strip()]
        except ValueError as error:
            raise DatastoreError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(records, list) or not records:
        return None
    if all(isinstance(record, str) for record in records):
        return CaptionList.of(records)
    if all(isinstance(record, dict) and "caption" in record for record in records):
        return _records(path, records)
    return None


def _records(path: Path, records: Sequence[dict[str, Any]]) -> CaptionList:
    for number, record in enumerate(records, start=1):
        caption, video = record["caption"], record.get("video")
        if not isinstance(caption, str) or not isinstance(video, str | None):
            raise DatastoreError(
                f"{path}: record {number} needs text as caption and video (found {record!r:.60})"
            )
    return CaptionList.of(
        (record["caption"] for record in records), (record.get("video") for record in records)
    )


def _annotated(path: Path, subset: str | None) -> CaptionList:
    pairs = [
        (sentence, video)
        for video, annotation in read_references(path, subset=subset).items()
        for sentence in annotation.sentences
    ]
    return CaptionList.of((sentence for sentence, _ in pairs), (video for _, video in pairs))


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
            array = np.load(path, allow_pickle=False)
            if array.dtype not in (np.float16, np.float32, np.float64):
                raise DatastoreError(f"{path}: expected numbers, found an array of {array.dtype}")
            return torch.from_numpy(array)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
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
            found = json.loads(_text(path))
        except ValueError as error:
            raise DatastoreError(f"{path}: not valid JSON ({error})") from None
    else:
        try:
            with path.open("rb") as file:
                found = pickles.load_strings(file)
        except OSError as error:
            raise DatastoreError(f"{path}: cannot be read ({error.strerror})") from None
        except Exception as error:  # a damaged pickle can raise anything
            raise DatastoreError(
                f"{path}: not an array of strings ({str(error)[:80]}); "
                "save the sentences as a JSON list"
            ) from None
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise DatastoreError(f"{path}: expected a list of sentences; save them as a JSON list")
    return [str(text).strip() for text in found]
