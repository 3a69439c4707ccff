"""Selects the groups that train in one stacked pass, and assembles their samples from those of the agents.

Recurrent nets are trained on *segments*: the steps of an agent in one environment copy during the round. Segments are
pooled and drawn whole, as columns of samples in time-major order.
Shapes: N agents of the class, P policies of a stack, m members of each, R rows, T time steps, B copies, S = T · B
samples per agent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from marless.algos.base import Group
from marless.envs.base import AgentClass
from marless.errors import SpecError
from marless.nets import kernels

_STREAM = 3
"""Number of the random stream of these draws, which must differ from other streams of the same round."""


@dataclass(frozen=True)
class Stack(ABC):
    """Groups whose policies train on the same number of samples."""

    names: tuple[str, ...]
    """The groups' policies."""
    starts: tuple[str, ...]
    """The policies whose state the update starts from."""
    copies: int | None
    """B if segments stay whole, and pooled samples are time-major again; None if samples are independent."""

    @abstractmethod
    def pool(self, x_NRS: Tensor) -> Tensor:
        """Assemble the training samples of each policy from those of each agent: [N, R, S] → [P, R, samples]."""

    @abstractmethod
    def seen(self, x_NRS: Tensor) -> Tensor:
        """All samples of all members, [rows, R, samples], drawn or not; critics compute the values of all of them."""

    @property
    @abstractmethod
    def owner(self) -> Tensor | None:
        """int64 [rows], the critic of each row of `seen`; None if row i belongs to critic i."""

    @abstractmethod
    def spread(self, x: Tensor, out_NS: Tensor) -> None:
        """Write a number per sample of `seen`, [rows, 1, samples], to the rows of the agents."""

    def _units(self, x_NRS: Tensor) -> Tensor:
        """Reshape so that the last axis has the units: [N, R, S], or [N, R · T, B]."""
        return x_NRS if self.copies is None else x_NRS.reshape(len(x_NRS), -1, self.copies)


