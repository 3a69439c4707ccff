"""Maps agents to a stack of policies: one row per agent, so that groups of any size form one stack.

A policy's gradient is the mean of its rows'. Shapes: N agents of the class, R rows, P policies, F features or actions,
M columns (env steps drawn), W columns of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from marless.algos.base import Group
from marless.envs.base import AgentClass
from marless.errors import SpecError


@dataclass(frozen=True)
class Rows:
    """The rows of one stack, group after group."""

    names: tuple[str, ...]
    """The P policies."""
    starts: tuple[str, ...]
    """The policies whose state the update starts from."""
    agents: Tensor
    """int64 [R], index of each row's agent within the class."""
    owners: tuple[int, ...]
    """Index of each row's policy."""
    whole: bool
    """True if row i is agent i, for all agents of the class; then nothing is copied."""
    parts: int
    """1: each row trains on all columns. Otherwise the number of members of each group: the i-th member trains on the
    i-th part of the columns, unless there are fewer columns than parts."""

    def all(self, x_NFM: Tensor) -> Tensor:
        """Select each row's agent: [N, F, M] → [R, F, M]."""
        return x_NFM if self.whole else x_NFM[self.agents]

    def put_all(self, x_RFM: Tensor, out_NFM: Tensor) -> None:
        """Write each row to its agent: [R, F, M] → [N, F, M]."""
        out_NFM[self.agents] = x_RFM

    def take(self, x_NFM: Tensor) -> Tensor:
        """Select the columns that each row trains on: [N, F, M] → [R, F, W]."""
        x_RFM = self.all(x_NFM)
        if self._undivided(x_NFM):
            return x_RFM
        each_R = torch.arange(len(x_RFM), device=x_NFM.device)
        return self._parted(x_RFM)[each_R, :, each_R % self.parts]

    def put(self, x_RFW: Tensor, out_NFM: Tensor) -> None:
        """The inverse of `take`: write each row's columns to those of its agent."""
        if self._undivided(out_NFM):
            self.put_all(x_RFW, out_NFM)
            return
        parted, each_R = self._parted(out_NFM), torch.arange(len(x_RFW), device=out_NFM.device)
        parted[self.agents, :, each_R % self.parts] = x_RFW

    def _undivided(self, x_NFM: Tensor) -> bool:
        return self.parts == 1 or x_NFM.shape[2] < self.parts

    def _parted(self, x_xFM: Tensor) -> Tensor:
        """A view [., F, parts, W]; the remainder of the columns is left out."""
        width = x_xFM.shape[2] // self.parts
        return x_xFM[:, :, : self.parts * width].view(*x_xFM.shape[:2], self.parts, width)

    def seated(self) -> Rows:
        """The same rows with each row as its own agent, for data that are selected by row already."""
        agents = torch.arange(len(self.owners), device=self.agents.device)
        return Rows(self.names, self.starts, agents, self.owners, whole=True, parts=1)


def rows(
    groups: Sequence[Group], agent_class: AgentClass, pooling: Literal["pooled", "drawn"], device: torch.device
) -> list[Rows]:
    """Sort groups into stacks, in order of first appearance: one stack if `pooling` is "pooled", else one per number of
    members. Raises SpecError unless every agent of the class is in exactly one group.
    """
    grouped = [agent for group in groups for agent in group.agents]
    if sorted(grouped) != sorted(agent_class.agents):
        raise SpecError(f"groups must hold each of {sorted(agent_class.agents)} exactly once, got {sorted(grouped)}")
    if pooling == "pooled":
        return [_stack(groups, agent_class, 1, device)]
    by_count: dict[int, list[Group]] = {}
    for group in groups:
        by_count.setdefault(len(group.agents), []).append(group)
    return [_stack(alike, agent_class, count, device) for count, alike in by_count.items()]


def separate(names: Sequence[str], agents: int, device: torch.device) -> Rows:
    """One row per agent, each with a net of its own and all columns; `names` are the nets' names."""
    return Rows(
        tuple(names), tuple(names), torch.arange(agents, device=device), tuple(range(agents)), whole=True, parts=1
    )


def _stack(groups: Sequence[Group], agent_class: AgentClass, parts: int, device: torch.device) -> Rows:
    agents = [agent_class.agents.index(agent) for group in groups for agent in group.agents]
    return Rows(
        names=tuple(group.policy for group in groups),
        starts=tuple(group.start for group in groups),
        agents=torch.tensor(agents, device=device),
        owners=tuple(i for i, group in enumerate(groups) for _ in group.agents),
        whole=agents == list(range(len(agent_class.agents))),
        parts=parts,
    )
