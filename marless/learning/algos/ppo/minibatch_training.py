"""The training of P stacked nets over a round's samples: epochs, minibatches, and gradient steps, whatever the loss.

Shapes: P nets, D parameters, S samples per net and round, M samples of a minibatch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from marless.core.interruption import Stopped, check, never
from marless.learning.algos.ppo import losses, parts
from marless.learning.algos.ppo.algorithms import ActorCriticConfig, IPPOConfig, PPOConfig
from marless.learning.algos.settings import value_at
from marless.learning.algos.training.captured import CapturedSteps, DeviceGraphs
from marless.learning.algos.training.images import ImageReader, reading
from marless.learning.algos.training.passes import PRESENT, step_means
from marless.learning.algos.training.policy_batching import Samples
from marless.learning.nets import adam, kernels, stacked
from marless.learning.nets.kinds import Precision
from marless.learning.nets.layout import NetLayout
from marless.learning.nets.learner_states import Row
from marless.learning.nets.stacked import Net

Metrics = dict[str, Tensor]
"""Values per net, [P], by metric."""


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """The settings of one round's training, with the values of schedules."""

    lr: float
    adam_eps: float
    max_grad_norm: float
    surrogate: Mapping[str, float]
    """Those that the policies' loss gets; see `Surrogate.settings`."""
    entropy: float
    truncation: losses.Truncation = "none"
    """How ratios are limited over a group of learners, see `marless.learning.algos.ppo.losses`."""
    truncation_rho: float = 1.0
    value_clip: float | None
    huber: float | None
    target_kl: float | None = None
    """See `marless.learning.algos.training.passes`; None: all steps are taken."""
    value_weight: float = 1.0
    """Of the critic's loss, where it is added to that of the policy."""
    target_steps: int | None = None
    """Optimizer steps between two updates of a policy's target network; None if it has none."""

    @classmethod
    def at(cls, env_steps: int, config: ActorCriticConfig, surrogate: Sequence[str]) -> RoundSettings:
        """The settings of a config after this many env steps; `surrogate` names those that the policies' loss gets."""
        return cls(
            lr=value_at(config.lr, env_steps),
            adam_eps=config.adam_eps,
            max_grad_norm=config.max_grad_norm,
            surrogate={name: value_at(getattr(config, name), env_steps) for name in surrogate},
            entropy=value_at(config.entropy, env_steps),
            truncation=config.truncation if isinstance(config, PPOConfig) else "none",
            truncation_rho=config.truncation_rho if isinstance(config, PPOConfig) else 1.0,
            value_clip=config.value_clip,
            huber=config.huber,
            target_kl=config.target_kl if isinstance(config, PPOConfig) else None,
            value_weight=config.value_weight if isinstance(config, IPPOConfig) else 1.0,
        )


