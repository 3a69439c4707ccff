"""What policies and critics read of a batch: samples of the agents of one class, and the inputs of critics, which are
observations and actions of all agents of the scope, or of one agent.

Shapes: N agents of one class, I inputs + 1, O observations, A actions or action components (rows in critics' inputs), R
agents of all classes, class after class; M samples. Inputs of a net end with a row of ones, see
`marless.learning.nets.layout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from marless.learning.algos.ddpg.heads import Head
from marless.learning.algos.off_policy.batches import Batch
from marless.learning.algos.training.policy_batching import Stack
from marless.learning.algos.training.td import sample_weights


@dataclass(frozen=True, kw_only=True)
class SampleView:
    """The samples of one agent class, or of the rows of one stack."""

    now: Tensor
    """float32 [N, I, M], policies' inputs."""
    after: Tensor
    """float32 [N, I, M], policies' inputs in the successor states."""
    action: Tensor
    """float32 [N, A, M]; 0 for dead agents."""
    noise: Tensor
    """float32 [N, A, M], noise for the actions of policies in training."""
    noise_after: Tensor
    """float32 [N, A, M], noise for the actions of target policies."""
    reward: Tensor
    """float32 [N, 1, M]."""
    discount: Tensor
    """float32 [N, 1, M], discount of the successor's value; 0 where the agent terminated."""
    legal: Tensor | None
    """bool [N, A, M]; None if every action always is."""
    legal_after: Tensor | None
    alive: Tensor
    """float32 [N, 1, M], 1, or 0 for samples of dead agents, which do not count."""
    alive_after: Tensor | None
    """None if agents never leave."""
    importance: Tensor | None
    """float32 [N, 1, M], importance weights; None for uniform draws."""
    acts: Tensor | None = None
    """float32 [N, 1, M], 1 for samples that policies are trained on: not where the agent waits, and its last action
    stands; None: all that are alive."""
    kept: Tensor | None = None
    """float32 [N, A, M], see `ClassBatch`."""

    def taken(self, stack: Stack) -> SampleView:
        """Select the samples that the members of a stack train on."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        parts: dict[str, Any] = {  # Any: some fields may be None
            name: None if part is None else stack.take(part) for name, part in given.items()
        }
        return SampleView(**parts)

    def weights(self, *, acting: bool = False) -> Tensor:
        """[N, M], weights that sum to 1 per agent, times the samples' importance; with `acting`, those for policies."""
        counts_N1M = self.acts if acting and self.acts is not None else self.alive
        importance_NM = None if self.importance is None else self.importance.squeeze(1)
        return sample_weights(counts_N1M.squeeze(1), importance_NM)


def views(batch: Batch, heads: Sequence[Head], rng: np.random.Generator) -> tuple[SampleView, ...]:
    """The views of a batch of single env steps, one per class, with the noise of a gradient step drawn from `rng`."""
    width, found = batch.width, []
    for each, gains, head in zip(batch.classes, batch.gains, heads, strict=True):
        action = head.encode(each.action)
        alive = None if each.alive is None else each.alive.unsqueeze(1)
        legal = each.legal
        # One draw for both, on the host: noise is the same on a CPU and on a GPU, and whether or not policies are due.
        noise, noise_after = torch.from_numpy(head.noise(rng, (2, *action.shape))).to(action.device)
        found.append(
            SampleView(
                now=each.features[:, :, :width],
                after=each.features[:, :, width:],
                action=action if alive is None else action * alive[:, :, :width],
                noise=noise,
                noise_after=noise_after,
                reward=gains.reward.unsqueeze(1),
                discount=gains.discount.unsqueeze(1),
                legal=None if legal is None else legal[:, :, :width],
                legal_after=None if legal is None else legal[:, :, width:],
                alive=torch.ones_like(gains.reward).unsqueeze(1) if alive is None else alive[:, :, :width],
                acts=None if each.acts is None else each.acts.unsqueeze(1),
                kept=each.kept,
                alive_after=None if alive is None else alive[:, :, width:],
                importance=None if batch.importance is None else batch.importance.expand(len(action), 1, -1),
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class Sizes:
    """The sizes of one agent class: number of agents, observation size, action rows."""

    agents: int
    obs: int
    action: int


class JointInputs:
    """All observations, then all actions, by class and agent; one row serves all agents (Lowe et al. 2017).

    Ids that follow the observations in the policies' inputs are left out: each agent has a critic of its own. Classes
    are in the order of the scope.
    """

    def __init__(self, sizes: Sequence[Sizes]) -> None:
        self._sizes = tuple(sizes)
        self.size = sum(each.agents * (each.obs + each.action) for each in sizes)
        """Number of inputs of a critic, without the row of ones."""

    def build(self, features: Sequence[Tensor], actions: Sequence[Tensor]) -> Tensor:
        """Inputs [R or 1, size + 1, M] from the policies' inputs [N, I, M] and actions [N, A, M] of each class."""
        samples = features[0].shape[2]
        parts = [
            *(each[:, : of.obs].reshape(-1, samples) for each, of in zip(features, self._sizes, strict=True)),
            *(each.reshape(-1, samples) for each in actions),
            features[0][0, -1:],
        ]
        return torch.cat(parts).unsqueeze(0)

    def own(self, index: int) -> Tensor:
        """int64 [N, A], positions of the actions of each agent of a class in the inputs of its critic."""
        start = sum(each.agents * each.obs for each in self._sizes)
        start += sum(each.agents * each.action for each in self._sizes[:index])
        mine = self._sizes[index]
        return start + torch.arange(mine.agents * mine.action).view(mine.agents, mine.action)


class OwnInputs:
    """An agent's own observation, then its own action; for one class only, as the sizes of classes differ."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self.size = sizes.obs + sizes.action

    def build(self, features: Sequence[Tensor], actions: Sequence[Tensor]) -> Tensor:
        (features_NIM,), (action_NAM,) = features, actions
        return torch.cat([features_NIM[:, :-1], action_NAM, features_NIM[:, -1:]], dim=1)

    def own(self, index: int) -> Tensor:
        return torch.arange(self._sizes.obs, self.size).expand(self._sizes.agents, -1)


CriticInputs: TypeAlias = JointInputs | OwnInputs
"""The layout of the critics' inputs."""


def replaced(input_RIM: Tensor, own_RA: Tensor, action_RAM: Tensor) -> Tensor:
    """The inputs with each row's own action replaced; a new, differentiable tensor."""
    return input_RIM.scatter(1, own_RA.unsqueeze(2).expand_as(action_RAM), action_RAM)
