"""Gradient steps of deterministic policy gradients over batches of a replay; see
`marless.learning.algos.off_policy.learner`.

Shapes: N agents of a class, P nets of a stack, D parameters, E env steps drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from marless.learning.algos.ddpg.actor_critics import ActorCritics, StackGradient
from marless.learning.algos.ddpg.config import DDPGConfig
from marless.learning.algos.ddpg.heads import DeterministicHead
from marless.learning.algos.ddpg.objective import PolicyObjective, SampledStack
from marless.learning.algos.ddpg.views import SampleView, views
from marless.learning.algos.learner import RoundInput
from marless.learning.algos.off_policy import td
from marless.learning.algos.off_policy.batches import Batch
from marless.learning.algos.off_policy.learner import Metrics, Optimizer, follow_
from marless.learning.algos.training import measuring
from marless.learning.algos.training.meter import PassTimer, step_means
from marless.learning.algos.training.policy_batching import Stack
from marless.learning.nets.adam import clip_norm_
from marless.learning.nets.learner_states import Row

_STREAM = 5
"""Number of the random stream of noise in gradient steps, which must differ from that of draws from the replay."""
_PARTS = 4
"""Number of parts of a batch whose gradients the noise scale compares with that of the whole batch."""


@dataclass(frozen=True, kw_only=True)
class TrainedActorCritic:
    """A stack of nets with its optimizer and its metrics."""

    function: Literal["critic", "policy"]
    prefix: str
    """Prefix of its nets in published states."""
    names: tuple[str, ...]
    tensors: Row
    optimizer: Optimizer
    seen: list[dict[str, Tensor]] = field(default_factory=list)
    """Metrics of each step so far."""

    def step(self, gradient: StackGradient, config: DDPGConfig) -> None:
        """Take an optimizer step along a gradient, whose norm is limited in place, and update the target nets."""
        # A target net follows each step of its own net: with `policy_every` target critics move in every step, unlike
        # in TD3, where they move only with the policies.
        norm_P = clip_norm_(gradient.gradient, config.max_grad_norm)
        self.optimizer.step(gradient.gradient)
        follow_(config, self.tensors)
        self.seen.append(gradient.metrics | {"grad_norm": norm_P})

    def metrics(self) -> Metrics:
        """Means over the steps so far, see `step_means`; metrics of critics and twins have names of their own."""
        means = {key: mean_P.tolist() for key, mean_P in step_means(self.seen).items()}
        label = {key: key if self.function == "policy" else _of_critics(key, self.prefix) for key in means}
        return {name: {label[key]: means[key][i] for key in means} for i, name in enumerate(self.names)}


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Policies and critics that train on the same samples."""

    stack: Stack | None
    """Its members, of the scope's only class, count as the agents here; None: all agents of all classes."""
    nets: ActorCritics
    policies: tuple[TrainedActorCritic, ...]
    """One per stack of actors."""
    critics: tuple[TrainedActorCritic, ...]
    """One per stack of critics."""

    def views(self, everyone: Sequence[SampleView]) -> Sequence[SampleView]:
        """Select the samples that this ensemble trains on."""
        return everyone if self.stack is None else [everyone[0].taken(self.stack)]

    def spread(self, x_R1M: Tensor, agents: int, width: int) -> Tensor:
        """Numbers by agent, [N, E]; 0 where an agent has no sample here."""
        if self.stack is None:
            return x_R1M.squeeze(1)
        x_N1E = x_R1M.new_zeros(agents, 1, width)
        self.stack.put(x_R1M, x_N1E)
        return x_N1E.squeeze(1)

    def due(self, every: int) -> bool:
        """True if policies are updated in the next gradient step, by the critics' step count."""
        return (int(self.critics[0].tensors["count"][0]) + 1) % every == 0


