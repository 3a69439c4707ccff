"""The protocol of sharing policies: they decide which agents share a policy and its learner in the next round.

A policy has a config (its settings), declares the measurements that it needs, refuses invalid settings, and decides.
Policies are found by name: ours, and those of other packages, by entry points of the group "marless.sharing". Below
are the first groups of a job, their validation, and the policy `fixed`, which keeps them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import Field

from marless.core.errors import SpecError, unknown_name
from marless.core.group import Group
from marless.core.limits import MAX_AGENTS
from marless.core.registry import Registry
from marless.core.settings import SimilarityConfig
from marless.core.validation import Strict
from marless.jobs.record import RoundRecord
from marless.learning.data.returns import EpisodeReturns

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces

Members: TypeAlias = Annotated[tuple[str, ...], Field(max_length=MAX_AGENTS)]


class SharingConfig(Strict):
    """Base of every sharing policy's config; `name` selects the policy in the registry."""

    name: str
    groups: Literal["independent", "shared"] | Annotated[dict[str, Members], Field(max_length=MAX_AGENTS)] = Field(
        "independent",
        description="groups of the first round: a policy per agent; one per agent class; or policy name → agents",
    )
    samples: Literal["pooled", "drawn"] = Field(
        "pooled",
        description="samples of a shared policy: all of its members', or as many as one agent has, drawn from all",
    )


@dataclass(frozen=True)
class SharingDecision:
    """Groups that cover every agent exactly once, and why.

    A group of several agents is published under the name of the member whose weights it starts from; a group whose
    `source` is another policy starts from a copy of that one's weights and optimizer moments.
    """

    groups: tuple[Group, ...]
    reason: str
    """One sentence, with the numbers that mattered."""
    inputs: Mapping[str, Any] = field(default_factory=dict)  # Any: what JSON can hold
    """The data of the decision, and the policy's state for the next one, which reads it from the last record."""


class Sharing(Protocol):
    """A sharing policy: deterministic and stateless, so that a resumed job decides as one that was never interrupted.

    State is kept in `SharingDecision.inputs`, which the next decision finds in its history.
    """

    def asks(self, history: Sequence[RoundRecord], returns: EpisodeReturns | None) -> bool:
        """True if learners are to measure the similarity of agents in the update of the round after `history`.

        `returns` are those of that round's rollout; the measurement is for the decision on the round after it.
        """

    def decide(self, history: Sequence[RoundRecord]) -> SharingDecision:
        """Groups for the round after `history`, which is empty before the first, and holds at least the newest 512
        rounds.
        """


class SharingKind(Protocol):
    """A registered sharing policy: its config type, the measurements it needs (by default none), and how to make it."""

    config_type: type[SharingConfig]

    def curvature(self, config: SharingConfig) -> bool:
        """True if it needs each policy's curvature in every round."""
        return False

    def gradients(self, config: SharingConfig) -> bool:
        """True if it needs statistics of each policy's gradient, see `marless.core.settings.Measure`."""
        return False

    def similarity(self, config: SharingConfig) -> SimilarityConfig | None:
        """The similarity to measure when it asks for it; None if it never does."""
        return None

    def make(self, config: SharingConfig, groups: tuple[Group, ...], spaces: EnvSpaces) -> Sharing:
        """Make the policy of one job whose first groups are `groups`; raises SpecError for settings that do not fit."""


SHARING_POLICIES: Registry[SharingKind] = Registry(
    "sharing policy",
    "marless.sharing",
    "SHARING",
    {
        "fixed": "marless.jobs.sharing.base:FIXED",
        "marless": "marless.jobs.sharing.marless",
        "auto": "marless.jobs.sharing.auto",
    },
)

_POLICY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def initial_groups(asked: str | Mapping[str, Sequence[str]], spaces: EnvSpaces) -> tuple[Group, ...]:
    """The groups of `sharing.groups`: "independent", "shared" (one per agent class), or policy name → agents.

    Raises SpecError for an invalid policy name, an unknown agent, an agent in several groups or in none, and a group of
    agents of several classes.
    """
    if asked == "independent":
        groups = tuple(Group(agent, (agent,)) for agent in spaces.agents)
    elif asked == "shared":
        groups = tuple(Group(agents.name, agents.agents) for agents in spaces.classes)
    elif isinstance(asked, str):
        raise SpecError(f"sharing.groups: {asked!r}; allowed: independent, shared, or policy name → agents")
    else:
        groups = tuple(Group(policy, tuple(agents)) for policy, agents in asked.items())
    _check_groups(groups, spaces)
    return groups


def _check_groups(groups: Sequence[Group], spaces: EnvSpaces) -> None:
    for group in groups:
        if not _POLICY_NAME.fullmatch(group.policy):
            raise SpecError(
                f"sharing.groups: {group.policy!r} cannot be the name of a policy, which is also a file name; give a "
                "mapping policy name → agents with names of letters, digits, '_', '.' and '-'"
            )
        if not group.agents:
            raise SpecError(f"sharing.groups: {group.policy} holds no agent; leave it out or give it one")
    times = Counter(agent for group in groups for agent in group.agents)
    for agent, count in times.items():
        if agent not in spaces.agents:
            raise SpecError(f"sharing.groups: {unknown_name('agent', agent, spaces.agents)}")
        if count > 1:
            raise SpecError(f"sharing.groups: {agent} is in {count} groups; an agent has one policy at a time")
    missing = [agent for agent in spaces.agents if agent not in times]
    if missing:
        raise SpecError(f"sharing.groups: no group holds {', '.join(missing)}; every agent needs a policy")
    for group in groups:
        classes = sorted({spaces.class_of(agent).name for agent in group.agents})
        if len(classes) != 1:
            raise SpecError(
                f"sharing.groups: {group.policy} mixes agents with different spaces "
                f"(classes {', '.join(classes)}); only agents of one class can share a policy"
            )


class FixedSharingConfig(SharingConfig):
    """Settings of `fixed`; every round has the groups of the first."""

    name: str = "fixed"


@dataclass(frozen=True)
class FixedSharing:
    """The same groups in every round."""

    groups: tuple[Group, ...]

    def asks(self, history: Sequence[RoundRecord], returns: EpisodeReturns | None) -> bool:
        return False

    def decide(self, history: Sequence[RoundRecord]) -> SharingDecision:
        return SharingDecision(self.groups, f"fixed: {len(self.groups)} policies in every round")


class FixedSharingKind(SharingKind):
    """Makes the policy; see `SharingKind`."""

    config_type = FixedSharingConfig

    def make(self, config: SharingConfig, groups: tuple[Group, ...], spaces: EnvSpaces) -> FixedSharing:
        return FixedSharing(groups)


FIXED = FixedSharingKind()
