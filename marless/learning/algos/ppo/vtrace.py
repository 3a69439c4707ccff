"""V-trace: value targets and advantages of a policy π from what another one, μ, did (Espeholt et al. 2018).

Shapes: N agents, T time, B environment copies. V_after and `ends` are those of `marless.learning.algos.ppo.gae`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marless.learning.algos.training.turns import Turns


def corrections(
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
    _check(delta_NTB, ends_NTB, ratio_NTB)
    found_TNB = (ratio_NTB.clamp(max=rho) * delta_NTB).transpose(0, 1).contiguous()
    decay_NTB = ratio_NTB.clamp(max=c) * (gamma * gae_lambda) * ~ends_NTB
    if turns is not None:
        decay_NTB = turns.decays(decay_NTB, gamma * ~ends_NTB)
    decay_TNB = decay_NTB.transpose(0, 1).contiguous()
    for t in range(found_TNB.shape[0] - 2, -1, -1):
        found_TNB[t].addcmul_(decay_TNB[t], found_TNB[t + 1])
    return found_TNB.transpose(0, 1).contiguous()


def advantages(
    delta_NTB: Tensor, ends_NTB: Tensor, corrections_NTB: Tensor, *, gamma: float, gae_lambda: float
) -> Tensor:
    """Advantages of π for a loss that has the ratio π/μ itself, [N, T, B]: r_t + γ ((1 − λ) V_after + λ v_{t+1}) − V_t.

    That is δ_t + γλ A_{t+1}, with A from `corrections`. The ratio of the first action is left to the loss, so that it
    counts once. With π = μ these are the advantages of `gae`. Source: Espeholt et al. 2018, §4.2, with λ as there.
    """
    _check(delta_NTB, ends_NTB, corrections_NTB)
    later_NTB = torch.zeros_like(corrections_NTB)
    later_NTB[:, :-1] = corrections_NTB[:, 1:]
    later_NTB.masked_fill_(ends_NTB, 0.0)
    return delta_NTB + gamma * gae_lambda * later_NTB


def _check(first: Tensor, *others: Tensor) -> None:
    if first.dim() != 3 or any(other.shape != first.shape for other in others):
        raise ValueError(f"shapes must all be [N, T, B], got {[tuple(t.shape) for t in (first, *others)]}")
