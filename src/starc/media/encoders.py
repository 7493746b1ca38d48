"""Image and text encoders: frames to features, captions to embeddings of the same space.

An encoder is anything with these few attributes. `ClipImageEncoder` and `ClipTextEncoder` are CLIP
of any size, from a folder or the hub, with the features of the published recipe (projected, not
normalised; 768 wide for ViT-L/14). Encoders that come inside packages and need no download are in
`embedded_encoders.py`. `load_image_encoder` opens one by the name that feature files record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from starc.errors import CheckpointError, MissingExtra
from starc.types import Frame

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
PUBLISHED_ENCODER = "openai/clip-vit-large-patch14"
BATCH = 32

Item = TypeVar("Item")


@runtime_checkable
class ImageEncoder(Protocol):
    """From frames to features."""

    name: str
    """What a feature file records; `load_image_encoder` opens the encoder of that name."""
    width: int
    """D of its features."""
    size: int
    """Height and width, in pixels, of the frames that it takes."""

    def encode(self, frames: Iterable[Frame]) -> Tensor:
        """Features [T, D], float32, on the CPU; frames are taken from the iterator in batches."""
        ...


@runtime_checkable
class TextEncoder(Protocol):
    """From captions to embeddings."""

    name: str
    width: int

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Embeddings [N, D], float32, on the CPU."""
        ...


def load_image_encoder(name: str, *, device: str = "cpu") -> ImageEncoder:
    """The image encoder of a name: "efficientnet-lite0", else a CLIP folder or hub id."""
    from starc.media.embedded_encoders import EfficientNetLite

    if name == EfficientNetLite.name:
        return EfficientNetLite(device=device)
    return ClipImageEncoder(name, device=device)


def load_text_encoder(name: str, *, device: str = "cpu") -> TextEncoder:
    """The text encoder of that name: "minilm", or a CLIP folder or hub id."""
    if name == "minilm":
        from starc.media.embedded_encoders import MiniLM

        return MiniLM()
    return ClipTextEncoder(name, device=device)


class _Clip:
    """What both encoders of a CLIP share: `source` is a folder or a hub id."""

    def __init__(self, source: str | Path = PUBLISHED_ENCODER, *, device: str = "cpu") -> None:
        self.name, self.device = str(source), device
        self.model = _load_clip(self.name).to(device).eval()
        self.width: int = self.model.config.projection_dim


class ClipImageEncoder(_Clip):
    """CLIP's image encoder: features projected, not normalised, as published."""

    def __init__(self, source: str | Path = PUBLISHED_ENCODER, *, device: str = "cpu") -> None:
        super().__init__(source, device=device)
        self.size: int = self.model.config.vision_config.image_size

    @torch.inference_mode()
    def encode(self, frames: Iterable[Frame]) -> Tensor:
        """Features [T, D] of frames."""
        features = [torch.empty(0, self.width)]
        for batch in batches(frames, BATCH):
            pixels_BCHW = to_pixels(batch, self.size, CLIP_MEAN, CLIP_STD).to(self.device)
            pooled_BD = self.model.vision_model(pixel_values=pixels_BCHW).pooler_output
            features.append(self.model.visual_projection(pooled_BD).float().cpu())
        return torch.cat(features)


class ClipTextEncoder(_Clip):
    """CLIP's text encoder: embeddings projected, not normalised, as published."""

    def __init__(self, source: str | Path = PUBLISHED_ENCODER, *, device: str = "cpu") -> None:
        super().__init__(source, device=device)
        self.tokenizer = _load_tokenizer(self.name)

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Embeddings [N, D] of captions."""
        longest = self.model.config.text_config.max_position_embeddings
        features = [torch.empty(0, self.width)]
        for batch in batches(texts, BATCH):
            tokens = self.tokenizer(
                batch, padding=True, truncation=True, max_length=longest, return_tensors="pt"
            ).to(self.device)
            pooled_BD = self.model.text_model(
                input_ids=tokens.input_ids, attention_mask=tokens.attention_mask
            ).pooler_output
            features.append(self.model.text_projection(pooled_BD).float().cpu())
        return torch.cat(features)


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of at most `size` consecutive items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def to_pixels(
    frames: Sequence[Frame], size: int, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """(rgb / 255 - mean) / std as [B, C, H, W]. Frames must come in the size of the encoder."""
    shape = (size, size, 3)
    if wrong := next((frame for frame in frames if frame.rgb_HWC.shape != shape), None):
        raise ValueError(f"frames must be {shape}, got {wrong.rgb_HWC.shape}; sample them so")
    rgb_BHWC = torch.from_numpy(np.stack([frame.rgb_HWC for frame in frames]))
    pixels_BHWC = (rgb_BHWC.float() / 255 - torch.tensor(mean)) / torch.tensor(std)
    return pixels_BHWC.permute(0, 3, 1, 2)


def _load_clip(source: str) -> Any:
    try:
        from transformers import AutoConfig, CLIPModel
    except ModuleNotFoundError:
        raise MissingExtra("transformers, which opens CLIP,", "clip") from None
    # Without this, a mistyped path would be asked of the hub, with all its retries.
    local = Path(source).is_absolute() or source.startswith((".", "~")) or source.count("/") > 1
    if local and not Path(source).is_dir():
        raise _unloadable(source, OSError("no such folder"))
    load: Any = CLIPModel.from_pretrained  # its annotation forgets output_loading_info
    try:
        config = AutoConfig.from_pretrained(source)
        if config.model_type != "clip":
            raise CheckpointError(
                f"{source}: not a CLIP model (found {config.model_type!r}); name a CLIP"
            )
        model, found = load(source, output_loading_info=True)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise _unloadable(source, error) from error
    missing = sorted(found["missing_keys"])
    if missing:
        raise CheckpointError(
            f"{source}: {len(missing)} weights are missing (first: {missing[0]}); fetch it again"
        )
    return model


def _load_tokenizer(source: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise _unloadable(source, error) from error


def _unloadable(source: str, error: Exception) -> CheckpointError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0][:160] if lines else type(error).__name__
    return CheckpointError(
        f"{source}: CLIP cannot be loaded ({reason}); offline, name a folder with config.json, "
        "model.safetensors and tokenizer.json"
    )
