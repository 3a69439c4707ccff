"""Scaling policy `variance`: fewer actors the more their durations differ within a round (RLHFless, arXiv 2602.22718).

RLHFless scales the actors of synchronous RLHF by how much the lengths of responses vary, to find sweet spots of cost
and speed, and cuts the longest responses off to let other actors finish them. The paper's own text could not be read;
its abstract, and a summary that names its parameters (a window of an exponentially weighted average, a threshold for
cutting, and λ), could. How they enter its rule, and their defaults here, are our inference.

There n actors divide a fixed set of prompts; here every actor brings env steps of its own, so costs and times are
compared per env step. A round ends with its slowest actor. If durations have mean μ and standard deviation σ, the
slowest of n takes about μ (1 + c e_n), with c = σ/μ, and e_n the expected largest of n normal deviates. Relative to a
round of equal actors, an env step then takes (1 + c e_n)/n of the time, and costs 1 + c e_n, because all actors are
kept until the slowest has ended. The next round gets the n in [I_min, I_max] with the smallest

    J(n) = (1 + c e_n) (λ/n + 1 − λ)

Equal durations give I_max, because then more actors save time and cost nothing. The more durations differ, the fewer.
μ and σ² of each round enter exponentially weighted averages, and c is made from these. A duration of more than `cut`
medians counts as `cut` medians: RLHFless would have cut that work off; we cut nothing but its weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, pvariance
from typing import Literal

from pydantic import Field

from marless.core.group import Group
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import (
    TOLERANCE,
    ActorRange,
    BoundedConfig,
    ScalingConfig,
    ScalingContext,
    ScalingDecision,
    ScalingKind,
    remembered,
)
from marless.jobs.scaling.round_times import newest_times


class VarianceConfig(BoundedConfig):
    """Settings of RLHFless's rule as we infer it; I_min is 1 by default."""

    name: Literal["variance"] = "variance"
    window: int = Field(10, ge=1, le=512, description="W: averaged rounds, of weights 1 − 2/(W + 1) a round")
    cut: float = Field(2.0, ge=1, description="medians beyond which a duration counts no longer")
    time_weight: float = Field(0.5, ge=0, le=1, description="λ: weight of time; the rest is cost's")


@dataclass(frozen=True)
class VarianceScaling:
    """Scales actors by the spread of their durations; see the module's docstring."""

    bounds: ActorRange
    config: VarianceConfig
    by_cpu: bool = False
    """Durations are CPU seconds (`bill.time: cpu`)."""

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """Decide; I_max until a round with at least two timed actors. While there is none in the window, because rounds
        have one actor, the variation of the decision before stands.
        """
        times = newest_times(history, self.config.window, by_cpu=self.by_cpu)
        rounds = [each.acting_s for each in times if len(each.acting_s) > 1]
        known = remembered(history, "variance").get("variation")
        if not rounds and known is None:
            when = "no round has two timed actors yet" if history else "first round"
            return ScalingDecision(self.bounds.high, f"{when}: {self.bounds.high} actors, the most allowed")
        variation = self._variation(rounds) if rounds else float(known or 0.0)
        # The number with the smallest J; of equal ones, the largest, which is the quickest.
        choices = range(self.bounds.least, self.bounds.high + 1)
        costs = {n: self._objective(n, variation) for n in choices}
        least = min(costs.values())
        actors = max(n for n in choices if costs[n] <= least * (1 + TOLERANCE))
        slowest = 1 + variation * largest_of(actors)
        return ScalingDecision(
            actors,
            f"durations of actors differ by {variation:.1%}, so the slowest of {actors} takes {slowest:.2f} times the "
            f"mean: {actors} of {self.bounds.high} actors",
            {
                "variation": variation,
                "slowest": slowest,
                "rounds": len(rounds),
                "min": self.bounds.low,
                "max": self.bounds.high,
            },
        )

    def _variation(self, rounds: Sequence[Sequence[float]]) -> float:
        """c, from the durations of actors by round, the newest round first."""
        shortened = [_cut(each, self.config.cut) for each in rounds]
        mean_s = self._averaged([fmean(each) for each in shortened])
        # Of a sample of m, the variance is expected to be (m − 1)/m of the true one.
        spread_s = math.sqrt(self._averaged([pvariance(each) * len(each) / (len(each) - 1) for each in shortened]))
        return spread_s / mean_s

    def _averaged(self, newest_first: Sequence[float]) -> float:
        """The exponentially weighted average; the newest value has the largest weight."""
        keeps = 1 - 2 / (self.config.window + 1)
        weights = [keeps**age for age in range(len(newest_first))]
        return math.fsum(map(math.prod, zip(weights, newest_first, strict=True))) / math.fsum(weights)

    def _objective(self, actors: int, variation: float) -> float:
        weight = self.config.time_weight
        return (1 + variation * largest_of(actors)) * (weight / actors + 1 - weight)


def largest_of(count: int) -> float:
    """The expected largest of `count` standard normal deviates, approximated as by Blom (1958); 0 of one."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def _cut(durations_s: Sequence[float], medians: float) -> list[float]:
    most_s = medians * median(durations_s)
    return [min(each, most_s) for each in durations_s]


class VarianceKind(ScalingKind):
    """Makes the policy; see `ScalingKind`."""

    config_type = VarianceConfig

    def make(self, config: ScalingConfig, context: ScalingContext) -> VarianceScaling:
        own = VarianceConfig.model_validate(config)
        return VarianceScaling(own.bounds(context), own, context.by_cpu)


SCALING = VarianceKind()
