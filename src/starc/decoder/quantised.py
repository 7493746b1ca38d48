"""Weights in groups of 4 or 8 bits, as GGUF stores them, inside safetensors.

    w = scale q + least   (q of 4 bits, two in a byte)       w = scale q   (q of 8 bits)

In: matrices, or blocks of a GGUF file, which are taken over bit by bit; out: the tensors of a file
under `name.q4`, `name.q8`, `name.scale`, `name.least`; and back to float32. Groups are of 32
weights in a row (Q4_1, Q8_0), or whole rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GROUP = 32
"""Weights of a group in Q4_1 and Q8_0."""


def from_q4_1(block_NS: NDArray[np.uint8], rows: int) -> dict[str, Tensor]:
    """GGUF's blocks of 20 bytes: scale, least, 16 bytes of two weights each."""
    halves_N2 = torch.from_numpy(block_NS[:, :4].copy()).view(torch.float16)
    packed_NP = torch.from_numpy(block_NS[:, 4:].copy())
    return {
        "q4": packed_NP.view(rows, -1, GROUP // 2),
        "scale": halves_N2[:, 0].reshape(rows, -1).contiguous(),
        "least": halves_N2[:, 1].reshape(rows, -1).contiguous(),
    }


def from_q8_0(block_NS: NDArray[np.uint8], rows: int) -> dict[str, Tensor]:
    """GGUF's blocks of 34 bytes: scale, 32 weights."""
    return {
        "q8": torch.from_numpy(block_NS[:, 2:].copy()).view(torch.int8).view(rows, -1, GROUP),
        "scale": torch.from_numpy(block_NS[:, :2].copy()).view(torch.float16).view(rows, -1),
    }


def to_8_bits(weight_OI: Tensor) -> dict[str, Tensor]:
    """A matrix rounded to 8 bits, a scale per row."""
    scale_O1 = (weight_OI.abs().amax(1, keepdim=True) / 127).clamp_min(1e-7).half()
    q_OI = (weight_OI / scale_O1.float()).round().clamp(-127, 127).to(torch.int8)
    return {"q8": q_OI[:, None], "scale": scale_O1}


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what `unpack` gives; a matrix whose scales do not fit is left out."""
    found: dict[str, tuple[int, ...]] = {}
    for name, tensor in tensors.items():
        base, _, kind = name.rpartition(".")
        if kind in ("q4", "q8"):
            needed = ("scale", "least") if kind == "q4" else ("scale",)
            groups = [tensors.get(f"{base}.{one}") for one in needed]
            if any(one is None or one.shape != tensor.shape[:2] for one in groups):
                continue
            found[base] = len(tensor), tensor[0].numel() * (2 if kind == "q4" else 1)
        elif kind not in ("scale", "least"):
            found[name] = tuple(tensor.shape)
    return found


def unpack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of a file, of which `shapes` finds nothing missing, in float32."""
    state: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        base, _, kind = name.rpartition(".")
        if kind not in ("q4", "q8"):
            if kind not in ("scale", "least"):
                state[name] = tensor.float()
            continue
        scale_OK1 = tensors[f"{base}.scale"].float()[..., None]
        if kind == "q4":
            weight_OKG = scale_OK1.new_empty((*tensor.shape[:2], 2 * tensor.shape[2]))
            low_OKP, high_OKP = weight_OKG.chunk(2, dim=-1)
            low_OKP.copy_(tensor & 15)
            high_OKP.copy_(tensor >> 4)
            weight_OKG.mul_(scale_OK1).add_(tensors[f"{base}.least"].float()[..., None])
        else:
            weight_OKG = tensor * scale_OK1
        state[base] = weight_OKG.flatten(1)
    return state
