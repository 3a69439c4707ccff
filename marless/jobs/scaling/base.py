"""The protocol of scaling policies: they decide how many actors the next round gets, from the records of past rounds.

A policy has a config (its settings), declares the measurements that it needs, refuses invalid settings, and decides.
Policies are found by name: ours, and those of plug-ins and other packages, by entry points (marless.scaling). Below are
the parts that policies share: metrics of past rounds, the range from I_min to I_max, and the option `within_budget`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import Field

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.core.registry import Registry
from marless.core.validation import Strict
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.round_times import LEARNING

if TYPE_CHECKING:
    from marless.core.settings import FunctionsSpec
    from marless.jobs.scaling.round_costs import FunctionRates

Signal = Literal["curvature", "noise", "gradients"]
"""A measurement that a scaling policy can ask learners for; see `marless.core.settings.Measure`."""
METRICS: Mapping[Signal, str] = {"curvature": "curvature", "noise": "noise_scale", "gradients": "gradient_signal"}
"""Names of these measurements in the metrics of records."""
LARGEST = 1e100
"""Larger values come from a division by almost zero, and would overflow in a variance."""


class PlaceboConfig(Strict):
    """A log-normal distribution of random numbers in place of a measured signal; see `marless.jobs.scaling.placebo`."""

    median: float = Field(gt=0, le=LARGEST, description="median of the numbers")
    deviation: float = Field(ge=0, le=20, description="standard deviation of their natural logarithms")


class ScalingConfig(Strict):
    """Base of every scaling policy's config; `name` selects the policy in the registry."""

    name: str
    within_budget: bool = Field(
        False,
        description="limit actors to what the rest of stop.cost_usd pays in all remaining rounds",
    )
    placebo: PlaceboConfig | None = Field(
        None, description="control: log-normal random numbers in place of what learners measured"
    )
    deadline_s: float | None = Field(
        None,
        gt=0,
        description="take the actors needed to end by this many seconds of training",
    )

    @property
    def limited(self) -> bool:
        """True if a budget or a deadline may ask for fewer actors than the policy's least."""
        return self.within_budget or self.deadline_s is not None

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
    seed: int = 0
    """The job's seed."""
    rates: FunctionRates | None = None
    """What functions cost by the job's accounting; None if the cost of rounds is not needed."""
    drawn: bool = False
    """True if learners draw batches of a fixed size from a replay buffer."""
    by_cpu: bool = False
    """`bill.time` is cpu: times of functions are CPU seconds."""
    learned_at_once: int | None = None
    """Under schedule `stellaris`, the rollouts that all learners learn from at once; else None."""


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


class ScalingKind(Protocol):
    """A registered scaling policy: its config type, the signals it needs (by default none), and how to make it."""

    config_type: type[ScalingConfig]

    def signals(self, config: ScalingConfig) -> frozenset[Signal]:
        """The measurements that it needs from learners."""
        return frozenset()

    def make(self, config: ScalingConfig, context: ScalingContext) -> ActorScaling:
        """Make the policy of one job; raises SpecError for settings that do not fit the job."""


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


SCALING_POLICIES: Registry[ScalingKind] = Registry(
    "scaling policy",
    "marless.scaling",
    "SCALING",
    {
        name: f"marless.jobs.scaling.{name}"
        for name in ("fixed", "adapt", "nitro", "gns", "marless", "echo", "variance", "auto")
    }
    | {"max": "marless.jobs.scaling.fixed:MAX", "given": "marless.jobs.scaling.fixed:GIVEN"},
)

TOLERANCE = 1e-9
"""Differences between numbers of actors below this are rounding errors."""


