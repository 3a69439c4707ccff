"""Regression on temporal-difference targets: losses, weights of samples, and gradient steps of stacked nets.

Shapes: M samples, P nets, D parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from marless.learning.algos.training.passes import PRESENT, step_means
from marless.learning.algos.training.policy_batching import same_shape
from marless.learning.nets.adam import Adam, RMSProp, clip_norm_
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

    def metrics(self) -> Metrics:
        """Mean of each metric over the steps that have it, see `step_means`."""
        means = {self.label(key): mean_P.tolist() for key, mean_P in step_means(self.seen).items()}
        return {name: {key: means[key][i] for key in means} for i, name in enumerate(self.names)}

    def label(self, metric: str) -> str:
        """The name under which a metric of these nets is reported."""
        return metric
