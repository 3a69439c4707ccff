"""What reaching the goal costs, as points of dollars and seconds; their frontier; and the regret of presets.

The regret of a preset is its cost over that of the cheapest static setting in hindsight that is as fast, minus 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean

from marless.cost.comparison import statistics
from marless.cost.comparison.statistics import MeanInterval
from marless.cost.frontier.contenders import Contender
from marless.cost.frontier.progress import Spending
from marless.jobs.prices import Accounting


@dataclass(frozen=True, kw_only=True)
class CostPoint:
    """Reaching the goal in one way: with functions, or on a machine of one's own."""

    contender: str
    machine: str = ""
    """Type of the machine of one's own; "" for functions."""
    usd: tuple[float, ...]
    """For each seed."""
    seconds: tuple[float, ...]
    """The same, modelled."""

    @property
    def mean_usd(self) -> float:
        """Geometric mean over seeds."""
        return geometric_mean(self.usd)

    @property
    def mean_s(self) -> float:
        """Mean over seeds."""
        return fmean(self.seconds)

    @property
    def words(self) -> str:
        """The point's name: "16 shared pipelined on c6a.large"."""
        return f"{self.contender} on {self.machine}" if self.machine else self.contender


def function_point(contender: Contender, goal: float, accounting: Accounting) -> CostPoint | None:
    """What reaching the goal costs with functions; None unless every seed reaches it."""
    return _point(contender, goal, [each.progress.functions[accounting] for each in contender.runs])


def machine_points(contender: Contender, goal: float, accounting: Accounting) -> tuple[CostPoint, ...]:
    """The same on each machine of one's own that can run it, the cheapest first; none unless every seed reaches it.

    Beside *billed* functions, a machine pays for the Redis node and the services' host, as they do.
    """
    types = dict.fromkeys(name for each in contender.runs for name in each.progress.machines)
    found = []
    for name in types:
        spent = [each.progress.machines[name] for each in contender.runs if name in each.progress.machines]
        point = _point(contender, goal, spent, name) if len(spent) == len(contender.runs) else None
        if point and accounting == "billed":
            rates = [each.progress.services_usd_s for each in contender.runs]
            paid = zip(point.usd, point.seconds, rates, strict=True)
            point = replace(point, usd=tuple(dollars + seconds * rate for dollars, seconds, rate in paid))
        found += [point] if point else []
    return tuple(sorted(found, key=lambda each: (each.mean_usd, each.mean_s)))


def _point(contender: Contender, goal: float, spent: Sequence[Spending], machine: str = "") -> CostPoint | None:
    arrivals = contender.arrivals(goal)
    if arrivals is None:
        return None
    return CostPoint(
        contender=contender.name,
        machine=machine,
        usd=tuple(each.usd[index] for each, index in zip(spent, arrivals, strict=True)),
        seconds=tuple(each.seconds[index] for each, index in zip(spent, arrivals, strict=True)),
    )


def frontier(points: Sequence[CostPoint]) -> tuple[CostPoint, ...]:
    """The points than which no other is both cheaper and as fast, or faster and as cheap; the cheapest first."""
    found: list[CostPoint] = []
    for each in sorted(points, key=lambda each: (each.mean_usd, each.mean_s)):
        if not found or each.mean_s < found[-1].mean_s:
            found.append(each)
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Regret:
    """What a preset costs to the goal against the cheapest static setting in hindsight that is as fast."""

    preset: str
    accounting: Accounting
    """Of the preset, and of settings that run as functions."""
    own_machines: bool
    """True if settings on machines of one's own count, too."""
    reached: bool
    """False if some seed of the preset does not reach the goal, so that it has no cost."""
    best: CostPoint | None = None
    """That setting; None if no static setting is as fast."""
    ratio: MeanInterval | None = None
    """The preset's cost over that setting's, paired by seeds; None without such a setting."""

    @property
    def value(self) -> float | None:
        """The regret; None without a setting to compare with."""
        return None if self.ratio is None else self.ratio.mean - 1


def regret(preset: CostPoint, static: Sequence[CostPoint]) -> tuple[CostPoint | None, MeanInterval | None]:
    """The cheapest of the static points whose mean time is at most the preset's, and the ratio of costs to it.

    The ratio is the geometric mean over seeds, with a paired bootstrap interval. Its bootstrap keeps the setting, which
    was chosen by the same runs: so the cheapest looks somewhat cheaper than it is, and the regret somewhat larger.
    """
    as_fast = [each for each in static if each.mean_s <= preset.mean_s]
    if not as_fast:
        return None, None
    best = min(as_fast, key=lambda each: (each.mean_usd, each.mean_s))
    return best, statistics.resampled_ratio(preset.usd, best.usd)


def regrets(contenders: Sequence[Contender], goal: float, accountings: Sequence[Accounting]) -> Iterator[Regret]:
    """The regret of each preset, by each accounting, against functions alone and with machines of one's own."""
    static = [each for each in contenders if each.static]
    machines = {bill: [point for each in static for point in machine_points(each, goal, bill)] for bill in accountings}
    for preset in (each for each in contenders if each.static is None):
        for accounting in accountings:
            functions = [point for each in static if (point := function_point(each, goal, accounting))]
            own = function_point(preset, goal, accounting)
            for with_machines in (False, True):
                against = [*functions, *machines[accounting]] if with_machines else functions
                best, ratio = regret(own, against) if own else (None, None)
                yield Regret(
                    preset=preset.name,
                    accounting=accounting,
                    own_machines=with_machines,
                    reached=own is not None,
                    best=best,
                    ratio=ratio,
                )
