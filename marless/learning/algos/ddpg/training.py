"""Gradient steps of actor-critics over batches of a replay, and the measurement of their policies.

See `marless.learning.algos.off_policy.learner.Training`. What is measured is the objective of policies, E[Q(s, μ(s))],
with its gradient and Hessian; of soft policies, E[Q(s, a) + α H].
Shapes: N agents of a class, P nets of a stack, D parameters, R rows (agents), A actions or action components, I inputs
+ 1, M samples, E env steps drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marless.learning.algos.ddpg.actor_critics import ActorCritics, Actors, Descent, StackGradient, descent
from marless.learning.algos.ddpg.algorithms import ReplayActorCriticConfig
from marless.learning.algos.ddpg.heads import Head
from marless.learning.algos.ddpg.inputs import SampleView, replaced, views
from marless.learning.algos.learner import UNITS_OFF, RoundInput
from marless.learning.algos.off_policy.batches import Batch
from marless.learning.algos.training import measuring, td
from marless.learning.algos.training.passes import PassTimer
from marless.learning.algos.training.policy_batching import Stack
from marless.learning.algos.training.td import Metrics, TrainedStack
from marless.learning.curvature.hessian import hessian_product
from marless.learning.curvature.lanczos import Product
from marless.learning.nets.learner_states import Row
from marless.learning.nets.unrolled import outputs, pulled_back

POLICY, CRITIC, TWIN, ENTROPY = "policy", "critic", "twin", "entropy"
"""Prefixes of nets in published states; the last one, of the learned weights of entropies."""
_STREAM = 5
"""Number of the random stream of noise in gradient steps, which must differ from that of draws from the replay."""
_PARTS = 4
"""Number of parts of a batch whose gradients the noise scale compares with that of the whole batch."""


class TrainedActorCritic(TrainedStack):
    """A stack of policies or critics. Metrics of critics and twins have names of their own."""

    def label(self, metric: str) -> str:
        if self.prefix == POLICY:
            return metric
        if self.prefix == ENTROPY:
            return f"{ENTROPY}_weight_{metric}"
        plain = f"critic_{metric}" if metric in ("grad_norm", UNITS_OFF) else metric
        return plain if self.prefix == "critic" else f"{self.prefix}_{plain}"


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
    weights: tuple[TrainedActorCritic, ...] = ()
    """The learned weights of entropies, one per stack of actors; () if they are fixed, or there are none."""

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


class ActorCriticTraining:
    """All ensembles of a scope; see `marless.learning.algos.off_policy.learner.Training`."""

    def __init__(
        self,
        config: ReplayActorCriticConfig,
        scope: str,
        ensembles: Sequence[Ensemble],
        heads: Sequence[Head],
        targets: Sequence[float],
        seed: Sequence[int],
    ) -> None:
        """Train `ensembles`; `heads` has one head per class of the scope, `targets` the target of its entropy, and
        `seed` the job's seed and the round.
        """
        self._targets = tuple(targets)
        self._config, self._scope, self.count = config, scope, config.batch_size
        self._ensembles, self._heads = tuple(ensembles), tuple(heads)
        self._rng = np.random.default_rng([*seed, _STREAM])
        self._steps = 0
        # Read once, because a GPU finishes all its work before it tells a number.
        self._before = {each.critics[0].names: int(each.critics[0].tensors["count"][0]) for each in self._ensembles}

    def step(self, batch: Batch, meter: PassTimer) -> Tensor | None:
        """See `Training`; both gradients are computed before either net is updated."""
        # All ensembles train on one batch; MADDPG's code draws another one for each agent. A target net follows each
        # step of its own net; with `delayed_targets` critics' targets wait for the steps of policies.
        config, everyone = self._config, self._views(batch, meter)
        errors = []
        for each in self._ensembles:
            critics, policies, error_R1M = self._gradients(each, everyone, meter)
            if policies:
                with meter.measure("policy", _names(each.policies)):
                    for trained, gradient in self._due(each, policies):
                        td.follow(trained, gradient.gradient, config, gradient.metrics)
            moves = self._config.target_moves(self._next_step(each))
            with meter.measure("critic", _names(each.critics)):
                for trained, gradient in zip(each.critics, critics, strict=True):
                    td.follow(trained, gradient.gradient, config, gradient.metrics, target_moves=moves)
                each.nets.refresh()
            errors.append(error_R1M)
        self._steps += 1
        return self._priorities(batch, everyone, errors)

    def gradients(self, batch: Batch, meter: PassTimer) -> tuple[dict[str, dict[str, Tensor]], Tensor | None]:
        """See `Training`. Policies have none in a step that updates only critics."""
        everyone, errors = self._views(batch, meter), []
        found: dict[str, dict[str, Tensor]] = {}
        for each in self._ensembles:
            critics, policies, error_R1M = self._gradients(each, everyone, meter)
            for trained, gradient in (*zip(each.critics, critics, strict=True), *self._due(each, policies)):
                trained.seen.append(gradient.metrics)
                for name, gradient_D in zip(trained.names, gradient.gradient, strict=True):
                    found.setdefault(name, {})[trained.prefix] = gradient_D
            errors.append(error_R1M)
        return found, self._priorities(batch, everyone, errors)

    def metrics(self) -> Metrics:
        found: Metrics = {}
        for each in self._ensembles:
            critics = zip(each.critics, (critic.nets for critic in each.nets.critics), strict=True)
            policies = zip(each.policies, (actors.nets for actors in each.nets.actors), strict=True)
            seen = [trained.metrics(nets.units_off()) for trained, nets in (*critics, *policies)]
            for metrics in (*seen, *(trained.metrics() for trained in each.weights)):
                for name, numbers in metrics.items():
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

    def _due(self, each: Ensemble, policies: Sequence[Descent]) -> Iterator[tuple[TrainedActorCritic, StackGradient]]:
        """The gradients of policies, and of the weights of their entropies; none in a step that skips policies."""
        yield from zip(each.policies, (found.policy for found in policies), strict=bool(policies))
        for trained, actors, found in zip(each.weights, each.nets.actors, policies, strict=False):
            yield trained, found.weight_gradient(self._targets[actors.index])

    def _next_step(self, each: Ensemble) -> int:
        """The number of the critics' next gradient step, counted from 1."""
        return self._before[each.critics[0].names] + self._steps + 1

    def _views(self, batch: Batch, meter: PassTimer) -> tuple[SampleView, ...]:
        with meter.measure("post_process", (self._scope,)):
            return views(batch, self._heads, self._rng)

    def _gradients(
        self, each: Ensemble, everyone: Sequence[SampleView], meter: PassTimer
    ) -> tuple[list[StackGradient], list[Descent], Tensor]:
        """The gradients of critics, those of policies if they are due, and the critics' TD errors, [R, 1, M]."""
        with meter.measure("critic", _names(each.critics)):
            mine = each.views(everyone)
            built = each.nets.built(mine)
            critics, error_R1M = each.nets.critic_gradients(mine, built)
        policies: list[Descent] = []
        # Policies are updated in every so many gradient steps, by the critics' count of them.
        if self._next_step(each) % self._config.policy_every == 0:
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


