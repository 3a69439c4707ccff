"""Temporal-difference learning: targets, losses, weights of samples, gradient steps of nets, and their target nets.

Shapes: N agents (or 1 for a team), T time, E episodes, M samples, P nets, D parameters. A *successor's value* is the
value of the state after a step. It is ignored where the agent terminated (discount 0), and used where an episode was
truncated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from marless.learning.algos.learner import UNITS_OFF
from marless.learning.algos.off_policy.config import OffPolicyConfig
from marless.learning.algos.training.passes import PRESENT, step_means
from marless.learning.algos.training.policy_batching import same_shape
from marless.learning.nets.adam import Adam, RMSProp, clip_norm_
from marless.learning.nets.kernels import copy_rows
from marless.learning.nets.learner_states import Row

Metrics = dict[str, dict[str, float]]
"""Metrics by published name, then by metric."""


def td_loss(error_PM: Tensor, weight_PM: Tensor, huber: float | None) -> Tensor:
    """Loss per net, [P]: Σ w · ℓ(δ), ℓ(δ) = δ²/2, or Huber's loss, linear beyond `huber`.

    `weight` comes from `sample_weights`: 0 for padded steps and dead agents.
    Source: Mnih et al. 2015 (squared TD errors; their clipping of δ in the gradient is Huber's loss with huber = 1).
    """
    same_shape("P, M", error_PM, weight_PM)
    if huber is None:
        return (0.5 * error_PM.square() * weight_PM).sum(dim=1)
    small_PM = error_PM.abs().clamp_max(huber)
    return (small_PM * (error_PM.abs() - 0.5 * small_PM) * weight_PM).sum(dim=1)


def td_gradient(error_PM: Tensor, weight_PM: Tensor, huber: float | None) -> Tensor:
    """The gradient of `td_loss` at the predictions, [P, M], with δ = prediction − target."""
    same_shape("P, M", error_PM, weight_PM)
    return (error_PM if huber is None else error_PM.clamp(-huber, huber)) * weight_PM


def sample_weights(counts_PM: Tensor, importance_M: Tensor | None) -> Tensor:
    """Weights [P, M] of samples: `counts` (1, or 0 for padding and dead agents) over their sum, times importance.

    A net without samples that count has weights 0. Importance weights are normalised by their maximum, so that they
    only scale steps down (Schaul et al. 2016, §3.4).
    """
    weight_PM = counts_PM / counts_PM.sum(dim=1, keepdim=True).clamp_min(1.0)
    return weight_PM if importance_M is None else weight_PM * importance_M


def td_metrics(
    value_PM: Tensor, error_PM: Tensor, weight_PM: Tensor, counts_PM: Tensor, huber: float | None
) -> dict[str, Tensor]:
    """The metrics of a gradient step, [P] each: loss, mean error and value, and whose samples it had (`PRESENT`).

    `weight`, with importance, is that of the loss. The others are plain means over the samples that count: with
    importance weights, which do not add up to 1, they would shrink with the least likely sample of the draw.
    """
    share_PM = sample_weights(counts_PM, None)
    return {
        "td_loss": td_loss(error_PM, weight_PM, huber),
        "td_error": (error_PM.abs() * share_PM).sum(dim=1),
        "value": (value_PM * share_PM).sum(dim=1),
        PRESENT: (share_PM.sum(dim=1) > 0).float(),
    }


@dataclass(frozen=True, kw_only=True)
class TrainedStack:
    """A stack of nets with its optimizer and its metrics."""

    names: tuple[str, ...]
    prefix: str
    """Prefix of its nets in published states."""
    tensors: Row
    optimizer: Adam | RMSProp
    seen: list[Mapping[str, Tensor]] = field(default_factory=list)
    """Metrics of the gradient steps so far, [P] each."""

    def step(self, gradient_PD: Tensor, max_grad_norm: float, metrics: Mapping[str, Tensor] | None = None) -> None:
        """Take an optimizer step along a gradient, whose norm is limited in place."""
        # For each net separately; EPyMARL limits the norm of all nets together.
        norm_P = clip_norm_(gradient_PD, max_grad_norm)
        self.optimizer.step(gradient_PD)
        self.seen.append({**(metrics or {}), "grad_norm": norm_P})

    def metrics(self, off_P: Tensor | None = None) -> Metrics:
        """Mean of each metric over the steps that have it, see `step_means`; and `units_off` of the last step."""
        means = {self.label(key): mean_P.tolist() for key, mean_P in step_means(self.seen).items()}
        if off_P is not None and self.seen:
            means[self.label(UNITS_OFF)] = off_P.tolist()
        return {name: {key: means[key][i] for key in means} for i, name in enumerate(self.names)}

    def label(self, metric: str) -> str:
        """The name under which a metric of these nets is reported."""
        return metric


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
    copy_rows(row["flat"], row["count"].remainder(config.target_every) == 0, out=row["target"])


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
