"""Transport: planted answers, invariants of the plan, agreement with POT, anchors that learn."""

import dataclasses
import itertools
from typing import Any

import ot
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from starc.config import TransportConfig
from starc.model import transport
from starc.model.transport import TINY, Plan, Problem, neighbours

MARGINALS = list(itertools.product(("relaxed", "balanced"), repeat=2))


def options_of(frames: str, anchors: str, **more: object) -> TransportConfig:
    return TransportConfig(frames=frames, anchor_marginal=anchors, **more)  # type: ignore[arg-type]


def random_problem(
    seed: int, counts: list[int], anchors: int, *, scale: float = 1.0, structure: float = 0.3
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    mask_BT = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    frame_mass_BT = (torch.rand(mask_BT.shape, generator=generator) + 0.05) * mask_BT
    return Problem(
        cost_BTK=scale * torch.rand(*mask_BT.shape, anchors, generator=generator),
        frame_mass_BT=frame_mass_BT / frame_mass_BT.sum(1, keepdim=True),
        anchor_mass_BK=torch.full((len(counts), anchors), 1 / anchors),
        mask_BT=mask_BT,
        entropy=0.07,
        structure=structure,
    )


def objective(problem: Problem, mass_BTK: Tensor, options: TransportConfig) -> Tensor:
    """Value [B] of the objective of Eq. fugw-prob with entropy, for a T that sums to one.

        α/2 <C^v T C^a, T> + (1−α) <C^k, T> + ε <T, log T − 1> + γ KL(T 1 | q) + γ_a KL(Tᵀ1 | 1/K)

    Half of the structure term, because differentiating it gives C^v T C^a twice.
    """
    near_BTT = neighbours(problem.mask_BT, options.radius)
    structure_BTK = near_BTT @ (mass_BTK.sum(2, keepdim=True) - mass_BTK)
    cost_BTK = (
        problem.structure * structure_BTK / 2
        + (1 - problem.structure) * problem.cost_BTK
        + problem.entropy * ((mass_BTK + TINY).log() - 1)
    )
    value_B = (cost_BTK * mass_BTK).sum((1, 2))
    if options.frames == "relaxed":
        row_BT = mass_BTK.sum(2)
        ratio_BT = row_BT / (problem.frame_mass_BT + ~problem.mask_BT) + TINY
        value_B = value_B + options.frame_penalty * (row_BT * ratio_BT.log()).sum(1)
    if options.anchor_marginal == "relaxed":
        column_BK = mass_BTK.sum(1)
        ratio_BK = column_BK / problem.anchor_mass_BK + TINY
        value_B = value_B + options.anchor_penalty * (column_BK * ratio_BK.log()).sum(1)
    return value_B


def planted(videos: int, seed: int, noise: float = 0.3) -> tuple[Tensor, Tensor, Tensor]:
    """Features whose frames belong to clusters in blocks of random order: clip, label, centres.

    The centres are always the same; the seed makes other videos of them.
    """
    centre_KD = F.normalize(torch.randn(4, 16, generator=torch.Generator().manual_seed(0)), dim=-1)
    generator = torch.Generator().manual_seed(seed)
    order = [torch.randperm(4, generator=generator) for _ in range(videos)]
    label_BT = torch.stack([it.repeat_interleave(10) for it in order])
    clip_BTD = centre_KD[label_BT] + noise / 4 * torch.randn(videos, 40, 16, generator=generator)
    return clip_BTD, label_BT, centre_KD


def solved(clip_BTD: Tensor, anchor_KD: Tensor, options: TransportConfig) -> Plan:
    mask_BT = torch.ones(clip_BTD.shape[:2], dtype=torch.bool)
    prior_BT = torch.full(clip_BTD.shape[:2], 0.5)
    problem = transport.pose(clip_BTD, anchor_KD, prior_BT, mask_BT, options, inference=True)
    return transport.solve(problem, options)


@pytest.mark.parametrize(("frames", "anchors"), MARGINALS)
def test_planted_clusters_are_found(frames: str, anchors: str) -> None:
    clip_BTD, label_BT, centre_KD = planted(3, seed=0)
    plan = solved(clip_BTD, centre_KD, options_of(frames, anchors))
    assert torch.equal(plan.anchor_BT, label_BT)


def test_temporal_structure_heals_single_frames() -> None:
    clip_BTD, label_BT, centre_KD = planted(1, seed=1, noise=0.0)
    wrong = clip_BTD.clone()
    wrong[0, 15] = centre_KD[label_BT[0, 35]] * 0.55 + centre_KD[label_BT[0, 15]] * 0.45
    plain = solved(wrong, centre_KD, TransportConfig(inference_structure=0.0))
    smooth = solved(wrong, centre_KD, TransportConfig(inference_structure=0.6))
    assert plain.anchor_BT[0, 15] == label_BT[0, 35]
    assert torch.equal(smooth.anchor_BT, label_BT)


@given(
    seed=st.integers(0, 10_000),
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    anchors=st.integers(1, 6),
    marginals=st.sampled_from(MARGINALS),
    structure=st.floats(0, 1),
)
@settings(deadline=None, max_examples=40)
def test_a_plan_has_no_negative_mass_and_keeps_its_hard_marginals(
    seed: int, counts: list[int], anchors: int, marginals: tuple[str, str], structure: float
) -> None:
    problem = random_problem(seed, counts, anchors, structure=structure)
    options = options_of(*marginals)
    mass_BTK = transport.solve(problem, options).mass_BTK / torch.tensor(counts)[:, None, None]
    assert mass_BTK.isfinite().all() and (mass_BTK >= 0).all()
    assert not mass_BTK[~problem.mask_BT].any()
    if options.anchor_marginal == "balanced":
        torch.testing.assert_close(mass_BTK.sum(1), problem.anchor_mass_BK, atol=1e-5, rtol=1e-4)
    elif options.frames == "balanced":
        torch.testing.assert_close(mass_BTK.sum(2), problem.frame_mass_BT, atol=1e-5, rtol=1e-4)


@given(seed=st.integers(0, 10_000), marginals=st.sampled_from(MARGINALS))
@settings(deadline=None, max_examples=12)
def test_the_objective_ends_lower_than_it_began(seed: int, marginals: tuple[str, str]) -> None:
    problem, options = random_problem(seed, [30, 20], 5), options_of(*marginals)
    start_BTK = problem.frame_mass_BT[..., None] * problem.anchor_mass_BK[:, None]
    end_BTK = transport.solve(problem, options).mass_BTK / torch.tensor([30.0, 20.0])[:, None, None]
    begun_B = objective(problem, start_BTK, options)
    assert (objective(problem, end_BTK, options) < begun_B).all()


def test_the_published_step_may_end_worse_than_it_began() -> None:
    """Why `bounded_step` exists: a short video, with anchors far from all of its frames."""
    problem = random_problem(0, [20], 8)
    start_BTK = problem.frame_mass_BT[..., None] * problem.anchor_mass_BK[:, None]
    begun = objective(problem, start_BTK, TransportConfig())
    for bounded, better in ((True, True), (False, False)):
        options = TransportConfig(bounded_step=bounded)
        mass_BTK = transport.solve(problem, options).mass_BTK / 20
        assert bool(objective(problem, mass_BTK, options) < begun) == better


@pytest.mark.parametrize(("frames", "anchors"), MARGINALS)
@pytest.mark.parametrize("largest", [0.5, 400.0])
def test_the_bounded_step_knows_the_penalties_of_all_relaxed_sides(
    frames: str, anchors: str, largest: float
) -> None:
    problem = random_problem(0, [20], 8)
    options = options_of(frames, anchors, frame_penalty=0.3, anchor_penalty=0.12, bounded_step=True)
    stiff = 0.07 + 0.3 * (frames == "relaxed") + 0.12 * (anchors == "relaxed")
    step = transport.first_step(problem, options, torch.full((1, 8, 20), largest))
    assert step.item() == pytest.approx(min(4 / largest, 1 / stiff))
    free = dataclasses.replace(options, bounded_step=False)
    assert transport.first_step(problem, free, torch.full((1, 8, 20), largest)) == 4 / largest


@pytest.mark.parametrize(("frames", "anchors"), MARGINALS)
def test_neighbours_and_padding_never_change_a_plan(frames: str, anchors: str) -> None:
    options = options_of(frames, anchors)
    counts = [9, 26, 17]
    together = random_problem(3, counts, 5)
    plan = transport.solve(together, options)
    for video, length in enumerate(counts):
        alone = Problem(
            cost_BTK=together.cost_BTK[video : video + 1, :length],
            frame_mass_BT=together.frame_mass_BT[video : video + 1, :length],
            anchor_mass_BK=together.anchor_mass_BK[video : video + 1],
            mask_BT=together.mask_BT[video : video + 1, :length],
            entropy=together.entropy,
            structure=together.structure,
        )
        mass_TK = transport.solve(alone, options).mass_BTK[0]
        torch.testing.assert_close(plan.mass_BTK[video, :length], mass_TK, atol=1e-4, rtol=1e-3)


def test_sinkhorn_of_pot_where_both_marginals_are_balanced() -> None:
    problem = random_problem(1, [20], 4, structure=0.0)
    plan = transport.solve(
        problem, options_of("balanced", "balanced", steps=1, projection_steps=500)
    )
    frame_T = problem.frame_mass_BT[0].double()
    wanted = ot.sinkhorn(
        (frame_T / frame_T.sum()).numpy(),
        problem.anchor_mass_BK[0].double().numpy(),
        problem.cost_BTK[0].double().numpy(),
        reg=problem.entropy,
        stopThr=1e-9,
        numItermax=20_000,
    )
    torch.testing.assert_close(
        plan.mass_BTK[0].double() / 20, torch.tensor(wanted), atol=1e-6, rtol=1e-3
    )


@pytest.mark.parametrize(("frames", "anchors"), MARGINALS[:3])
def test_unbalanced_sinkhorn_of_pot_where_a_marginal_is_relaxed(frames: str, anchors: str) -> None:
    """After many small steps. A penalty γ (log(T1/q) + 1) is that of POT towards q/e."""
    problem = random_problem(2, [15], 4, scale=10.0, structure=0.0)
    problem = dataclasses.replace(problem, entropy=0.5)
    options = options_of(frames, anchors, frame_penalty=0.6, anchor_penalty=0.4, steps=3000)
    free_frames, free_anchors = frames == "relaxed", anchors == "relaxed"
    with pytest.warns(UserWarning, match="reg_type = entropy"):
        wanted = ot.unbalanced.sinkhorn_unbalanced(
            problem.frame_mass_BT[0].double().numpy() / (torch.e if free_frames else 1.0),
            problem.anchor_mass_BK[0].double().numpy() / (torch.e if free_anchors else 1.0),
            problem.cost_BTK[0].double().numpy(),
            reg=problem.entropy,
            reg_m=(0.6 if free_frames else float("inf"), 0.4 if free_anchors else float("inf")),
            reg_type="entropy",
            stopThr=1e-9,
            numItermax=20_000,
        )
    plan = transport.solve(problem, options)
    torch.testing.assert_close(
        plan.mass_BTK[0].double() / 15, torch.tensor(wanted), atol=1e-5, rtol=1e-2
    )


def test_the_cost_is_that_of_the_paper() -> None:
    clip_BTD, anchor_KD = torch.randn(2, 5, 8), torch.randn(3, 8)
    prior_BT, mask_BT = torch.rand(2, 5), torch.ones(2, 5, dtype=torch.bool)
    cosine_BTK = F.cosine_similarity(clip_BTD[:, :, None], anchor_KD, dim=-1)

    def cost(**changes: Any) -> Tensor:
        options = TransportConfig(saliency_bias=0.1, **{"centre": False, **changes})
        return transport.frame_anchor_cost(clip_BTD, anchor_KD, prior_BT, mask_BT, options)

    paper = cost(temporal_prior=0)
    torch.testing.assert_close(paper, 1 - cosine_BTK - 0.1 * prior_BT[..., None])
    centred = cost(centre=True, temporal_prior=0)
    mean_B = prior_BT.mean(1)[:, None, None]
    torch.testing.assert_close(centred, paper + 0.1 * mean_B)
    timed = cost(temporal_prior=2)
    prior_TK = (torch.arange(5)[:, None] / 5 - torch.arange(3) / 3).abs()
    torch.testing.assert_close(timed, paper + 2 * prior_TK.expand_as(paper))


def test_training_and_inference_have_their_own_constants() -> None:
    clip_BTD, _, centre_KD = planted(1, seed=0)
    mask_BT, prior_BT = torch.ones(1, 40, dtype=torch.bool), torch.rand(1, 40)
    posed = [
        transport.pose(clip_BTD, centre_KD, prior_BT, mask_BT, TransportConfig(), inference=it)
        for it in (False, True)
    ]
    assert [(it.entropy, it.structure) for it in posed] == [(0.07, 0.3), (0.04, 0.6)]
    torch.testing.assert_close(posed[0].frame_mass_BT, prior_BT / prior_BT.sum())


def test_salient_frames_receive_more_mass() -> None:
    clip_BTD, _, centre_KD = planted(1, seed=0)
    prior_BT = torch.where(torch.arange(40) % 10 < 5, 0.9, 0.1)[None]
    mask_BT, options = torch.ones(1, 40, dtype=torch.bool), TransportConfig()
    problem = transport.pose(clip_BTD, centre_KD, prior_BT, mask_BT, options, inference=True)
    mass_T = transport.solve(problem, options).mass_BTK[0].sum(1)
    assert mass_T[prior_BT[0] > 0.5].min() > mass_T[prior_BT[0] < 0.5].max()


def purity(anchor_BT: Tensor, label_BT: Tensor) -> float:
    """Share of frames whose anchor's commonest label is their own."""
    table = torch.zeros(4, 4)
    table.index_put_((anchor_BT.flatten(), label_BT.flatten()), torch.tensor(1.0), accumulate=True)
    return float(table.amax(1).sum() / table.sum())


def test_anchors_learn_to_find_planted_clusters() -> None:
    clip_BTD, _, centre_KD = planted(8, seed=4, noise=1.4)
    held_BTD, held_label_BT, _ = planted(8, seed=5, noise=1.4)
    torch.manual_seed(2)
    anchor_KD = torch.nn.Parameter(torch.randn(4, 16) / 4)
    start_KD, options = anchor_KD.detach().clone(), TransportConfig(anchors=4)
    before = purity(solved(held_BTD, anchor_KD, options).anchor_BT, held_label_BT)
    mask_BT, prior_BT = torch.ones(8, 40, dtype=torch.bool), torch.full((8, 40), 0.5)
    optimiser = torch.optim.Adam([anchor_KD], lr=0.03)
    for _ in range(80):
        problem = transport.pose(clip_BTD, anchor_KD, prior_BT, mask_BT, options, inference=False)
        plan = transport.solve(problem, options)
        loss = transport.anchor_loss(clip_BTD, anchor_KD, plan, mask_BT, temperature=0.1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    after = purity(solved(held_BTD, anchor_KD, options).anchor_BT, held_label_BT)
    assert (anchor_KD - start_KD).abs().max() > 0.1
    assert before < 0.6 and after > 0.95
    # Every anchor has become one of the planted centres.
    similarity_KK = F.normalize(anchor_KD.detach(), dim=-1) @ centre_KD.T
    assert similarity_KK.argmax(1).unique().numel() == 4 and similarity_KK.amax(1).min() > 0.7


def test_one_frame_and_one_anchor() -> None:
    for marginals in MARGINALS:
        plan = transport.solve(random_problem(0, [1], 1), options_of(*marginals))
        assert plan.mass_BTK.isfinite().all()


def test_a_problem_checks_its_shapes() -> None:
    problem = random_problem(0, [4], 2)
    with pytest.raises(ValueError, match=r"frame_mass_BT must be \(1, 4\), got \(1, 3\)"):
        dataclasses.replace(problem, frame_mass_BT=torch.ones(1, 3))
