"""Scaling policy `max`: the maximum number of actors in every round (baseline "Max" of MinionsRL, Yu et al. 2024)."""

from __future__ import annotations

from typing import Literal

from marless.jobs.scaling.base import ScalingConfig, ScalingContext, ScalingKind
from marless.jobs.scaling.fixed import FixedScaling


class MaxConfig(ScalingConfig):
    """Settings of `max`; every round gets I_max, which is `actors.count`."""

    name: Literal["max"] = "max"

    def least(self, context: ScalingContext) -> int:
        return 1 if self.within_budget else context.max_actors


class MaxKind(ScalingKind):
    """Makes the policy, which decides as `fixed`; the name marks it as the upper bound of comparisons."""

    config_type = MaxConfig

    def make(self, config: ScalingConfig, context: ScalingContext) -> FixedScaling:
        most = context.max_actors
        return FixedScaling(most, f"max: {most} actors, the most allowed, in every round")


SCALING = MaxKind()
