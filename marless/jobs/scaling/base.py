"""The protocol of scaling policies: they decide how many actors the next round gets, from the records of past rounds.

A policy has a config (its settings), declares the measurements that it needs, refuses invalid settings, and decides.

Reads metrics and stored state of past rounds for scaling policies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import Field

from marless.core.group import Group
from marless.core.settings import Strict
from marless.jobs.record import RoundRecord

if TYPE_CHECKING:
    from marless.core.settings import FunctionsSpec

Signal = Literal["curvature", "noise"]
"""A measurement that a scaling policy can ask learners for; see `marless.core.settings.Measure`."""


class ScalingConfig(Strict):
    """Base of every scaling policy's config; `name` selects the policy in the registry."""

    name: str
    within_budget: bool = Field(
        False,
        description="limit the number of actors to what the rest of stop.cost_usd can pay in all remaining rounds",
    )

    @classmethod
    def with_files(cls, section: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: YAML
        """The `scaling` section of a job file, with paths of files replaced by the files' contents.

        Called on the user's machine, because a coordinator opens no path that a job names. Raises SpecError for a file
        that cannot be read or has the wrong format.
        """
        return section

    def least(self, context: ScalingContext) -> int:
        """The smallest number of actors it may decide on; a job whose updates need more samples is refused."""
        return 1

    def advice(self, context: ScalingContext) -> str:
        """A warning in one sentence about settings that work but are probably a mistake; "" if there is none."""
        return ""


@dataclass(frozen=True)
class ScalingContext:
    """The properties of a job that a policy is made from."""

    max_actors: int
    """`actors.count`: I_max."""
    agents: int
    """N, number of agents of the whole team."""
    groups: tuple[Group, ...]
    """Groups of the first round."""
    rounds: int | None
    """`stop.rounds`."""
    samples: Literal["pooled", "drawn"] = "pooled"
    """`sharing.samples`: what a shared policy trains on."""
    functions: FunctionsSpec | None = None
    """`functions`: their sizes; None if the cost of rounds is not needed."""
    budget_usd: float | None = None
    """`stop.cost_usd`."""


@dataclass(frozen=True)
class ScalingDecision:
    """A number of actors, and why."""

    actors: int
    reason: str
    """One sentence, with the numbers that mattered."""
    inputs: Mapping[str, Any] = field(default_factory=dict)  # Any: what JSON can hold
    """The data of the decision, and the policy's state for the next one, which reads it from the last record."""


class ActorScaling(Protocol):
    """A scaling policy: deterministic and stateless, so that a resumed job decides as one that was never interrupted.

    State is kept in `ScalingDecision.inputs`, which the next decision finds in its history.
    """

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """Actors for the round after `history`, which will train `groups`.

        `history` is empty before the first round, and holds at least the newest 512 rounds.
        """
        ...


class ScalingKind(Protocol):
    """A registered scaling policy: its config type, the signals it needs, and how to make it."""

    config_type: type[ScalingConfig]

    def signals(self, config: ScalingConfig) -> frozenset[Signal]:
        """The measurements that it needs from learners."""
        ...

    def make(self, config: ScalingConfig, context: ScalingContext) -> ActorScaling:
        """Make the policy of one job; raises SpecError for settings that do not fit the job."""
        ...


LARGEST = 1e100
"""Larger values come from a division by almost zero, and would overflow in a variance."""
Series = dict[int, float]
"""Values by round, oldest first."""


def series(history: Sequence[RoundRecord], groups: Sequence[Group], metric: str, rounds: int) -> dict[str, Series]:
    """A metric of each policy of the next round, over at most the `rounds` newest rounds with the same groups.

    All series start anew when any group changes, as the window of MARLess's detector is cleared at every change (Wei
    et al. 2025). Values that are missing, not finite, or beyond `LARGEST` are left out.
    """
    found: dict[str, Series] = {group.policy: {} for group in groups}
    wanted = {(group.policy, group.agents) for group in groups}
    for record in islice(reversed(history), rounds):
        if {(group.policy, group.agents) for group in record.groups} != wanted:
            break
        for policy, values in found.items():
            value = record.metrics.get(policy, {}).get(metric, math.nan)
            # False for NaN, too.
            if abs(value) <= LARGEST:
                values[record.round] = float(value)
    return {policy: dict(reversed(values.items())) for policy, values in found.items()}


def remembered(history: Sequence[RoundRecord], rule: str) -> Mapping[str, Any]:  # Any: what JSON can hold
    """The inputs of the newest round's scaling decision if `rule` made it, else {}."""
    decisions = history[-1].decisions if history else ()
    return next((each.inputs for each in decisions if each.kind == "scaling" and each.rule == rule), {})
