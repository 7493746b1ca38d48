"""The joint space: what is seen and what is said, as vectors of the datastore's own space.

In: pooled image features and timed sentences. Out: one vector per frame, near the embeddings of
captions that would fit. Both maps are linear and were fitted in closed form, in
recipes/joint_space.py: an image is standardised and multiplied by a matrix, words are the mean of a
vector per token. So a model that was trained on them needs no text encoder to caption a video.

    image_t = unit(((feature_t - mean) / deviation) A)    speech_t = unit(Σ w(t, s) Σ_{v in s} E_v)
    clip_t = √D (image_t + speech_t)        w falls from 1 inside a sentence to 0 at REACH seconds

A frame without speech around it, or a video without pictures, has only the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import normalize

from starc.errors import CheckpointError, VideoError
from starc.types import Sentence
from starc_eval.reading import regular

REACH = 6.0
"""Seconds from which a sentence says nothing about a frame."""


@dataclass(frozen=True, slots=True)
class JointSpace:
    """The two maps."""

    tokenizer: Tokenizer
    word_VD: Tensor
    """E, a vector per token of the model's own vocabulary."""
    mean_I: Tensor
    deviation_I: Tensor
    image_ID: Tensor
    """A."""

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer) -> JointSpace:
        """From `joint.safetensors` of a model folder."""
        try:
            kept = {name: tensor.float() for name, tensor in load_file(regular(path)).items()}
            return cls(tokenizer, *(kept[name] for name in ("word", "mean", "deviation", "image")))
        except (OSError, SafetensorError, KeyError) as error:
            raise CheckpointError(f"{path}: not a joint space ({error}); copy it again") from None

    def save(self, path: Path) -> None:
        """Write it in half precision."""
        tensors = {
            "word": self.word_VD,
            "mean": self.mean_I,
            "deviation": self.deviation_I,
            "image": self.image_ID,
        }
        save_file({name: tensor.half().contiguous() for name, tensor in tensors.items()}, path)

    @property
    def width(self) -> int:
        """D."""
        return self.word_VD.shape[1]

    def features(
        self, features_TD: Tensor, times: Sequence[float], sentences: Sequence[Sentence]
    ) -> Tensor:
        """clip_TD of frames: image features are mapped, vectors of the joint space stay."""
        if features_TD.shape[-1] == len(self.mean_I):
            return self.combine(features_TD, times, sentences)
        if features_TD.shape[-1] == self.width:
            return features_TD
        raise VideoError(
            f"features are {features_TD.shape[-1]} wide, this model takes {len(self.mean_I)} (its "
            f"image encoder's) or {self.width} (starc features --model); extract them so"
        )

    def combine(
        self, image_TI: Tensor | None, times: Sequence[float], sentences: Sequence[Sentence]
    ) -> Tensor:
        """clip_TD for frames at these seconds; without pictures from the speech alone."""
        clip_TD = self.encode_speech(times, sentences)
        if image_TI is not None:
            clip_TD = clip_TD + self.encode_images(image_TI)
        return clip_TD * float(self.width**0.5)

    def encode_images(self, image_TI: Tensor) -> Tensor:
        """Unit vectors of images."""
        standard_TI = (image_TI - self.mean_I) / self.deviation_I
        return normalize(standard_TI @ self.image_ID, dim=1)

    def encode_speech(self, times: Sequence[float], sentences: Sequence[Sentence]) -> Tensor:
        """Unit vectors of what is said around these seconds; zero where nothing is."""
        if not sentences:
            return torch.zeros(len(times), self.width)
        sum_SD = torch.stack([self.words(sentence.text) for sentence in sentences])
        start_S = torch.tensor([sentence.start for sentence in sentences])
        end_S = torch.tensor([sentence.end for sentence in sentences])
        time_T1 = torch.tensor(list(times), dtype=start_S.dtype)[:, None]
        away_TS = torch.maximum(start_S - time_T1, time_T1 - end_S).clamp(min=0)
        return normalize((1 - away_TS / REACH).clamp(min=0) @ sum_SD, dim=1)

    def words(self, text: str) -> Tensor:
        """Sum of the vectors of a text's tokens."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.word_VD[ids].sum(0)
