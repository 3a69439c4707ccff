"""The limits I_min and I_max of the number of actors, common to scaling policies.

The option `within_budget` of every scaling policy: at most as many actors as the rest of `stop.cost_usd` can pay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import Field

from marless.core.errors import SpecError
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import ScalingConfig, ScalingContext, ScalingDecision

TOLERANCE = 1e-9
"""Differences between numbers of actors below this are rounding errors."""


class BoundedConfig(ScalingConfig):
    """Base of policies that move between I_min and I_max; I_max is `actors.count`."""

    min_actors: int | None = Field(
        None, ge=1, description="I_min, the smallest number of actors; null: the policy's own default"
    )

    def least(self, context: ScalingContext) -> int:
        # A budget that is nearly spent pays for fewer than I_min.
        return 1 if self.within_budget else self.bounds(context).least

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


LEARNING = frozenset({"learner", "post_process", "critic", "mixer", "policy"})
"""Functions that process samples."""
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
