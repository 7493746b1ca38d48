"""Small parts for tests that caption real files: an image encoder, a tokenizer, a video."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import av
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from starc.types import Frame

WIDTH = 64


class ColourEncoder:
    """Features are random projections of a frame's mean colours."""

    name = "colours"
    width = WIDTH
    size = 32

    def __init__(self) -> None:
        self.seen = 0
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.randn(3, WIDTH, generator=generator)

    def encode(self, frames: Iterable[Frame]) -> Tensor:
        rows = []
        for frame in frames:
            self.seen += 1
            rows.append(torch.from_numpy(frame.rgb_HWC.mean((0, 1))).float() / 255)
        return torch.stack(rows) @ self.weight


def words_tokenizer() -> Tokenizer:
    words = ["<pad>", "</s>", "<unk>", *(f"w{k}" for k in range(997))]
    vocabulary = {word: n for n, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def make_video(path: Path, *, seconds: int, rate: int = 2) -> Path:
    """Colours that change every few seconds."""
    shades = np.random.default_rng(3).integers(0, 255, (seconds // 3 + 1, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for k in range(seconds * rate):
            picture = np.broadcast_to(shades[k // rate // 3], (48, 64, 3))
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path
