"""Model folders (config.json, model.safetensors, tokenizer.json, datastore/) and published files.

`save` writes a whole folder or nothing, `load` reads one strictly from disk or a model hub, and
`import_published` turns a published Vid2Seq or STaRC file into one, saying by name what it took,
what starts fresh and what it did not know. No pickle is ever executed.
"""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from starc.config import MODEL_VERSION, Config, WriterConfig, apply_overrides, to_dict
from starc.decoder.caption_writer import CaptionWriter
from starc.decoder.llama import Layer, Llama, merge
from starc.decoder.precision import convert, lower, require
from starc.decoder.quantised import shapes, to_8_bits, unpack
from starc.decoder.reader import Reader
from starc.decoder.span_head import SpanHead
from starc.decoder.time_tokens import Vocabulary
from starc.errors import CheckpointError, ConfigError
from starc.files import cache
from starc.files.atomic import recover, replacing_folder, require_ours
from starc.model import published
from starc.model.folder import (
    CONFIG,
    DATASTORE,
    FILES,
    JOINT,
    MARK,
    TOKENIZER,
    WEIGHTS,
    WRITER,
    WRITER_TOKENIZER,
    find,
    fingerprint,
    read_config,
)
from starc.model.joint_space import JointSpace
from starc.model.starc import STaRC
from starc.processor import kept_memory
from starc.retrieval import captions
from starc.retrieval.datastore import Datastore, open_datastore
from starc_eval.reading import regular

