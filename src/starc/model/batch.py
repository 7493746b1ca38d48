"""A batch: some videos padded to one length, checked where it is born.

Features, masks and token ids as the model takes them; how they come from files is the business of
training and pipeline. What a user can mend raises VideoError, what a caller did wrong ValueError.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from starc.errors import VideoError


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
