"""Settings of aggregation: when the gradients that wait become a version, and how much each of them counts.

One class for each rule; `rule` selects it. Imports no NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from marless.core.settings import Field, Section, constraint

Weights = Literal["root", "reciprocal", "equal"]
"""The weight of a gradient of staleness δ > 0: δ^(−1/v), 1/δ, or 1. It is 1 if δ is 0."""

_ROOT, _FIRST_ROUND = 3.0, 8
"""Defaults of settings that not every variant reads; another value where nothing reads it is a contradiction."""


class AggregationConfig(Section):
    """Settings that every rule has; `rule` selects it."""

    rule: str
    weights: Weights = Field(
        "equal",
        description="weight of a gradient of staleness δ > 0: root: δ^(−1/root) (Yu et al. 2024); reciprocal: 1/δ "
        "(Zhang et al. 2016); equal: 1",
    )
    root: float = Field(
        _ROOT, ge=1, le=1000, description="v of weights: root; a greater one trusts stale gradients more"
    )
    step: Literal["average", "separate"] = Field(
        "average",
        description="average: one optimizer step along the weighted mean of the gradients; separate: one step for each "
        "gradient, as in the code of Yu et al. 2024",
    )
    capacity: int = Field(
        64, ge=1, le=4096, description="gradients that may wait; as soon as so many do, they are aggregated"
    )
    max_staleness: int = Field(
        64, ge=0, le=4096, description="a gradient of a version older than this is dropped, and counted"
    )

    @constraint
    def _root_is_used(self) -> None:
        if self.root != _ROOT and self.weights != "root":
            raise ValueError(
                f"root belongs to weights: root, and weights is {self.weights}; leave root out, or set weights: root"
            )


class StellarisRule(AggregationConfig):
    """Aggregate once the mean staleness of all that wait is within a bound that decreases (Yu et al. 2024)."""

    rule: Literal["stellaris"] = "stellaris"
    weights: Weights = "root"
    decay: float = Field(0.96, ge=0, le=1, description="d of the bound; 1: it stays, 0: only fresh gradients pass")
    bound: Literal["printed", "authors"] = Field(
        "printed",
        description="printed: δ_max · d^k, with the greatest staleness of the first round as δ_max; authors: that of "
        "their code, int(δ_max · d^(k−1)) + 1 within [1, δ_max], with δ_max = int(mean) + 1 of the first stale one",
    )
    first_round: int = Field(
        _FIRST_ROUND,
        ge=1,
        le=10_000,
        description="aggregations of the first round, which no bound limits; it lasts until one of them is stale",
    )
    decay_every: int = Field(1, ge=1, le=1_000_000, description="aggregations of each later round k")
    escape: bool = Field(
        True, description="also aggregate once as many gradients wait as learners are under way; false: as printed"
    )

    @constraint
    def _fits_together(self) -> None:
        if self.bound == "authors" and self.first_round != _FIRST_ROUND:
            raise ValueError(
                "first_round belongs to bound: printed; with bound: authors the first round ends with the first stale "
                "gradient, so leave first_round out"
            )
        if self.decay == 0 and self.bound == "printed" and not self.escape:
            raise ValueError(
                "decay: 0 without the escape waits for ever once a stale gradient waits; set escape: true, or a decay "
                "above 0"
            )
        if self.max_staleness == 0:
            raise ValueError(
                "max_staleness: 0 drops every stale gradient, so that the rule has nothing to weigh; set at least 1, "
                "or rule: sync"
            )


class SoftsyncRule(AggregationConfig):
    """Aggregate a fixed number of gradients (Zhang et al. 2016, n-softsync)."""

    rule: Literal["softsync"] = "softsync"
    weights: Weights = "reciprocal"
    gradients: int = Field(
        4, ge=1, le=4096, description="gradients of an aggregation (in the paper: learners divided by n)"
    )

    @constraint
    def _fits(self) -> None:
        if self.gradients > self.capacity:
            raise ValueError(
                f"gradients is {self.gradients}, but only {self.capacity} may wait (capacity); raise capacity"
            )


class SSPRule(AggregationConfig):
    """Aggregate at once, unless a learner under way would then be staler than a bound (Ho et al. 2013)."""

    rule: Literal["ssp"] = "ssp"
    staleness: int = Field(
        3, ge=0, le=4096, description="bound: no gradient is staler; 0: every version waits for all learners"
    )

    @constraint
    def _fits(self) -> None:
        if self.staleness > self.max_staleness:
            raise ValueError(
                f"staleness allows {self.staleness}, and max_staleness drops what is staler than {self.max_staleness}; "
                "lower staleness, or raise max_staleness"
            )


class AsyncRule(AggregationConfig):
    """Aggregate each gradient as it arrives."""

    rule: Literal["async"] = "async"


class SyncRule(AggregationConfig):
    """Aggregate once no learner is under way any more."""

    rule: Literal["sync"] = "sync"


RULES: Mapping[str, type[AggregationConfig]] = {
    "stellaris": StellarisRule,
    "softsync": SoftsyncRule,
    "ssp": SSPRule,
    "async": AsyncRule,
    "sync": SyncRule,
}
"""The settings of each rule, by its name."""
