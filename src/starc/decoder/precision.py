"""Arithmetic of the language model at inference: float32, or by choice bfloat16 or int8.

In: a loaded model. Out: the same model whose T5 computes in the asked precision; everything that
finds segments and captions stays in float32, so only the words can change. The layers of a caption
writer are lowered one by one as they are loaded (model/checkpoint.py). int8 is dynamic: each row of
weights and each token's activations have their own scale, so a video's result does not depend on
its neighbours. Neither is exact: tests/decoder/test_precision.py and benchmarks/decoding.py say by
how much. Convert after loading; a converted model is not saved.

The fast products are private operators of torch (oneDNN). Each is tried out once; where it is
missing or wrong, a plain product of the same numbers takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Literal, TypeVar, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from starc import processor
from starc.decoder.t5 import T5
from starc.errors import ConfigError

Precision = Literal["float32", "bfloat16", "int8"]
Model = TypeVar("Model", bound=nn.Module)

INT8_ROWS = 64
"""Output rows are padded to multiples of this: the output layer takes half the time."""
PACKED_ROWS = 4
"""From so many rows on, float32 weights in the processor's own layout are worth its rounding."""
UNAVAILABLE = (AttributeError, RuntimeError, TypeError)
"""A private operator that is missing, not for this processor, or changed."""


def convert(model: Model, precision: str) -> Model:
    """Turn every T5 inside `model` (or `model` itself) to `precision`, in place."""
    parts = [module for module in model.modules() if isinstance(module, T5)]
    require(precision, parts[0].shared.weight.device if parts else torch.device("cpu"))
    for part in parts:
        if any(isinstance(module, Int8Linear) for module in part.modules()):
            if precision == "int8":
                continue
            raise ConfigError(f"precision {precision!r}: the model is int8 already; load it again")
        lower(part, precision)
        if precision == "int8":
            part.head = part.lm_head or Int8Linear.of(part.shared.weight)
    return model


def require(precision: str, device: torch.device) -> None:
    """Refuse a precision that is unknown or that the device does not have."""
    if precision not in get_args(Precision):
        raise ConfigError(
            f"precision {precision!r}: unknown; choose one of {', '.join(get_args(Precision))}"
        )
    if precision == "bfloat16" and not has_bfloat16(device):
        raise ConfigError(
            "precision 'bfloat16': this processor has no bfloat16 arithmetic and would be "
            "several times slower; use float32 or int8"
        )
    if precision == "int8" and device.type != "cpu":
        raise ConfigError(f"precision 'int8': for processors only (found {device}); use bfloat16")


