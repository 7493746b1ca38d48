"""GGUF files and hub folders: read right, and refused where they lie."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from starc.config import vid2seq
from starc.decoder.llama import Llama
from starc.decoder.pretrained import FORMATS, Gguf, half_split, read_llama
from starc.decoder.quantised import from_q4_1, from_q8_0, to_8_bits, unpack
from starc.errors import CheckpointError, StarcError
from starc.model import language_models
from support.stock_llama import TINY, byte_tokenizer, pair


@pytest.mark.parametrize(("kind", "blocks"), [(2, 3), (3, 3), (8, 3), (0, 96), (1, 96)])
def test_blocks_open_as_their_formula_says(kind: int, blocks: int) -> None:
    rng, one = np.random.default_rng(0), FORMATS[kind]
    raw = rng.integers(0, 255, (blocks, one.size), dtype=np.uint8)
    if kind in (2, 3, 8):
        raw[:, :2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
        if kind == 3:
            raw[:, 2:4] = np.frombuffer(np.float16(-2).tobytes(), np.uint8)
    else:
        raw = np.linspace(-1, 1, 96).astype(f"<f{one.size}").view(np.uint8).reshape(96, -1)
    opened = one.open(raw).reshape(-1)
    assert opened.shape == (96,)
    if kind == 2:
        assert opened[0] == 0.5 * ((raw[0, 2] & 15) - 8.0)
        assert opened[16] == 0.5 * ((raw[0, 2] >> 4) - 8.0)
    elif kind == 3:
        assert opened[31] == 0.5 * (raw[0, 19] >> 4) - 2
    elif kind == 8:
        assert opened[1] == 0.5 * raw[0, 3].astype(np.int8)
    else:
        assert np.allclose(opened, np.linspace(-1, 1, 96), atol=1e-3)
    # The same blocks through our own file give the same numbers.
    if kind in (3, 8):
        stored = (from_q4_1 if kind == 3 else from_q8_0)(raw, rows=3)
        again = unpack({f"w.{name}": tensor for name, tensor in stored.items()})["w"]
        assert torch.equal(again.flatten(), torch.from_numpy(opened))


def test_eight_bits_are_near() -> None:
    weight_OI = torch.randn(5, 40)
    opened = unpack({f"w.{name}": tensor for name, tensor in to_8_bits(weight_OI).items()})["w"]
    assert (opened - weight_OI).abs().max() <= weight_OI.abs().max() / 127


def _file(path: Path, *, dims: tuple[int, ...] = (32, 2), kind: int = 0, entries: int = 0) -> Path:
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, entries)
    head += struct.pack("<Q", 1) + b"x" + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    head += struct.pack("<IQ", kind, 0)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + np.arange(64, dtype="<f4").tobytes())
    return path


@pytest.mark.parametrize(
    "change",
    [{"dims": (32, 3)}, {"dims": (1 << 40, 1 << 40)}, {"kind": 14}, {"kind": 99},
     {"dims": (30, 2), "kind": 8}, {"entries": 1 << 60}, {"dims": (0,)}, {"dims": (1,) * 9}],
)  # fmt: skip
def test_lies_of_a_file_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(CheckpointError):
        Gguf.read(_file(tmp_path / "a.gguf", **change))  # type: ignore[arg-type]


def test_cut_files_are_refused(tmp_path: Path) -> None:
    whole = _file(tmp_path / "a.gguf").read_bytes()
    assert torch.equal(Gguf.read(tmp_path / "a.gguf").tensor("x"), torch.arange(64.0).view(2, 32))
    for size in range(0, len(whole), 7):
        (tmp_path / "b.gguf").write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            Gguf.read(tmp_path / "b.gguf")


def write_gguf(path: Path, model: Llama) -> None:
    """A whole model as GGUF: F32, query and key rows interleaved as llama.cpp wants them."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def value(kind: int, item: object) -> bytes:
        if kind == 8:
            return string(str(item))
        return struct.pack({4: "<I", 5: "<i", 6: "<f"}[kind], item)

    def array(kind: int, items: list[object]) -> bytes:
        return struct.pack("<IQ", kind, len(items)) + b"".join(value(kind, item) for item in items)

    tokenizer = json.loads(byte_tokenizer().to_str())["model"]
    pieces = sorted(tokenizer["vocab"], key=tokenizer["vocab"].__getitem__)
    settings = model.settings
    facts: list[tuple[str, int, object]] = [
        ("general.architecture", 8, "llama"),
        ("llama.embedding_length", 4, settings.width),
        ("llama.feed_forward_length", 4, settings.feed_forward),
        ("llama.block_count", 4, settings.layers),
        ("llama.attention.head_count", 4, settings.heads),
        ("llama.attention.head_count_kv", 4, settings.key_value_heads),
        ("llama.rope.freq_base", 6, settings.rope_base),
        ("llama.attention.layer_norm_rms_epsilon", 6, settings.norm_epsilon),
        ("tokenizer.ggml.model", 8, "gpt2"),
    ]
    entries = [
        string(key) + struct.pack("<I", kind) + value(kind, item) for key, kind, item in facts
    ]
    merges = [" ".join(pair) for pair in tokenizer["merges"]]
    kinds = [3 if piece == "<|end|>" else 1 for piece in pieces]
    for key, kind, items in (
        ("tokens", 8, pieces),
        ("merges", 8, merges),
        ("token_type", 5, kinds),
    ):
        entries.append(string(f"tokenizer.ggml.{key}") + struct.pack("<I", 9) + array(kind, items))
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm",
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    head, body = b"", b""
    state = model.state_dict()
    for name, tensor in state.items():
        short = name.removesuffix(".weight")
        theirs = names.get(short)
        if theirs is None:
            _, _, layer, part = short.split(".", 3)
            theirs = f"blk.{layer}.{names[part]}"
            if part.endswith(("q_proj", "k_proj")):
                heads = settings.heads if "q_proj" in part else settings.key_value_heads
                tensor = tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2)
                tensor = tensor.reshape(state[name].shape)
                assert torch.equal(half_split(tensor, heads), state[name])
        shape = state[name].shape[::-1]
        head += string(f"{theirs}.weight") + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", 0, len(body))
        body += tensor.contiguous().numpy().astype("<f4").tobytes()
        body += b"\0" * (-len(body) % 32)
    head = struct.pack("<IQQ", 3, len(state), len(entries)) + b"".join(entries) + head
    head = b"GGUF" + head
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)


