"""Performance profiles: for each threshold, the fraction of runs that reach it (Agarwal et al. 2021, §4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marless.cost.comparison import statistics


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A variant's profile; all tuples have one length."""

    thresholds: tuple[float, ...]
    """Increasing."""
    fraction: tuple[float, ...]
    """Of runs whose result is at least the threshold; never increasing."""
    low: tuple[float, ...]
    """Ends of the 95 % bootstrap intervals, point by point; empty for a single run."""
    high: tuple[float, ...]


def profile(values: Sequence[float], thresholds: Sequence[float]) -> Profile:
    """The profile of one variant's results, one per run, in any order; raises ValueError for none."""
    found = [
        statistics.mean_interval([float(value >= threshold) for value in sorted(values)]) for threshold in thresholds
    ]
    low, high = statistics.ends(found)
    return Profile(thresholds=tuple(thresholds), fraction=tuple(each.mean for each in found), low=low, high=high)
