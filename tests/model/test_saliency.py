"""Saliency: labels from events, the listwise loss, the prior."""

from pathlib import Path

import pytest
import torch

from starc.model import saliency
from starc.types import Event

ALL = torch.ones(1, 6, dtype=torch.bool)


def event(start: float, end: float) -> Event:
    return Event(start, end, "x")


def test_labels_cover_the_frames_of_events() -> None:
    assert saliency.labels([event(2, 5)], duration=10, frames=10).tolist() == (
        [False] * 2 + [True] * 3 + [False] * 5
    )
    # Rounded outwards, at least one frame, never beyond the video.
    assert saliency.labels([event(2.5, 2.6)], duration=10, frames=10).nonzero().tolist() == [[2]]
    assert saliency.labels([event(9.99, 30)], duration=10, frames=10).nonzero().tolist() == [[9]]
    assert saliency.labels([event(11, 12)], duration=10, frames=4).nonzero().tolist() == [[3]]
    assert saliency.labels([event(0, 1)], duration=10, frames=1).tolist() == [True]
    assert not saliency.labels([], duration=10, frames=5).any()
    with pytest.raises(ValueError, match="duration must be positive"):
        saliency.labels([], duration=0, frames=5)


def test_labels_are_the_published_ones(shared: Path) -> None:
    items = torch.load(shared / "parity/model/dataset_items.pt", weights_only=True)["items"]
    for item in items:
        golden_T = item["saliency_all_labels"]
        events = [event(start, end) for start, end in item["timestamp"]]
        found_T = saliency.labels(events, duration=item["duration"], frames=len(golden_T))
        assert torch.equal(found_T.long(), golden_T)


def test_the_loss_of_known_probabilities() -> None:
    probability_T = torch.tensor([0.5, 0.25, 0.25, 0.0, 0.0, 0.0])
    saliency_BT = 0.5 * (probability_T + 1e-9).log()[None]
    salient_BT = torch.tensor([[True, True, False, False, False, False]])
    wanted = -(probability_T[0].log() + probability_T[1].log()) / 2
    found = saliency.loss(saliency_BT, salient_BT, ALL, temperature=0.5)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_padding_and_videos_without_highlights_take_no_part_in_the_loss() -> None:
    saliency_BT = torch.randn(3, 6)
    salient_BT = torch.tensor([[1, 1, 0, 1, 1, 1], [0] * 6, [0, 1, 1, 0, 0, 0]])
    mask_BT = torch.tensor([[1, 1, 1, 0, 0, 0], [1] * 6, [1] * 6]).bool()
    together = saliency.loss(saliency_BT, salient_BT, mask_BT, temperature=0.5)
    first = saliency.loss(saliency_BT[:1, :3], salient_BT[:1, :3], ALL[:, :3], temperature=0.5)
    last = saliency.loss(saliency_BT[2:], salient_BT[2:], ALL, temperature=0.5)
    torch.testing.assert_close(together, (first + last) / 2, atol=1e-5, rtol=1e-5)
    none = saliency.loss(saliency_BT, torch.zeros(3, 6), mask_BT, temperature=0.5)
    assert none == 0


def test_the_loss_pulls_highlights_up() -> None:
    saliency_BT = torch.zeros(1, 6, requires_grad=True)
    mask_BT = torch.tensor([[1, 1, 1, 1, 0, 0]]).bool()
    salient_BT = torch.tensor([[0, 1, 0, 0, 0, 0]])
    saliency.loss(saliency_BT, salient_BT, mask_BT, temperature=0.5).backward()
    assert saliency_BT.grad is not None
    assert (saliency_BT.grad[0] < 0).tolist() == [False, True, False, False, False, False]
    assert not saliency_BT.grad[0, 4:].any() and saliency_BT.grad.isfinite().all()


def test_the_prior_of_a_video_does_not_know_its_padding() -> None:
    saliency_BT = torch.randn(1, 6)
    mask_BT = torch.tensor([[1, 1, 1, 1, 0, 0]]).bool()
    for standardise in (False, True):
        padded = saliency.prior(saliency_BT, mask_BT, standardise=standardise)
        alone = saliency.prior(saliency_BT[:, :4], ALL[:, :4], standardise=standardise)
        torch.testing.assert_close(padded[:, :4], alone)
        assert not padded[:, 4:].any()
    standard = (saliency_BT - saliency_BT.mean()) / (saliency_BT.std() + 1e-6)
    torch.testing.assert_close(
        saliency.prior(saliency_BT, ALL, standardise=True), standard.sigmoid()
    )


def test_the_prior_of_one_frame_is_defined() -> None:
    one = torch.ones(1, 1, dtype=torch.bool)
    assert saliency.prior(torch.tensor([[3.0]]), one, standardise=True).item() == 0.5


def test_the_head_pools_only_real_frames() -> None:
    torch.manual_seed(0)
    head = saliency.SaliencyHead(8)
    x_BTD = torch.randn(1, 6, 8)
    mask_BT = torch.tensor([[1, 1, 1, 0, 0, 0]]).bool()
    alone = head(x_BTD[:, :3], x_BTD[:, :3], None)
    torch.testing.assert_close(head(x_BTD, x_BTD, mask_BT)[:, :3], alone, atol=1e-6, rtol=1e-5)
