"""What a round trains, stack by stack: samples, their orders, and metrics of post-processing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from marless.learning.algos.learner import RoundInput
from marless.learning.algos.ppo.algorithms import ActorCriticConfig
from marless.learning.algos.ppo.functions import CriticFunction, PolicyFunction
from marless.learning.algos.ppo.minibatch_training import Metrics
from marless.learning.algos.training import similarity
from marless.learning.algos.training.policy_batching import Samples

TrainedFunction = Literal["critic", "policy"]
StackKey = tuple[TrainedFunction, tuple[str, ...]]
"""A function, and the names of the stack that it trains."""


@dataclass(frozen=True)
class StackTraining:
    """The training of one stack."""

    trained: PolicyFunction | CriticFunction
    samples: Samples
    orders: Sequence[Tensor]
    """Order of the samples in each epoch."""
    metrics: Metrics
    """Metrics from post-processing."""
    returns: Tensor | None = None
    """For critics: see `post_process.critic_samples`."""


@dataclass
class RoundWork:
    """The results of post-processing, for the functions after it."""

    trainings: dict[StackKey, StackTraining] = field(default_factory=dict)
    similarity: similarity.PendingMeasurement = field(default_factory=lambda: similarity.PendingMeasurement(None, ""))

    def add(
        self,
        function: TrainedFunction,
        names: tuple[str, ...],
        trained: PolicyFunction | CriticFunction,
        orders: SampleOrders,
        samples: Samples,
        metrics: Metrics,
        returns: Tensor | None,
    ) -> None:
        """Add the training of a stack by one of the functions."""
        ordered = orders.of(function, samples)
        self.trainings[function, names] = StackTraining(trained, samples, ordered, metrics, returns)


class SampleOrders:
    """The order of the samples, or segments, in each epoch, the same for all stacks with the same number."""

    def __init__(
        self, configs: Mapping[TrainedFunction, ActorCriticConfig], inputs: RoundInput, device: torch.device
    ) -> None:
        self._configs, self._inputs, self._device = configs, inputs, device
        self._known: dict[int, list[Tensor]] = {}

    def of(self, function: TrainedFunction, samples: Samples) -> list[Tensor]:
        """One order per epoch; raises SpecError for fewer samples, or segments, than minibatches."""
        count, config = samples.count, self._configs[function]
        config.check_minibatches(count, samples.remembers)
        if count not in self._known:
            rng = np.random.default_rng([self._inputs.seed, self._inputs.round])
            # Drawn for whoever has more epochs: the first ones are the same for both, whoever asks first.
            epochs = max(each.epochs for each in self._configs.values())
            orders = [torch.from_numpy(rng.permutation(count)) for _ in range(epochs)]
            self._known[count] = [order.to(self._device) for order in orders]
        return self._known[count][: config.epochs]
