"""Scaling policy `max`: the maximum number of actors in every round (baseline "Max" of MinionsRL, Yu et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from marless.core.group import Group
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import ScalingConfig, ScalingContext, ScalingDecision, Signal


class MaxConfig(ScalingConfig):
    """Settings of `max`; every round gets I_max, which is `actors.count`."""

    name: Literal["max"] = "max"

    def least(self, context: ScalingContext) -> int:
        return 1 if self.within_budget else context.max_actors


@dataclass(frozen=True)
class MaxScaling:
    """I_max in every round. It decides as `fixed`; the name marks it as the upper bound of comparisons."""

    most: int

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """Return `most`, whatever the history."""
        return ScalingDecision(self.most, f"max: {self.most} actors, the most allowed, in every round")


class MaxKind:
    """See `ScalingKind`."""

    config_type = MaxConfig

    def signals(self, config: ScalingConfig) -> frozenset[Signal]:
        """None: it needs no measurements."""
        return frozenset()

    def make(self, config: ScalingConfig, context: ScalingContext) -> MaxScaling:
        return MaxScaling(context.max_actors)


SCALING = MaxKind()
