"""Scaling policies whose numbers of actors are known beforehand: `fixed` and `max`, one for all rounds, and `given`.

`max` is the baseline "Max" of MinionsRL (Yu et al. 2024): its name marks the upper bound of comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.core.limits import MAX_ACTORS
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import ScalingConfig, ScalingContext, ScalingDecision, ScalingKind


class FixedScalingConfig(ScalingConfig):
    """Settings of `fixed`; every round gets `actors.count`."""

    name: str = "fixed"

    def least(self, context: ScalingContext) -> int:
        return 1 if self.limited else context.max_actors


@dataclass(frozen=True)
class FixedScaling:
    """The same number of actors in every round."""

    actors: int
    reason: str

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        return ScalingDecision(self.actors, self.reason)


class FixedScalingKind(ScalingKind):
    """Makes the policy; see `ScalingKind`."""

    config_type = FixedScalingConfig

    def make(self, config: ScalingConfig, context: ScalingContext) -> FixedScaling:
        return FixedScaling(context.max_actors, f"fixed: {context.max_actors} actors in every round")


class MaxConfig(ScalingConfig):
    """Settings of `max`; every round gets I_max, which is `actors.count`."""

    name: Literal["max"] = "max"

    def least(self, context: ScalingContext) -> int:
        return 1 if self.limited else context.max_actors


class MaxKind(ScalingKind):
    """Makes the policy, which decides as `fixed`."""

    config_type = MaxConfig

    def make(self, config: ScalingConfig, context: ScalingContext) -> FixedScaling:
        most = context.max_actors
        return FixedScaling(most, f"max: {most} actors, the most allowed, in every round")


SCALING = FixedScalingKind()
MAX = MaxKind()


MOST_GIVEN = 100_000
"""Longest list, in rounds."""


class GivenConfig(ScalingConfig):
    """Settings of `given`, a list of numbers, one for each round; none is above `actors.count`.

    For schedules that are known beforehand, and for controls: what another policy has decided, in another order.
    """

    name: Literal["given"] = "given"
    actors: tuple[Annotated[int, Field(ge=1, le=MAX_ACTORS)], ...] = Field(
        min_length=1,
        max_length=MOST_GIVEN,
        description="actors of each round; the last number holds for all further rounds",
    )

    def least(self, context: ScalingContext) -> int:
        return 1 if self.limited else min(self.actors)

    def at(self, round_: int) -> int:
        """The number for a round, counted from 0."""
        return self.actors[min(round_, len(self.actors) - 1)]

    def mean(self, rounds: int) -> float:
        """Mean over the first `rounds` rounds."""
        return fmean(map(self.at, range(rounds)))


@dataclass(frozen=True)
class GivenScaling:
    """The numbers of a list, one after another."""

    config: GivenConfig

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        number, length = history[-1].round + 1 if history else 0, len(self.config.actors)
        actors = self.config.at(number)
        if number < length:
            return ScalingDecision(actors, f"given: number {number + 1} of a list of {length}, {actors} actors")
        return ScalingDecision(actors, f"given: a list of {length} numbers has ended, its last holds, {actors} actors")


class GivenKind(ScalingKind):
    """Makes the policy; see `ScalingKind`."""

    config_type = GivenConfig

    def make(self, config: ScalingConfig, context: ScalingContext) -> GivenScaling:
        own = GivenConfig.model_validate(config)
        if max(own.actors) > context.max_actors:
            raise SpecError(
                f"scaling.actors has {max(own.actors)}, more than actors.count, {context.max_actors}, which is the "
                "most a round gets; lower it or raise actors.count"
            )
        return GivenScaling(own)


GIVEN = GivenKind()