def test_a_hub_folder_and_a_gguf_file_give_the_same_model(tmp_path: Path) -> None:
    ours, theirs = pair()
    theirs.save_pretrained(tmp_path / "hub")
    byte_tokenizer().save(str(tmp_path / "hub/tokenizer.json"))
    write_gguf(tmp_path / "tiny.gguf", ours)
    for path in (tmp_path / "hub", tmp_path / "tiny.gguf"):
        config, state, tokenizer = read_llama(path)
        model = Llama(config).eval()
        model.load_state_dict(state)
        ids = tokenizer.encode("add the 12 onions\n").ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == "add the 12 onions\n"
        token_BL = torch.tensor([ids])
        with torch.no_grad():
            logits = model.logits(model(model.embed(token_BL)))
            torch.testing.assert_close(logits, theirs(token_BL).logits, atol=1e-4, rtol=0)
        assert (config.words, config.head_width) == (TINY.words, TINY.head_width)


def test_what_is_no_llama_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_llama(tmp_path)
    _, theirs = pair()
    theirs.save_pretrained(tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    facts = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(facts | {"model_type": "gpt2"}))
    with pytest.raises(CheckpointError, match="gpt2"):
        read_llama(tmp_path)


HOSTILE = (None, "x", -1, 0, 1.5, True, 10**9, 10**30, [], {}, "\x1b[31m" * 40)


def refused(path: Path) -> str:
    """What is said of a model that cannot be the start of a training; empty if it can."""
    try:
        language_models.load(f"llama:{path}", vid2seq())
    except StarcError as error:
        assert "\n" not in str(error) and len(str(error)) < len(str(path)) + 2000
        return str(error)
    return ""


def test_impossible_settings_of_a_hub_folder_are_one_line(tmp_path: Path) -> None:
    _, theirs = pair()
    theirs.save_pretrained(tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    config = tmp_path / "config.json"
    facts = json.loads(config.read_text())
    assert not refused(tmp_path)
    keys = [key for key in facts if "size" in key or "num_" in key or "head_dim" in key]
    keys += ["rms_norm_eps", "rope_theta", "rope_parameters", "model_type"]
    for key in keys:
        for value in HOSTILE:
            config.write_text(json.dumps(facts | {key: value}))
            refused(tmp_path)
        config.write_text(json.dumps({k: v for k, v in facts.items() if k != key}))
        refused(tmp_path)
    config.write_text(json.dumps(facts | {"num_hidden_layers": 10**7}))
    assert "tensors for 10000000 layers" in refused(tmp_path)
    config.write_text("[" * 100_000)
    assert "unreadable" in refused(tmp_path)


def test_a_damaged_gguf_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, pair()[0])
    whole, draw = path.read_bytes(), random.Random(0)
    said = set()
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(min(len(whole), 12_000))] = draw.randrange(256)
        path.write_bytes(damaged)
        said.add(refused(path).removeprefix(str(path))[:30])
    assert len(said) > 5


def test_tensors_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    names = [f"t{n}".encode() for n in range(1000)]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(names), 0)
    for name in names:
        head += struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, 10_000, 0, 0)
    path = tmp_path / "a.gguf"
    path.write_bytes(head + b"\0" * 50_000)
    with pytest.raises(CheckpointError, match="beyond the end"):
        Gguf.read(path)


@pytest.mark.skipif(os.name == "nt", reason="no named pipes there")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_pipe_in_a_hub_folder_is_not_waited_for(tmp_path: Path, name: str) -> None:
    _, theirs = pair()
    theirs.save_pretrained(tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    assert "not a regular file" in refused(tmp_path)
