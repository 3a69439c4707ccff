"""Groups: agents that share one policy and one learner in a round; versions of their policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
