"""A model folder as files: where it is, its settings, a name for its content.

This is what a cached answer is found by, so nothing here opens weights or imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starc.config import MODEL_VERSION, Config, from_dict
from starc.errors import CheckpointError, ConfigError
from starc.files import cache
from starc.files.atomic import recover
from starc.files.cache import hub_is_away
from starc_eval.reading import parse_json, read_text

MARK = "starc_model"
"""The key of config.json by which a folder is known to be ours; its value is the version."""
CONFIG, WEIGHTS, TOKENIZER, JOINT, WRITER, WRITER_TOKENIZER, DATASTORE = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "joint.safetensors",
    "writer.safetensors",
    "writer_tokenizer.json",
    "datastore",
)
FILES = (CONFIG, WEIGHTS, TOKENIZER, JOINT, WRITER, WRITER_TOKENIZER)
LARGEST_CONFIG = 1 << 24
"""Bytes of a config.json."""
FACTS, SHARED = "datastore.json", "qdrant"
"""What a datastore says of itself, and the kind that others may change at any time."""


def find(folder_or_hub_id: Path | str) -> Path:
    """The folder itself, or the hub's copy of it in the cache."""
    folder = recover(folder_or_hub_id)
    name = str(folder_or_hub_id)
    if folder.is_dir():
        return folder
    if isinstance(folder_or_hub_id, Path) or name.count("/") != 1 or name[0] in "./~":
        raise CheckpointError(f"{name}: no such folder; give a model folder or a hub id owner/name")
    return hub_copy(name, [*FILES, f"{DATASTORE}/*"])


def hub_copy(name: str, wanted: Sequence[str], *, prefix: str = "") -> Path:
    """The files `wanted` of a hub id, fetched into the hub's cache if need be."""
    from huggingface_hub import snapshot_download

    away = hub_is_away()
    try:
        return Path(snapshot_download(name, allow_patterns=list(wanted), local_files_only=away))
    except Exception as error:  # offline, unknown, private: the hub has many classes for them
        said = str(error).split("\n")[0]
        reason = "the hub does not answer; is there a network?" if away else f"the hub says: {said}"
        raise CheckpointError(f"{prefix}{name}: not a folder, and {reason}") from None


def read_config(folder: Path) -> Config:
    """The settings in a model folder."""
    path = folder / CONFIG
    try:
        facts = parse_json(read_text(path, most=LARGEST_CONFIG))
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: no {CONFIG}; is this a model folder?") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); copy it again") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error}); save it again") from None
    if not isinstance(facts, dict) or facts.pop(MARK, None) != MODEL_VERSION:
        raise CheckpointError(
            f"{path}: not a model of starc, version {MODEL_VERSION} (no {MARK!r} in it); "
            "name a model folder, or make one with starc import"
        )
    if "method" in facts:
        raise CheckpointError(
            f"{path}: a model of another method ({facts['method']}); starc evaluate opens it"
        )
    try:
        return from_dict(facts)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def fingerprint(folder: Path) -> str | None:
    """A name for the content of a model folder: weights, settings, words, maps and captions.

    None where it points to a datastore that may change under it.
    """
    store = recover(folder / DATASTORE)
    captions = datastore_fingerprint(store) if store.is_dir() else "none"
    if captions is None:
        return None
    parts = (folder / name for name in FILES)
    names = (f"{p.name} {cache.whole_fingerprint(p)}" for p in parts if p.is_file())
    return cache.key(*names, captions)


def datastore_fingerprint(name: Path | str) -> str | None:
    """A name for the content of a datastore folder; None for what may change, or is no folder."""
    folder = recover(name)
    facts = cache.read(folder / FACTS)
    if not isinstance(facts, dict) or facts.get("kind") == SHARED:
        return None
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return cache.key(*(f"{path.name} {cache.whole_fingerprint(path)}" for path in files))
