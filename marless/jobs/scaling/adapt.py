"""Scaling policy `adapt`: actors in proportion to the progress of returns to a goal (MinionsRL, Yu et al. 2024).

Printed: I = clip(Ĵ/J · I_max, 1, I_max), Ĵ the mean of the last five returns, J the goal. This assumes that returns
start at 0 and rise. In MPE they are negative: −30/−20 would be above 1, and the number of actors would fall while
returns improve. We use the fraction of the distance from a baseline to the goal,

    I = clip((Ĵ − J_0) / (J − J_0) · I_max, I_min, I_max)

which is the printed formula where J_0 = 0. The authors' code does the same: it scales between a minimum and a maximum
return, 0 and J in all of its tasks. J_0 is 0 for a goal above 0, else the return of the first round, whose policies
are still close to random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from pydantic import Field

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import (
    ActorRange,
    BoundedConfig,
    ScalingConfig,
    ScalingContext,
    ScalingDecision,
    ScalingKind,
    remembered,
)


class AdaptConfig(BoundedConfig):
    """Settings of Adapt; I_min is 1 by default."""

    name: Literal["adapt"] = "adapt"
    goal: float = Field(description="J: mean training return per agent at which a round gets all actors")
    baseline: float | None = Field(
        None, description="J_0: return at which a round gets I_min; null: 0 for a goal above 0, else the first round's"
    )
    window: int = Field(5, ge=1, le=512, description="number of newest returns that are averaged")


@dataclass(frozen=True)
class AdaptScaling:
    """Scales actors with the progress of returns to a goal; see the module's docstring."""

    bounds: ActorRange
    goal: float
    baseline: float | None
    window: int

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """I_min until an episode has ended; I_max if the goal is not above the baseline."""
        known = (record.returns.mean for record in reversed(history) if record.returns)
        returns = list(islice(known, self.window))[::-1]
        if not returns:
            return ScalingDecision(self.bounds.least, f"no returns yet: {self.bounds.least} actors, the fewest")
        mean, baseline = math.fsum(returns) / len(returns), self._baseline(history)
        inputs = {"returns": returns, "mean": mean, "baseline": baseline, "goal": self.goal}
        shown = f"the mean of the last {len(returns)} returns, {mean:.4g},"
        if self.goal <= baseline:
            reason = f"{shown} started beyond the goal, {self.goal:.4g}: {self.bounds.high} actors, the most allowed"
            return ScalingDecision(self.bounds.high, reason, inputs)
        progress = (mean - baseline) / (self.goal - baseline)
        actors = self.bounds.whole(self.bounds.clip(progress * self.bounds.high))
        reason = (
            f"{shown} has come {progress:.0%} of the way from {baseline:.4g} to the goal, {self.goal:.4g}: "
            f"{actors} of {self.bounds.high} actors"
        )
        return ScalingDecision(actors, reason, inputs | {"progress": progress})

    def _baseline(self, history: Sequence[RoundRecord]) -> float:
        """J_0; the first round's return is kept in the inputs of decisions."""
        if self.baseline is not None:
            return self.baseline
        if self.goal > 0:
            return 0.0
        first = next(record.returns.mean for record in history if record.returns)
        return float(remembered(history, "adapt").get("baseline", first))


class AdaptKind(ScalingKind):
    """Makes the policy; see `ScalingKind`."""

    config_type = AdaptConfig

    def make(self, config: ScalingConfig, context: ScalingContext) -> AdaptScaling:
        own = AdaptConfig.model_validate(config)
        if own.baseline is not None and own.goal <= own.baseline:
            raise SpecError(
                f"scaling.goal is {own.goal}, not above scaling.baseline, {own.baseline}; actors grow on the way from "
                "the baseline to the goal"
            )
        return AdaptScaling(own.bounds(context), own.goal, own.baseline, own.window)


SCALING = AdaptKind()
