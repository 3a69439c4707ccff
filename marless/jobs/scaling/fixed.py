"""Scaling policies `fixed` and `max`: the same number of actors in every round.

`max` is the baseline "Max" of MinionsRL (Yu et al. 2024): its name marks the upper bound of comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from marless.core.group import Group
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
