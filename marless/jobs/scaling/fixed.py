"""Scaling policy `fixed`: the same number of actors in every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marless.core.group import Group
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import ScalingConfig, ScalingContext, ScalingDecision, Signal


class FixedScalingConfig(ScalingConfig):
    """Settings of `fixed`; every round gets `actors.count`."""

    name: str = "fixed"

    def least(self, context: ScalingContext) -> int:
        return 1 if self.within_budget else context.max_actors


@dataclass(frozen=True)
class FixedScaling:
    """The same number of actors in every round."""

    actors: int

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """Return `actors`, whatever the history."""
        return ScalingDecision(self.actors, f"fixed: {self.actors} actors in every round")


class FixedScalingKind:
    """See `ScalingKind`."""

    config_type = FixedScalingConfig

    def signals(self, config: ScalingConfig) -> frozenset[Signal]:
        """None: it needs no measurements."""
        return frozenset()

    def make(self, config: ScalingConfig, context: ScalingContext) -> FixedScaling:
        return FixedScaling(context.max_actors)


SCALING = FixedScalingKind()
