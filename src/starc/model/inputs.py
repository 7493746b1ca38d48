"""What goes into a model: examples as files give them, and batches padded to one length.

In: frame features at 1 FPS, spoken sentences, and events where there are any. Out: a `Batch`, the
same for training and inference. Long videos are thinned out evenly to T frames, text becomes ids,
events become targets and highlight labels, and speech is corrupted for Vid2Seq's denoising task.
What a user can fix raises VideoError, what a caller did wrong ValueError.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from starc.config import SPECIAL_IDS, Config
from starc.decoder import time_tokens
from starc.decoder.beam_search import Decoded
from starc.decoder.time_tokens import Vocabulary
from starc.errors import VideoError
from starc.model import saliency
from starc.types import Event, Sentence


def spread(frames: int, most: int) -> list[int]:
    """Indices of at most `most` frames, as published: (j * frames) // most for j < most."""
    return [j * frames // most for j in range(most)] if frames > most else list(range(frames))


@dataclass(frozen=True, slots=True)
class Example:
    """One video, before padding."""

    id: str
    clip_TD: Tensor
    """Features at 1 FPS, all of them."""
    duration: float
    sentences: tuple[Sentence, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Some videos, padded to one length. Tensors that only training needs may be None.

    Ids of text are padded with 0, so targets need no masks of their own. A video without speech
    has the speech [1], the end id.
    """

    ids: tuple[str, ...]
    """Names of the videos: whose captions to hide, whom to blame in an error."""
    clip_BTD: Tensor
    """Frame features, zero on padding."""
    frame_mask_BT: Tensor
    """Real frames; they come first."""
    speech_BL: Tensor
    speech_mask_BL: Tensor
    target_BL: Tensor | None = None
    """Events as ids."""
    salient_BT: Tensor | None = None
    """Highlight labels H."""
    denoising_speech_BL: Tensor | None = None
    """Speech with spans replaced by sentinels."""
    denoising_target_BL: Tensor | None = None
    """Those spans."""
    encode: Callable[[str], list[int]] | None = None
    """Text as the decoder's ids, for retrieved captions that are read as words."""

    def __post_init__(self) -> None:
        videos, frames = len(self.ids), self.clip_BTD.shape[1] if self.clip_BTD.ndim == 3 else -1
        for name, tensor in self.tensors().items():
            wanted = (videos, frames) if name.endswith("_BT") else (videos,)
            if tuple(tensor.shape[: len(wanted)]) != wanted:
                raise ValueError(f"{name} must begin {wanted}, got {tuple(tensor.shape)}")
        real_BT = self.frame_mask_BT
        if not frames or not bool(real_BT.any(1).all()):
            empty = self.ids[int(real_BT.any(1).int().argmin())] if frames else self.ids[0]
            raise VideoError(f"{empty}: no frames; is the video empty or its feature file?")
        if not bool((real_BT[:, :-1] | ~real_BT[:, 1:]).all()):
            raise ValueError("frame_mask_BT: real frames must come before padding")
        finite_B = self.clip_BTD.isfinite().all(-1).all(-1)
        if not bool(finite_B.all()):
            broken = self.ids[int(finite_B.int().argmin())]
            raise VideoError(f"{broken}: features contain NaN or infinity; extract them again")

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        values = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return dataclasses.replace(self, **moved)  # type: ignore[arg-type]

    def wanted(self, name: str) -> Tensor:
        """A tensor that this use of the batch cannot do without."""
        tensor = getattr(self, name)
        if not isinstance(tensor, Tensor):
            raise ValueError(f"batch has no {name}, which these loss settings need")
        return tensor


class Collator:
    """Makes batches for one model."""

    def __init__(self, config: Config, tokenizer: Tokenizer, *, seed: int = 0) -> None:
        self.config, self.tokenizer, self.seed = config, tokenizer, seed
        language_model = config.language_model
        self.vocabulary = Vocabulary(language_model.text_vocabulary, language_model.bins)
        self.first = 0 if config.llama is None else SPECIAL_IDS
        """Our id of the tokenizer's first word."""

    def __call__(self, examples: Sequence[Example], *, epoch: int | None = None) -> Batch:
        """A batch for inference, or for training in an epoch, which decides what is corrupted."""
        clips = [self._clip(example) for example in examples]
        longest = self.config.inputs.frames
        if self.config.mask_padding:
            longest = max(len(clip_TD) for clip_TD in clips)
        mask_BT = torch.tensor([[t < len(clip_TD) for t in range(longest)] for clip_TD in clips])
        speech = heard = [self.speech(example) for example in examples]
        foretold = epoch is not None and self.config.loss.target == "speech"
        if foretold:
            heard = [[self.vocabulary.end]] * len(examples)
        clip_BTD = torch.zeros(len(clips), longest, clips[0].shape[1])
        for row_TD, clip_TD in zip(clip_BTD, clips, strict=True):
            row_TD[: len(clip_TD)] = clip_TD
        batch = Batch(
            ids=tuple(example.id for example in examples),
            clip_BTD=clip_BTD,
            frame_mask_BT=mask_BT,
            speech_BL=padded_ids(heard),
            speech_mask_BL=padded_ids([[1] * len(ids) for ids in heard]).bool(),
            encode=self._encode,
        )
        if epoch is None:
            return batch
        pairs = [
            time_tokens.denoising_pair(
                ids,
                vocabulary=self.vocabulary,
                generator=np.random.default_rng(
                    [self.seed, epoch, zlib.crc32(example.id.encode())]
                ),
                density=self.config.loss.corruption,
                span=self.config.loss.corrupted_span,
            )
            for example, ids in zip(examples, speech, strict=True)
        ]
        aligned = self.config.saliency is None or self.config.saliency.align_labels
        salient_BT = torch.zeros(len(examples), longest, dtype=torch.bool)
        for row_T, example, clip_TD in zip(salient_BT, examples, clips, strict=True):
            frames = len(clip_TD) if aligned else longest
            row_T[:frames] = saliency.labels(
                example.events, duration=example.duration, frames=frames
            )
        return dataclasses.replace(
            batch,
            target_BL=padded_ids(speech if foretold else list(map(self.target, examples))),
            salient_BT=salient_BT,
            denoising_speech_BL=padded_ids([given for given, _ in pairs]),
            denoising_target_BL=padded_ids([target for _, target in pairs]),
        )

    def speech(self, example: Example) -> list[int]:
        """The spoken sentences as ids."""
        return time_tokens.speech_ids(
            example.sentences,
            duration=example.duration,
            vocabulary=self.vocabulary,
            encode=self._encode,
            limit=self.config.inputs.speech_tokens,
        )

    def target(self, example: Example) -> list[int]:
        """The events as ids."""
        return time_tokens.event_ids(
            example.events,
            duration=example.duration,
            vocabulary=self.vocabulary,
            encode=self._encode,
            limit=self.config.decoding.max_tokens,
        )

    def _encode(self, text: str) -> list[int]:
        return [n + self.first for n in self.tokenizer.encode(text, add_special_tokens=False).ids]

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode([n - self.first for n in ids], skip_special_tokens=True)
        return text

    def events(self, decoded: Decoded, duration: float) -> list[Event]:
        """What the model said about a video of that duration."""
        return time_tokens.to_events(
            decoded.ids,
            duration=duration,
            vocabulary=self.vocabulary,
            decode=self._decode,
            log_probabilities=decoded.log_probabilities,
        )

    def times(self, spans: Sequence[tuple[float, float]], duration: float) -> list[int]:
        """Boundaries as time ids: the start and the end of each."""
        return [self.vocabulary.time_id(at, duration) for span in spans for at in span]

    def captions(self, decoded: Decoded) -> list[str]:
        """What the model said about events whose times were given."""
        return time_tokens.captions(decoded.ids, vocabulary=self.vocabulary, decode=self._decode)

    def _clip(self, example: Example) -> Tensor:
        clip_TD, width = example.clip_TD, self.config.temporal.features
        if clip_TD.ndim != 2 or clip_TD.shape[1] != width:
            raise VideoError(
                f"{example.id}: features are {tuple(clip_TD.shape)}, the model needs [n, {width}]; "
                "extract them with starc features --model"
            )
        if not len(clip_TD):
            raise VideoError(f"{example.id}: no frames; is the video empty or its feature file?")
        return clip_TD[spread(len(clip_TD), self.config.inputs.frames)].float()


def padded_ids(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids as one tensor, zeros behind the short ones."""
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *([0] * (longest - len(row)))] for row in rows])
