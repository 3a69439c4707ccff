"""Gradient steps of PQN: epochs of minibatches of a round's env steps, the same ones for all agents.

Independent: the values of each policy have targets of their own. Team: the sum of the values of all agents has the
team's target, so that each policy gets the gradient of that one error (VDN).
Shapes: N agents of a class, R agents of all classes, P policies of a stack, S samples of a round, M of a minibatch, T
time steps of a segment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.algos.learner import RoundInput
from marless.learning.algos.pqn.algorithms import PQNConfig
from marless.learning.algos.pqn.functions import OnlineQ, Seen
from marless.learning.algos.q.functions import Sum
from marless.learning.algos.training import measuring
from marless.learning.algos.training.passes import PassTimer
from marless.learning.algos.training.policy_batching import Samples, Stack
from marless.learning.algos.training.td import Metrics, TrainedStack, sample_weights, td_gradient, td_metrics
from marless.learning.nets.stacked import units_off

Batch = Mapping[str, Tensor]
"""A minibatch of the agents of a class, each [N, rows, M]: "features", "action", "target", "counts" (1 for samples that
count), "acts" (1 where the agent itself acts), "turn" (`Seen.turn`, if anybody waits); "resets" and "memory" of nets
with memory."""


@dataclass(frozen=True, kw_only=True)
class RegressedPolicies(TrainedStack):
    """A stack of Q nets of one class."""

    index: int
    """Index of the class within the scope."""
    function: OnlineQ
    stack_of: Callable[[int], Stack]
    """The stack for minibatches of so many env steps or segments."""

    def stack(self, batch: Batch) -> Stack:
        """The stack for a minibatch."""
        return self.stack_of(batch["resets" if "resets" in batch else "features"].shape[2])

    def own(self, batch: Batch, name: str) -> Tensor:
        """A row of numbers per sample of each agent as the stack's samples, [P, M]."""
        return self.stack(batch).pool(batch[name]).squeeze(1)

    def read(self, batch: Batch) -> Seen:
        """What the stack's nets see in a minibatch."""
        stack, resets, memory = self.stack(batch), batch.get("resets"), batch.get("memory")
        if resets is not None:
            agents, steps, _ = resets.shape
            pooled = stack.pool(resets.reshape(agents, 1, -1).float())
            resets = pooled.reshape(len(pooled), steps, -1) > 0
        return Seen(
            features=stack.pool(batch["features"]),
            action=stack.pool(batch["action"]).long(),
            turn=stack.pool(batch["turn"]).long() if "turn" in batch else None,
            resets=resets,
            memory=None if memory is None else stack.pool(memory),
        )


class Regression(ABC):
    """All stacks of a scope, and the samples of a round."""

    def __init__(self, config: PQNConfig, policies: Sequence[RegressedPolicies], samples: Sequence[Samples]) -> None:
        """`samples` are those of each class of the scope, of the same env steps or segments."""
        self._config, self._policies, self._samples = config, tuple(policies), samples
        self._names = tuple(name for each in policies for name in each.names)

    @abstractmethod
    def _gradient(self, batches: Sequence[Batch], meter: PassTimer) -> None:
        """Write the gradient of each stack over a minibatch, and note its metrics."""

    @abstractmethod
    def _errors(self, batches: Sequence[Batch]) -> list[Tensor]:
        """The TD errors of each stack's samples, [P, M]."""

    def minibatches(self, order_U: Tensor, count: int) -> Iterator[Sequence[Batch]]:
        """The minibatches of all classes, of env steps or segments in this order."""
        for samples in self._samples:
            samples.shuffle(order_U)
        return zip(*(samples.minibatches(count) for samples in self._samples), strict=True)

    def step(self, batches: Sequence[Batch], meter: PassTimer) -> None:
        """Take a metered gradient step with all policies."""
        self._gradient(batches, meter)
        for each in self._policies:
            with meter.measure("policy", each.names):
                each.step(each.function.net.gradient_PD, self._config.max_grad_norm)

    def gradients(self, batches: Sequence[Batch], meter: PassTimer) -> dict[str, Tensor]:
        """The gradients [D] of `step` before limiting their norms, by policy."""
        self._gradient(batches, meter)
        return {name: each.function.net.gradient_PD[i] for each in self._policies for i, name in enumerate(each.names)}

    def metrics(self) -> Metrics:
        """Means over the gradient steps so far."""
        seen = [each.metrics(units_off(each.function.net)) for each in self._policies]
        return {name: found for of_stack in seen for name, found in of_stack.items()}

    def measured(self, inputs: RoundInput, order_U: Tensor, meter: PassTimer) -> Metrics:
        """The measurements of each policy that the round asks for, over all its samples; metered.

        The objective is −δ²/2 with fixed targets; in a team the values of the other agents are fixed, too.
        """
        ((batches),) = self.minibatches(order_U, 1)
        found: Metrics = {}
        for each, error_PM in zip(self._policies, self._errors(batches), strict=True):
            with meter.measure("curvature", each.names):
                seen, batch = each.read(batches[each.index]), batches[each.index]
                parts = {"features": seen.features, "action": seen.action.float(), "error": error_PM.unsqueeze(1)}
                parts |= {"share": torch.ones_like(parts["error"]), "alive": each.own(batch, "acts").unsqueeze(1)}
                if seen.resets is not None:
                    parts["first"] = seen.resets.float().flatten(1).unsqueeze(1)
                samples = Samples(parts, None if seen.resets is None else seen.resets.shape[1], seen.memory)
                numbers = measuring.measured(each.function, samples, inputs, self._config.minibatches)
            for i, name in enumerate(each.names):
                found[name] = {key: float(number_P[i]) for key, number_P in numbers.items()}
        return found


