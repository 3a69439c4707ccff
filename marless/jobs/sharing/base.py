"""The protocol of sharing policies: they decide which agents share a policy and its learner in the next round.

A policy has a config (its settings), declares the measurements that it needs, refuses invalid settings, and decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import Field

from marless.core.group import Group
from marless.core.limits import MAX_AGENTS
from marless.core.settings import SimilarityConfig, Strict
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
        ...

    def decide(self, history: Sequence[RoundRecord]) -> SharingDecision:
        """Groups for the round after `history`, which is empty before the first, and holds at least the newest 512
        rounds.
        """
        ...


class SharingKind(Protocol):
    """A registered sharing policy: its config type, the measurements it needs, and how to make it."""

    config_type: type[SharingConfig]

    def curvature(self, config: SharingConfig) -> bool:
        """True if it needs each policy's curvature in every round."""
        ...

    def similarity(self, config: SharingConfig) -> SimilarityConfig | None:
        """The similarity to measure when it asks for it; None if it never does."""
        ...

    def make(self, config: SharingConfig, groups: tuple[Group, ...], spaces: EnvSpaces) -> Sharing:
        """Make the policy of one job whose first groups are `groups`; raises SpecError for settings that do not fit."""
        ...
