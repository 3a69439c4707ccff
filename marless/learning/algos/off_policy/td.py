"""Temporal-difference learning from a replay: targets, priorities, and gradient steps of nets with target nets.

Shapes: N agents (or 1 for a team), T time, E episodes, M samples, P nets. A *successor's value* is the value of the
state after a step. It is ignored where the agent terminated (discount 0), and used where an episode was truncated.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marless.learning.algos.off_policy.config import OffPolicyConfig
from marless.learning.algos.training.policy_batching import same_shape
from marless.learning.algos.training.td import TrainedStack
from marless.learning.nets.adam import Adam, RMSProp
from marless.learning.nets.learner_states import Row


def lambda_returns(
    reward_NTE: Tensor,
    discount_NTE: Tensor,
    after_NTE: Tensor,
    follows: Tensor,
    td_lambda: float,
    onward_NTE: Tensor | None = None,
) -> Tensor:
    """λ-returns [N, T, E]: G_t = r_t + γ_t ((1 − λ) V_t + λ G_{t+1}), V_t being the successor's value `after`.

    `discount` is γ, or 0 where the agent terminated; `follows`, [T, E] or [N, T, E], is true where step t + 1 continues
    the agent's episode: elsewhere G_t = r_t + γ_t V_t. λ = 0 gives one-step targets. If V is a maximum over actions,
    this is Peng's Q(λ) (Peng & Williams 1996), without a correction for non-greedy actions. EPyMARL uses one-step
    targets. `onward` is true where the agent waits in step t + 1: there λ is 1, as its next choice is yet to come.
    """
    _one_shape(reward_NTE, discount_NTE, after_NTE, follows)
    result_NTE = reward_NTE + discount_NTE * after_NTE
    for t in range(reward_NTE.shape[1] - 2, -1, -1):
        decay = td_lambda if onward_NTE is None else torch.where(onward_NTE[:, t], 1.0, td_lambda)
        # `result` has r + γ V already, so only γ λ (G − V) is missing.
        better_NE = decay * discount_NTE[:, t] * (result_NTE[:, t + 1] - after_NTE[:, t])
        result_NTE[:, t] += torch.where(follows[..., t, :], better_NE, 0.0)
    return result_NTE


def n_step_returns(reward_NTE: Tensor, discount_NTE: Tensor, after_NTE: Tensor, follows: Tensor, n_step: int) -> Tensor:
    """n-step returns [N, T, E]: r_t + γ r_{t+1} + … + γⁿ V, with fewer steps where the agent's episode ends before.

    Arguments as in `lambda_returns`: G¹_t = r_t + γ_t V_t, and Gⁿ_t = r_t + γ_t Gⁿ⁻¹_{t+1} within an episode.
    Source: Sutton 1988.
    """
    _one_shape(reward_NTE, discount_NTE, after_NTE, follows)
    result_NTE = reward_NTE + discount_NTE * after_NTE
    for _ in range(n_step - 1):
        longer_NTE = reward_NTE[:, :-1] + discount_NTE[:, :-1] * result_NTE[:, 1:]
        result_NTE = torch.cat(
            [torch.where(follows[..., :-1, :], longer_NTE, result_NTE[:, :-1]), result_NTE[:, -1:]], dim=1
        )
    return result_NTE


def mean_errors(error_XM: Tensor, counts_XM: Tensor, width: int) -> Tensor:
    """Mean |δ| of each of `width` columns, [E], over all its samples that count: the priorities of what was drawn.

    Samples are [X, T · E], time-major, of agents, policies or a team (X). An absent agent has an error like any other,
    but it is not trained on, so it never shrinks: it would keep its column urgent for ever. A column without samples
    that count has 0.
    """
    same_shape("P, M", error_XM, counts_XM)
    counts_RE = counts_XM.reshape(-1, width)
    return (error_XM.abs().reshape(-1, width) * counts_RE).sum(dim=0) / counts_RE.sum(dim=0).clamp_min(1.0)


def _one_shape(reward_NTE: Tensor, discount_NTE: Tensor, after_NTE: Tensor, follows: Tensor) -> None:
    shape, fits = reward_NTE.shape, follows.shape in (reward_NTE.shape, reward_NTE.shape[1:])
    if len(shape) != 3 or not shape == discount_NTE.shape == after_NTE.shape or not fits:
        raise ValueError(
            f"rewards {tuple(shape)}, discounts {tuple(discount_NTE.shape)} and values {tuple(after_NTE.shape)} must "
            f"have one shape [N, T, E], and follows {tuple(follows.shape)} must be [T, E] or [N, T, E]"
        )


def make_optimizer(config: OffPolicyConfig, row: Row, *, lr: float, steps: int) -> Adam | RMSProp:
    """Make the config's optimizer for `steps` gradient steps with the nets of a stacked row."""
    if config.optimizer == "rmsprop":
        return RMSProp(row["flat"], row["second"], row["count"], lr=lr, eps=config.optimizer_eps)
    eps = config.optimizer_eps
    return Adam(row["flat"], row["first"], row["second"], row["count"], steps=steps, lr=lr, eps=eps)


def follow_(config: OffPolicyConfig, row: Row) -> None:
    """Update the target nets of a stacked row after a gradient step, if it has any.

    Either by `target_tau` of the difference in every step (Lillicrap et al. 2016, algorithm 1), or by a copy every
    `target_every` steps of the net (Mnih et al. 2015).
    """
    if "target" not in row:
        return
    if config.target_every is None:
        row["target"].lerp_(row["flat"], config.target_tau)
        return
    # Nets of one stack may have taken different numbers of steps, as groups merge and
    # split: each is due by its own count.
    due_P = row["count"].remainder(config.target_every) == 0
    if due_P.any():
        row["target"][due_P] = row["flat"][due_P]


def follow(
    trained: TrainedStack,
    gradient_PD: Tensor,
    config: OffPolicyConfig,
    metrics: Mapping[str, Tensor] | None = None,
    *,
    target_moves: bool = True,
) -> None:
    """Take an optimizer step along a gradient, see `TrainedStack.step`, and update the target nets, if there are any
    and they move in this step.
    """
    trained.step(gradient_PD, config.max_grad_norm, metrics)
    if target_moves:
        follow_(config, trained.tensors)