class BoundedConfig(ScalingConfig):
    """Base of policies that move between I_min and I_max; I_max is `actors.count`."""

    min_actors: int | None = Field(None, ge=1, description="I_min, the fewest actors; null: the policy's own")

    def least(self, context: ScalingContext) -> int:
        # A budget that is nearly spent pays for fewer than I_min.
        return 1 if self.limited else self.bounds(context).least

    def bounds(self, context: ScalingContext) -> ActorRange:
        """The range [I_min, I_max] of this job; raises SpecError if it is empty."""
        if self.min_actors is None:
            return ActorRange(self.usual_min(context), context.max_actors)
        if self.min_actors > context.max_actors:
            raise SpecError(
                f"scaling.min_actors is {self.min_actors}, more than actors.count, {context.max_actors}, which is the "
                "most a round gets; lower it or raise actors.count"
            )
        return ActorRange(float(self.min_actors), context.max_actors)

    def usual_min(self, context: ScalingContext) -> float:
        """The policy's default of I_min."""
        return 1.0


@dataclass(frozen=True)
class ActorRange:
    """The range from I_min to I_max. I_min may be fractional, as in I_max/N: only decisions are rounded."""

    low: float
    high: int

    @property
    def least(self) -> int:
        """The smallest number of actors that a decision can give."""
        return self.whole(self.low)

    def clip(self, actors: float) -> float:
        """The nearest number within the range."""
        return min(max(actors, self.low), float(self.high))

    def whole(self, actors: float) -> int:
        """Round up, to at least one actor."""
        return max(math.ceil(actors - TOLERANCE), 1)


GROWING = frozenset({"actor", "machine"})
"""Items whose cost is proportional to the number of actors: actors, and machines that hold them. So are those of
LEARNING, if learners process the samples of the round's actors. All other costs (evaluations, measurements on a subset,
the store) do not depend on it.
"""
SHARE_OF_REST = 0.1
"""Fraction of the remaining budget that one round may cost if the number of rounds is unknown."""


def within_budget(
    decision: ScalingDecision,
    *,
    last: RoundRecord | None,
    last_usd: Mapping[str, float],
    remaining_usd: float,
    rounds_left: int | None,
    drawn: bool = False,
) -> ScalingDecision:
    """Limit a decision to the number of actors that the budget can pay in every remaining round; at least one.

    The cost of actors and learners in the last round is assumed to be proportional to its number of actors (that of
    learners not, if `drawn`), all other costs to be constant. The remaining budget is divided evenly by the remaining
    rounds. Without a last round, the decision is unchanged.

    Args:
        last: The newest round, if there is one.
        last_usd: Its cost in USD by function.
        rounds_left: None if unknown: then a round may cost SHARE_OF_REST of the remaining budget.
        drawn: Learners draw batches from a replay buffer, of the same size in every round.
    """
    functions = GROWING if drawn else GROWING | LEARNING
    growing = math.fsum(usd for function, usd in last_usd.items() if function in functions)
    if last is None or growing <= 0:
        return decision
    per_actor = growing / max(last.actors, 1)
    fixed = math.fsum(last_usd.values()) - growing
    for_a_round = max(remaining_usd, 0.0) * (SHARE_OF_REST if rounds_left is None else 1 / max(rounds_left, 1))
    # Decisions are rounded up, but what a budget pays for is rounded down, to keep within it; one actor always remains.
    paid = max(math.floor(min((for_a_round - fixed) / per_actor, float(decision.actors)) + TOLERANCE), 1)
    inputs = {
        **decision.inputs,
        "budget": {
            "wanted": decision.actors,
            "remaining_usd": remaining_usd,
            "rounds_left": rounds_left,
            "round_usd": for_a_round,
            "actor_usd": per_actor,
            "fixed_usd": fixed,
        },
    }
    if paid >= decision.actors:
        return replace(decision, inputs=inputs)
    rounds = "a tenth of it for one round" if rounds_left is None else f"for {max(rounds_left, 1)} rounds"
    reason = (
        f"{paid} actors instead of {decision.actors}: {remaining_usd:.6f} USD are left, {rounds}, and a round costs "
        f"{per_actor:.6f} USD an actor and {fixed:.6f} USD besides (wanted since {decision.reason})"
    )
    return ScalingDecision(paid, reason, inputs)
