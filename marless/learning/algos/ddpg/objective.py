"""The objective of policies, E[Q(s, μ(s))], with its gradient and Hessian; used by curvature measurement.

Shapes: R rows (agents), P policies of D parameters, A actions or action components, I inputs + 1, M samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from marless.learning.algos.ddpg.actor_critics import Actors, descent
from marless.learning.algos.ddpg.critic_inputs import replaced
from marless.learning.algos.ddpg.views import SampleView
from marless.learning.curvature.lanczos import Product
from marless.learning.curvature.memory import hessian_product
from marless.learning.nets.learner_states import Row
from marless.learning.nets.unrolled import outputs, pulled_back

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
        return descent(self._actors, _view(batch), batch["input"], 0.0).gradient.neg()

    def hessian(self, batch: Mapping[str, Tensor]) -> Product:
        actors, mine = self._actors, _view(batch)
        weight_R1M, nets, judges = mine.acting_weight, actors.nets, actors.judges

        def value(output_RAM: Tensor) -> Tensor:
            action_RAM = actors.head.smooth(output_RAM, mine.noise, mine.legal)
            input_RIM = replaced(batch["input"], actors.own, action_RAM)
            # By the definition of the nets, which autograd follows twice; passes written by hand leave no graph.
            return outputs(judges.net.layout, judges.flat_RD, judges.net.activation, input_RIM) * weight_R1M

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

    @property
    def count(self) -> int:
        """Number of env steps per row."""
        return self._parts["input"].shape[2]

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
