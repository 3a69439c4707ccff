"""Scaling policy `nitro`: number of actors by curvature, decaying over the rounds (Yu et al., PVLDB 18(1), 2024).

R is the convexity ratio −λ_max/λ_min of a policy's maximised objective after round k, counted from 1. Printed:

    S_k = (R_max − R_k) / (R_max − R_min) · d^k        I = clip(S_k · I_max, I_min, I_max)

over a window of n ratios. The authors' code differs ("coded"): it measures R on the minimised loss; negating a function
turns R into 1/R, so a high R there means a low one here, and the score is (R − R_min)/(R_max − R_min). It decays
R by d^k before it is compared, and keeps the decayed and the raw values in one window, which therefore covers half as
many rounds. It raises I_min to I_max · (d^k)^k, which forces boosts in the first rounds, and truncates fractions.

Nitro trains one policy. With several, I is computed for each, and the next round gets their mean [our inference].
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
from marless.jobs.scaling.marless import score

_MIN_SHARE = 8
"""I_max over I_min, as in the paper's evaluation (64 and 8 actors)."""


class NitroConfig(BoundedConfig):
    """Settings of Nitro; I_min is I_max/8 by default, as in the paper's evaluation."""

    name: Literal["nitro"] = "nitro"
    window: int = Field(6, ge=2, le=512, description="n: number of ratios in the window")
    decay: float = Field(0.96, gt=0, le=1, description="d: the score of round k is multiplied by d^k; 1: no decay")
    variant: Literal["printed", "coded"] = Field(
        "printed", description="printed: the paper's formula; coded: what the authors' code computes"
    )

    def usual_min(self, context: ScalingContext) -> float:
        return context.max_actors / _MIN_SHARE


@dataclass(frozen=True)
class NitroScaling:
    """Scales actors by curvature with a decaying score; see the module's docstring."""

    bounds: ActorRange
    config: NitroConfig

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """Decide: I_max in the first round; a policy whose ratio cannot be compared yet has a score of 1."""
        if not history:
            return ScalingDecision(self.bounds.high, f"first round: {self.bounds.high} actors, the most allowed")
        k, coded = history[-1].round + 1, self.config.variant == "coded"
        windows = series(history, groups, "curvature", self.config.window)
        compare = _coded_score if coded else _printed_score
        scores = {policy: compare(values, history[-1].round, self.config) for policy, values in windows.items()}
        floor = self.bounds.low
        if coded:  # I_max · (d^k)^k, truncated to an integer
            floor = float(max(math.floor(self.bounds.high * self.config.decay ** (k * k)), self.bounds.least))
        needs = {
            policy: self._cut(min(max(value * self.bounds.high, floor), float(self.bounds.high)))
            for policy, value in scores.items()
        }
        average = math.fsum(needs.values()) / len(needs)
        actors = self.bounds.whole(self._cut(average))
        mean_score = math.fsum(scores.values()) / len(scores)
        return ScalingDecision(
            actors,
            f"round {k} has a mean score of {mean_score:.2f} over {len(scores)} policies, decay {self.config.decay:g} "
            f"to the power of {k} included: {actors} of {self.bounds.high} actors",
            {
                "window": {policy: list(values.values()) for policy, values in windows.items()},
                "score": scores,
                "actors": needs,
                "average": average,
                "k": k,
                "min": floor,
                "max": self.bounds.high,
            },
        )

    def _cut(self, actors: float) -> float:
        """Truncate to an integer in the variant "coded"; the paper does not define the rounding."""
        return float(math.floor(actors + TOLERANCE)) if self.config.variant == "coded" else actors


def _printed_score(values: Series, newest: int, config: NitroConfig) -> float:
    """S_k of the paper; d^k if the newest ratio cannot be compared."""
    found = score(values, newest)
    # The paper counts rounds from 1, records count from 0.
    return (1.0 if found is None else found) * config.decay ** (newest + 1)


def _coded_score(values: Series, newest: int, config: NitroConfig) -> float:
    """The score of the code, with 1/C as R of the loss; 1 if the newest ratio cannot be compared."""
    mixed: list[float] = []
    for round_, value in values.items():
        ratio = 1 / value if value else math.inf
        if math.isfinite(ratio):
            mixed += [ratio * config.decay ** (round_ + 1), ratio]
    compared = mixed[:-1][-config.window :]  # the code adds the newest raw value after the comparison
    spread = max(compared) - min(compared) if compared else 0.0
    if newest not in values or not 0 < spread < math.inf:
        return 1.0
    return (compared[-1] - min(compared)) / spread


class NitroKind(ScalingKind):
    """Makes the policy; see `ScalingKind`."""

    config_type = NitroConfig

    def signals(self, config: ScalingConfig) -> frozenset[Signal]:
        return frozenset({"curvature"})

    def make(self, config: ScalingConfig, context: ScalingContext) -> NitroScaling:
        own = NitroConfig.model_validate(config)
        return NitroScaling(own.bounds(context), own)


SCALING = NitroKind()
