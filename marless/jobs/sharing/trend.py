"""The trend of returns over the last rounds, whose slope decides when sharing begins and ends.

Source: Wei et al. 2025 (MARLess), §4.1. Printed: each agent's return scaled to [0, 1] by its minimum and maximum, an
aggregate over agents, the least-squares slope over a full window of W = 10 rounds, a change of strategy where the
slope is below γ, and a window that is cleared by a change. Inferred: the rounds of minimum and maximum, that
the aggregate is the sum, and that returns in the window are scaled by the present range. Reasons: docs/sharing.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from marless.core.errors import SpecError

Range = Literal["history", "window", "then"]
"""Rounds of the minimum and maximum by which a return is scaled: history: all so far; window: those in the window;
then: all up to its own."""
Row = tuple[float, ...]
"""A number per agent."""


@dataclass(frozen=True)
class TrendState:
    """The state of a detector."""

    window: tuple[Row, ...] = ()
    """Returns of the newest rounds, oldest first, at most W; with "then", the scaled ones."""
    lowest: Row = ()
    """Lowest return per agent over all rounds; empty before the first."""
    highest: Row = ()
    """Highest return per agent, likewise."""

    def cleared(self) -> TrendState:
        """The state after a change of strategy: an empty window, the same range."""
        return TrendState((), self.lowest, self.highest)


@dataclass(frozen=True, kw_only=True)
class Detector:
    """The reward-trend detector of one job."""

    agents: tuple[str, ...]
    window: int
    """W, in rounds; at least 2."""
    threshold: float
    """γ, in units of the aggregate per round."""
    split_threshold: float | None = None
    """γ while agents share; None: the same."""
    range: Range = "history"
    aggregate: Literal["sum", "mean"] = "sum"

    def check(self) -> None:
        """Raise SpecError for a threshold outside the range of possible slopes, which would have no effect."""
        limit = (len(self.agents) if self.aggregate == "sum" else 1) * steepest(self.window)
        for name, threshold in (("threshold", self.below(False)), ("split_threshold", self.below(True))):
            if abs(threshold) >= limit:
                effect = "every full window" if threshold > 0 else "no window ever"
                raise SpecError(
                    f"sharing.{name}: got {threshold:g}, but with {len(self.agents)} agents ({self.aggregate}) and a "
                    f"window of {self.window} rounds a slope lies between {-limit:.4g} and {limit:.4g}, so {effect} "
                    "would be below it; give a number in between"
                )

    def see(self, seen: TrendState, returns: Mapping[str, float]) -> TrendState:
        """The state after a round with these mean returns per agent."""
        new = tuple(returns[agent] for agent in self.agents)
        lowest = tuple(map(min, seen.lowest or new, new))
        highest = tuple(map(max, seen.highest or new, new))
        row = _scaled(new, lowest, highest) if self.range == "then" else new
        return TrendState((*seen.window, row)[-self.window :], lowest, highest)

    def trend(self, seen: TrendState) -> tuple[float, ...]:
        """R', the aggregate of scaled returns, of each round in the window, oldest first."""
        total = sum if self.aggregate == "sum" else statistics.fmean
        rows = seen.window
        if rows and self.range != "then":
            lowest, highest = seen.lowest, seen.highest
            if self.range == "window":
                per_agent = list(zip(*rows, strict=True))
                lowest, highest = tuple(map(min, per_agent)), tuple(map(max, per_agent))
            rows = tuple(_scaled(row, lowest, highest) for row in rows)
        return tuple(float(total(row)) for row in rows)

    def slope(self, seen: TrendState) -> float | None:
        """k, the least-squares slope per round; None until the window is full."""
        if len(seen.window) < self.window:
            return None
        return float(statistics.linear_regression(range(self.window), self.trend(seen)).slope)

    def below(self, sharing: bool) -> float:
        """The γ that applies while agents share, or while they do not."""
        return self.threshold if not sharing or self.split_threshold is None else self.split_threshold

    def fires(self, seen: TrendState, *, sharing: bool = False) -> bool:
        """True if the strategy is to change: the window is full, and k < γ."""
        slope = self.slope(seen)
        return slope is not None and slope < self.below(sharing)


def steepest(window: int) -> float:
    """The steepest least-squares slope that `window` values within [0, 1] can have: a step in mid-window.

    12.5 / 82.5 = 0.1515 for 10 rounds.
    """
    offsets = [i - (window - 1) / 2 for i in range(window)]
    return sum(x for x in offsets if x > 0) / sum(x * x for x in offsets)


def _scaled(row: Row, lowest: Row, highest: Row) -> Row:
    """Each value scaled from its range to [0, 1]; 0 where the range is empty."""
    bounds = zip(row, lowest, highest, strict=True)
    return tuple((x - low) / (high - low) if high > low else 0.0 for x, low, high in bounds)
