"""A few videos of YouCook2's raw files, and a language model of a few thousand weights as GGUF."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import pre_tokenizers

TIMED, UNTIMED, HELD_OUT = 8, 2, 2
FRAMES = "frames/yc2_600videos_1800frames_224px.tar"


def raw_files(data: Path, out: Path) -> Path:
    """What `recipes/prepare_youcook2.py` reads, cut down to a few videos."""
    for folder in ("yc2", "asr", "features", "frames"):
        (out / folder).mkdir(parents=True)
    csv = "asr/yc2_timed_asr_353videos_Video_data_all.csv"
    timed = (data / csv).read_bytes()
    with tarfile.open(data / FRAMES) as archive:
        held = {
            one.name.removeprefix("./"): archive.extractfile(one).read()  # type: ignore[union-attr]
            for one in archive
            if one.isfile()
        }
    meta = json.loads(held["meta.json"])
    pictured = {row["video"] for row in meta}
    train = json.loads((data / "yc2/vid2seq_train.json").read_text())
    known = [video for video in train if f"v={video}".encode() in timed and video in pictured]
    others = [video for video in train if f"v={video}".encode() not in timed]
    kept = {video: train[video] for video in (*known[:TIMED], *others[:UNTIMED])}
    whisper = json.loads(
        (data / "asr/timechat_yc2_val_gt_with_whisper_asr.json").read_text("utf-8")
    )
    heard = {Path(r["image_id"]).stem for r in whisper["annotations"] if r.get("asr_text")}
    validation = json.loads((data / "yc2/vid2seq_val.json").read_text())
    held_out = dict([(v, one) for v, one in validation.items() if v in heard][:HELD_OUT])
    (out / "yc2/vid2seq_train.json").write_text(json.dumps(kept))
    (out / "yc2/vid2seq_val.json").write_text(json.dumps(held_out))
    for name in (
        *(csv, "asr/timechat_yc2_val_gt_with_whisper_asr.json"),
        *("asr/yc2_untimed_transcripts_1736.tar.gz", "features/yc2_epic_clip_prediction_5s.txt"),
    ):
        (out / name).symlink_to(data / name)
    some = [row for row in meta if row["video"] in kept]
    with tarfile.open(out / FRAMES, "w") as cut:
        for name, content in (
            ("meta.json", json.dumps(some).encode()),
            *((row["file"], held[row["file"]]) for row in some),
        ):
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(content)
            cut.addfile(entry, io.BytesIO(content))
    return out


def gguf(path: Path, *, width: int = 64, layers: int = 7) -> Path:
    """Bytes as pieces, matrices in Q8_0; random."""
    pieces = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    facts: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.embedding_length": width,
        "llama.feed_forward_length": width,
        "llama.block_count": layers,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.token_type": [3] + [1] * (len(pieces) - 1),
    }
    shapes = {"token_embd.weight": (len(pieces), width), "output_norm.weight": (width,)}
    for n in range(layers):
        shapes |= {f"blk.{n}.{name}.weight": (width,) for name in ("attn_norm", "ffn_norm")}
        square = ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        shapes |= {f"blk.{n}.{name}.weight": (width, width) for name in square}
        shapes |= {f"blk.{n}.{name}.weight": (width // 2, width) for name in ("attn_k", "attn_v")}
    head, body, rng = b"", b"", np.random.default_rng(0)
    for key, value in facts.items():
        head += _string(key) + _value(value)
    for name, shape in shapes.items():
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", 0 if len(shape) == 1 else 8, len(body))
        if len(shape) == 1:
            body += np.ones(shape, "<f4").tobytes()
        else:
            blocks = np.zeros(shape[0] * shape[1] // 32, [("scale", "<f2"), ("q", "i1", 32)])
            blocks["scale"], blocks["q"] = 0.001, rng.integers(-127, 128, (len(blocks), 32))
            body += blocks.tobytes()
        body += b"\0" * (-len(body) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(facts)) + head
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)
    return path


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if value and isinstance(value[0], int):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