@dataclass(frozen=True)
class PooledStack(Stack):
    """Groups with the same number of members, which train on all samples of all members."""

    members: Tensor
    """int64 [P, m], each member's index within the class."""
    whole: bool
    """True if policy i serves only agent i, for all agents of the class; then pooling copies nothing."""

    def pool(self, x_NRS: Tensor) -> Tensor:
        """Concatenate the members' samples, or segments: [N, R, S] → [P, R, m · S]."""
        if self.whole:
            return x_NRS
        x_PRmU = self._units(x_NRS)[self.members].transpose(1, 2)
        return x_PRmU.reshape(len(self.names), x_NRS.shape[1], -1)

    def seen(self, x_NRS: Tensor) -> Tensor:
        """See `pool`."""
        return self.pool(x_NRS)

    @property
    def owner(self) -> None:
        """None: row i belongs to critic i."""
        return

    def spread(self, x: Tensor, out_NS: Tensor) -> None:
        """[P, 1, m · S] → [N, S]."""
        if self.whole:
            out_NS.copy_(x.squeeze(1))
            return
        policies, count = self.members.shape
        samples = out_NS.shape[1]  # may be 0: without cut segments, there are no bootstrap rows
        copies = self.copies or samples
        x_PTmU = x.reshape(policies, samples // copies if copies else 0, count, copies)
        out_NS[self.members] = x_PTmU.transpose(1, 2).reshape(policies, count, samples)


@dataclass(frozen=True)
class DrawnStack(Stack):
    """Groups of any size, each of which trains on as many samples as one agent has, S."""

    agents: Tensor
    """int64 [n], all members' indices within the class, group after group."""
    owners: Tensor
    """int64 [n], each member's policy."""
    columns: tuple[Tensor, ...]
    """Per member, int64: indices of its drawn samples, or segments, ascending."""

    def pool(self, x_NRS: Tensor) -> Tensor:
        """Concatenate the drawn samples of the members: [N, R, S] → [P, R, S]."""
        x_NRU = self._units(x_NRS)
        pooled_PRU = x_NRU.new_empty(len(self.names), *x_NRU.shape[1:])
        policy, end = -1, 0
        for agent, owner, column in zip(self.agents.tolist(), self.owners.tolist(), self.columns, strict=True):
            start = end if owner == policy else 0
            policy, end = owner, start + len(column)
            taken_1RM = x_NRU.new_empty(1, x_NRU.shape[1], len(column))
            kernels.take_columns(x_NRU[agent : agent + 1], column, out=taken_1RM)
            pooled_PRU[policy, :, start:end] = taken_1RM[0]
        return pooled_PRU.reshape(len(self.names), *x_NRS.shape[1:])

    def seen(self, x_NRS: Tensor) -> Tensor:
        """[n, R, S]."""
        return x_NRS[self.agents]

    @property
    def owner(self) -> Tensor:
        """See `owners`."""
        return self.owners

    def spread(self, x: Tensor, out_NS: Tensor) -> None:
        """[n, 1, S] → [N, S]."""
        out_NS[self.agents] = x.squeeze(1)


def stacks(
    groups: Sequence[Group], agent_class: AgentClass, *, parts: int, device: torch.device, copies: int | None = None
) -> list[PooledStack]:
    """Sort groups into stacks by number of members, each split into at most `parts` stacks; by first appearance.

    For `copies` see `Stack`. Raises SpecError unless every agent of the class is in exactly one group.
    """
    _check(groups, agent_class)
    by_count: dict[int, list[Group]] = {}
    for group in groups:
        by_count.setdefault(len(group.agents), []).append(group)
    result = []
    for alike in by_count.values():
        result += [_pooled(part, agent_class, device, copies) for part in _cut(alike, parts)]
    return result


def drawn_stacks(
    groups: Sequence[Group],
    agent_class: AgentClass,
    *,
    samples: int,
    seed: tuple[int, int],
    parts: int,
    device: torch.device,
    copies: int | None = None,
) -> list[DrawnStack]:
    """At most `parts` stacks of groups of any size, in order; each group draws `samples`, S, of its members' m · S.

    If segments stay whole, it draws `copies`, B, of its members' m · B segments. Draws are without replacement, and
    depend on the job's seed, the round (both in `seed`) and the policy's name only. A single agent keeps all its
    samples in their order. Raises SpecError as `stacks` does.
    """
    _check(groups, agent_class)
    return [_drawn(part, agent_class, copies or samples, seed, device, copies) for part in _cut(groups, parts)]


def cut_stacks(
    groups: Sequence[Group], agent_class: AgentClass, *, copies: int, parts: int, device: torch.device
) -> list[DrawnStack]:
    """At most `parts` stacks of groups of any size, each of which takes `copies` columns of each time step from its
    members' m · copies.

    For samples that are randomly drawn already: the i-th of m members contributes the i-th part of its columns. Raises
    SpecError as `stacks` does.
    """
    _check(groups, agent_class)
    return [_cut_stack(part, agent_class, copies, device) for part in _cut(groups, parts)]


def _check(groups: Sequence[Group], agent_class: AgentClass) -> None:
    grouped = [agent for group in groups for agent in group.agents]
    if sorted(grouped) != sorted(agent_class.agents):
        raise SpecError(f"groups must hold each of {sorted(agent_class.agents)} exactly once, got {sorted(grouped)}")


def _cut(groups: Sequence[Group], parts: int) -> list[Sequence[Group]]:
    size = -(-len(groups) // parts)
    return [groups[i : i + size] for i in range(0, len(groups), size)]


def _pooled(groups: Sequence[Group], agent_class: AgentClass, device: torch.device, copies: int | None) -> PooledStack:
    members = [[agent_class.agents.index(agent) for agent in group.agents] for group in groups]
    return PooledStack(
        names=tuple(group.policy for group in groups),
        starts=tuple(group.start for group in groups),
        copies=copies,
        whole=members == [[i] for i in range(len(agent_class.agents))],
        members=torch.tensor(members, device=device),
    )


def _drawn(
    groups: Sequence[Group],
    agent_class: AgentClass,
    units: int,
    seed: tuple[int, int],
    device: torch.device,
    copies: int | None,
) -> DrawnStack:
    columns = [column.to(device) for group in groups for column in _draw(group, units, seed)]
    return _drawn_stack(groups, agent_class, columns, device, copies)


def _cut_stack(groups: Sequence[Group], agent_class: AgentClass, copies: int, device: torch.device) -> DrawnStack:
    columns = [
        part for group in groups for part in torch.tensor_split(torch.arange(copies, device=device), len(group.agents))
    ]
    return _drawn_stack(groups, agent_class, columns, device, copies)


def _drawn_stack(
    groups: Sequence[Group],
    agent_class: AgentClass,
    columns: Sequence[Tensor],
    device: torch.device,
    copies: int | None,
) -> DrawnStack:
    agents = [agent_class.agents.index(agent) for group in groups for agent in group.agents]
    owners = [policy for policy, group in enumerate(groups) for _ in group.agents]
    return DrawnStack(
        names=tuple(group.policy for group in groups),
        starts=tuple(group.start for group in groups),
        copies=copies,
        agents=torch.tensor(agents, device=device),
        owners=torch.tensor(owners, device=device),
        columns=tuple(columns),
    )


def _draw(group: Group, units: int, seed: tuple[int, int]) -> list[Tensor]:
    """Draw the samples, or segments, of each member that its group trains on."""
    rng = np.random.default_rng([*seed, _STREAM, *group.policy.encode()])
    drawn_S = np.sort(rng.choice(len(group.agents) * units, units, replace=False))
    bounds = np.searchsorted(drawn_S, units * np.arange(len(group.agents) + 1))
    parts = enumerate(pairwise(bounds))
    return [torch.from_numpy(drawn_S[start:end] - units * member) for member, (start, end) in parts]
