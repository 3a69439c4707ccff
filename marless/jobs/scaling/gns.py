"""Scaling policy `gns`: more actors for noisy gradients, by three rules on the noise scale (McCandlish et al. 2018).

The noise scale B, which learners measure for each policy in samples, is the batch size beyond which more samples hardly
improve the gradient; with far fewer samples the gradient is mostly noise. Every rule smooths it, z_t = α B_t + (1 − α)
z_{t−1}, and takes the mean of the numbers for each policy [our inference; the sources train one policy].

- "threshold": Nitro's baseline, as in its code: I_max while z is at least one standard deviation above the mean of its
  own past (without outliers, which are two median deviations away), else I_min. Departs: the code smooths numerator and
  denominator of B separately, and uses the whole run; we use a window.
- "proportional": as KungFu adapts batch sizes: I grows with z_t/z_{t−1}, and never shrinks. Departs from the copy in
  Nitro's code, which always compares with the first value.
- "samples": as many actors as give each policy B samples, which is the purpose of the noise scale. Ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from pydantic import Field

from marless.core.group import Group
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import (
    ActorRange,
    BoundedConfig,
    ScalingConfig,
    ScalingContext,
    ScalingDecision,
    ScalingKind,
    Series,
    Signal,
    series,
)

_MIN_SHARE = 8
"""I_max over I_min, as in Nitro's evaluation."""
_OUTLIER = 2.0
"""Distance from the median, in median absolute deviations, from which a value is an outlier."""
_ROUNDING = 1e-12
"""Standard deviations below this fraction of the mean are rounding errors."""


class GnsConfig(BoundedConfig):
    """Settings of scaling by gradient noise; I_min is I_max/8 by default, as in Nitro's evaluation."""

    name: Literal["gns"] = "gns"
    rule: Literal["threshold", "proportional", "samples"] = Field(
        "threshold",
        description="threshold: I_max while noise is high; proportional: grow with noise; samples: match noise",
    )
    threshold: float = Field(1.0, description="standard deviations above the mean at which a policy asks for I_max")
    smoothing: float = Field(0.9, gt=0, le=1, description="α: weight of the newest noise scale; 1: no smoothing")
    window: int = Field(50, ge=2, le=512, description="past rounds that are used")

    def usual_min(self, context: ScalingContext) -> float:
        return context.max_actors / _MIN_SHARE


@dataclass(frozen=True)
class GnsScaling:
    """Scales actors with the gradient noise scale; see the module's docstring."""

    bounds: ActorRange
    config: GnsConfig
    pooled: bool
    """True if a shared policy trains on the samples of all its members, False if on as many as one member has."""

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """Decide; a policy without a noise scale of the newest round counts with I_min."""
        if not history:
            return ScalingDecision(self.bounds.least, f"first round: {self.bounds.least} actors, the fewest")
        windows = series(history, groups, "noise_scale", self.config.window)
        smoothed = {policy: smooth(values, self.config.smoothing) for policy, values in windows.items()}
        found = {
            group.policy: self._need(smoothed[group.policy], history, group)
            if history[-1].round in windows[group.policy]
            else None
            for group in groups
        }
        needs = {policy: self.bounds.clip(self.bounds.low if each is None else each) for policy, each in found.items()}
        average = fmean(needs.values())
        actors = self.bounds.whole(average)
        newest = {policy: values[-1] if values else None for policy, values in smoothed.items()}
        known = [value for policy, value in newest.items() if value is not None and found[policy] is not None]
        shown = f"a noise scale of {fmean(known):.4g} samples" if known else "no noise scale known yet"
        return ScalingDecision(
            actors,
            f"{shown} over {len(needs)} policies, rule {self.config.rule}: {actors} of {self.bounds.high} actors",
            {
                "window": {policy: list(values.values()) for policy, values in windows.items()},
                "smoothed": newest,
                "actors": needs,
                "average": average,
                "last_actors": history[-1].actors,
                "min": self.bounds.low,
                "max": self.bounds.high,
            },
        )

    def _need(self, smoothed: Sequence[float], history: Sequence[RoundRecord], group: Group) -> float:
        """The number of actors for one policy, before clipping."""
        match self.config.rule:
            case "threshold":
                return self.bounds.high if deviations(smoothed) >= self.config.threshold else self.bounds.low
            case "proportional":
                before = smoothed[-2] if len(smoothed) > 1 else 0.0
                return history[-1].actors * (max(smoothed[-1] / before, 1.0) if before > 0 else 1.0)
            case "samples":
                # Samples per agent of one actor in the newest round are its env steps.
                before_steps = history[-2].env_steps if len(history) > 1 else 0
                of_agent = (history[-1].env_steps - before_steps) / max(history[-1].actors, 1)
                per_actor = of_agent * (len(group.agents) if self.pooled else 1)
                return smoothed[-1] / per_actor if per_actor > 0 else float(self.bounds.high)


def smooth(values: Series, weight: float) -> list[float]:
    """Exponentially weighted averages, oldest first; `weight` is that of each new value."""
    found: list[float] = []
    for value in values.values():
        found.append(weight * value + (1 - weight) * found[-1] if found else value)
    return found


def deviations(values: Sequence[float]) -> float:
    """Standard deviations of the newest value above the mean, outliers excluded; 0 if all values are equal."""
    middle = median(values)
    usual = median(abs(value - middle) for value in values)
    # If more than half of the values are equal, their median deviation is 0, and none can be called an outlier by it.
    kept = [value for value in values if not usual or abs(value - middle) / usual < _OUTLIER]
    mean = fmean(kept)
    spread = math.sqrt(fmean((value - mean) ** 2 for value in kept))
    return (values[-1] - mean) / spread if spread > _ROUNDING * abs(mean) else 0.0


class GnsKind(ScalingKind):
    """Makes the policy; see `ScalingKind`."""

    config_type = GnsConfig

    def signals(self, config: ScalingConfig) -> frozenset[Signal]:
        return frozenset({"noise"})

    def make(self, config: ScalingConfig, context: ScalingContext) -> GnsScaling:
        own = GnsConfig.model_validate(config)
        return GnsScaling(own.bounds(context), own, context.samples == "pooled")


SCALING = GnsKind()
