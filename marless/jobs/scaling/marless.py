"""Scaling policy `marless`: number of actors by the curvature of each policy's objective (MARLess, Wei et al. 2025).

C is the convexity ratio −λ_max/λ_min of a policy's maximised objective, which learners measure in every round. A
policy whose C is low within its window gets more actors. Per policy j, over the newest W rounds with the same groups,

    S^j = (C_max − C) / (C_max − C_min)        I^j = clip(S^j · I_max, I_min, I_max)

and over all policies: I_avg = mean of I^j, I_thr = β (I_max − I_min); the next round gets max I^j if I_avg ≥ I_thr,
else I_avg, rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    Series,
    Signal,
    series,
)


class MarlessScalingConfig(BoundedConfig):
    """Settings of MARLess's actor scaling; I_min is I_max/N by default, N the number of agents, as in the paper."""

    name: Literal["marless"] = "marless"
    window: int = Field(10, ge=2, le=512, description="W: rounds in a policy's window")
    beta: float = Field(
        0.5, ge=0, le=1, description="β: fraction of the range that the average must reach for the maximum"
    )
    threshold: Literal["printed", "figure"] = Field(
        "printed", description="printed: β (I_max − I_min), as in the paper's text; figure: β I_max, as in its figure 6"
    )
    compare: Literal["ratio", "logarithm"] = Field(
        "ratio", description="ratio: C, as printed; logarithm: log C, which one large C does not dominate"
    )
    count: Literal["actors", "samples"] = Field(
        "actors",
        description="actors: as printed; samples: a policy of m agents asks for the m-th part",
    )

    def usual_min(self, context: ScalingContext) -> float:
        return context.max_actors / context.agents

    def limit(self, bounds: ActorRange) -> float:
        """I_thr, in actors."""
        return self.beta * (bounds.high - bounds.low if self.threshold == "printed" else bounds.high)

    def advice(self, context: ScalingContext) -> str:
        """A warning if nothing is decided, if a single policy can force the maximum, or if every round takes it."""
        bounds, policies = self.bounds(context), len(context.groups)
        limit = self.limit(bounds)
        if context.agents == 1 and self.min_actors is None and bounds.high > 1:
            return (
                f"scaling: with one agent, the fewest actors of a round, actors.count / agents, are all {bounds.high}, "
                "so nothing is left to decide; set scaling.min_actors: 1"
            )
        if policies < 2 or bounds.high - bounds.low <= TOLERANCE or outlier_safe(bounds, policies, limit):
            return ""
        if limit <= bounds.low + TOLERANCE:
            return (
                f"scaling: the threshold, {limit:.1f} actors, is not above the fewest, {bounds.low:.1f}, so every "
                "round gets what its neediest policy asks for; lower scaling.min_actors or raise scaling.beta"
            )
        return (
            f"scaling: with {policies} policies one that asks for {bounds.high} actors gets them though all others ask "
            f"for the fewest, since their average, {lone_average(bounds, policies):.1f}, is not below the threshold, "
            f"{limit:.1f}; lower scaling.min_actors or raise scaling.beta"
        )


def lone_average(bounds: ActorRange, policies: int) -> float:
    """I_avg if one of `policies` policies has I_max and all others have I_min."""
    return bounds.low + (bounds.high - bounds.low) / policies


def outlier_safe(bounds: ActorRange, policies: int, threshold: float) -> bool:
    """True if a single policy at I_max, all others at I_min, never forces the maximum: I_thr > `lone_average`.

    Departs from the paper, whose text requires "β < 1/K" and whose slides require I_thr ≥ (I_max − I_min)/K: the first
    has the direction reversed, the second omits the others' I_min from the average.
    """
    return threshold > lone_average(bounds, policies) + TOLERANCE


@dataclass(frozen=True)
class MarlessScaling:
    """Scales actors by curvature; see the module's docstring."""

    bounds: ActorRange
    window: int
    threshold: float
    """I_thr, in actors."""
    logarithm: bool = False
    """Compare log C instead of C."""
    per_member: bool = False
    """Divide I^j by the number m of the policy's agents, because it gets m samples of each env step."""

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """Decide; a policy counts with I_max if it has no C of the newest round, or all C in its window are equal."""
        # As in the paper's figures 6 and 12, which start with all actors.
        if not history:
            return ScalingDecision(self.bounds.high, f"first round: {self.bounds.high} actors, the most allowed")
        windows = series(history, groups, "curvature", self.window)
        compared = windows
        if self.logarithm:
            compared = {name: {k: math.log(c) for k, c in each.items() if c > 0} for name, each in windows.items()}
        scores = {policy: score(values, history[-1].round) for policy, values in compared.items()}
        members = {group.policy: len(group.agents) if self.per_member else 1 for group in groups}
        # I^j; I_max if there is no score.
        needs = {
            policy: self.bounds.clip((1.0 if value is None else value) * self.bounds.high / members[policy])
            for policy, value in scores.items()
        }
        average = math.fsum(needs.values()) / len(needs)
        at_threshold = average >= self.threshold - TOLERANCE
        actors = self.bounds.whole(max(needs.values()) if at_threshold else average)
        return ScalingDecision(
            actors,
            self._reason(scores, needs, average, actors),
            {
                "window": {policy: list(values.values()) for policy, values in windows.items()},
                "score": scores,
                "actors": needs,
                "average": average,
                "threshold": self.threshold,
                "min": self.bounds.low,
                "max": self.bounds.high,
            },
        )

    def _reason(self, scores: dict[str, float | None], needs: dict[str, float], average: float, actors: int) -> str:
        unknown = sum(value is None for value in scores.values())
        if unknown == len(scores):
            most = (
                "the most allowed" if actors == self.bounds.high else "the most that policies of several agents ask for"
            )
            return f"no policy's curvature can be compared yet: {actors} actors, {most}"
        asked = f"{len(needs)} policies ask for {average:.1f} actors on average"
        if unknown:
            asked += f" ({unknown} of them, not known well enough, for {self.bounds.high})"
        if average < self.threshold - TOLERANCE:
            return f"{asked}, below the threshold {self.threshold:.1f}: the average, rounded up to {actors}"
        neediest = max(needs, key=lambda policy: needs[policy])
        return f"{asked}, at least the threshold {self.threshold:.1f}: as many as {neediest} asks for, {actors}"


def score(values: Series, newest: int) -> float | None:
    """S in [0, 1] of the value of round `newest` within a window, 1 for the lowest; None if it cannot be compared."""
    if newest not in values:
        return None
    low, high = min(values.values()), max(values.values())
    spread = high - low
    # The paper does not say what holds for C_max = C_min, where its formula is 0/0: here the score is unknown.
    return (high - values[newest]) / spread if 0 < spread < math.inf else None


class MarlessScalingKind(ScalingKind):
    """Makes the policy; see `ScalingKind`."""

    config_type = MarlessScalingConfig

    def signals(self, config: ScalingConfig) -> frozenset[Signal]:
        return frozenset({"curvature"})

    def make(self, config: ScalingConfig, context: ScalingContext) -> MarlessScaling:
        own = MarlessScalingConfig.model_validate(config)
        bounds = own.bounds(context)
        return MarlessScaling(bounds, own.window, own.limit(bounds), own.compare == "logarithm", own.count == "samples")


SCALING = MarlessScalingKind()
