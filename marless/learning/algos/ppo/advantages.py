"""Advantages by V-trace, and the normalisation of advantages over a batch and of returns over a run.

Generalised advantage estimation (`marless.learning.algos.training.gae`) takes whole trajectories of the policy itself;
V-trace (Espeholt et al. 2018) finds the value targets and advantages of a policy π from what another one, μ, did.
Shapes: N agents, T time, B environment copies; for normalisation, P nets, K outputs of a critic, M samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marless.learning.algos.training.policy_batching import same_shape
from marless.learning.algos.training.turns import Turns

ROUNDING = 2.0**-22
"""Numbers that differ by less than this share of the terms from which they were computed in float32 do not differ: it
is two of its units in the last place."""
_LEAST_STD = 1e-4


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