def lower(part: nn.Module, precision: str) -> None:
    """Turn the linear layers of `part` to `precision`; with bfloat16 all the rest, too."""
    part.to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
    if precision == "int8":
        for module in list(part.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    setattr(module, name, Int8Linear.of(child.weight))


def has_bfloat16(device: torch.device) -> bool:
    """Whether `device` multiplies bfloat16 natively."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and processor.has_bfloat16()


class Int8Linear(nn.Module):
    """A linear layer without bias with 8-bit weights, per output row, and activations, per token.

        y = s_x s_w (q_x q_w),   q_w = round(w / s_w),  s_w = max |w| / 127  of the row

    q_x has 8 bits where the processor adds products of bytes in 32 bits (VNNI, AMX) and 7 bits
    elsewhere, where a sum of two products would overflow its 16 bits.
    """

    weight: Tensor
    scale_V: Tensor

    def __init__(self, weight_VD: Tensor, scale_V: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight_VD)
        self.register_buffer("scale_V", scale_V)
        self.product = (int8_product if has_int8_product() else plain_product)(weight_VD, scale_V)
        self.level = 127 if processor.adds_bytes_in_32_bits() else 63

    @classmethod
    def of(cls, weight_VD: Tensor) -> Int8Linear:
        """From float weights [out, in]."""
        weight_VD = weight_VD.detach().float()
        scale_V = weight_VD.abs().amax(1).clamp_min(1e-12) / 127
        return cls((weight_VD / scale_V[:, None]).round().to(torch.int8), scale_V)

    def forward(self, x: Tensor) -> Tensor:
        x_ND = x.reshape(-1, x.shape[-1])
        largest_N1 = x_ND.abs().amax(1, keepdim=True).clamp_min(1e-12)
        # Truncation of a positive number, after adding a half: rounding.
        bytes_ND = (x_ND * (self.level / largest_N1)).add_(self.level + 1.5).to(torch.uint8)
        y_NV = self.product(bytes_ND, self.level + 1)
        y_NV *= largest_N1 / self.level
        return y_NV.reshape(*x.shape[:-1], -1)


Int8Product = Callable[[Tensor, int], Tensor]
"""(bytes_ND, zero) -> scale_V (bytes - zero) weight, in float32."""


def int8_product(weight_VD: Tensor, scale_V: Tensor) -> Int8Product:
    """The product by oneDNN's kernel, with weights in its layout."""
    rows, padding = len(weight_VD), -len(weight_VD) % INT8_ROWS
    padded_scale_V = F.pad(scale_V, (0, padding))
    zero_V = torch.zeros(rows + padding, dtype=torch.int32)
    packed = torch.ops.onednn.qlinear_prepack(F.pad(weight_VD, (0, 0, 0, padding)), None)

    def product(bytes_ND: Tensor, zero: int) -> Tensor:
        y_NV: Tensor = torch.ops.onednn.qlinear_pointwise(
            bytes_ND, 1.0, zero, packed, padded_scale_V, zero_V, None,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return y_NV[:, :rows]

    return product


def plain_product(weight_VD: Tensor, scale_V: Tensor) -> Int8Product:
    """The same in float32: right everywhere, but neither small nor fast."""
    scaled_VD = weight_VD.float() * scale_V[:, None]
    return lambda bytes_ND, zero: F.linear(bytes_ND.float() - zero, scaled_VD)


@cache
def has_int8_product() -> bool:
    """Whether this torch has the int8 kernel, and it multiplies."""
    bytes_ND = torch.tensor([[3, 60, 64], [100, 1, 127]], dtype=torch.uint8)
    layer = torch.tensor([[1, -2, 127], [-127, 5, 0]], dtype=torch.int8), torch.tensor([0.5, 2.0])
    plain_NV = plain_product(*layer)(bytes_ND, 64)
    try:
        return torch.allclose(int8_product(*layer)(bytes_ND, 64), plain_NV)
    except UNAVAILABLE:
        return False


@cache
def has_packed_linear(dtype: torch.dtype) -> bool:
    """Whether this torch has the product with weights in the processor's layout."""
    weight_VD = torch.arange(12.0, dtype=dtype).view(3, 4)
    x_ND = torch.arange(8.0, dtype=dtype).view(2, 4)
    try:
        return torch.allclose(packed_linear(weight_VD, len(x_ND))(x_ND), F.linear(x_ND, weight_VD))
    except UNAVAILABLE:
        return False


def packed_linear(weight_VD: Tensor, rows: int) -> Callable[[Tensor], Tensor]:
    """x_ND to x weight^T, with weights laid out for `rows` rows."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_VD, rows)
    return lambda x_ND: torch.ops.mkldnn._linear_pointwise(x_ND, packed, None, "none", [], "")


def fused_linear(modules: Sequence[nn.Module], *, rows: int) -> Callable[[Tensor], Tensor]:
    """Linear layers of the same input as one product for inference; their outputs side by side.

    Weights are laid out for products with `rows` rows, which pays for itself after 15 to 30 calls.
    """
    if len(modules) == 1 and isinstance(modules[0], Int8Linear):
        return modules[0]
    weights = [cast(Tensor, module.weight).detach() for module in modules]
    weight_VD = torch.cat(weights) if len(weights) > 1 else weights[0]
    if isinstance(modules[0], Int8Linear):
        return Int8Linear(
            weight_VD, torch.cat([cast(Tensor, module.scale_V) for module in modules])
        )
    if weight_VD.device.type == "cpu":
        exact = weight_VD.dtype == torch.float32
        if exact and rows == 1:
            # One row is a sum of weights: the longer side of the matrix wants to be contiguous.
            wide = len(weight_VD) > weight_VD.shape[1]
            return partial(F.linear, weight=weight_VD.T.contiguous().T if wide else weight_VD)
        if (rows >= PACKED_ROWS or not exact) and has_packed_linear(weight_VD.dtype):
            return packed_linear(weight_VD, rows)
    return partial(F.linear, weight=weight_VD)
