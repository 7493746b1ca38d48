"""A tiny model, and batches, a datastore, a tokenizer and an image encoder that fit it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from starc import config as configs
from starc.config import Config
from starc.model.starc import Batch
from starc.retrieval.datastore import CaptionStore
from starc.types import Frame

WIDTH = 64


def tiny(**parts: object) -> Config:
    """The tiny preset without dropout, some parts replaced."""
    config = configs.tiny()
    return dataclasses.replace(
        config,
        temporal=dataclasses.replace(config.temporal, dropout=0.0),
        t5=dataclasses.replace(config.t5, dropout=0.0),
        **parts,  # type: ignore[arg-type]
    )


def store(captions: int = 50, seed: int = 0) -> CaptionStore:
    """Random captions; every fifth belongs to video0, and so on."""
    generator = torch.Generator().manual_seed(seed)
    return CaptionStore(
        [f"caption {n}" for n in range(captions)],
        torch.randn(captions, WIDTH, generator=generator),
        videos=[f"video{n % 5}" for n in range(captions)],
    )


def batch(frames: Sequence[int] = (30, 17), seed: int = 0) -> Batch:
    """Videos of these lengths, with speech, targets and labels of different lengths."""
    generator = torch.Generator().manual_seed(seed)

    def ids(lengths: Sequence[int], high: int) -> Tensor:
        rows = torch.randint(2, high, (len(lengths), max(lengths)), generator=generator)
        return rows * (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])

    count = len(frames)
    mask_BT = torch.arange(max(frames)) < torch.tensor(frames)[:, None]
    clip_BTD = torch.randn(*mask_BT.shape, WIDTH, generator=generator) * mask_BT[..., None]
    speech_BL = ids([5 + 3 * n for n in range(count)], 1100)
    return Batch(
        ids=tuple(f"video{n}" for n in range(count)),
        clip_BTD=clip_BTD,
        frame_mask_BT=mask_BT,
        speech_BL=speech_BL,
        speech_mask_BL=speech_BL != 0,
        target_BL=ids([9 - n for n in range(count)], 1200),
        salient_BT=(torch.rand(mask_BT.shape, generator=generator) > 0.5) & mask_BT,
        denoising_speech_BL=ids([4 + 2 * n for n in range(count)], 1100),
        denoising_target_BL=ids([6 - n % 3 for n in range(count)], 1100),
    )


def one(whole: Batch, video: int) -> Batch:
    """A video of a batch alone, without its padding."""
    frames = int(whole.frame_mask_BT[video].sum())
    changes: dict[str, object] = {"ids": (whole.ids[video],)}
    for name, tensor in whole.tensors().items():
        row = tensor[video : video + 1]
        if name.endswith(("_BT", "_BTD")):
            changes[name] = row[:, :frames]
        else:
            filled = whole.speech_mask_BL if name.startswith("speech") else tensor != 0
            changes[name] = row[:, : int(filled[video].sum())]
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


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
    """A thousand words, w0 to w996 among them."""
    words = ["<pad>", "</s>", "<unk>", *(f"w{k}" for k in range(997))]
    vocabulary = {word: n for n, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer
