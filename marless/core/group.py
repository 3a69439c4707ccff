"""Who acts and who learns: groups of agents with one policy, lanes of environment copies, functions of an update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Versions = Mapping[str, int]
"""The version of each policy, by name."""


@dataclass(frozen=True)
class Group:
    """Agents that share one policy and one learner in a round."""

    policy: str
    """Name of the policy that these agents act with, under which its next version is published."""
    agents: tuple[str, ...]
    """The agents, all of one agent class."""
    source: str = ""
    """The policy whose state the update starts from, if it is another one (a merge or a split); "" means `policy`."""

    @property
    def start(self) -> str:
        """The policy whose weights and optimizer moments the update starts from."""
        return self.source or self.policy


@dataclass(frozen=True, kw_only=True)
class LaneRecord:
    """The state in which a round left a lane of environment copies, which its next round starts from."""

    lane: int
    """Index of the lane, and of the actor that runs it."""
    version: int
    """Version of the lane's carry in the param_store; 0 for a lane that has not begun."""
    digest: str
    """SHA-256 of the carry, lowercase hexadecimal; "" for a lane that has not begun."""


FunctionKind: TypeAlias = Literal["post_process", "critic", "mixer", "policy", "curvature", "similarity"]
"""What a function computes. Algorithms do not declare the last two, which are measurements for decisions."""


@dataclass(frozen=True)
class FunctionNode:
    """One function that an algorithm decomposes an update into (Wei et al. 2025, §4)."""

    function: FunctionKind
    name: str
    """The policy, critic or mixer that it serves; for post-processing, `Scope.name`."""
    after: tuple[str, ...] = ()
    """Ids of its predecessors in each pass; independent nodes run in parallel, or stacked in one pass."""

    @property
    def id(self) -> str:
        """Unique within an update."""
        return f"{self.function}/{self.name}"


@dataclass(frozen=True)
class FunctionRun:
    """One execution of a function inside an update, as it is billed."""

    function: FunctionKind
    name: str
    """The policy, critic or mixer it served; for post-processing, the scope; for similarity, the agent class."""
    start_s: float
    """Start of the pass that it ran in, in Unix seconds, as `end_s`."""
    end_s: float
    vcpu_s: float
    """Its share of the pass: one thread's seconds divided by the number of functions in the stack."""
    cpu_s: float = 0.0
    """Its share of the CPU seconds of the thread that ran the pass, which does not count while it waits for a core; 0:
    not measured."""
