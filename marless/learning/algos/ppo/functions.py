"""The training functions of a PPO update: a stack of policies, of critics, or of both at once, over a round's samples.

Policies and critics share only their inputs, so that a learner may run them concurrently. Shapes: P nets of the stack,
D parameters, R rows, S samples per net and round, M samples of a minibatch, T time steps of a segment, K outputs of a
critic, A outputs of actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from marless.core.interruption import Stopped, check, never
from marless.learning.algos.learner import UNITS_OFF
from marless.learning.algos.ppo import losses
from marless.learning.algos.ppo.minibatch_training import Metrics, MinibatchTraining, RoundSettings
from marless.learning.algos.training import advantages
from marless.learning.algos.training.captured import DeviceGraphs
from marless.learning.algos.training.images import ImageReader
from marless.learning.algos.training.passes import EarlyStop
from marless.learning.algos.training.policy_batching import Samples, weights
from marless.learning.curvature.hessian import (
    BetaScore,
    CategoricalScore,
    GaussianScore,
    OutputObjective,
    hessian_product,
)
from marless.learning.curvature.lanczos import Product
from marless.learning.envs.base import Box, Discrete
from marless.learning.nets import heads
from marless.learning.nets.acting_heads import BETA, STOCHASTIC
from marless.learning.nets.kinds import Precision
from marless.learning.nets.layout import NetLayout
from marless.learning.nets.learner_states import Row

Score = Callable[..., Tensor]
"""A function of (log π, log π_old, advantage, weight), each [P, M], and of settings, which are numbers.

π_old is the policy that acted, as the actors recorded it; under schedules whose rollouts lag, with `correct_lag`, what
takes its place (`PPOLearner`).
"""


@dataclass(frozen=True)
class Surrogate:
    """The loss of policies without the entropy bonus."""

    loss: Score
    """The loss per policy, [P]."""
    gradient: Score | None = None
    """Its gradient with respect to log π, [P, M]; None leaves it to autograd."""
    settings: tuple[str, ...] = ()
    """Fields of the algorithm's config whose values, those of schedules included, both functions get, in this order."""

    def slope(self, log_prob_PM: Tensor, *rest: object) -> Tensor:
        """The gradient of the loss with respect to log π, [P, M], given the arguments of `loss`."""
        return self.differentiated(log_prob_PM, *rest) if self.gradient is None else self.gradient(log_prob_PM, *rest)

    def differentiated(self, log_prob_PM: Tensor, *rest: object) -> Tensor:
        """The slope, always by autograd."""
        leaf_PM = log_prob_PM.detach().requires_grad_()
        (gradient_PM,) = torch.autograd.grad(self.loss(leaf_PM, *rest).sum(), leaf_PM)
        return gradient_PM

    def check(self, *values: float) -> None:
        """Raise AssertionError unless `gradient` is what autograd finds; `values` are those of `settings`."""
        rng = torch.Generator().manual_seed(0)
        log_prob_PM, advantage_PM, old_PM = torch.randn(3, 2, 500, generator=rng).unbind()
        old_PM = log_prob_PM + 0.3 * old_PM
        weight_PM = torch.rand(2, 500, generator=rng) / 500
        rest = old_PM, advantage_PM, weight_PM, *values
        found_PM, expected_PM = self.slope(log_prob_PM.clone(), *rest), self.differentiated(log_prob_PM, *rest)
        error = (found_PM - expected_PM).abs().max().item()
        # Not `error > …`, so that NaN fails as well.
        if found_PM.shape != expected_PM.shape or not error <= 1e-4 * expected_PM.abs().max().item():
            raise AssertionError(
                f"the gradient of {self.loss.__name__} is not the one that autograd finds: they differ by {error:.2g}, "
                f"where the largest is {expected_PM.abs().max().item():.2g}; correct it, or leave it to autograd "
                "(Surrogate without `gradient`)"
            )


