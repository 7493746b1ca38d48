"""Sliding-window self-attention against a loop over windows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from starc.config import SwsaConfig
from starc.model.swsa import SlidingWindowAttention, attend, windows


def loop(x_TD: Tensor, config: SwsaConfig) -> tuple[Tensor, Tensor]:
    """Average attention and window count per frame, window by window."""
    frames, width = x_TD.shape
    total_TD, count_T = torch.zeros_like(x_TD), torch.zeros(frames)
    for size, step in zip(config.sizes, config.steps(), strict=True):
        for first in range(0, frames, step):
            if not config.partial and first + size > frames:
                break
            tile_WD = x_TD[first : first + size]
            weight_WW = (tile_WD @ tile_WD.T / math.sqrt(width)).softmax(-1)
            total_TD[first : first + size] += weight_WW @ tile_WD
            count_T[first : first + size] += 1
            if config.partial and first + size >= frames:
                break
    return total_TD / (count_T[:, None] + 1e-6), count_T


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    step=st.integers(1, 14),
    partial=st.booleans(),
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=3),
)
@settings(deadline=None, max_examples=60)
def test_any_sizes_any_stride_any_lengths(
    sizes: list[int], step: int, partial: bool, counts: list[int]
) -> None:
    config = SwsaConfig(sizes=tuple(sizes), stride=step, partial=partial)
    torch.manual_seed(0)
    x_BTD = torch.randn(len(counts), 20, 6)
    mask_BT = torch.arange(20) < torch.tensor(counts)[:, None]
    window_BPT = windows(mask_BT, config)
    found_BTD = attend(x_BTD, window_BPT)
    for video, length in enumerate(counts):
        wanted_TD, count_T = loop(x_BTD[video, :length], config)
        assert torch.equal((window_BPT[video] >= 0).sum(0)[:length], count_T.long())
        torch.testing.assert_close(found_BTD[video, :length], wanted_TD, atol=1e-5, rtol=1e-4)


def test_published_tiles_leave_frames_out() -> None:
    config = SwsaConfig(stride="tile", partial=False)
    module = SlidingWindowAttention(4, config)
    torch.nn.init.constant_(module.norm.bias, 0.5)
    x_BTD = torch.randn(1, 100, 4)
    covered_PT = windows(torch.ones(1, 100, dtype=torch.bool), config)[0] >= 0
    assert covered_PT.any(0).nonzero().flatten().tolist() == list(range(96))
    torch.testing.assert_close(module(x_BTD, None)[:, 96:], x_BTD[:, 96:] + 0.5)
    # Windows longer than the video are skipped.
    assert (windows(torch.ones(1, 50, dtype=torch.bool), config)[0, 2] == -1).all()


def test_every_frame_is_in_a_window_of_every_size_in_the_paper_preset() -> None:
    for frames in (1, 7, 8, 50, 99, 100):
        window_BPT = windows(torch.ones(1, frames, dtype=torch.bool), SwsaConfig())
        by_size = (window_BPT[0] >= 0).reshape(3, 2, frames).any(1)
        assert by_size.all()


@pytest.mark.parametrize("partial", [True, False])
def test_gradients_are_finite_even_where_no_window_is(partial: bool) -> None:
    module = SlidingWindowAttention(8, SwsaConfig(sizes=(4,), stride="tile", partial=partial))
    x_BTD = torch.randn(2, 10, 8, requires_grad=True)
    mask_BT = torch.arange(10) < torch.tensor([[3], [10]])
    module(x_BTD, mask_BT)[mask_BT].square().sum().backward()
    assert x_BTD.grad is not None and x_BTD.grad.isfinite().all()
    assert not x_BTD.grad[0, 3:].any()
