"""Which groups train in one stacked pass, and how their samples follow from those of the agents.

Shapes: N agents of the class, P policies of a stack, m members of each, R rows, S samples per agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marless.algos.base import Group
from marless.envs.base import AgentClass
from marless.errors import SpecError


@dataclass(frozen=True)
class Stack:
    """Groups with equally many members."""

    names: tuple[str, ...]
    """Their policies."""
    starts: tuple[str, ...]
    """The policies whose state the update starts from."""
    members: Tensor
    """int64 [P, m]: each member's index within the class."""
    whole: bool
    """True if policy i serves agent i alone, for all agents of the class: pooling then moves nothing."""

    def pool(self, x_NRS: Tensor) -> Tensor:
        """Members' samples one after another: [N, R, S] → [P, R, m · S]."""
        if self.whole:
            return x_NRS
        x_PmRS = x_NRS[self.members]
        policies, count, rows, samples = x_PmRS.shape
        return x_PmRS.transpose(1, 2).reshape(policies, rows, count * samples)

    def spread(self, x_P1S: Tensor, out_NS: Tensor) -> None:
        """Write pooled single numbers, [P, 1, m · S], back to the rows of their agents."""
        out_NS[self.members] = x_P1S.reshape(*self.members.shape, -1)


def stacks(groups: Sequence[Group], agent_class: AgentClass, *, parts: int, device: torch.device) -> list[Stack]:
    """Sort groups into stacks by member count, each cut into at most `parts` stacks; in order of first appearance.

    Raises SpecError unless every agent of the class is in exactly one group.
    """
    grouped = [agent for group in groups for agent in group.agents]
    if sorted(grouped) != sorted(agent_class.agents):
        raise SpecError(f"groups must hold each of {sorted(agent_class.agents)} exactly once, got {sorted(grouped)}")
    by_count: dict[int, list[Group]] = {}
    for group in groups:
        by_count.setdefault(len(group.agents), []).append(group)
    result = []
    for alike in by_count.values():
        size = -(-len(alike) // parts)
        result += [_stack(alike[i : i + size], agent_class, device) for i in range(0, len(alike), size)]
    return result


def _stack(groups: Sequence[Group], agent_class: AgentClass, device: torch.device) -> Stack:
    members = [[agent_class.agents.index(agent) for agent in group.agents] for group in groups]
    return Stack(
        names=tuple(group.policy for group in groups),
        starts=tuple(group.start for group in groups),
        whole=members == [[i] for i in range(len(agent_class.agents))],
        members=torch.tensor(members, device=device),
    )