_VIEW = "view."


class ActionValue:
    """Σ f(z) of policies' outputs z, for any f that autograd can differentiate twice; see `OutputObjective`.

    Here f is a head and a critic. Autograd is affordable, because only a policy's few outputs are differentiated twice.
    """

    def __init__(self, output_RAM: Tensor, value: Callable[[Tensor], Tensor]) -> None:
        self._output_RAM = output_RAM.detach().clone().requires_grad_()
        total = value(self._output_RAM).sum()
        (self._gradient_RAM,) = torch.autograd.grad(total, self._output_RAM, create_graph=True)

    def gradient(self) -> tuple[Tensor, None]:
        return self._gradient_RAM.detach(), None

    def product(self, flow_PKM: Tensor, free_flow_PF: Tensor | None) -> tuple[Tensor, None]:
        (product,) = pulled_back(flow_PKM, self._gradient_RAM, self._output_RAM, retain_graph=True)
        return product, None


class PolicyObjective:
    """A stack of policies as `marless.learning.algos.training.measuring.Measurable`."""

    def __init__(self, actors: Actors, tensors: Row) -> None:
        self._actors = actors
        self.tensors = tensors

    def score_gradient(self, batch: Mapping[str, Tensor]) -> Tensor:
        # Of E[Q(s, μ(s))] alone, which is maximised: without regularisation, and with the opposite sign of the loss.
        return descent(self._actors, _view(batch), batch["input"], 0.0).policy.gradient.neg()

    def hessian(self, batch: Mapping[str, Tensor]) -> Product:
        actors, mine = self._actors, _view(batch)
        weight_R1M, nets = mine.weights(acting=True).unsqueeze(1), actors.nets

        def value(output_RKM: Tensor) -> Tensor:
            choice = actors.head.smooth(output_RKM, mine.noise, mine.legal)
            input_RIM = replaced(batch["input"], actors.own, choice.action)
            # By the definition of the nets, which autograd follows twice; passes written by hand leave no graph.
            values = [outputs(e.net.layout, e.flat_RD, e.net.activation, input_RIM) for e in actors.judges]
            value_R1M = values[0] if len(values) == 1 else torch.minimum(*values)
            if choice.entropy is not None:
                value_R1M = value_R1M + actors.entropy_weight * choice.entropy
            return value_R1M * weight_R1M

        product = hessian_product(
            nets.net, nets.flat_RD, {"features": mine.now}, lambda output: ActionValue(output, value)
        )
        return lambda direction_PD: nets.mean(product(direction_PD[nets.owners_R]))


class SampledStack:
    """The samples of one draw for a stack of policies; see `marless.learning.algos.training.measuring.Measured`."""

    unit = 1

    def __init__(self, actors: Actors, view: SampleView, built: Tensor) -> None:
        """Select the samples of the stack's rows from `view` and `built` of all agents, see `ActorCritics`."""
        mine = view.taken(actors.stack)
        parts = {f"{_VIEW}{each.name}": getattr(mine, each.name) for each in fields(mine)}
        self._parts: dict[str, Tensor] = {name: part for name, part in parts.items() if part is not None}
        self._parts["input"] = actors.judged(built, len(view.now))
        self._parts["features"] = mine.now
        self._parts["alive"] = actors.nets.mean((mine.alive if mine.acts is None else mine.acts).squeeze(1)).unsqueeze(
            1
        )
        self._shuffled = self._parts
        self.count = self._parts["input"].shape[2]

    def subset(self, index_M: Tensor) -> dict[str, Tensor]:
        return {name: part[:, :, index_M] for name, part in self._parts.items()}

    def shuffle(self, order_S: Tensor) -> None:
        self._shuffled = self.subset(order_S)

    def minibatches(self, count: int) -> Sequence[dict[str, Tensor]]:
        bounds = [self.count * i // count for i in range(count + 1)]
        return [{name: part[:, :, a:b] for name, part in self._shuffled.items()} for a, b in pairwise(bounds)]


def _view(batch: Mapping[str, Tensor]) -> SampleView:
    names = [each.name for each in fields(SampleView)]
    parts: dict[str, Any] = {name: batch.get(f"{_VIEW}{name}") for name in names}  # Any: some are None
    return SampleView(**parts)