class DDPGTraining:
    """All ensembles of a scope; see `marless.learning.algos.off_policy.learner.Training`."""

    def __init__(
        self,
        config: DDPGConfig,
        scope: str,
        ensembles: Sequence[Ensemble],
        heads: Sequence[DeterministicHead],
        seed: tuple[int, int],
    ) -> None:
        """Train `ensembles`; `heads` has one head per class of the scope, `seed` the job's seed and the round."""
        self._config = config
        self._scope = scope
        self._ensembles = tuple(ensembles)
        self._heads = tuple(heads)
        self._rng = np.random.default_rng([*seed, _STREAM])

    @property
    def count(self) -> int:
        return self._config.batch_size

    def step(self, batch: Batch, meter: PassTimer) -> Tensor | None:
        """See `Training`; both gradients are computed before either net is updated."""
        # All ensembles train on one batch; MADDPG's code draws another one for each agent.
        config, everyone = self._config, self._views(batch, meter)
        errors = []
        for each in self._ensembles:
            critics, policies, error_R1M = self._gradients(each, everyone, meter)
            if policies:
                with meter.measure("policy", _names(each.policies)):
                    _step(each.policies, policies, config)
            with meter.measure("critic", _names(each.critics)):
                _step(each.critics, critics, config)
                each.nets.refresh()
            errors.append(error_R1M)
        return self._priorities(batch, everyone, errors)

    def gradients(self, batch: Batch, meter: PassTimer) -> tuple[dict[str, dict[str, Tensor]], Tensor | None]:
        """See `Training`. Policies have none in a step that updates only critics."""
        everyone, errors = self._views(batch, meter), []
        found: dict[str, dict[str, Tensor]] = {}
        for each in self._ensembles:
            critics, policies, error_R1M = self._gradients(each, everyone, meter)
            due = (*zip(each.critics, critics, strict=True), *zip(each.policies, policies, strict=bool(policies)))
            for trained, gradient in due:
                trained.seen.append(gradient.metrics)
                for name, gradient_D in zip(trained.names, gradient.gradient, strict=True):
                    found.setdefault(name, {})[trained.prefix] = gradient_D
            errors.append(error_R1M)
        return found, self._priorities(batch, everyone, errors)

    def metrics(self) -> Metrics:
        found: Metrics = {}
        for each in self._ensembles:
            for trained in (*each.critics, *each.policies):
                for name, numbers in trained.metrics().items():
                    found.setdefault(name, {}).update(numbers)
        return found

    def measured(self, inputs: RoundInput, batch: Batch, meter: PassTimer) -> Metrics:
        found: Metrics = {}
        everyone = self._views(batch, PassTimer())
        for each in self._ensembles:
            mine = each.views(everyone)
            built = each.nets.built(mine)
            for actors, trained in zip(each.nets.actors, each.policies, strict=True):
                with meter.measure("curvature", trained.names):
                    objective = PolicyObjective(actors, trained.tensors)
                    samples = SampledStack(actors, mine[actors.index], built)
                    numbers = measuring.measured(objective, samples, inputs, _PARTS)
                for i, name in enumerate(trained.names):
                    found[name] = {metric: float(numbers_P[i]) for metric, numbers_P in numbers.items()}
        return found

    def _views(self, batch: Batch, meter: PassTimer) -> tuple[SampleView, ...]:
        with meter.measure("post_process", (self._scope,)):
            return views(batch, self._heads, self._rng)

    def _gradients(
        self, each: Ensemble, everyone: Sequence[SampleView], meter: PassTimer
    ) -> tuple[list[StackGradient], list[StackGradient], Tensor]:
        """The gradients of critics, those of policies if they are due, and the critics' TD errors, [R, 1, M]."""
        with meter.measure("critic", _names(each.critics)):
            mine = each.views(everyone)
            built = each.nets.built(mine)
            critics, error_R1M = each.nets.critic_gradients(mine, built)
        policies: list[StackGradient] = []
        if each.due(self._config.policy_every):
            with meter.measure("policy", _names(each.policies)):
                policies = each.nets.policy_gradients(mine, built)
        return critics, policies, error_R1M

    def _priorities(self, batch: Batch, everyone: Sequence[SampleView], errors: Sequence[Tensor]) -> Tensor | None:
        """[E], mean absolute TD error over the agents that are present in each env step; None for uniform draws.

        NaN for an env step that nobody trained on, which keeps its priority: members of a shared policy may have fewer
        samples than were drawn.
        """
        if batch.importance is None:
            return None
        agents, width = len(batch.classes[0].features), batch.width
        alive = [torch.cat([view.alive for view in each.views(everyone)]) for each in self._ensembles]
        given = list(zip(self._ensembles, errors, alive, strict=True))
        error_RE = torch.cat([each.spread(error_R1M, agents, width) for each, error_R1M, _ in given])
        counts_RE = torch.cat([each.spread(alive_R1M, agents, width) for each, _, alive_R1M in given])
        trained = [each.spread(torch.ones_like(error_R1M), agents, width) for each, error_R1M, _ in given]
        priority_E = td.mean_errors(error_RE, counts_RE, width)
        return priority_E.masked_fill(torch.cat(trained).sum(dim=0) == 0, torch.nan)


def _names(stacks: Sequence[TrainedActorCritic]) -> tuple[str, ...]:
    """Names of all nets of some stacks, each once."""
    return tuple(dict.fromkeys(name for each in stacks for name in each.names))


def _step(stacks: Sequence[TrainedActorCritic], gradients: Sequence[StackGradient], config: DDPGConfig) -> None:
    for trained, gradient in zip(stacks, gradients, strict=True):
        trained.step(gradient, config)


def _of_critics(metric: str, prefix: str) -> str:
    plain = "critic_grad_norm" if metric == "grad_norm" else metric
    return plain if prefix == "critic" else f"{prefix}_{plain}"
