"""Segments: runs, scores, the best k, pooling, and the segmentations STaRC is compared with."""

import math

import pytest
import torch
import torch.nn.functional as F

from starc.config import SegmentsConfig
from starc.model import segments
from starc.model.transport import Plan
from starc.types import Segment


def spans(found: list[Segment]) -> list[tuple[int, int, int]]:
    return [(it.first, it.stop, it.anchor) for it in found]


def blocks(*lengths: int, width: int = 8, seed: int = 0) -> torch.Tensor:
    """Features that change completely from block to block, and hardly inside."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.eye(width)[: len(lengths)].repeat_interleave(torch.tensor(lengths), dim=0)
    return (centre + 0.02 * torch.randn(centre.shape, generator=generator))[None]


def test_runs_and_their_scores() -> None:
    found = segments.cut([2, 2, 0, 2], [1.0, 3.0, 5.0, 0.5])
    assert spans(found) == [(0, 2, 2), (2, 3, 0), (3, 4, 2)]
    assert [it.score for it in found] == pytest.approx(
        [2.0 * math.log(3), 5.0 * math.log(2), 0.5 * math.log(2)]
    )
    assert segments.cut([], []) == []


def test_the_best_are_kept_and_ranked() -> None:
    found = segments.keep_best(segments.cut([0, 1, 2], [1.0, 3.0, 2.0]), 2)
    assert [it.kept for it in found] == [False, True, True]
    assert [it.anchor for it in segments.ranked(found)] == [1, 2]
    # More asked than exist: all of them.
    assert len(segments.ranked(segments.keep_best(found, 9))) == 3


def test_segments_of_a_plan_stop_where_the_video_stops() -> None:
    mass_BTK = F.one_hot(torch.tensor([[0, 0, 1, 1, 0], [1, 1, 1, 0, 0]]), 2).float()
    mask_BT = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    found = segments.find(
        torch.randn(2, 5, 4), mask_BT.float(), mask_BT, Plan(mass_BTK), SegmentsConfig(), clusters=2
    )
    assert [spans(it) for it in found] == [[(0, 2, 0), (2, 4, 1), (4, 5, 0)], [(0, 2, 1)]]
    with pytest.raises(ValueError, match="need a plan"):
        segments.find(
            torch.randn(2, 5, 4), mask_BT.float(), mask_BT, None, SegmentsConfig(), clusters=2
        )


def test_pooling_weighs_unit_features() -> None:
    clip_BTD = torch.randn(2, 6, 4)
    weight_BT = torch.rand(2, 6)
    chosen = [[Segment(1, 4, 0, 1.0), Segment(0, 1, 1, 0.5)], [Segment(2, 6, 0, 1.0)]]
    pooled_BSD, mask_BS = segments.pool(clip_BTD, weight_BT, chosen)
    assert mask_BS.tolist() == [[True, True], [True, False]]
    unit_TD, weight_T = F.normalize(clip_BTD[0], dim=-1), weight_BT[0]
    wanted_D = (weight_T[1:4, None] * unit_TD[1:4]).sum(0) / weight_T[1:4].sum()
    torch.testing.assert_close(pooled_BSD[0, 0], wanted_D)
    torch.testing.assert_close(pooled_BSD[0, 1], unit_TD[0])
    assert not pooled_BSD[1, 1].any()


def test_uniform_windows_share_a_video_equally() -> None:
    mask_BT = torch.arange(20) < torch.tensor([[20], [3]])
    label_BT = segments.uniform(mask_BT, 5)
    assert label_BT[0].bincount().tolist() == [4] * 5
    assert label_BT[1, :3].tolist() == [0, 1, 2]


@pytest.mark.parametrize("method", ["adaptive", "kmeans"])
def test_planted_cuts_are_found(method: str) -> None:
    clip_BTD = F.pad(blocks(5, 9, 4), (0, 0, 0, 6))
    mask_BT = torch.arange(24)[None] < 18
    config = SegmentsConfig(method=method)  # type: ignore[arg-type]
    found = segments.find(clip_BTD, mask_BT.float(), mask_BT, None, config, clusters=3)
    assert [(it.first, it.stop) for it in found[0]] == [(0, 5), (5, 14), (14, 18)]


def test_kmeans_joins_what_comes_back() -> None:
    first, second = blocks(4, 5)[0].split([4, 5])
    label_BT = segments.kmeans(
        torch.cat((first, second, first))[None], torch.ones(1, 13, dtype=torch.bool), clusters=2
    )
    assert label_BT[0].tolist() == [0] * 4 + [1] * 5 + [0] * 4


@pytest.mark.parametrize("method", ["uniform", "adaptive", "kmeans"])
def test_neighbours_and_padding_never_change_segments(method: str) -> None:
    clip_BTD = torch.randn(3, 20, 8)
    counts = (1, 20, 11)
    mask_BT = torch.arange(20) < torch.tensor(counts)[:, None]
    prior_BT = torch.rand(3, 20) * mask_BT
    config = SegmentsConfig(method=method)  # type: ignore[arg-type]
    together = segments.find(clip_BTD, prior_BT, mask_BT, None, config, clusters=4)
    for video, length in enumerate(counts):
        part = (slice(video, video + 1), slice(0, length))
        alone = segments.find(
            clip_BTD[part], prior_BT[part], mask_BT[part], None, config, clusters=4
        )
        assert together[video] == alone[0]
