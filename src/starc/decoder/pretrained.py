"""Pretrained Llama-family models: folders of the hub and GGUF files.

In: a folder with transformers' config.json, safetensors and tokenizer.json, or a `.gguf` file
(types F32, F16, Q8_0, Q4_0, Q4_1; little-endian, version 2 or 3), read without llama.cpp. Out:
sizes, float32 weights under the hub's names, and the tokenizer. Every length and offset of a
GGUF file is checked before it is used.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from starc.config import LlamaConfig
from starc.errors import CheckpointError
from starc_eval.reading import parse_json, read_text, regular

MOST_ENTRIES = 1 << 16
"""Metadata entries or tensors of a file we are ready to read."""
MOST_ITEMS = 1 << 22
"""Items of one metadata array; vocabularies have some 10^5."""
MOST_STRING = 1 << 20
"""Bytes of one metadata string."""
MOST_DIMENSIONS = 4
LARGEST_SIZE = 1 << 24
"""Of a width, or a number of layers or heads."""
LARGEST_CONFIG = 1 << 24
"""Bytes of a config.json."""
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"}
_SCALARS |= {10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9

Bytes = NDArray[np.uint8]


class Pretrained(NamedTuple):
    """A language model as it was published."""

    config: LlamaConfig
    state: dict[str, Tensor]
    tokenizer: Tokenizer


def read_llama(path: Path) -> Pretrained:
    """The model of a hub folder or of a GGUF file."""
    if path.is_file():
        file = Gguf.read(path)
        return Pretrained(llama_config(file), llama_weights(file), byte_level_bpe(file))
    try:
        facts = parse_json(read_text(path / "config.json", most=LARGEST_CONFIG))
        state: dict[str, Tensor] = {}
        for part in sorted(path.glob("model*.safetensors")):
            state |= {name: tensor.float() for name, tensor in load_file(regular(part)).items()}
        tokenizer = Tokenizer.from_file(str(regular(path / "tokenizer.json")))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: no {Path(error.filename or '').name}; give a folder of a "
            "Llama-family model (config.json, model.safetensors, tokenizer.json) or a .gguf file"
        ) from None
    except Exception as error:  # the tokenizers library raises bare Exception
        raise CheckpointError(f"{path}: unreadable ({brief(error)}); copy it again") from None
    kind = facts.get("model_type") if isinstance(facts, dict) else None
    if kind != "llama" or facts.get("rope_scaling") or facts.get("attention_bias"):
        raise CheckpointError(
            f"{path}: model_type {kind!r:.60}; only llama without biases and rope_scaling is read"
        )
    if "model.embed_tokens.weight" not in state:
        raise CheckpointError(f"{path}: no model.embed_tokens.weight in its safetensors files")
    head = state.pop("lm_head.weight", state["model.embed_tokens.weight"])
    if not torch.equal(head, state["model.embed_tokens.weight"]):
        raise CheckpointError(f"{path}: its output layer is not tied to its embeddings")
    try:
        heads, width = size(facts, "num_attention_heads"), size(facts, "hidden_size")
        config = LlamaConfig(
            width=width,
            feed_forward=size(facts, "intermediate_size"),
            layers=size(facts, "num_hidden_layers"),
            heads=heads,
            key_value_heads=size(facts, "num_key_value_heads", heads),
            head_width=size(facts, "head_dim", width // heads),
            words=len(head),
            rope_base=float(_rope_base(facts)),
            norm_epsilon=float(facts["rms_norm_eps"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"{path / 'config.json'}: impossible sizes ({brief(error)}); copy it again"
        ) from None
    return Pretrained(config, state, tokenizer)


def size(facts: Mapping[str, Any], key: str, otherwise: int | None = None) -> int:
    """A count that a file states; ValueError unless it is a whole number that can be meant."""
    value = facts.get(key)
    value = otherwise if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LARGEST_SIZE:
        raise ValueError(f"{key} is {value!r:.40}")
    return value


def brief(error: BaseException) -> str:
    """What an error says, in one short line; of a key that is missing, that it is."""
    words = " ".join(str(error).split())[:100]
    return f"no {words}" if isinstance(error, KeyError) else words


def _rope_base(facts: Mapping[str, Any]) -> float:
    """transformers before version 5 wrote it at the top, later versions in `rope_parameters`."""
    inner = facts.get("rope_parameters") or {}
    return float(facts.get("rope_theta") or inner.get("rope_theta") or 10_000.0)


class Format(NamedTuple):
    """How a tensor type is stored: blocks of `weights` weights in `size` bytes."""

    name: str
    weights: int
    size: int
    open: Callable[[Bytes], NDArray[np.float32]]


class Stored(NamedTuple):
    """Where a tensor lies: rows first, as torch says shapes."""

    shape: tuple[int, ...]
    format: Format
    offset: int


def _f32(block_NS: Bytes) -> NDArray[np.float32]:
    return block_NS.view("<f4").astype(np.float32)


def _f16(block_NS: Bytes) -> NDArray[np.float32]:
    return block_NS.view("<f2").astype(np.float32)


def _q8_0(block_NS: Bytes) -> NDArray[np.float32]:
    return _f16(block_NS[:, :2].copy()) * block_NS[:, 2:].copy().view(np.int8)


def _q4_0(block_NS: Bytes) -> NDArray[np.float32]:
    return _f16(block_NS[:, :2].copy()) * (_nibbles(block_NS[:, 2:]) - np.float32(8))


def _q4_1(block_NS: Bytes) -> NDArray[np.float32]:
    scale_N1, least_N1 = _f16(block_NS[:, :2].copy()), _f16(block_NS[:, 2:4].copy())
    return scale_N1 * _nibbles(block_NS[:, 4:]) + least_N1


def _nibbles(packed_NH: Bytes) -> NDArray[np.float32]:
    """Low halves of the bytes first, then the high ones."""
    return np.concatenate([packed_NH & 15, packed_NH >> 4], axis=1).astype(np.float32)


FORMATS = {
    0: Format("F32", 1, 4, _f32),
    1: Format("F16", 1, 2, _f16),
    2: Format("Q4_0", 32, 18, _q4_0),
    3: Format("Q4_1", 32, 20, _q4_1),
    8: Format("Q8_0", 32, 34, _q8_0),
}


@dataclass(frozen=True)
class Gguf:
    """A GGUF file: metadata at hand, tensors opened when asked for."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Stored]

    @classmethod
    def read(cls, path: Path) -> Gguf:
        """The header of a file, with every tensor checked to lie inside it."""
        size = path.stat().st_size
        with path.open("rb") as file:
            if size < 24:
                raise CheckpointError(f"{path}: {size} bytes are no GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                metadata, stored, end = _Header(content, str(path)).read()
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16:
            raise CheckpointError(f"{path}: general.alignment is {alignment!r}")
        base = -(-end // alignment) * alignment
        tensors, total = {}, 0
        for name, (shape, kind, offset) in stored.items():
            if kind not in FORMATS:
                known = ", ".join(one.name for one in FORMATS.values())
                raise CheckpointError(
                    f"{path}: {name!r:.60} has tensor type {kind}; we read {known}"
                )
            one = FORMATS[kind]
            if shape[-1] % one.weights:
                raise CheckpointError(
                    f"{path}: {name!r:.60}: rows of {shape[-1]} are no blocks of {one.name}"
                )
            length = math.prod(shape) // one.weights * one.size
            total += length
            if base + offset + length > size or total > size:
                raise CheckpointError(
                    f"{path}: {name!r:.60} reaches beyond the end of the file; is it whole?"
                )
            tensors[name] = Stored(shape, one, base + offset)
        return cls(path, metadata, tensors)

    def tensor(self, name: str) -> Tensor:
        """A tensor in float32."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: no tensor {name!r:.60}")
        shape, one, _ = self.tensors[name]
        return torch.from_numpy(one.open(self.blocks(name)).reshape(shape))

    def blocks(self, name: str) -> Bytes:
        """A tensor as it is stored, a row per block."""
        shape, one, offset = self.tensors[name]
        blocks = math.prod(shape) // one.weights
        raw_N = np.fromfile(self.path, np.uint8, blocks * one.size, offset=offset)
        if len(raw_N) != blocks * one.size:
            raise CheckpointError(f"{self.path}: {name!r:.60} is cut off")
        return raw_N.reshape(blocks, one.size)

    def value(self, key: str, kind: type) -> Any:
        """A metadata value of a type that we rely on."""
        value = self.metadata.get(key)
        if not isinstance(value, kind):
            raise CheckpointError(
                f"{self.path}: {key} is {type(value).__name__}, not {kind.__name__}"
            )
        return value


class _Header:
    """A reader over bytes that knows where they end."""

    def __init__(self, content: mmap.mmap, source: str) -> None:
        self.content, self.source, self.at = content, source, 0

    def read(self) -> tuple[dict[str, Any], dict[str, tuple[tuple[int, ...], int, int]], int]:
        """Metadata, (shape, type, offset) by tensor, and where the header ends."""
        if self.take(4) != b"GGUF":
            raise CheckpointError(f"{self.source}: not a GGUF file")
        if (version := self.number("<I")) not in (2, 3):
            raise CheckpointError(f"{self.source}: GGUF version {version}; we read 2 and 3")
        tensors, entries = self.count(MOST_ENTRIES, "tensors"), self.count(MOST_ENTRIES, "entries")
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self.string()
            metadata[key] = self.entry(self.number("<I"), key)
        stored: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(tensors):
            name, dimensions = self.string(), self.number("<I")
            if name in stored or not 1 <= dimensions <= MOST_DIMENSIONS:
                raise CheckpointError(
                    f"{self.source}: tensor {name!r:.60}: twice, or {dimensions} dims"
                )
            shape = tuple(self.number("<Q") for _ in range(dimensions))[::-1]
            if not all(0 < side <= 1 << 32 for side in shape):
                raise CheckpointError(f"{self.source}: tensor {name!r:.60} has shape {shape}")
            stored[name] = shape, self.number("<I"), self.number("<Q")
        return metadata, stored, self.at

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if not 0 <= count <= len(self.content) - self.at:
            raise CheckpointError(f"{self.source}: cut off after {len(self.content)} bytes")
        self.at += count
        return self.content[self.at - count : self.at]

    def number(self, form: str) -> Any:
        """The next number, in `struct`'s words."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, most: int, what: str) -> int:
        """The next count, refused if it cannot be meant."""
        size = int(self.number("<Q"))
        if size > most:
            raise CheckpointError(f"{self.source}: {size} {what}; at most {most} are read")
        return size

    def string(self) -> str:
        """The next string."""
        return self.take(self.count(MOST_STRING, "bytes of a string")).decode("utf-8", "replace")

    def entry(self, kind: int, key: str) -> Any:
        """The next metadata value."""
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise CheckpointError(f"{self.source}: {key!r:.60} has unknown type {kind}")
        item = self.number("<I")
        items = self.count(MOST_ITEMS, f"items of {key!r:.60}")
        if item == _STRING:
            return [self.string() for _ in range(items)]
        if item not in _SCALARS:
            raise CheckpointError(f"{self.source}: {key!r:.60} is an array of type {item}")
        form = _SCALARS[item]
        return list(struct.unpack(f"<{items}{form[1]}", self.take(items * struct.calcsize(form))))


def llama_config(file: Gguf) -> LlamaConfig:
    """The sizes of a Llama-family model."""
    if (family := file.value("general.architecture", str)) != "llama":
        raise CheckpointError(f"{file.path}: architecture {family!r:.60}; we read llama")
    facts = file.metadata
    try:
        heads = size(facts, "llama.attention.head_count")
        width = size(facts, "llama.embedding_length")
        return LlamaConfig(
            width=width,
            feed_forward=size(facts, "llama.feed_forward_length"),
            layers=size(facts, "llama.block_count"),
            heads=heads,
            key_value_heads=size(facts, "llama.attention.head_count_kv", heads),
            head_width=size(facts, "llama.attention.key_length", width // heads),
            words=len(file.value("tokenizer.ggml.tokens", list)),
            rope_base=float(facts.get("llama.rope.freq_base", 10_000.0)),
            norm_epsilon=file.value("llama.attention.layer_norm_rms_epsilon", float),
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(f"{file.path}: impossible sizes ({brief(error)})") from None


_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hub_name(name: str) -> str:
    """The hub's name of a GGUF tensor."""
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if block and block[2] in _NAMES:
        return f"model.layers.{block[1]}.{_NAMES[block[2]]}.weight"
    try:
        return _OUTER[name]
    except KeyError:
        raise CheckpointError(f"unexpected tensor {name!r:.60} (untied output? bias?)") from None


def llama_weights(file: Gguf) -> dict[str, Tensor]:
    """The weights under the names of the hub; query and key rows in its order, too.

    GGUF turns neighbouring rows (2i, 2i+1) of a head by one angle, the hub (i, i + half).
    """
    config, weights = llama_config(file), {}
    for name in file.tensors:
        try:
            ours, tensor = hub_name(name), file.tensor(name)
            if ours.endswith(("q_proj.weight", "k_proj.weight")):
                heads = config.heads if "q_proj" in ours else config.key_value_heads
                tensor = half_split(tensor, heads)
        except CheckpointError as error:
            raise CheckpointError(f"{file.path}: {error}") from None
        weights[ours] = tensor
    return weights


def half_split(weight_OI: Tensor, heads: int) -> Tensor:
    """Rows of the query or key matrix from GGUF's order to the hub's."""
    rows, width = weight_OI.shape if weight_OI.ndim == 2 else (1, 0)
    if rows % (2 * heads):
        raise CheckpointError(f"{rows} rows cannot be halves of {heads} heads")
    return weight_OI.reshape(heads, -1, 2, width).transpose(1, 2).reshape(rows, width).contiguous()


def byte_level_bpe(file: Gguf) -> Tokenizer:
    """The file's tokenizer: byte-level BPE with digits on their own, as SmolLM2's is."""
    if (kind := file.value("tokenizer.ggml.model", str)) != "gpt2":
        raise CheckpointError(f"{file.path}: tokenizer {kind!r:.60}; we read byte-level BPE (gpt2)")
    pieces, pairs = (file.value(f"tokenizer.ggml.{name}", list) for name in ("tokens", "merges"))
    if not all(isinstance(text, str) for text in (*pieces, *pairs)):
        raise CheckpointError(f"{file.path}: tokens or merges that are no text")
    merges: list[tuple[str, ...]] = [tuple(pair.split(" ")) for pair in pairs]
    vocabulary = {piece: n for n, piece in enumerate(pieces)}
    if len(vocabulary) != len(pieces):
        raise CheckpointError(
            f"{file.path}: {len(pieces) - len(vocabulary)} pieces stand there twice"
        )
    for pair in merges:
        if len(pair) != 2 or not vocabulary.keys() >= {*pair, "".join(pair)}:
            raise CheckpointError(f"{file.path}: merge {pair!r:.60} is not of known pieces")
    kinds = file.value("tokenizer.ggml.token_type", list)
    if len(kinds) != len(pieces):
        raise CheckpointError(f"{file.path}: {len(kinds)} token types for {len(pieces)} tokens")
    control = [piece for piece, kind in zip(pieces, kinds, strict=True) if kind == 3]
    try:
        return bpe_tokenizer(vocabulary, merges, control)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{file.path}: its tokenizer is unusable ({brief(error)})") from None


def bpe_tokenizer(
    vocabulary: Mapping[str, int], merges: list[tuple[str, ...]], control: list[str]
) -> Tokenizer:
    """Byte-level BPE as SmolLM2's: every digit a token, no space put in front."""
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocabulary), merges=[(a, b) for a, b in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in control])
    return tokenizer
