"""The functions that an update consists of: what an algorithm declares, and one execution as it is billed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

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
