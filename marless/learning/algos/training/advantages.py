"""Advantages by GAE and by V-trace, and the normalisation of advantages over a batch and of returns over a run.

Generalised advantage estimation (Schulman et al. 2016) takes whole trajectories of the policy itself; V-trace (Espeholt
et al. 2018) finds the value targets and advantages of a policy π from what another one, μ, did.
Shapes: N agents, T time, B environment copies, K cut segments; for normalisation, P nets, K outputs of a critic, M
samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.algos.training.policy_batching import same_shape
from marless.learning.algos.training.round_tensors import Tensors
from marless.learning.algos.training.turns import Turns

ROUNDING = 2.0**-22
"""Numbers that differ by less than this share of the terms from which they were computed in float32 do not differ: it
is two of its units in the last place."""
_LEAST_STD = 1e-4


def successor_values(
    value_NTB: Tensor, boot_value_NK: Tensor, boot_index_K: Tensor, cut_TB: Tensor, terminated_NTB: Tensor
) -> Tensor:
    """The value of the successor of each step, [N, T, B].

    It is 0 where the agent terminated; the bootstrap value where a segment was cut (`boot_index`: t·B + b, ascending);
    otherwise the value of the next observation. The first observation after a reset is never used as a successor.
    """
    agents, steps, batch = value_NTB.shape
    if terminated_NTB.shape != value_NTB.shape or cut_TB.shape != (steps, batch):
        raise ValueError(
            f"values {value_NTB.shape}, terminated {terminated_NTB.shape}, cut {cut_TB.shape} do not match"
        )
    if boot_value_NK.shape != (agents, *boot_index_K.shape):
        raise ValueError(f"{boot_index_K.numel()} bootstrap rows, but values {boot_value_NK.shape}")
    after_NTB = torch.zeros_like(value_NTB)
    after_NTB[:, :-1] = value_NTB[:, 1:]
    after_NTB.masked_fill_(cut_TB, 0.0)
    after_NTB.view(agents, -1)[:, boot_index_K] = boot_value_NK
    # Last, because a segment that is cut has a bootstrap row for every agent, also for those that have terminated.
    return after_NTB.masked_fill_(terminated_NTB, 0.0)


@dataclass(frozen=True)
class Successors:
    """What follows each step of a round, of agents or of a team (N = 1)."""

    value: Tensor
    """[N, T, B], the value of what follows, passed through steps in which agents wait."""
    ends: Tensor
    """bool [N, T, B]: nothing later is an advantage of this step."""
    turns: Turns | None
    """None if nobody waits."""

    @classmethod
    def of(
        cls,
        tensors: Tensors,
        reward_NTB: Tensor,
        value_NTB: Tensor,
        boot_value_NK: Tensor,
        *,
        gamma: float,
        after_death: bool,
    ) -> Successors:
        """Find them from the tensors of a table; with `after_death`, agents have returns after they have left."""
        cut_TB, terminated_NTB = tensors["cut"], tensors["terminated"]
        after_NTB = successor_values(value_NTB, boot_value_NK, tensors["boot_index"], cut_TB, terminated_NTB)
        ends_NTB = terminated_NTB | cut_TB | (_left(tensors, reward_NTB) & (not after_death))
        if "waits" not in tensors:
            return cls(after_NTB, ends_NTB, None)
        turns = Turns.of(tensors["waits"], tensors["open"], ~cut_TB)
        return cls(turns.through(reward_NTB, torch.full_like(reward_NTB, gamma), after_NTB), ends_NTB, turns)


def _left(tensors: Tensors, reward_NTB: Tensor) -> Tensor:
    """bool [N, T, B]: the agent is absent in the next step, so that nothing later is an advantage of this one."""
    left_NTB = torch.zeros_like(reward_NTB, dtype=torch.bool)
    if "alive" in tensors:
        left_NTB[:, :-1] = tensors["alive"].view_as(reward_NTB)[:, 1:] == 0
    # `roll` brings the first step to the last, where nobody counts as having left anyway.
    return left_NTB & ~tensors["waits"].roll(-1, dims=1) if "waits" in tensors else left_NTB


def gae(
    reward_NTB: Tensor,
    value_NTB: Tensor,
    after_NTB: Tensor,
    ends_NTB: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    turns: Turns | None = None,
) -> Tensor:
    """Advantages [N, T, B]: A_t = δ_t + γλ A_{t+1}, δ_t = r_t + γ V_after − V_t.

    A_{t+1} counts as 0 where `ends` is true: where the agent terminated or a segment was cut. `after` comes from
    `successor_values`. With `turns`, A_t is that of a turn, and A_{t+1} that of the next turn.
    Source: Schulman et al. 2016, eq. 16 (in its recursive form).
    """
    if not reward_NTB.shape == value_NTB.shape == after_NTB.shape == ends_NTB.shape:
        raise ValueError(
            f"rewards {reward_NTB.shape}, values {value_NTB.shape}, successors {after_NTB.shape} and "
            f"ends {ends_NTB.shape} must have one shape"
        )
    advantage_NTB = reward_NTB + gamma * after_NTB - value_NTB
    decay_NTB = (~ends_NTB).to(value_NTB.dtype).mul_(gamma * gae_lambda)
    if turns is not None:
        advantage_NTB, decay_NTB = turns.errors(advantage_NTB), turns.decays(decay_NTB, gamma * ~ends_NTB)
    # Time first, so that a step of the recursion reads and writes memory without gaps.
    advantage_TNB, decay_TNB = (each.transpose(0, 1).contiguous() for each in (advantage_NTB, decay_NTB))
    for t in range(advantage_TNB.shape[0] - 2, -1, -1):
        advantage_TNB[t].addcmul_(decay_TNB[t], advantage_TNB[t + 1])
    return advantage_TNB.transpose(0, 1).contiguous()


def vtrace_corrections(
    delta_NTB: Tensor,
    ends_NTB: Tensor,
    ratio_NTB: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    rho: float,
    c: float,
    turns: Turns | None = None,
) -> Tensor:
    """v_t − V(x_t), [N, T, B]: A_t = ρ_t δ_t + γ c_t A_{t+1}, given δ_t = r_t + γ V_after − V_t and π/μ.

    ρ_t = min(ρ̄, π/μ) and c_t = λ · min(c̄, π/μ); A_{t+1} counts as 0 where `ends` is true. With π = μ and ρ̄, c̄ ≥ 1
    these are the advantages of `gae`. Source: Espeholt et al. 2018, eq. 1 and remark 2; Luo et al. 2020 use A as
    advantage ("V-GAE"). With `turns`, whose `errors` δ are, A_{t+1} is that of the agent's next turn.
    """
    same_shape("N, T, B", delta_NTB, ends_NTB, ratio_NTB)
    found_TNB = (ratio_NTB.clamp(max=rho) * delta_NTB).transpose(0, 1).contiguous()
    decay_NTB = ratio_NTB.clamp(max=c) * (gamma * gae_lambda) * ~ends_NTB
    if turns is not None:
        decay_NTB = turns.decays(decay_NTB, gamma * ~ends_NTB)
    decay_TNB = decay_NTB.transpose(0, 1).contiguous()
    for t in range(found_TNB.shape[0] - 2, -1, -1):
        found_TNB[t].addcmul_(decay_TNB[t], found_TNB[t + 1])
    return found_TNB.transpose(0, 1).contiguous()


def vtrace_advantages(
    delta_NTB: Tensor, ends_NTB: Tensor, corrections_NTB: Tensor, *, gamma: float, gae_lambda: float
) -> Tensor:
    """Advantages of π for a loss that has the ratio π/μ itself, [N, T, B]: r_t + γ ((1 − λ) V_after + λ v_{t+1}) − V_t.

    That is δ_t + γλ A_{t+1}, with A from `vtrace_corrections`. The ratio of the first action is left to the loss, so
    that it counts once. With π = μ these are the advantages of `gae`.
    Source: Espeholt et al. 2018, §4.2, with λ as there.
    """
    same_shape("N, T, B", delta_NTB, ends_NTB, corrections_NTB)
    later_NTB = torch.zeros_like(corrections_NTB)
    later_NTB[:, :-1] = corrections_NTB[:, 1:]
    later_NTB.masked_fill_(ends_NTB, 0.0)
    return delta_NTB + gamma * gae_lambda * later_NTB


def standardise(x_PM: Tensor, weight_PM: Tensor, terms_PM: Tensor | None = None) -> Tensor:
    """x with weighted mean 0 and standard deviation 1 per policy, float32 [P, M]; `weight` sums to 1 per policy.

    0 for a policy whose x differ only by rounding errors: scaled to deviation 1, those would look like advantages.
    `terms` are the numbers whose differences x are, such as values: x is as exact as they are. Sums are in float64,
    because the mean of equal numbers in float32 is not one of them.
    """
    same_shape("P, M", x_PM, weight_PM)
    x, weight = x_PM.double(), weight_PM.double()
    # All samples of a policy may be of dead agents: 0 divided by this is 0, where 0/0 would be NaN.
    share = weight / weight.sum(dim=1, keepdim=True).clamp_min(1e-300)
    centred = x - (x * share).sum(dim=1, keepdim=True)
    std_P1 = (centred.square() * share).sum(dim=1, keepdim=True).sqrt()
    terms = x if terms_PM is None else torch.maximum(x.abs(), terms_PM.abs())
    exact_P1 = ROUNDING * (terms.abs() * (weight > 0)).amax(dim=1, keepdim=True)
    return torch.where(std_P1 <= exact_P1, 0.0, centred / std_P1.clamp_min(1e-300)).float()  # NaN stays NaN


def batch_moments(x_PKM: Tensor, weight_PKM: Tensor) -> Tensor:
    """(Σw, Σw·x, Σw·x²) per critic output, weights scaled to sum to 1; float64 [P, K, 3].

    All 0 for a batch without weight (all of an agent's samples dead).
    """
    x, weight = x_PKM.double(), weight_PKM.double()
    total = weight.sum(dim=2, keepdim=True).clamp_min(1e-300)
    share = weight / total
    return torch.stack([share.sum(dim=2), (share * x).sum(dim=2), (share * x * x).sum(dim=2)], dim=2)


def update_moments(moments_PK3: Tensor, batch_PK3: Tensor, decay: float) -> Tensor:
    """Exponentially weighted moments after one more batch; one without weight leaves mean and deviation unchanged.

    `decay` is the weight of the old ones.
    """
    updated_PK3 = decay * moments_PK3 + (1 - decay) * batch_PK3
    return torch.where(batch_PK3[..., :1] > 0, updated_PK3, moments_PK3)


def mean_and_std(moments_PK3: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, each float64 [P, K, 1]; 0 and 1 before the first batch.

    The deviation is at least 10⁻⁴, and at least what rounding makes of equal returns, see `ROUNDING`.
    """
    total, first, second = moments_PK3.unsqueeze(2).unbind(dim=3)
    seen = total > 0
    # `where` computes both sides, so the side that is not chosen must not divide by 0.
    safe = torch.where(seen, total, torch.ones_like(total))
    mean = first / safe
    # The difference of nearly equal numbers may be rounded below 0, which has no root.
    std = (second / safe - mean.square()).clamp_min(0.0).sqrt()
    std = torch.maximum(std, (ROUNDING * mean.abs()).clamp_min(_LEAST_STD))
    return mean, torch.where(seen, std, torch.ones_like(std))
