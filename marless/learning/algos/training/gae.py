"""Generalised advantage estimation (Schulman et al. 2016), and what it needs to know of the steps that follow.

Shapes: N agents, T time, B environment copies, K cut segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.algos.training.round_tensors import Tensors
from marless.learning.algos.training.turns import Turns


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
