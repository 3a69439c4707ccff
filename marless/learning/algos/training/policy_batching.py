"""Selects the groups that train in one stacked pass, and assembles their samples from those of the agents.

One mechanism for all families: a `Stack` has index arrays of its groups' members, the policy of each, and the samples
that each contributes. A family pools the samples of a group's members (PPO, Q-learning), or computes a row of each
member with a copy of its policy (deterministic policy gradients, whose critics may be those of the members).
Recurrent nets are trained on *segments*: the steps of an agent in one environment copy during the round. Segments are
pooled and drawn whole, as columns of samples in time-major order. `Samples` shuffles what was pooled into minibatches.
Shapes: N agents of the class, P policies of a stack, n members of all its groups, m members of each, R rows, T time
steps, B copies or segments, S = T · B samples per agent or net, W of a member that are trained on, M of a minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from marless.core.errors import NotFoundError, SpecError
from marless.core.group import Group
from marless.learning.algos.learner import Scope
from marless.learning.envs.base import AgentClass, EnvSpaces
from marless.learning.nets import kernels

_STREAM = 3
"""Number of the random stream of these draws, which must differ from other streams of the same round."""


@dataclass(frozen=True)
class Stack:
    """Groups whose policies train in one pass: on all samples of their members, or on some of each."""

    names: tuple[str, ...]
    """The groups' policies."""
    starts: tuple[str, ...]
    """The policies whose state the update starts from."""
    agents: Tensor
    """int64 [n], all members' indices within the class, group after group."""
    owners: tuple[int, ...]
    """[n], index of each member's policy."""
    everyone: bool
    """True if member i is agent i, for all agents of the class; then selecting the members copies nothing."""
    columns: tuple[Tensor, ...] | None = None
    """Per member, int64 [W]: indices of its samples, or segments, that are trained on, ascending; None: all."""
    copies: int | None = None
    """B if segments stay whole, and pooled samples are time-major again; None if samples are independent."""

    @classmethod
    def of(
        cls,
        groups: Sequence[Group],
        agent_class: AgentClass,
        device: torch.device,
        *,
        columns: Sequence[Tensor] | None = None,
        copies: int | None = None,
    ) -> Stack:
        """The stack of these groups, in their order."""
        agents = [agent_class.agents.index(agent) for group in groups for agent in group.agents]
        return cls(
            names=tuple(group.policy for group in groups),
            starts=tuple(group.start for group in groups),
            agents=torch.tensor(agents, device=device),
            owners=tuple(policy for policy, group in enumerate(groups) for _ in group.agents),
            everyone=agents == list(range(len(agent_class.agents))),
            columns=None if columns is None else tuple(columns),
            copies=copies,
        )

    @classmethod
    def separate(cls, names: Sequence[str], device: torch.device) -> Stack:
        """One member per name, each with a net of its own, for data that are by member already."""
        agents = torch.arange(len(names), device=device)
        return cls(tuple(names), tuple(names), agents, tuple(range(len(names))), everyone=True)

    def seated(self) -> Stack:
        """The same members as agents of their own, for data that are by member, and of their columns, already."""
        agents = torch.arange(len(self.owners), device=self.agents.device)
        return Stack(self.names, self.starts, agents, self.owners, everyone=True)

    def pool(self, x_NRS: Tensor) -> Tensor:
        """Assemble the training samples of each policy from those of each agent: [N, R, S] → [P, R, samples].

        All samples are concatenated, for groups of one size: m · S, or columns of a time step side by side; else those
        of the members' columns, as many for each policy.
        """
        if self.columns is not None:
            return self._drawn(x_NRS, self.columns)
        if self._own:
            return x_NRS
        x_PRmU = self._units(x_NRS)[self._members].transpose(1, 2)
        return x_PRmU.reshape(len(self.names), x_NRS.shape[1], -1)

    def seen(self, x_NRS: Tensor) -> Tensor:
        """All samples of all members, trained on or not, [rows, R, samples]: critics compute the values of all of them.

        A row is a policy, with the pooled samples of all its members; or a member, if some have columns.
        """
        return self.pool(x_NRS) if self.columns is None else self.rows(x_NRS)

    @cached_property
    def owner(self) -> Tensor | None:
        """int64 [rows], the critic of each row of `seen`; None if row i belongs to critic i."""
        return None if self.columns is None else torch.tensor(self.owners, device=self.agents.device)

    def spread(self, x: Tensor, out_NS: Tensor) -> None:
        """Write a number per sample of `seen`, [rows, 1, samples], to the rows of the agents."""
        if self.columns is not None:
            out_NS[self.agents] = x.squeeze(1)
            return
        if self._own:
            out_NS.copy_(x.squeeze(1))
            return
        policies, count = self._members.shape
        samples = out_NS.shape[1]  # may be 0: without cut segments, there are no bootstrap rows
        copies = self.copies or samples
        x_PTmU = x.reshape(policies, samples // copies if copies else 0, count, copies)
        out_NS[self._members] = x_PTmU.transpose(1, 2).reshape(policies, count, samples)

    def rows(self, x_NRS: Tensor) -> Tensor:
        """All samples of each member: [N, R, S] → [n, R, S]."""
        return x_NRS if self.everyone else x_NRS[self.agents]

    def take(self, x_NRS: Tensor) -> Tensor:
        """The samples of each member that are trained on: [N, R, S] → [n, R, W]; members have equally many."""
        x_nRS = self.rows(x_NRS)
        return x_nRS if self.columns is None else x_nRS.gather(2, self._index(x_nRS))

    def put(self, x_nRW: Tensor, out_NRS: Tensor) -> None:
        """The inverse of `take`: write each member's samples to those of its agent."""
        rows_nRS = x_nRW
        if self.columns is not None:
            rows_nRS = out_NRS[self.agents]
            rows_nRS.scatter_(2, self._index(rows_nRS), x_nRW)
        out_NRS[self.agents] = rows_nRS

    @cached_property
    def _members(self) -> Tensor:
        """int64 [P, m]; for groups of one size."""
        return self.agents.view(len(self.names), -1)

    @property
    def _own(self) -> bool:
        """True if policy i serves only agent i, for all agents of the class; then pooling copies nothing."""
        return self.everyone and len(self.names) == len(self.owners)

    def _index(self, x_nRS: Tensor) -> Tensor:
        """[n, R, W], the columns of each member."""
        assert self.columns is not None
        return torch.stack(self.columns).unsqueeze(1).expand(-1, x_nRS.shape[1], -1)

    def _drawn(self, x_NRS: Tensor, columns: Sequence[Tensor]) -> Tensor:
        x_NRU = self._units(x_NRS)
        pooled_PRU = x_NRU.new_empty(len(self.names), *x_NRU.shape[1:])
        policy, end = -1, 0
        for agent, owner, column in zip(self.agents.tolist(), self.owners, columns, strict=True):
            # Members come group by group: with the next group, the next policy's row begins.
            start = end if owner == policy else 0
            policy, end = owner, start + len(column)
            taken_1RM = x_NRU.new_empty(1, x_NRU.shape[1], len(column))
            kernels.take_columns(x_NRU[agent : agent + 1], column, out=taken_1RM)
            pooled_PRU[policy, :, start:end] = taken_1RM[0]
        return pooled_PRU.reshape(len(self.names), *x_NRS.shape[1:])

    def _units(self, x_NRS: Tensor) -> Tensor:
        """Reshape so that the last axis has the units: [N, R, S], or [N, R · T, B]."""
        return x_NRS if self.copies is None else x_NRS.reshape(len(x_NRS), -1, self.copies)


def stacks(
    groups: Sequence[Group], agent_class: AgentClass, *, parts: int, device: torch.device, copies: int | None = None
) -> list[Stack]:
    """Sort groups into stacks by number of members, each split into at most `parts` stacks; by first appearance.

    Groups train on all samples of their members. For `copies` see `Stack`. Raises SpecError unless every agent of the
    class is in exactly one group.
    """
    _check(groups, agent_class)
    return [
        Stack.of(part, agent_class, device, copies=copies) for alike in _by_size(groups) for part in _cut(alike, parts)
    ]


def drawn_stacks(
    groups: Sequence[Group],
    agent_class: AgentClass,
    *,
    samples: int,
    seed: tuple[int, int],
    parts: int,
    device: torch.device,
    copies: int | None = None,
) -> list[Stack]:
    """At most `parts` stacks of groups of any size, in order; each group draws `samples`, S, of its members' m · S.

    If segments stay whole, it draws `copies`, B, of its members' m · B segments. Draws are without replacement, and
    depend on the job's seed, the round (both in `seed`) and the policy's name only. A single agent keeps all its
    samples in their order. Raises SpecError as `stacks` does.
    """
    _check(groups, agent_class)
    found = []
    for part in _cut(groups, parts):
        columns = [column.to(device) for group in part for column in _draw(group, copies or samples, seed)]
        found.append(Stack.of(part, agent_class, device, columns=columns, copies=copies))
    return found


def cut_stacks(
    groups: Sequence[Group], agent_class: AgentClass, *, copies: int, parts: int, device: torch.device
) -> list[Stack]:
    """At most `parts` stacks of groups of any size, each of which takes `copies` columns of each time step from its
    members' m · copies.

    For samples that are randomly drawn already: the i-th of m members contributes the i-th part of its columns. Raises
    SpecError as `stacks` does.
    """
    _check(groups, agent_class)
    found = []
    for part in _cut(groups, parts):
        columns = [
            each
            for group in part
            for each in torch.tensor_split(torch.arange(copies, device=device), len(group.agents))
        ]
        found.append(Stack.of(part, agent_class, device, columns=columns, copies=copies))
    return found


def row_stacks(
    groups: Sequence[Group],
    agent_class: AgentClass,
    *,
    pooling: Literal["pooled", "drawn"],
    samples: int,
    device: torch.device,
) -> list[Stack]:
    """Stacks for `Stack.take`: one of all groups, whose members train on all samples; or, drawn, one per size.

    Then the i-th of m members trains on the i-th of m equal parts of the `samples`, which are randomly drawn already;
    the remainder is left out, and of fewer samples than members each trains on all. Raises SpecError as `stacks` does.
    """
    _check(groups, agent_class)
    if pooling == "pooled":
        return [Stack.of(groups, agent_class, device)]
    found = []
    for alike in _by_size(groups):
        width = samples // len(alike[0].agents)
        columns = [i * width + torch.arange(width, device=device) for group in alike for i in range(len(group.agents))]
        found.append(Stack.of(alike, agent_class, device, columns=columns if 0 < width < samples else None))
    return found


def _check(groups: Sequence[Group], agent_class: AgentClass) -> None:
    grouped = [agent for group in groups for agent in group.agents]
    if sorted(grouped) != sorted(agent_class.agents):
        raise SpecError(f"groups must hold each of {sorted(agent_class.agents)} exactly once, got {sorted(grouped)}")


def _by_size(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups with the same number of members together, by first appearance."""
    found: dict[int, list[Group]] = {}
    for group in groups:
        found.setdefault(len(group.agents), []).append(group)
    return list(found.values())


def _cut(groups: Sequence[Group], parts: int) -> list[Sequence[Group]]:
    size = -(-len(groups) // parts)
    return [groups[i : i + size] for i in range(0, len(groups), size)]


def _draw(group: Group, units: int, seed: tuple[int, int]) -> list[Tensor]:
    """Draw the samples, or segments, of each member that its group trains on."""
    rng = np.random.default_rng([*seed, _STREAM, *group.policy.encode()])
    # Sorted, so that each member's part is a range, and its samples stay in their order.
    drawn_S = np.sort(rng.choice(len(group.agents) * units, units, replace=False))
    bounds = np.searchsorted(drawn_S, units * np.arange(len(group.agents) + 1))
    parts = enumerate(pairwise(bounds))
    return [torch.from_numpy(drawn_S[start:end] - units * member) for member, (start, end) in parts]


class Samples:
    """Per-sample rows of P nets as one tensor [P, R, S], so that one gather per epoch shuffles all of them.

    For recurrent nets, columns are time-major, [T, segments], and segments stay whole: a minibatch has some of them,
    time-major again, and a row "first" (1 where memory is empty before a step) becomes "resets" bool [P, T, B]. If
    segments go on, "memory" [P, H, B] has the nets' memory before the first step.
    """

    def __init__(self, parts: Mapping[str, Tensor], steps: int | None = None, memory_PHB: Tensor | None = None) -> None:
        """Concatenate the rows of `parts`, [P, rows, S] by name; `steps` is T for recurrent nets, else None.

        `memory_PHB` has all segments, in their order.
        """
        self._table_PRS = torch.cat(list(parts.values()), dim=1)
        self._shuffled_PRS = torch.empty_like(self._table_PRS)
        ends = torch.tensor([part.shape[1] for part in parts.values()]).cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        self._rows = {name: slice(a, b) for name, a, b in zip(parts, starts, ends, strict=True)}
        self._steps, self._memory_PHB = steps, memory_PHB
        self.remembers = steps is not None
        """True if units are segments, for recurrent nets."""
        self.unit = steps or 1
        self.count = self._table_PRS.shape[2] // self.unit
        """Number of units per net that an order permutes: samples, or segments."""
        self._order_U = torch.empty(0)
        self._views: dict[tuple[int, int], list[dict[str, Tensor]]] = {}

    def shuffle(self, order_U: Tensor) -> None:
        self._order_U = order_U

    def subset(self, index_U: Tensor) -> dict[str, Tensor]:
        """Copies [P, rows, M] of these units, by name."""
        policies, rows, _ = self._table_PRS.shape
        part_PRM = self._table_PRS.new_empty(policies, rows, len(index_U) * self.unit)
        kernels.take_columns(self._table_PRS, self._columns(index_U), out=part_PRM)
        return self._batch(part_PRM, index_U)

    def minibatches(self, count: int) -> list[dict[str, Tensor]]:
        """Views [P, rows, M] of `count` nearly equal parts of the shuffled units, by name."""
        units = len(self._order_U)
        bounds = [(units * i // count, units * (i + 1) // count) for i in range(count)]
        columns_S = torch.cat([self._columns(self._order_U[a:b]) for a, b in bounds])
        if len(columns_S) != self._shuffled_PRS.shape[2]:  # an order may leave units out
            self._shuffled_PRS = self._table_PRS.new_empty(*self._table_PRS.shape[:2], len(columns_S))
            self._views.clear()
        kernels.take_columns(self._table_PRS, columns_S, out=self._shuffled_PRS)
        # Segments get new views each time, as their resets and memory are gathered in the new order.
        if self._steps is None and (units, count) in self._views:
            return self._views[units, count]  # of the same buffer, which has the samples in their new order
        batches = [
            self._batch(self._shuffled_PRS[:, :, a * self.unit : b * self.unit], self._order_U[a:b]) for a, b in bounds
        ]
        self._views[units, count] = batches
        return batches

    def _columns(self, units_M: Tensor) -> Tensor:
        """The columns of these units, time-major."""
        if self._steps is None:
            return units_M
        starts_T1 = self.count * torch.arange(self._steps, device=units_M.device).unsqueeze(1)
        return (starts_T1 + units_M).flatten()

    def _batch(self, part_PRM: Tensor, units_U: Tensor) -> dict[str, Tensor]:
        batch = {name: part_PRM[:, rows] for name, rows in self._rows.items()}
        if self._steps is not None:
            batch["resets"] = batch.pop("first").reshape(len(part_PRM), self._steps, -1) > 0
        if self._memory_PHB is not None:
            batch["memory"] = self._memory_PHB[:, :, units_U]
        return batch


WEIGHT = "weight"
"""Name of the weights of a batch's samples, where they are those of a larger batch."""


def weights(batch: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """Each sample's weight, in the shape of `like`, summing to 1 per net; 0 for samples of dead agents."""
    if WEIGHT in batch:
        return batch[WEIGHT]
    if "alive" not in batch:
        return torch.full_like(like, like.shape[0] / like.numel())
    alive = batch["alive"].reshape(like.shape)
    dims = tuple(range(1, like.dim()))
    return alive / alive.sum(dim=dims, keepdim=True).clamp_min(1.0)


def same_shape(axes: str, *tensors: Tensor) -> None:
    """Raise ValueError unless all tensors have one shape, with these axes, such as "P, M"."""
    first = tensors[0].shape
    fits = len(first) == axes.count(",") + 1
    for each in tensors:  # a loop, as a generator would take as long as an operation on them
        fits = fits and each.shape == first
    if not fits:
        raise ValueError(f"shapes must all be [{axes}], got {[tuple(each.shape) for each in tensors]}")


class PolicyClasses:
    """The index of the agent class of each policy, as groups have told it so far."""

    def __init__(self, spaces: EnvSpaces, scope: Scope) -> None:
        self._spaces, self._scope = spaces, scope
        self._by_name: dict[str, int] = {}

    def learn(self, groups: Sequence[Group]) -> None:
        """Note the policies of these groups, and those that they start from."""
        for group in groups:
            k = self._spaces.classes.index(self._spaces.class_of(group.agents[0]))
            self._by_name |= {group.policy: k, group.start: k}

    def __call__(self, name: str) -> int:
        """Index of the agent class of a policy; raises NotFoundError if no group had this name.

        Before there are groups, policies have the names of their agents.
        """
        if name not in self._by_name and name in self._spaces.agents:
            return self._spaces.classes.index(self._spaces.class_of(name))
        if name not in self._by_name and len(self._scope.classes) > 1:
            raise NotFoundError(f"no group of this learner has a policy {name!r}; it knows {sorted(self._by_name)}")
        return self._by_name.get(name, self._scope.classes[0])
