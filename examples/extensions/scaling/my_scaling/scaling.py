"""A scaling policy: twice as many actors when returns no longer rise, and half as many while they rise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from marless.core.group import Group
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import (
    ActorRange,
    BoundedConfig,
    ScalingConfig,
    ScalingContext,
    ScalingDecision,
    Signal,
)
from pydantic import Field


class MyScalingConfig(BoundedConfig):
    """Settings of the section `scaling` of a job; `min_actors` is inherited, and the most is `actors.count`."""

    name: Literal["my_scaling"] = "my_scaling"
    window: int = Field(5, ge=1, description="rounds that are compared with as many before them")


@dataclass(frozen=True)
class MyScaling:
    """Decides for one job. It keeps nothing between rounds, so that a resumed job decides alike."""

    bounds: ActorRange
    window: int

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """Actors for the next round, from the records of the rounds so far."""
        returns = [record.returns.mean for record in history if record.returns][-2 * self.window :]
        if len(returns) < 2 * self.window:
            return ScalingDecision(self.bounds.least, f"{len(returns)} returns so far: {self.bounds.least} actors")
        before, now = fmean(returns[: self.window]), fmean(returns[self.window :])
        factor = 0.5 if now > before else 2
        actors = self.bounds.whole(self.bounds.clip(factor * history[-1].actors))
        return ScalingDecision(
            actors,
            f"returns went from {before:.4g} to {now:.4g}: {history[-1].actors} actors times {factor}, {actors}",
            {"returns": returns},  # `marless explain` shows them
        )


class MyScalingKind:
    """What marless finds by the name `my_scaling`."""

    config_type: type[ScalingConfig] = MyScalingConfig

    def signals(self, config: ScalingConfig) -> frozenset[Signal]:
        """What learners measure for it: nothing; or "curvature", "noise"."""
        return frozenset()

    def make(self, config: ScalingConfig, context: ScalingContext) -> MyScaling:
        """Make the policy of one job; raises SpecError for settings that do not fit the job."""
        own = MyScalingConfig.model_validate(config)
        return MyScaling(own.bounds(context), own.window)


SCALING = MyScalingKind()
