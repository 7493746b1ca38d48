"""From videos as files give them to a batch: the same road for training and inference.

In: frame features at 1 FPS, spoken sentences, and events where there are any. Out: a `Batch`.
Long videos are thinned out evenly to T frames, text becomes ids, events become targets and
highlight labels, and speech is corrupted for Vid2Seq's denoising task.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from starc.config import Config
from starc.decoder import time_tokens
from starc.decoder.beam_search import Decoded
from starc.decoder.time_tokens import Vocabulary
from starc.errors import VideoError
from starc.media.video import spread
from starc.model import saliency
from starc.model.batch import Batch
from starc.types import Event, Sentence

FRAMES = 100
"""T of the paper."""


@dataclass(frozen=True, slots=True)
class Example:
    """One video, before padding."""

    id: str
    clip_TD: Tensor
    """Features at 1 FPS, all of them."""
    duration: float
    sentences: tuple[Sentence, ...] = ()
    events: tuple[Event, ...] = ()


class Collator:
    """Makes batches for one model."""

    def __init__(
        self,
        config: Config,
        tokenizer: Tokenizer,
        *,
        frames: int = FRAMES,
        speech_tokens: int = time_tokens.SPEECH_TOKENS,
        target_tokens: int = time_tokens.TARGET_TOKENS,
        corruption: float = 0.25,
        span: float = 5.0,
        seed: int = 0,
    ) -> None:
        self.config, self.tokenizer, self.frames, self.seed = config, tokenizer, frames, seed
        self.vocabulary = Vocabulary(config.t5.text_vocabulary, config.t5.bins)
        self.speech_tokens, self.target_tokens = speech_tokens, target_tokens
        self.corruption, self.span = corruption, span

    def __call__(self, examples: Sequence[Example], *, epoch: int | None = None) -> Batch:
        """A batch for inference, or for training in an epoch, which decides what is corrupted."""
        clips = [self._clip(example) for example in examples]
        longest = self.frames
        if self.config.mask_padding:
            longest = max(len(clip_TD) for clip_TD in clips)
        mask_BT = torch.tensor([[t < len(clip_TD) for t in range(longest)] for clip_TD in clips])
        speech = [self.speech(example) for example in examples]
        batch = Batch(
            ids=tuple(example.id for example in examples),
            clip_BTD=_padded(clips, longest),
            frame_mask_BT=mask_BT,
            speech_BL=_padded_ids(speech),
            speech_mask_BL=_padded_ids([[1] * len(ids) for ids in speech]).bool(),
        )
        if epoch is None:
            return batch
        pairs = [
            time_tokens.denoising_pair(
                ids,
                vocabulary=self.vocabulary,
                generator=self._generator(example.id, epoch),
                density=self.corruption,
                span=self.span,
            )
            for example, ids in zip(examples, speech, strict=True)
        ]
        return Batch(
            ids=batch.ids,
            clip_BTD=batch.clip_BTD,
            frame_mask_BT=batch.frame_mask_BT,
            speech_BL=batch.speech_BL,
            speech_mask_BL=batch.speech_mask_BL,
            target_BL=_padded_ids([self.target(example) for example in examples]),
            salient_BT=self._salient(examples, clips, longest),
            denoising_speech_BL=_padded_ids([given for given, _ in pairs]),
            denoising_target_BL=_padded_ids([target for _, target in pairs]),
        )

    def speech(self, example: Example) -> list[int]:
        """The spoken sentences as ids."""
        return time_tokens.speech_ids(
            example.sentences,
            duration=example.duration,
            vocabulary=self.vocabulary,
            encode=self._encode,
            limit=self.speech_tokens,
        )

    def target(self, example: Example) -> list[int]:
        """The events as ids."""
        return time_tokens.event_ids(
            example.events,
            duration=example.duration,
            vocabulary=self.vocabulary,
            encode=self._encode,
            limit=self.target_tokens,
        )

    def events(self, decoded: Decoded, duration: float) -> list[Event]:
        """What the model said about a video of that duration."""
        return time_tokens.to_events(
            decoded.ids,
            duration=duration,
            vocabulary=self.vocabulary,
            decode=self._decode,
            log_probabilities=decoded.log_probabilities,
        )

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def _generator(self, video: str, epoch: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, epoch, zlib.crc32(video.encode())])

    def _clip(self, example: Example) -> Tensor:
        clip_TD, width = example.clip_TD, self.config.temporal.features
        if clip_TD.ndim != 2 or clip_TD.shape[1] != width:
            raise VideoError(
                f"{example.id}: features are {tuple(clip_TD.shape)}, the model needs [n, {width}]; "
                "extract them with the model's own encoder"
            )
        if not len(clip_TD):
            raise VideoError(f"{example.id}: no frames; is the video empty or its feature file?")
        return clip_TD[spread(len(clip_TD), self.frames)].float()

    def _salient(
        self, examples: Sequence[Example], clips: Sequence[Tensor], longest: int
    ) -> Tensor:
        aligned = self.config.saliency is None or self.config.saliency.align_labels
        rows = torch.zeros(len(examples), longest, dtype=torch.bool)
        for row, example, clip_TD in zip(rows, examples, clips, strict=True):
            frames = len(clip_TD) if aligned else longest
            row[:frames] = saliency.labels(example.events, duration=example.duration, frames=frames)
        return rows


def _padded(clips: Sequence[Tensor], longest: int) -> Tensor:
    out_BTD = torch.zeros(len(clips), longest, clips[0].shape[1])
    for row_TD, clip_TD in zip(out_BTD, clips, strict=True):
        row_TD[: len(clip_TD)] = clip_TD
    return out_BTD


def _padded_ids(rows: Sequence[Sequence[int]]) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *([0] * (longest - len(row)))] for row in rows])
