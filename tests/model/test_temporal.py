"""The temporal encoder: positions, masks, recomputation."""

import torch
import torch.nn.functional as F

from starc.config import TemporalConfig
from starc.model.temporal import TemporalEncoder

SMALL = TemporalConfig(features=16, positions=12, depth=2, heads=4, feed_forward=32, dropout=0.0)


def encoder(**options: bool) -> TemporalEncoder:
    torch.manual_seed(0)
    return TemporalEncoder(16, SMALL, **options)


def lengths(*counts: int, frames: int) -> torch.Tensor:
    return torch.arange(frames) < torch.tensor(counts)[:, None]


def test_padding_and_neighbours_change_nothing() -> None:
    model = encoder()
    x_BTD = torch.randn(3, 20, 16)
    mask_BT = lengths(5, 20, 11, frames=20)
    together = model(x_BTD, mask_BT)
    for video, length in enumerate((5, 20, 11)):
        alone = model(x_BTD[video : video + 1, :length], torch.ones(1, length, dtype=torch.bool))
        torch.testing.assert_close(together[video, :length], alone[0], atol=1e-5, rtol=1e-5)


def test_padding_counts_as_video_without_a_mask() -> None:
    model = encoder()
    x_BTD = torch.randn(1, 12, 16)
    longer = torch.cat((x_BTD, torch.zeros(1, 4, 16)), dim=1)
    assert not torch.allclose(model(x_BTD, None), model(longer, None)[:, :12], atol=1e-3)


def test_positions_of_a_mask_follow_the_video_not_the_batch() -> None:
    model = encoder()
    short, exact, long = model.positions(24, lengths(5, 12, 24, frames=24))
    assert torch.equal(short[:5], model.position_1TD[0, :5])
    assert torch.equal(exact[:12], model.position_1TD[0])
    assert torch.equal(long, model.position_1TD[0].repeat_interleave(2, dim=0))


def test_positions_without_a_mask_are_stretched() -> None:
    model = encoder()
    stretched = F.interpolate(model.position_1TD.mT, size=7).mT
    assert torch.equal(model.positions(7, None), stretched)
    assert torch.equal(model.positions(12, None), model.position_1TD)


def test_recomputing_gives_the_same_gradients() -> None:
    x_BTD, gradients = torch.randn(2, 9, 16), []
    for recompute in (False, True):
        model = encoder(recompute=recompute).train()
        model(x_BTD, None).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)


def test_start_values() -> None:
    model = encoder()
    assert model.position_1TD.abs().max() < 0.2
    assert model.blocks[0].feed_forward_in.bias.abs().max() < 1e-4