class PolicyFunction(MinibatchTraining):
    """Trains policies with the clipped surrogate and the entropy bonus.

    Samples: features, action, log_prob, advantage, [value] (advantages are normalised over a minibatch), [alive],
    [legal], [least] (log-probabilities of other learners' policies, for truncation); and the memory of segments that go
    on.
    """

    norm, units_off = "grad_norm", UNITS_OFF
    values: ClassVar[int] = 0
    """How many outputs, the last ones, are values; the others are those of `heads`."""
    surrogate: ClassVar[Surrogate] = Surrogate(losses.surrogate, losses.surrogate_gradient, ("clip",))

    def __init__(
        self,
        tensors: Row,
        layout: NetLayout,
        activation: str,
        action: Discrete | Box,
        acts: str = STOCHASTIC,
        reader: ImageReader | None = None,
        precision: Precision = "float32",
        graphs: DeviceGraphs | None = None,
    ) -> None:
        """Train these rows; `acts` as in `marless.learning.nets.acting_heads`, the others as in `MinibatchTraining`."""
        super().__init__(tensors, layout, activation, reader, precision, graphs)
        self._action, self._acts = action, acts
        self._of_actions = slice(None, -self.values or None)
        self._head = heads.head(action, tensors["flat"], self.net.gradient_PD, acts)
        self.discrete = isinstance(action, Discrete)

    def train(
        self,
        samples: Samples,
        orders: Sequence[Tensor],
        minibatches: int,
        settings: RoundSettings,
        stopped: Stopped = never,
    ) -> Metrics:
        """See `MinibatchTraining`; with `target_kl`, each policy stops by itself."""
        if settings.target_kl is None:
            return super().train(samples, orders, minibatches, settings, stopped)
        optimizer = self._optimizer(settings, steps=len(orders) * minibatches)
        policies = EarlyStop(self.tensors, settings.target_kl)
        for order_S in orders:
            samples.shuffle(order_S)
            for batch in samples.minibatches(minibatches):
                check(stopped)
                policies.look(self._limited_gradient(batch, settings, measure=True))
                if policies.over:
                    break
                optimizer.step(self.net.gradient_PD)
            policies.end_epoch()
            if policies.over:
                break
        return policies.end()

    def score_gradient(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The gradient [P, D] of E[log π(a|s)·A], which is maximised, over a batch; overwritten by the next call."""
        log_prob_PM, _ = self._evaluate(batch, self._forward(batch)[:, self._of_actions])
        weight_PM = weights(batch, log_prob_PM)
        d_log_prob_PM = minibatch_advantage(batch, weight_PM) * weight_PM
        d_output_PAM = self._head.gradient(d_log_prob_PM, torch.zeros_like(d_log_prob_PM))
        self.net.backward(widened(d_output_PAM, self.values))
        return self.net.gradient_PD

    def hessian(self, batch: Mapping[str, Tensor]) -> Product:
        """Products with the Hessian of E[log π(a|s)·A] over a batch; see `Measurable`."""
        net, flat_PD = self.net, self.tensors["flat"]
        share_PM = weights(batch, batch["advantage"].squeeze(1))
        weight_PM = minibatch_advantage(batch, share_PM) * share_PM

        def objective(output_PKM: Tensor) -> OutputObjective:
            of_actions = score(output_PKM[:, self._of_actions])
            return OfFirstOutputs(of_actions, self.values) if self.values else of_actions

        def score(output_PAM: Tensor) -> OutputObjective:
            if self._acts == BETA:
                return BetaScore(output_PAM, batch["action"], weight_PM)
            if not self.discrete:
                return GaussianScore(output_PAM, batch["action"], flat_PD[:, -net.layout.free :], weight_PM)
            legal_PAM = batch["legal"] > 0 if "legal" in batch else None
            return CategoricalScore(output_PAM, batch["action"].long(), legal_PAM, weight_PM)

        features = batch["features"] if self._reader is None else self._reader.read(batch["features"], self._layout)
        return hessian_product(net, flat_PD, {**batch, "features": features}, objective)

    def log_probs(self, seen: Mapping[str, Tensor], owner: Tensor | None = None) -> Tensor:
        """Log-probabilities of actions, [rows, S]; no gradient follows, and none that was prepared is lost.

        `seen` has the rows "features", "action" and, if there are, "legal", "resets" and "memory". Row i uses policy
        `owner[i]`, or policy i if `owner` is None.
        """
        flat_PD = self.tensors["flat"] if owner is None else self.tensors["flat"][owner]
        net = self._made(flat_PD)
        head = heads.head(self._action, flat_PD, net.gradient_PD, self._acts)
        action = seen["action"].long() if self.discrete else seen["action"]
        legal_PAS = seen["legal"] > 0 if "legal" in seen else None
        if "resets" in seen:
            output_PAS = net.forward(seen["features"], seen["resets"], seen.get("memory"))
        else:
            output_PAS = net.evaluate(seen["features"])
        return head.evaluate(output_PAS[:, self._of_actions], action, legal_PAS)[0]

    def _forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The net's outputs, [P, K, M]."""
        return self.net.forward(batch["features"], batch.get("resets"), batch.get("memory"))

    def _evaluate(self, batch: Mapping[str, Tensor], output_PAM: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of a batch's actions and entropies, each [P, M]."""
        action = batch["action"].long() if self.discrete else batch["action"]
        legal_PAM = batch["legal"] > 0 if "legal" in batch else None
        return self._head.evaluate(output_PAM, action, legal_PAM)

    def _gradient(self, batch: Mapping[str, Tensor], settings: RoundSettings, *, measure: bool) -> Metrics:
        d_output_PAM, metrics = self._ascent(batch, self._forward(batch), settings, measure=measure)
        self.net.backward(d_output_PAM)
        return metrics

    def _ascent(
        self, batch: Mapping[str, Tensor], output_PAM: Tensor, settings: RoundSettings, *, measure: bool
    ) -> tuple[Tensor, Metrics]:
        """The gradient of the policies' loss at the outputs of a batch, [P, A, M], and metrics if `measure`."""
        log_prob_PM, entropy_PM = self._evaluate(batch, output_PAM)
        old_PM, given = batch["log_prob"].squeeze(1), settings.surrogate
        weight_PM = weights(batch, old_PM)
        advantage_PM = minibatch_advantage(batch, weight_PM)
        how, rho, used_PM = settings.truncation, settings.truncation_rho, log_prob_PM
        if how != "none":
            used_PM = losses.truncated(log_prob_PM, old_PM, batch["least"].squeeze(1), rho, how)
        rest = old_PM, advantage_PM, weight_PM, *given.values()
        metrics: Metrics = {}
        if measure:
            metrics = {
                "policy_loss": self.surrogate.loss(used_PM, *rest),
                "entropy": (entropy_PM * weight_PM).sum(dim=1),
                "approx_kl": losses.approximate_kl(log_prob_PM, old_PM, weight_PM),
            }
            if "clip" in given:
                metrics["clip_fraction"] = losses.clip_fraction(log_prob_PM, old_PM, weight_PM, given["clip"])
            if how != "none":
                metrics["truncated_fraction"] = losses.truncated_fraction(log_prob_PM, used_PM, weight_PM)
        d_log_prob_PM = self.surrogate.slope(used_PM, *rest)
        if how != "none":
            d_log_prob_PM = losses.through_truncation(d_log_prob_PM, log_prob_PM, used_PM)
        return self._head.gradient(d_log_prob_PM, weight_PM * -settings.entropy), metrics


def minibatch_advantage(batch: Mapping[str, Tensor], weight_PM: Tensor) -> Tensor:
    """The advantages of a batch, [P, M]; normalised over it if the values that they were computed from are given."""
    advantage_PM = batch["advantage"].squeeze(1)
    if "value" not in batch:
        return advantage_PM
    return advantages.standardise(advantage_PM, weight_PM, batch["value"].squeeze(1))


class ValueFunction(MinibatchTraining):
    """Nets whose last outputs, or all, are values, in units that follow the returns."""

    valued: ClassVar[slice] = slice(None)
    """Which outputs are values."""

    def values_of(self, features: Tensor, owner: Tensor | None = None, resets: Tensor | None = None) -> Tensor:
        """Values in units of the reward, [rows, K, S], of features [rows, I, S].

        Row i uses net `owner[i]`, or net i if `owner` is None. `resets` as in `Net`, per row.
        """
        net, moments = self.net, self.tensors["moments"][:, self.valued]
        if owner is not None:
            net, moments = self._made(self.tensors["flat"][owner]), moments[owner]
        mean, std = advantages.mean_and_std(moments)
        return net.evaluate(features, resets)[:, self.valued] * std.float() + mean.float()

    def rescale(self, batch_PK3: Tensor, *, decay: float, popart: bool) -> None:
        """Add a round's returns (`advantages.batch_moments`) to the running moments, of weight `decay`.

        With `popart` the output layer is rescaled so that values do not change (van Hasselt et al. 2016, eq. 7-9), else
        they move with the mean and deviation of the returns.
        """
        moments_PK3 = self.tensors["moments"][:, self.valued]
        mean_PK1, std_PK1 = advantages.mean_and_std(moments_PK3)
        moments_PK3.copy_(advantages.update_moments(moments_PK3, batch_PK3, decay))
        if not popart:
            return
        new_mean_PK1, new_std_PK1 = advantages.mean_and_std(moments_PK3)
        layer_PKH = self.net.output_layer[:, self.valued]
        # The last column is the bias, which is scaled with the weights first; then σ b + µ stays the same by the shift.
        layer_PKH *= (std_PK1 / new_std_PK1).float()
        layer_PKH[:, :, -1:] += ((mean_PK1 - new_mean_PK1) / new_std_PK1).float()

    def normalised(self, value_PKS: Tensor) -> Tensor:
        """Convert values or returns to the nets' normalised units."""
        mean_PK1, std_PK1 = advantages.mean_and_std(self.tensors["moments"][:, self.valued])
        return (value_PKS - mean_PK1.float()) / std_PK1.float()


class CriticFunction(ValueFunction):
    """Trains critics by regression on returns. Samples: features, target, old (both normalised), [alive]."""

    norm, units_off = "critic_grad_norm", f"critic_{UNITS_OFF}"

    def _gradient(self, batch: Mapping[str, Tensor], settings: RoundSettings, *, measure: bool) -> Metrics:
        value_PKM = self.net.forward(batch["features"], batch.get("resets"), batch.get("memory"))
        target_PKM, old_PKM = batch["target"], batch["old"]
        weight_PKM = weights(batch, target_PKM)
        tensors = value_PKM, target_PKM, weight_PKM, old_PKM
        clip, huber = settings.value_clip, settings.huber
        metrics = {"value_loss": losses.value_loss(*tensors, clip=clip, huber=huber)} if measure else {}
        self.net.backward(losses.value_gradient(*tensors, clip=clip, huber=huber))
        return metrics


def widened(x_PAM: Tensor, more: int) -> Tensor:
    """The same with as many rows of zeros more, [P, A + more, M]."""
    return torch.nn.functional.pad(x_PAM, (0, 0, 0, more)) if more else x_PAM


class OfFirstOutputs:
    """An objective of a net's first outputs only; see `OutputObjective`."""

    def __init__(self, objective: OutputObjective, others: int) -> None:
        """`others` is the number of outputs that it does not depend on."""
        self._objective, self._others = objective, others

    def gradient(self) -> tuple[Tensor, Tensor | None]:
        at_output, at_free = self._objective.gradient()
        return widened(at_output, self._others), at_free

    def product(self, flow_PKM: Tensor, free_flow_PF: Tensor | None) -> tuple[Tensor, Tensor | None]:
        at_output, at_free = self._objective.product(flow_PKM[:, : -self._others], free_flow_PF)
        return widened(at_output, self._others), at_free


JUDGED = "judged"
"""1 for samples that count for values, 0 for others; absent if all count that count for policies."""


class SharedTorsoFunction(PolicyFunction, ValueFunction):
    """Trains nets that are policy and critic at once (`torso: shared`): their last output is the value.

    Both read the same hidden layers: half the work, which matters where these are convolutions. The loss is that of the
    policy plus `value_weight` times that of the critic (Schulman et al. 2017, eq. 9), and its gradient's norm is
    limited as a whole.
    Samples: those of `PolicyFunction`, and target, old (both normalised), [judged].
    """

    values: ClassVar[int] = 1
    valued: ClassVar[slice] = slice(-1, None)

    def _gradient(self, batch: Mapping[str, Tensor], settings: RoundSettings, *, measure: bool) -> Metrics:
        output_PKM = self._forward(batch)
        value_P1M, target_P1M, old_P1M = output_PKM[:, self.valued], batch["target"], batch["old"]
        d_output_PAM, metrics = self._ascent(batch, output_PKM[:, self._of_actions], settings, measure=measure)
        counted = {"alive": batch[JUDGED]} if JUDGED in batch else batch
        tensors = value_P1M, target_P1M, weights(counted, target_P1M), old_P1M
        clip, huber = settings.value_clip, settings.huber
        if measure:
            metrics["value_loss"] = losses.value_loss(*tensors, clip=clip, huber=huber)
        d_value_P1M = losses.value_gradient(*tensors, clip=clip, huber=huber)
        self.net.backward(torch.cat([d_output_PAM, settings.value_weight * d_value_P1M], dim=1))
        return metrics