class IndependentRegression(Regression):
    """Each policy has targets of its own."""

    def _gradient(self, batches: Sequence[Batch], meter: PassTimer) -> None:
        huber = self._config.huber
        for each in self._policies:
            with meter.measure("policy", each.names):
                batch = batches[each.index]
                value_PM, counts_PM = each.function.values(each.read(batch)), each.own(batch, "counts")
                error_PM, weight_PM = value_PM - each.own(batch, "target"), sample_weights(counts_PM, None)
                each.function.backward(td_gradient(error_PM, weight_PM, huber))
                each.seen.append(td_metrics(value_PM, error_PM, weight_PM, counts_PM, huber))

    def _errors(self, batches: Sequence[Batch]) -> list[Tensor]:
        found = []
        for each in self._policies:
            batch = batches[each.index]
            found.append(each.function.values(each.read(batch)) - each.own(batch, "target"))
        return found


class TeamRegression(Regression):
    """The sum of all agents' values has the team's target; all agents have it as "target"."""

    def _gradient(self, batches: Sequence[Batch], meter: PassTimer) -> None:
        huber = self._config.huber
        with meter.measure("policy", self._names):
            team_1M, error_1M, mixer = self._judged(batches)
            counts_1M = torch.cat([batch["counts"].squeeze(1) for batch in batches]).amax(dim=0, keepdim=True)
            weight_1M = sample_weights(counts_1M, None)
            found = td_metrics(team_1M, error_1M, weight_1M, counts_1M, huber)
            shares = self._shares(mixer.gradient(td_gradient(error_1M, weight_1M, huber)), batches)
            for each, d_value_PM in zip(self._policies, shares, strict=True):
                each.function.backward(d_value_PM)
                each.seen.append({name: number.expand(len(each.names)) for name, number in found.items()})

    def _errors(self, batches: Sequence[Batch]) -> list[Tensor]:
        _, error_1M, mixer = self._judged(batches)
        return self._shares(mixer.gradient(error_1M), batches)

    def _judged(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor, Sum]:
        """The team's value and its error, each [1, M], and the mixer that added it up."""
        value_RM = torch.cat([torch.zeros_like(batch["counts"].squeeze(1)) for batch in batches])
        ends = self._ends(batches)
        for each in self._policies:
            rows = value_RM[ends[each.index] : ends[each.index + 1]]
            batch = batches[each.index]
            value_PM = each.function.values(each.read(batch))
            each.stack(batch).spread(value_PM.unsqueeze(1), rows)
        value_RM *= torch.cat([batch["counts"].squeeze(1) for batch in batches])
        mixer = Sum()
        team_1M = mixer.mix(value_RM, None)
        return team_1M, team_1M - batches[0]["target"][0], mixer

    def _shares(self, x_RM: Tensor, batches: Sequence[Batch]) -> list[Tensor]:
        """Numbers per agent as samples of each stack, [P, M]; 0 for agents that do not count."""
        ends, found = self._ends(batches), []
        for each in self._policies:
            batch = batches[each.index]
            mine_NM = x_RM[ends[each.index] : ends[each.index + 1]].unsqueeze(1) * batch["counts"]
            found.append(each.stack(batch).pool(mine_NM).squeeze(1))
        return found

    @staticmethod
    def _ends(batches: Sequence[Batch]) -> list[int]:
        """Offsets of each class's agents among all agents, and the total."""
        ends = [0]
        for batch in batches:
            ends.append(ends[-1] + len(batch["counts"]))
        return ends