class MinibatchTraining(ABC):
    """P nets, their optimizer, and the loop over epochs and minibatches."""

    norm: ClassVar[str]
    """Name of the gradient norm's metric."""
    units_off: ClassVar[str]
    """Name of the metric of `stacked.units_off`."""

    def __init__(
        self,
        tensors: Row,
        layout: NetLayout,
        activation: str,
        reader: ImageReader | None = None,
        precision: Precision = "float32",
        graphs: DeviceGraphs | None = None,
    ) -> None:
        """Train these rows; their features have positions of the images of `reader`, if there is one.

        With `graphs`, gradient steps are captured, and all updates must have equal settings of the loss.
        """
        self.tensors = tensors
        self._layout, self._activation, self._reader = layout, activation, reader
        self.net = self._made(tensors["flat"], precision)
        self._in_parts = False
        """True once a minibatch was too large for the memory of a GPU."""
        self._captured: CapturedSteps | None = None
        if graphs is not None and reader is None:  # images are read from where each round has them
            self._captured = CapturedSteps(graphs, self.net.gradient_PD, self.net.release)

    def _made(self, flat_PD: Tensor, precision: Precision = "float32") -> Net:
        """Nets like those that are trained, with these parameters."""
        return reading(stacked.net(self._layout, flat_PD, self._activation, precision), self._reader)

    def train(
        self,
        samples: Samples,
        orders: Sequence[Tensor],
        minibatches: int,
        settings: RoundSettings,
        stopped: Stopped = never,
    ) -> Metrics:
        """Train the nets in place; `orders` has one order of the units per epoch.

        Metrics are means over the last epoch. Raises StoppedError between minibatches once `stopped` returns True.
        """
        # Made for each round, but moments and counts are in the nets' tensors: Adam goes on where it was.
        optimizer = self._optimizer(settings, steps=len(orders) * minibatches)
        seen: list[Metrics] = []
        for epoch, order_S in enumerate(orders):
            samples.shuffle(order_S)
            for batch in samples.minibatches(minibatches):
                check(stopped)
                seen.append(self._limited_gradient(batch, settings, measure=epoch == len(orders) - 1))
                optimizer.step(self.net.gradient_PD)
                self._follow(settings)
        return step_means(seen[-minibatches:])

    def _limited_gradient(self, batch: Mapping[str, Tensor], settings: RoundSettings, *, measure: bool) -> Metrics:
        """Write the loss's gradient, its norm limited, to the net's buffer; the metrics have the norm before."""
        compute = partial(self._computed, settings=settings, measure=measure)
        if self._captured is None or self._in_parts:
            return compute(batch)
        return self._captured.run(compute, batch, measure)

    def _computed(self, batch: Mapping[str, Tensor], settings: RoundSettings, *, measure: bool) -> Metrics:
        """See `_limited_gradient`."""
        metrics = self._fitting_gradient(batch, settings, measure=measure)
        if measure:
            metrics |= self._activity()
        metrics[self.norm] = adam.clip_norm_(self.net.gradient_PD, settings.max_grad_norm)
        if "alive" in batch:  # a minibatch may have no sample of a net's agents
            metrics[PRESENT] = batch["alive"].flatten(1).amax(dim=1)
        return metrics

    def _activity(self) -> Metrics:
        off_P = stacked.units_off(self.net)
        return {} if off_P is None else {self.units_off: off_P}

    def _fitting_gradient(self, batch: Mapping[str, Tensor], settings: RoundSettings, *, measure: bool) -> Metrics:
        """`_gradient`, in parts once a minibatch has not fitted into the memory of a GPU."""
        if not self._in_parts:
            try:
                return self._gradient(batch, settings, measure=measure)
            except torch.OutOfMemoryError:
                if not parts.splits(batch):
                    raise
                self._in_parts = True
        self.net.release()
        return parts.summed(batch, self.net.gradient_PD, lambda part: self._gradient(part, settings, measure=measure))

    def gradient(self, samples: Samples, order: Tensor, settings: RoundSettings) -> tuple[Tensor, Metrics]:
        """The loss's gradient [P, D] over all samples in this order, and metrics; its norm is not limited."""
        samples.shuffle(order)
        (batch,) = samples.minibatches(1)
        metrics = self._fitting_gradient(batch, settings, measure=True) | self._activity()
        # Without a limit, this measures the norm and scales nothing: the gradient is limited where it is applied.
        metrics[self.norm] = adam.clip_norm_(self.net.gradient_PD, math.inf)
        return self.net.gradient_PD, metrics

    def step(self, gradient_PD: Tensor, settings: RoundSettings) -> None:
        """Take one optimizer step along a gradient, whose norm is limited in place."""
        adam.clip_norm_(gradient_PD, settings.max_grad_norm)
        self._optimizer(settings, steps=1).step(gradient_PD)
        self._follow(settings)

    def _follow(self, settings: RoundSettings) -> None:
        """Update target networks after a step, where there are any and it is time."""
        if settings.target_steps is None:
            return
        due_P = self.tensors["count"].remainder(settings.target_steps) == 0
        kernels.copy_rows(self.tensors["flat"], due_P, out=self.tensors["target"])

    def _optimizer(self, settings: RoundSettings, steps: int) -> adam.Adam:
        t = self.tensors
        return adam.Adam(
            t["flat"], t["first"], t["second"], t["count"], steps=steps, lr=settings.lr, eps=settings.adam_eps
        )

    @abstractmethod
    def _gradient(self, batch: Mapping[str, Tensor], settings: RoundSettings, *, measure: bool) -> Metrics:
        """Write the loss's gradient to the net's buffer; returns metrics if `measure`, else {}."""