_SCALAR = np.float64(0).__reduce__()[0]
_NUMPY: list[Any] = [(_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
_NUMPY += [np.dtype, *(type(np.dtype(kind)) for kind in "?bhilBHILefdqQ")]
"""What numbers of numpy are pickled as, in old versions and new: data, nothing that runs."""
Module = TypeVar("Module", bound=nn.Module)
SHOWN, LONGEST_NAME = 8, 120
"""Names listed in an error message, and characters of one; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model and what belongs to it."""

    model: STaRC
    tokenizer: Tokenizer | None
    store: Datastore | None
    folder: Path
    joint: JointSpace | None = None
    """Where the model's features are vectors of a joint space: the maps into it."""
    writer: CaptionWriter | None = None
    """The language model that captions the spans, where the model has one."""
    fingerprint: str | None = None
    """A name for all that decides its answers; None: made in memory, and nothing is cached."""

    @property
    def config(self) -> Config:
        """The model's settings."""
        return self.model.config

    @property
    def image_width(self) -> int:
        """Width of the image features it takes."""
        return self.config.temporal.features if self.joint is None else len(self.joint.mean_I)

    def with_store(self, store: Datastore | None) -> Loaded:
        """The same model with another datastore."""
        theirs = "none" if store is None else store.fingerprint
        name = cache.key(self.fingerprint, theirs) if self.fingerprint and theirs else None
        return replace(self, store=store, fingerprint=name)


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a published file, by name."""

    config: Config
    taken: tuple[str, ...]
    """Published names whose numbers are now ours."""
    fresh: tuple[str, ...]
    """Our parameters that the file does not have: they start anew."""
    unknown: tuple[str, ...]
    """Published names this model has no place for."""

    def __str__(self) -> str:
        parts = (f"took {len(self.taken)}", f"fresh {_listed(self.fresh)}")
        return "; ".join((*parts, f"unknown {_listed(self.unknown)}"))


def save(
    folder: Path,
    model: STaRC,
    *,
    tokenizer: Tokenizer | None = None,
    store: Datastore | None = None,
    joint: JointSpace | None = None,
    writer: CaptionWriter | None = None,
    bits: int = 32,
) -> None:
    """Write a model folder; on any failure the folder that was there before stays as it was.

    `bits` are those of a stored weight: 32, 16 or, of a matrix, 8. The writer's files are copied.
    """
    folder = recover(folder)
    require_own(folder)
    try:
        with replacing_folder(folder) as fresh:
            state: dict[str, Tensor] = {}
            for name, tensor in model.state_dict().items():
                if bits == 8 and tensor.ndim == 2:
                    packed = to_8_bits(tensor)
                    state |= {f"{name}.{kind}": part for kind, part in packed.items()}
                else:
                    state[name] = (tensor if bits == 32 else tensor.half()).contiguous()
            save_file(state, fresh / WEIGHTS, metadata={"format": "pt"})
            (fresh / WEIGHTS).chmod(0o644)
            inputs = replace(model.config.inputs, joint_space=joint is not None)
            config = replace(
                model.config, inputs=inputs, writer=None if writer is None else writer.settings
            )
            facts = {MARK: MODEL_VERSION, **to_dict(config)}
            (fresh / CONFIG).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
            if tokenizer is not None:
                text = tokenizer.to_str(pretty=True)  # its own way to write has errors of no class
                (fresh / TOKENIZER).write_text(text, encoding="utf-8")
            if joint is not None:
                joint.save(fresh / JOINT)
            if writer is not None:
                for name in (WRITER, WRITER_TOKENIZER):
                    shutil.copyfile(writer.folder / name, fresh / name)
            if store is not None:
                store.save(fresh / DATASTORE)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: not saved ({error}); what was there is intact") from error


def load(
    folder_or_hub_id: Path | str, *, device: str = "auto", precision: str = "float32"
) -> Loaded:
    """The model of a folder, or of a model hub, in evaluation mode.

    Strict: every parameter must be there with its shape, and nothing else. Numbers stored in half
    precision become float32.
    """
    folder = find(folder_or_hub_id)
    try:
        config = read_config(folder)
        tensors = load_file(regular(folder / WEIGHTS))
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: no {WEIGHTS}; is this a model folder?") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder / WEIGHTS}: unreadable ({error}); copy it again") from None
    model = planned(folder / WEIGHTS, config, len(tensors), lambda: STaRC(config))
    require_same(str(folder / WEIGHTS), model.state_dict(), shapes(tensors))
    model.load_state_dict(unpack(tensors), assign=True)
    tokenizer_file, store_folder = folder / TOKENIZER, recover(folder / DATASTORE)
    tokenizer = read_tokenizer(tokenizer_file) if tokenizer_file.is_file() else None
    joint = None
    if config.inputs.joint_space:
        if tokenizer is None or not (folder / JOINT).is_file():
            raise CheckpointError(f"{folder}: no {JOINT} or {TOKENIZER}; copy all of its files")
        joint = JointSpace.load(folder / JOINT, tokenizer)
    store = open_datastore(store_folder) if store_folder.is_dir() else None
    where, writer = find_device(device), None
    convert(model.to(where), precision)
    if config.writer is not None:
        writer = load_writer(folder, config.writer, where, precision)
    return Loaded(
        model=model.eval(),
        writer=writer,
        tokenizer=tokenizer,
        store=store,
        folder=folder,
        joint=joint,
        fingerprint=fingerprint(folder),
    )


def load_writer(
    folder: Path, settings: WriterConfig, device: torch.device, precision: str = "float32"
) -> CaptionWriter:
    """The caption writer in a model folder, its low-rank changes put into its weights."""
    require(precision, device)
    try:
        tensors = load_file(regular(folder / WRITER))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder / WRITER}: unreadable ({error}); copy it again") from None

    def plan() -> nn.ModuleDict:
        parts = nn.ModuleDict({"llama": Llama(settings.llama)})
        if settings.spans is not None:
            parts["head"] = SpanHead(settings.llama.width, settings.spans)
        return parts

    parts = planned(folder / WRITER, settings, len(tensors), plan)
    llama = cast(Llama, parts["llama"])
    require_same(str(folder / WRITER), parts.state_dict(), shapes(tensors))

    def filled(part: nn.Module, name: str, precision: str = precision) -> nn.Module:
        prefix = f"{name}."
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        # What is in float32 already would be taken as it is, and keep the whole file in memory.
        own = {n: t.clone() if t.dtype == torch.float32 else t for n, t in own.items()}
        part.load_state_dict(unpack(own), assign=True)
        merge(part)
        lower(part.to(device), precision)
        return part

    layers, llama.model.layers = [*llama.model.layers], nn.ModuleList()

    def filled_layers() -> Iterator[Layer]:
        # One by one: no more than one exists beside what the reader makes of it.
        with kept_memory():
            for n in range(len(layers)):
                yield filled(layers.pop(0), f"llama.model.layers.{n}")  # type: ignore[misc]

    reader = Reader(
        settings.llama,
        filled(llama.model.embed_tokens, "llama.model.embed_tokens").weight,  # type: ignore[arg-type]
        filled_layers(),
        filled(llama.model.norm, "llama.model.norm"),
    )
    head = filled(parts["head"], "head", "float32") if settings.spans is not None else None
    tokenizer = read_tokenizer(folder / WRITER_TOKENIZER)
    return CaptionWriter(reader, tokenizer, settings, folder, head)  # type: ignore[arg-type]


def require_own(folder: Path, *beside: str) -> None:
    """Refuse to replace a folder that holds anything but a model of ours, and `beside`."""

    def files(_: Mapping[str, Any]) -> list[str]:
        store = [f"{DATASTORE}/{name}" for name in captions.own_files(folder / DATASTORE)]
        return [*FILES[1:], *store, *beside]

    require_ours(folder, CONFIG, MARK, files, CheckpointError)


def import_published(
    path: Path,
    out: Path,
    *,
    config: Config | None = None,
    tokenizer: Tokenizer | None = None,
    store: Datastore | None = None,
    overrides: Sequence[str] = (),
) -> Imported:
    """Make a model folder of a published Vid2Seq or STaRC file.

    Sizes come from the shapes. Without `config` the settings are those of the file's own kind
    (`published` or `vid2seq`); with one, say `paper()` to fine-tune a Vid2Seq file, it is kept but
    for its sizes. A tensor of another shape is an error, a missing one starts fresh.
    """
    theirs, written = read_published(Path(path))
    state = {ours: tensor for name, tensor in theirs.items() if (ours := published.to_ours(name))}
    try:
        config = published.resized(config or published.guessed(state, written), state, written)
        config = apply_overrides(config, overrides)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise CheckpointError(f"{path}: impossible settings in it ({error})") from None
    if (layers := _layers(config)) > len(state):
        raise CheckpointError(f"{path}: {len(state)} tensors for {layers} layers; is it damaged?")
    model = STaRC(config)
    wanted = model.state_dict()
    taken, unknown = [], []
    for name, tensor in theirs.items():
        ours = published.to_ours(name) or ""
        if ours in published.ALIASES and ours not in wanted:
            if not torch.equal(tensor, state["t5.shared.weight"]):
                raise CheckpointError(
                    f"{path}: {name} differs from t5_model.shared.weight, though "
                    "T5 ties them; is the file damaged?"
                )
        elif ours not in wanted:
            unknown.append(name)
            continue
        elif wanted[ours].shape != tensor.shape:
            raise CheckpointError(
                f"{path}: {name} is {tuple(tensor.shape)}, the model needs "
                f"{tuple(wanted[ours].shape)}; check the sizes in the settings"
            )
        taken.append(name)
    model.load_state_dict({name: state.get(name, fresh) for name, fresh in wanted.items()})
    save(Path(out), model, tokenizer=tokenizer, store=store)
    fresh_names = tuple(name for name in wanted if name not in state)
    return Imported(config, tuple(taken), fresh_names, tuple(unknown))


def read_published(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and settings of a published file, read without executing anything in it.

    The tensors may be under "model", under "state_dict" or bare; settings under "args" or "config".
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace, *_NUMPY]):
            content = torch.load(regular(path), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except pickle.UnpicklingError as error:
        with path.open("rb") as file:
            first = file.read(1)
        if first not in (b"\x80", b"P"):  # neither a pickle nor a zip file
            raise CheckpointError(f"{path}: not a PyTorch file; give a .pth or .pt") from None
        reason = str(error).split("\n")[0].split(". ")[0]
        raise CheckpointError(
            f"{path}: holds more than tensors ({reason}); not opened, ask for a clean file"
        ) from None
    except Exception as error:  # a damaged file can raise anything
        reason = " ".join(str(error).split())[:80]
        raise CheckpointError(f"{path}: not a PyTorch file ({reason})") from None
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, not a state dictionary")
    inner = next((content[key] for key in ("model", "state_dict") if key in content), content)
    tensors = {
        name.removeprefix("module."): tensor
        for name, tensor in (inner.items() if isinstance(inner, Mapping) else ())
        if isinstance(tensor, Tensor)
    }
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or repeats(tensor):
            raise CheckpointError(f"{path}: {name!r:.80} is larger than what the file holds of it")
    if not any(published.to_ours(name) for name in tensors):
        raise CheckpointError(f"{path}: no tensor of a Vid2Seq or STaRC model in it")
    return tensors, _settings(content)


def repeats(tensor: Tensor) -> bool:
    """Whether a tensor is larger than its numbers, which then stand for many each."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def _settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """The file's own settings, flat: those of "config", of "args" and of "args" inside "config"."""
    flat: dict[str, Any] = {}
    for key in ("config", "args"):
        value = content.get(key)
        value = vars(value) if isinstance(value, argparse.Namespace) else value
        if isinstance(value, Mapping):
            flat.update({name: item for name, item in value.items() if name != "args"})
            flat.update(_settings({"args": value["args"]}) if "args" in value else {})
    flat = {n: v.item() if isinstance(v, np.generic) else v for n, v in flat.items()}
    return {name: value for name, value in flat.items() if isinstance(value, int | float | str)}


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer.json."""
    try:
        return Tokenizer.from_file(str(regular(path)))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: not a tokenizer ({error}); copy it again") from None


def check_tokenizer(tokenizer: Tokenizer, config: Config, where: str) -> None:
    """Refuse a tokenizer whose ids mean something else than T5's: padding 0, end 1, unknown 2.

    The last ids of the text vocabulary mark hidden spans of speech and must not be words. A causal
    decoder has these ids of its own, beside those of its tokenizer.
    """
    if config.llama is not None:
        if (size := tokenizer.get_vocab_size()) > config.llama.words:
            raise CheckpointError(
                f"{where}: the tokenizer has {size} words, the model room for "
                f"{config.llama.words}; give the model's own, or set model.llama.words"
            )
        return
    vocabulary = Vocabulary(config.t5.text_vocabulary, config.t5.bins)
    wanted = {vocabulary.pad: "<pad>", vocabulary.end: "</s>", vocabulary.unknown: "<unk>"}
    sentinels = range(vocabulary.text_tokens - vocabulary.sentinels, vocabulary.text_tokens)
    wanted |= {id_: f"<extra_id_{vocabulary.text_tokens - 1 - id_}>" for id_ in sentinels}
    words = {id_: word for word, id_ in tokenizer.get_vocab().items()}
    times = {f"<time={bin_}>" for bin_ in range(vocabulary.bins)}  # VidChapters adds them
    if any(id_ >= vocabulary.text_tokens and word not in times for id_, word in words.items()):
        raise CheckpointError(
            f"{where}: the tokenizer has {len(words)} words, the model room for "
            f"{vocabulary.text_tokens}; give the model's own, or set t5.text_vocabulary"
        )
    for id_, name in wanted.items():
        token = words.get(id_, name if id_ in sentinels else None)
        if token != name:
            raise CheckpointError(
                f"{where}: not a tokenizer of this T5: id {id_} is {token!r}, not {name!r}; "
                "give the tokenizer.json that belongs to the model"
            )


def planned(where: Path, config: Any, tensors: int, build: Callable[[], Module]) -> Module:
    """A model without weights, whose sizes can be compared with those of a file.

    Layers take memory even so: there are no more of them than the file has tensors.
    """
    if (layers := _layers(config)) > tensors:
        raise CheckpointError(
            f"{where}: {tensors} tensors for {layers} layers; config and weights do not belong"
        )
    try:
        with torch.device("meta"), _NoInitialValues():
            return build()
    except ConfigError as error:
        raise CheckpointError(f"{where.parent / CONFIG}: {error}") from None
    except (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        reason = " ".join(str(error).split())[:100]
        raise CheckpointError(f"{where.parent / CONFIG}: impossible sizes ({reason})") from None


def _layers(config: Any) -> int:
    """The most layers of any part of a model."""
    counts = ("layers", "decoder_layers", "depth", "members")
    own = [getattr(config, name, 0) for name in counts]
    parts = [getattr(config, name, None) for name in ("t5", "llama", "temporal", "spans")]
    return max([*own, *(_layers(part) for part in parts if part is not None)])


class _NoInitialValues(TorchFunctionMode):
    """Weights that are about to be read need no random numbers.

    Not on the meta device either, where drawing them makes torch import its compiler (1.5 s).
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_", "eye"):
            return next(one for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
        return func(*args, **kwargs)


def require_same(
    where: str, wanted: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """An error unless a file has exactly these tensors."""
    missing = [name for name in wanted if name not in shapes]
    extra = [name for name in shapes if name not in wanted]
    other = [
        f"{name} {shapes[name]} for {tuple(wanted[name].shape)}"
        for name in wanted
        if name in shapes and shapes[name] != wanted[name].shape
    ]
    lists = (("missing", missing), ("extra", extra), ("of another shape", other))
    if problems := [f"{kind} {_listed(names)}" for kind, names in lists if names]:
        raise CheckpointError(f"{where}: {'; '.join(problems)}; config and weights do not belong")


def _listed(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = ", ".join(name[:LONGEST_NAME] for name in names[:SHOWN])
    return f"{len(names)}: {shown}{more}" if names else "0"


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0][:100]
        raise ConfigError(
            f"--device {name}: is not available ({reason}); use auto or cpu"
        ) from None
    return device
