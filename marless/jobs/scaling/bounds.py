"""The limits I_min and I_max of the number of actors, common to scaling policies."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import Field

from marless.core.errors import SpecError
from marless.jobs.scaling.base import ScalingConfig, ScalingContext

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
