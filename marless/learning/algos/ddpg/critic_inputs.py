"""The inputs of critics: observations and actions of all agents of the scope, or of one agent.

Shapes: N agents of one class, O its observations, A its action rows in critics' inputs, R agents of all classes, class
after class; M samples. A critic's inputs end with a row of ones, see `marless.learning.nets.layout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sizes:
    """The sizes of one agent class: number of agents, observation size, action rows."""

    agents: int
    obs: int
    action: int


class CriticInputs(Protocol):
    """The layout of the critics' inputs. Classes are in the order of the scope."""

    @property
    def size(self) -> int:
        """Number of inputs of a critic, without the row of ones."""
        ...

    def build(self, features: Sequence[Tensor], actions: Sequence[Tensor]) -> Tensor:
        """Inputs [R or 1, size + 1, M] from the policies' inputs [N, I, M] and actions [N, A, M] of each class."""
        ...

    def own(self, index: int) -> Tensor:
        """int64 [N, A], positions of the actions of each agent of a class in the inputs of its critic."""
        ...


class JointInputs:
    """All observations, then all actions, by class and agent; one row serves all agents (Lowe et al. 2017).

    Ids that follow the observations in the policies' inputs are left out: each agent has a critic of its own.
    """

    def __init__(self, sizes: Sequence[Sizes]) -> None:
        self._sizes = tuple(sizes)

    @property
    def size(self) -> int:
        return sum(each.agents * (each.obs + each.action) for each in self._sizes)

    def build(self, features: Sequence[Tensor], actions: Sequence[Tensor]) -> Tensor:
        samples = features[0].shape[2]
        parts = [
            *(each[:, : of.obs].reshape(-1, samples) for each, of in zip(features, self._sizes, strict=True)),
            *(each.reshape(-1, samples) for each in actions),
            features[0][0, -1:],
        ]
        return torch.cat(parts).unsqueeze(0)

    def own(self, index: int) -> Tensor:
        start = sum(each.agents * each.obs for each in self._sizes)
        start += sum(each.agents * each.action for each in self._sizes[:index])
        mine = self._sizes[index]
        return start + torch.arange(mine.agents * mine.action).view(mine.agents, mine.action)


class OwnInputs:
    """An agent's own observation, then its own action; for one class only, as the sizes of classes differ."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    @property
    def size(self) -> int:
        return self._sizes.obs + self._sizes.action

    def build(self, features: Sequence[Tensor], actions: Sequence[Tensor]) -> Tensor:
        (features_NIM,), (action_NAM,) = features, actions
        return torch.cat([features_NIM[:, :-1], action_NAM, features_NIM[:, -1:]], dim=1)

    def own(self, index: int) -> Tensor:
        return torch.arange(self._sizes.obs, self.size).expand(self._sizes.agents, -1)


def replaced(input_RIM: Tensor, own_RA: Tensor, action_RAM: Tensor) -> Tensor:
    """The inputs with each row's own action replaced; a new, differentiable tensor."""
    return input_RIM.scatter(1, own_RA.unsqueeze(2).expand_as(action_RAM), action_RAM)
