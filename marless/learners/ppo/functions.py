"""The two functions of a PPO update that train: one stack of policies, or one stack of critics, over a round's samples.

They share nothing but their inputs, so a learner may run them side by side. Shapes: P nets of the stack, D parameters,
R rows, S samples per net and round, M samples of a minibatch, T time steps of a segment, K outputs of a critic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from marless.curvature.lanczos import Product
from marless.curvature.memory import hessian_product
from marless.curvature.outputs import CategoricalScore, GaussianScore, OutputObjective
from marless.envs.base import Box, Discrete
from marless.losses import normalise, ppo, value
from marless.nets import adam, heads, kernels, stacked
from marless.nets.bank import Row
from marless.nets.layout import GRULayout, Layout
from marless.nets.stacked import Activation

Metrics = dict[str, Tensor]
"""Name → one number per net, [P]."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A config with its schedules read: what one round's training depends on beside the samples."""

    lr: float
    adam_eps: float
    max_grad_norm: float
    clip: float
    entropy: float
    value_clip: float | None
    huber: float | None


class Samples:
    """Per-sample rows of P nets as one tensor [P, R, S], so that one gather per epoch shuffles all of them.

    For nets with memory the columns are time-major, [T, segments], and segments stay whole: a minibatch holds some of
    them, time-major again, and a row "first" (1 where memory is empty before a step) becomes "resets" bool [P, T, B].
    """

    def __init__(self, parts: Mapping[str, Tensor], steps: int | None = None) -> None:
        """`steps` is T for nets with memory."""
        self._table_PRS = torch.cat(list(parts.values()), dim=1)
        self._shuffled_PRS = torch.empty_like(self._table_PRS)
        ends = torch.tensor([part.shape[1] for part in parts.values()]).cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        self._rows = {name: slice(a, b) for name, a, b in zip(parts, starts, ends, strict=True)}
        self._steps = steps
        self._order_U = torch.empty(0)

    @property
    def count(self) -> int:
        """How many units per net an order permutes: samples, or segments."""
        return self._table_PRS.shape[2] // self.unit

    @property
    def remembers(self) -> bool:
        """True if units are segments, for nets with memory."""
        return self._steps is not None

    @property
    def unit(self) -> int:
        """See `marless.learners.measuring.Measured`."""
        return self._steps or 1

    def shuffle(self, order_U: Tensor) -> None:
        """Let minibatches follow this order of the units."""
        self._order_U = order_U

    def subset(self, index_U: Tensor) -> dict[str, Tensor]:
        """Copies [P, rows, M] of these units, by name."""
        policies, rows, _ = self._table_PRS.shape
        part_PRM = self._table_PRS.new_empty(policies, rows, len(index_U) * self.unit)
        kernels.take_columns(self._table_PRS, self._columns(index_U), out=part_PRM)
        return self._batch(part_PRM)

    def minibatches(self, count: int) -> list[dict[str, Tensor]]:
        """Views [P, rows, M] of `count` nearly equal parts of the shuffled units, by name."""
        units = len(self._order_U)
        bounds = [(units * i // count, units * (i + 1) // count) for i in range(count)]
        columns_S = torch.cat([self._columns(self._order_U[a:b]) for a, b in bounds])
        kernels.take_columns(self._table_PRS, columns_S, out=self._shuffled_PRS)
        return [self._batch(self._shuffled_PRS[:, :, a * self.unit : b * self.unit]) for a, b in bounds]

    def _columns(self, units_M: Tensor) -> Tensor:
        """The columns of these units, time-major."""
        if self._steps is None:
            return units_M
        starts_T1 = self.count * torch.arange(self._steps, device=units_M.device).unsqueeze(1)
        return (starts_T1 + units_M).flatten()

    def _batch(self, part_PRM: Tensor) -> dict[str, Tensor]:
        batch = {name: part_PRM[:, rows] for name, rows in self._rows.items()}
        if self._steps is not None:
            batch["resets"] = batch.pop("first").reshape(len(part_PRM), self._steps, -1) > 0
        return batch


def weights(batch: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """Each sample's weight, shaped as `like`, summing to 1 per net; samples of dead agents have none."""
    if "alive" not in batch:
        return torch.full_like(like, like.shape[0] / like.numel())
    alive = batch["alive"].reshape(like.shape)
    dims = tuple(range(1, like.dim()))
    return alive / alive.sum(dim=dims, keepdim=True).clamp_min(1.0)


class _Trained(ABC):
    """P nets, their optimizer, and the loop over epochs and minibatches."""

    norm: ClassVar[str]
    """Name of the gradient norm among the metrics."""

    def __init__(self, tensors: Row, layout: Layout | GRULayout, activation: Activation) -> None:
        self.tensors = tensors
        self.net = stacked.net(layout, tensors["flat"], activation)

    def train(self, samples: Samples, orders: Sequence[Tensor], minibatches: int, settings: Settings) -> Metrics:
        """Update the nets in place; metrics are means over the last epoch."""
        optimizer = self._optimizer(settings, steps=len(orders) * minibatches)
        seen: list[Metrics] = []
        for epoch, order_S in enumerate(orders):
            samples.shuffle(order_S)
            for batch in samples.minibatches(minibatches):
                metrics = self._gradient(batch, settings, measure=epoch == len(orders) - 1)
                metrics[self.norm] = adam.clip_norm_(self.net.gradient_PD, settings.max_grad_norm)
                optimizer.step(self.net.gradient_PD)
                seen.append(metrics)
        last = seen[-minibatches:]
        return {name: torch.stack([metrics[name] for metrics in last]).mean(dim=0) for name in last[0]}

    def gradient(self, samples: Samples, order: Tensor, settings: Settings) -> tuple[Tensor, Metrics]:
        """The loss's gradient [P, D] over all samples in this order; its norm among the metrics is not limited."""
        samples.shuffle(order)
        (batch,) = samples.minibatches(1)
        metrics = self._gradient(batch, settings, measure=True)
        metrics[self.norm] = torch.linalg.vector_norm(self.net.gradient_PD, dim=1)
        return self.net.gradient_PD, metrics

    def step(self, gradient_PD: Tensor, settings: Settings) -> None:
        """Take one optimizer step along a gradient, which is changed: its norm is limited."""
        adam.clip_norm_(gradient_PD, settings.max_grad_norm)
        self._optimizer(settings, steps=1).step(gradient_PD)

    def _optimizer(self, settings: Settings, steps: int) -> adam.Adam:
        t = self.tensors
        return adam.Adam(
            t["flat"], t["first"], t["second"], t["count"], steps=steps, lr=settings.lr, eps=settings.adam_eps
        )

    def _forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Outputs [P, K, M] of a batch."""
        return self.net.forward(batch["features"], batch.get("resets"))

    @abstractmethod
    def _gradient(self, batch: Mapping[str, Tensor], settings: Settings, *, measure: bool) -> Metrics:
        """Write the loss's gradient into the net's; return metrics if asked to measure."""


class PolicyFunction(_Trained):
    """Clipped surrogate and entropy bonus. Samples: features, action, log_prob, advantage, [alive], [legal]."""

    norm = "grad_norm"

    def __init__(
        self, tensors: Row, layout: Layout | GRULayout, activation: Activation, action: Discrete | Box
    ) -> None:
        super().__init__(tensors, layout, activation)
        self._head = heads.head(action, tensors["flat"], self.net.gradient_PD)
        self.discrete = isinstance(action, Discrete)

    def score_gradient(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The gradient [P, D] of E[log π(a|s)·A], maximised, over a batch; overwritten by the next."""
        log_prob_PM, _ = self._evaluate(batch)
        d_log_prob_PM = batch["advantage"].squeeze(1) * weights(batch, log_prob_PM)
        self.net.backward(self._head.gradient(d_log_prob_PM, torch.zeros_like(d_log_prob_PM)))
        return self.net.gradient_PD

    def hessian(self, batch: Mapping[str, Tensor]) -> Product:
        """See `Measurable`: the Hessian of E[log π(a|s)·A] over a batch."""
        net, flat_PD = self.net, self.tensors["flat"]
        advantage_PM = batch["advantage"].squeeze(1)
        weight_PM = advantage_PM * weights(batch, advantage_PM)

        def objective(output_PAM: Tensor) -> OutputObjective:
            if not self.discrete:
                return GaussianScore(output_PAM, batch["action"], flat_PD[:, -net.layout.free :], weight_PM)
            legal_PAM = batch["legal"] > 0 if "legal" in batch else None
            return CategoricalScore(output_PAM, batch["action"].long(), legal_PAM, weight_PM)

        return hessian_product(net, flat_PD, batch["features"], batch.get("resets"), objective)

    def _evaluate(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log-probabilities of a batch's actions and entropies, each [P, M]."""
        action = batch["action"].long() if self.discrete else batch["action"]
        legal_PAM = batch["legal"] > 0 if "legal" in batch else None
        return self._head.evaluate(self._forward(batch), action, legal_PAM)

    def _gradient(self, batch: Mapping[str, Tensor], settings: Settings, *, measure: bool) -> Metrics:
        log_prob_PM, entropy_PM = self._evaluate(batch)
        old_PM, advantage_PM = batch["log_prob"].squeeze(1), batch["advantage"].squeeze(1)
        weight_PM = weights(batch, old_PM)
        metrics: Metrics = {}
        if measure:
            metrics = {
                "policy_loss": ppo.surrogate(log_prob_PM, old_PM, advantage_PM, weight_PM, settings.clip),
                "entropy": (entropy_PM * weight_PM).sum(dim=1),
                "approx_kl": ppo.approximate_kl(log_prob_PM, old_PM, weight_PM),
                "clip_fraction": ppo.clip_fraction(log_prob_PM, old_PM, weight_PM, settings.clip),
            }
        d_log_prob_PM = ppo.surrogate_gradient(log_prob_PM, old_PM, advantage_PM, weight_PM, settings.clip)
        self.net.backward(self._head.gradient(d_log_prob_PM, weight_PM * -settings.entropy))
        return metrics


class CriticFunction(_Trained):
    """Regression on returns. Samples: features, target, old (both normalised), [alive]."""

    norm = "critic_grad_norm"

    def _gradient(self, batch: Mapping[str, Tensor], settings: Settings, *, measure: bool) -> Metrics:
        value_PKM = self._forward(batch)
        target_PKM, old_PKM = batch["target"], batch["old"]
        weight_PKM = weights(batch, target_PKM)
        tensors = value_PKM, target_PKM, weight_PKM, old_PKM
        clip, huber = settings.value_clip, settings.huber
        metrics = {"value_loss": value.value_loss(*tensors, clip=clip, huber=huber)} if measure else {}
        self.net.backward(value.value_gradient(*tensors, clip=clip, huber=huber))
        return metrics

    def values(self, features: Tensor, owner: Tensor | None = None, resets: Tensor | None = None) -> Tensor:
        """Values in units of the reward, [rows, K, S], of features [rows, I, S].

        Row i is judged by critic i, or by critic `owner[i]`: several rows may have one. `resets` as of `Net`, per row.
        """
        net, moments = self.net, self.tensors["moments"]
        if owner is not None:
            net, moments = stacked.net(net.layout, self.tensors["flat"][owner], net.activation), moments[owner]
        mean, std = normalise.mean_and_std(moments)
        return net.evaluate(features, resets) * std.float() + mean.float()

    def rescale(self, batch_PK3: Tensor) -> None:
        """Take a round's returns, see `normalise.batch_moments`, into the running moments, and change the output layer
        so that values stay the same.

        Source: van Hasselt et al. 2016, eq. 7-9.
        """
        moments_PK3 = self.tensors["moments"]
        mean_PK1, std_PK1 = normalise.mean_and_std(moments_PK3)
        moments_PK3.copy_(normalise.update_moments(moments_PK3, batch_PK3))
        new_mean_PK1, new_std_PK1 = normalise.mean_and_std(moments_PK3)
        layer_PKH = self.net.output_layer
        layer_PKH *= (std_PK1 / new_std_PK1).float()
        layer_PKH[:, :, -1:] += ((mean_PK1 - new_mean_PK1) / new_std_PK1).float()

    def normalised(self, value_PKS: Tensor) -> Tensor:
        """Values or returns in the critics' own units."""
        mean_PK1, std_PK1 = normalise.mean_and_std(self.tensors["moments"])
        return (value_PKS - mean_PK1.float()) / std_PK1.float()
