"""Saliency-guided segmentation by optimal transport (SGSR): costs in, transport plans out.

Frames are matched to K anchors by a fused Gromov-Wasserstein objective with entropy (paper, SGSR;
appendix, OT-based segmentation), solved by a fixed number of mirror-descent steps as in ASOT. Each
side's marginal is balanced (held exactly) or relaxed (drawn towards its target by a KL penalty).
A batch is solved at once, without gradient, and every quantity that the steps depend on is a
video's own, so neighbours and padding never change a plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from starc.config import TransportConfig

TINY = 1e-12
"""Added inside logarithms, as published."""
LARGEST_EXPONENT = 80.0
"""exp of more would leave float32; only a degenerate problem comes near."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be transported: the same call in training and inference, constants visible."""

    cost_BTK: Tensor
    """C^k, cost of assigning a frame to an anchor."""
    frame_mass_BT: Tensor
    """q, sums to one over the real frames, zero on padding."""
    anchor_mass_BK: Tensor
    """Sums to one; 1/K each in the paper."""
    mask_BT: Tensor
    """Real frames."""
    entropy: float
    """ε."""
    structure: float
    """α: 0 is plain entropic transport, 1 only the temporal structure."""

    def __post_init__(self) -> None:
        videos, frames, anchors = self.cost_BTK.shape
        wanted = {
            "frame_mass_BT": (videos, frames),
            "anchor_mass_BK": (videos, anchors),
            "mask_BT": (videos, frames),
        }
        for name, shape in wanted.items():
            if (got := tuple(getattr(self, name).shape)) != shape:
                raise ValueError(f"{name} must be {shape}, got {got}")


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is assigned to whom."""

    mass_BTK: Tensor
    """T, times the number of frames: a row of average importance sums to one."""

    @property
    def anchor_BT(self) -> Tensor:
        """The anchor that receives most of each frame (meaningless on padding)."""
        return self.mass_BTK.argmax(-1)


def frame_anchor_cost(
    clip_BTD: Tensor, anchor_KD: Tensor, prior_BT: Tensor, mask_BT: Tensor, options: TransportConfig
) -> Tensor:
    """Saliency-aware Kantorovich cost (Eq. cost-matrix).

        C^k = 1 − cos(x, a) − μ p_s  [+ ρ |n/F − k/K|]

    `centre` subtracts μ (p_s − mean p_s) instead, as published.
    """
    similarity_BTK = F.normalize(clip_BTD, dim=-1) @ F.normalize(anchor_KD, dim=-1).T
    length_B1 = mask_BT.sum(1, keepdim=True)
    if options.centre:
        prior_BT = prior_BT - (prior_BT * mask_BT).sum(1, keepdim=True) / length_B1
    cost_BTK = 1 - similarity_BTK - options.saliency_bias * prior_BT[..., None]
    if options.temporal_prior:
        _, frames, anchors = cost_BTK.shape
        time_BT = torch.arange(frames, device=mask_BT.device) / length_B1
        order_K = torch.arange(anchors, device=mask_BT.device) / anchors
        cost_BTK = cost_BTK + options.temporal_prior * (time_BT[..., None] - order_K).abs()
    return cost_BTK


@torch.no_grad()
def pose(
    clip_BTD: Tensor,
    anchor_KD: Tensor,
    prior_BT: Tensor,
    mask_BT: Tensor,
    options: TransportConfig,
    *,
    inference: bool,
) -> Problem:
    """The problem of SGSR: cost, frame marginal p_s (normalised), anchor marginal 1/K."""
    cost_BTK = frame_anchor_cost(clip_BTD, anchor_KD, prior_BT, mask_BT, options)
    frame_mass_BT = prior_BT.clamp(min=1e-6) * mask_BT
    videos, _, anchors = cost_BTK.shape
    return Problem(
        cost_BTK=cost_BTK,
        frame_mass_BT=frame_mass_BT / frame_mass_BT.sum(1, keepdim=True),
        anchor_mass_BK=cost_BTK.new_full((videos, anchors), 1 / anchors),
        mask_BT=mask_BT,
        entropy=options.inference_entropy if inference else options.entropy,
        structure=options.inference_structure if inference else options.structure,
    )


@torch.no_grad()
def solve(problem: Problem, options: TransportConfig) -> Plan:
    """Mirror descent on the fused objective (Eq. fugw-prob), from the product of the marginals.

        T ← T · exp(−step · G), then onto the balanced marginal(s);  step = 4 / max G at the start

    G is `gradient`. With both sides balanced a step is a Sinkhorn projection of the fused cost.
    The number of steps is fixed: stopping early would change published segments. Inside, time is
    the last axis and memory is reused: the work is a few thousand tiny operations.
    """
    near_BTT = neighbours(problem.mask_BT, options.radius)
    cost_BKT = problem.cost_BTK.mT.contiguous()
    frame_B1T = problem.frame_mass_BT[:, None]
    anchor_BK1 = problem.anchor_mass_BK[..., None]
    mass_BKT = frame_B1T * anchor_BK1
    step_B11: Tensor | None = None
    for _ in range(options.steps):
        if options.frames == "balanced" and options.anchor_marginal == "balanced":
            fused_BKT = fused_cost(problem.structure, cost_BKT, mass_BKT, near_BTT)
            mass_BKT = sinkhorn(problem, fused_BKT, steps=options.projection_steps)
            continue
        gradient_BKT = gradient(problem, options, cost_BKT, mass_BKT, near_BTT)
        if step_B11 is None:
            step_B11 = first_step(problem, options, gradient_BKT)
        mass_BKT.mul_(gradient_BKT.mul_(-step_B11).clamp_(max=LARGEST_EXPONENT).exp_())
        if options.anchor_marginal == "balanced":
            mass_BKT.mul_(anchor_BK1 / mass_BKT.sum(2, keepdim=True))
        elif options.frames == "balanced":
            # Padding has no mass above this fraction: any divisor but 0 will do.
            mass_BKT.mul_(frame_B1T / (mass_BKT.sum(1, keepdim=True) + ~problem.mask_BT[:, None]))
    return Plan(mass_BTK=(mass_BKT * problem.mask_BT.sum(1)[:, None, None]).mT.contiguous())


def neighbours(mask_BT: Tensor, radius: float) -> Tensor:
    """C^v: 1/radius between different frames at most int(F · radius) apart, else 0."""
    frame_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    apart_TT = (frame_T[:, None] - frame_T).abs()
    reach_B = (mask_BT.sum(1).double() * radius).long()
    near_BTT = (apart_TT > 0) & (apart_TT <= reach_B[:, None, None])
    return near_BTT / radius


def fused_cost(structure: float, cost_BKT: Tensor, mass_BKT: Tensor, near_BTT: Tensor) -> Tensor:
    """α C^v T C^a + (1 − α) C^k: the linearised fused objective (Eq. gwot-obj, Eq. fgwot-obj).

    C^a is 1 between different anchors, so T C^a is the mass of a frame that goes elsewhere.
    """
    elsewhere_BKT = mass_BKT.sum(1, keepdim=True) - mass_BKT
    return torch.baddbmm(cost_BKT, elsewhere_BKT, near_BTT, beta=1 - structure, alpha=structure)


def gradient(
    problem: Problem, options: TransportConfig, cost_BKT: Tensor, mass_BKT: Tensor, near_BTT: Tensor
) -> Tensor:
    """G = fused cost + ε log T + penalties of the relaxed marginals; zero on padding.

    frames:  γ (log(Σ_k T / q) + 1)        anchors:  γ_a (log(Σ_n T / (1/K)) + 1)
    """
    gradient_BKT = fused_cost(problem.structure, cost_BKT, mass_BKT, near_BTT)
    gradient_BKT.add_((mass_BKT + TINY).log_(), alpha=problem.entropy)
    if options.frames == "relaxed":
        target_BT = problem.frame_mass_BT + ~problem.mask_BT
        pull_BT = (mass_BKT.sum(1) / target_BT).add_(TINY).log_().add_(1)
        gradient_BKT.add_(pull_BT[:, None], alpha=options.frame_penalty)
    if options.anchor_marginal == "relaxed":
        pull_BK = (mass_BKT.sum(2) / problem.anchor_mass_BK).add_(TINY).log_().add_(1)
        gradient_BKT.add_(pull_BK[..., None], alpha=options.anchor_penalty)
    return gradient_BKT.mul_(problem.mask_BT[:, None])


def first_step(problem: Problem, options: TransportConfig, gradient_BKT: Tensor) -> Tensor:
    """4 / max G over a video's frames; where no entry is positive, over the largest size.

    `bounded_step` caps it at 1 / (ε + γ + γ_a) of the relaxed sides: past that a step overshoots
    its own penalties.
    """
    real_BKT = gradient_BKT.masked_fill(~problem.mask_BT[:, None], -torch.inf)
    largest_B11 = real_BKT.amax((1, 2), keepdim=True)
    size_B11 = gradient_BKT.abs().amax((1, 2), keepdim=True).clamp(min=TINY)
    step_B11 = 4 / torch.where(largest_B11 > 0, largest_B11, size_B11)
    if not options.bounded_step:
        return step_B11
    frames = options.frame_penalty if options.frames == "relaxed" else 0.0
    anchors = options.anchor_penalty if options.anchor_marginal == "relaxed" else 0.0
    return step_B11.clamp(max=1 / (problem.entropy + frames + anchors))


def sinkhorn(problem: Problem, cost_BKT: Tensor, *, steps: int) -> Tensor:
    """Entropic projection to both marginals: T = diag(u) exp(−C/ε) diag(v), in the log domain.

    The anchor marginal, scaled last, holds exactly; the frame marginal up to convergence.
    """
    log_BKT = -cost_BKT / problem.entropy
    log_frame_B1T = problem.frame_mass_BT.log()[:, None]
    log_anchor_BK1 = problem.anchor_mass_BK.log()[..., None]
    column_BK1 = torch.zeros_like(log_anchor_BK1)
    for _ in range(steps):
        row_B1T = log_frame_B1T - (log_BKT + column_BK1).logsumexp(1, keepdim=True)
        column_BK1 = log_anchor_BK1 - (log_BKT + row_B1T).logsumexp(2, keepdim=True)
    return (log_BKT + row_B1T + column_BK1).exp()


def anchor_loss(
    clip_BTD: Tensor, anchor_KD: Tensor, plan: Plan, mask_BT: Tensor, *, temperature: float
) -> Tensor:
    """Teach the anchors the plan, as in ASOT: the plan is a pseudo-label without gradient.

    L = − mean over real frames n of  Σ_k T_nk log softmax(cos(x_n, a_k) / temperature)
    """
    similarity_BTK = F.normalize(clip_BTD, dim=-1) @ F.normalize(anchor_KD, dim=-1).T
    log_p_BTK = (similarity_BTK / temperature).log_softmax(-1)
    loss_BT = -(plan.mass_BTK.detach() * log_p_BTK).sum(-1)
    return (loss_BT * mask_BT).sum() / mask_BT.sum()
