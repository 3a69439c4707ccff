"""A frontier as one table, a row for each static setting and preset; and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from marless.cost.comparison import statistics
from marless.cost.comparison.table import plus_minus
from marless.cost.frontier.contenders import Contender, Goal, SeedRun
from marless.cost.frontier.progress import BILLS, SMOOTHED
from marless.cost.frontier.regret import CostPoint, Regret, frontier, function_point, machine_points, regrets
from marless.jobs.prices import Accounting, BilledTime

NOT_REACHED = "not reached"
HEADER = (
    *("", "seeds there", "env steps to the goal", "seconds, modelled", "paper $", "billed $"),
    *("cheapest machine of one's own, $", "return at the end", "greedy", "actors"),
)
_CURVE_POINTS = 200
"""Most points of a run's curve in JSON."""


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """Static settings and presets of one job, and what reaching a goal costs with each."""

    job: str
    env_steps: int
    """Of each run."""
    seeds: tuple[int, ...]
    slots: int
    """vCPUs on which functions are modelled."""
    time: BilledTime
    """Which seconds of functions are charged, and modelled."""
    goal: Goal
    contenders: tuple[Contender, ...]
    """Static settings first, then presets."""

    @property
    def window(self) -> int:
        """Env steps over whose episodes returns are averaged."""
        return round(SMOOTHED * self.env_steps)

    @property
    def static(self) -> tuple[Contender, ...]:
        """The static settings."""
        return tuple(each for each in self.contenders if each.static)

    @property
    def presets(self) -> tuple[Contender, ...]:
        """The others."""
        return tuple(each for each in self.contenders if each.static is None)

    def functions(self, accounting: Accounting) -> dict[str, CostPoint]:
        """Contender → what the goal costs it with functions; without those that do not reach it with every seed."""
        points = {each.name: function_point(each, self.goal.value, accounting) for each in self.contenders}
        return {name: point for name, point in points.items() if point}

    @cached_property
    def machines(self) -> dict[str, tuple[CostPoint, ...]]:
        """Static setting → what the goal costs it on each machine of one's own, with services, the cheapest first."""
        return {each.name: machine_points(each, self.goal.value, "billed") for each in self.static}

    def best(self, accounting: Accounting, *, own_machines: bool) -> tuple[CostPoint, ...]:
        """The frontier of the static settings, by cost and time to the goal."""
        known = self.functions(accounting)
        points = [known[each.name] for each in self.static if each.name in known]
        machines = [point for each in self.static for point in machine_points(each, self.goal.value, accounting)]
        return frontier([*points, *machines] if own_machines else points)

    @cached_property
    def regrets(self) -> tuple[Regret, ...]:
        """The regret of each preset, by each accounting, without and with machines of one's own."""
        return tuple(regrets(self.contenders, self.goal.value, BILLS))


def rows(found: Frontier) -> list[tuple[str, ...]]:
    """The table's cells: `HEADER`, then a row for each contender, beginning with its name.

    Costs are geometric means over seeds, all else means with 95 % Student t intervals.
    """
    bills = {accounting: found.functions(accounting) for accounting in BILLS}
    return [HEADER, *(_row(found, each, bills) for each in found.contenders)]


def _row(found: Frontier, contender: Contender, bills: Mapping[Accounting, Mapping[str, CostPoint]]) -> tuple[str, ...]:
    name, arrivals = contender.name, contender.arrivals(found.goal.value)
    total = len(contender.runs) + len(contender.failed)
    there = f"{contender.reached(found.goal.value)} of {total}"
    if arrivals is None:
        return (name, there, NOT_REACHED, "", "", "", "", *_ends(contender))
    steps = [run.progress.env_steps[index] for run, index in zip(contender.runs, arrivals, strict=True)]
    cheapest = next(iter(found.machines.get(name, ())), None)
    return (
        name,
        there,
        plus_minus(statistics.interval(steps)),
        plus_minus(statistics.interval(bills["paper"][name].seconds)),
        *(f"{bills[accounting][name].mean_usd:.3g}" for accounting in BILLS),
        f"{cheapest.mean_usd:.3g} ({cheapest.machine}, {cheapest.mean_s:.3g} s)" if cheapest else "",
        *_ends(contender),
    )


def _ends(contender: Contender) -> Iterator[str]:
    """What is known of a contender whether it reaches the goal or not."""
    yield plus_minus(statistics.interval(contender.finals), 4) if contender.finals else ""
    yield plus_minus(statistics.interval([each.greedy for each in contender.runs]), 4) if contender.runs else ""
    yield f"{fmean(each.actors for each in contender.runs):.3g}" if contender.runs else ""


def markdown(found: Frontier) -> str:
    """The table in Markdown."""
    header, *body = rows(found)
    lines = [header, ("---", *("---:" for _ in header[1:])), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def to_json(found: Frontier, statements: Sequence[str]) -> dict[str, Any]:  # Any: JSON
    """The frontier as JSON: the goal, every run with its curve, every cost to the goal, frontiers and regrets."""
    return {
        "job": found.job,
        "env_steps": found.env_steps,
        "slots": found.slots,
        "time": found.time,
        "seeds": list(found.seeds),
        "smoothed_over_env_steps": found.window,
        "goal": dataclasses.asdict(found.goal) | {"rule": found.goal.rule},
        "settings": {each.name: _contender(found, each) for each in found.static},
        "presets": {each.name: _contender(found, each) for each in found.presets},
        "frontier": {
            accounting: {
                "functions": [each.words for each in found.best(accounting, own_machines=False)],
                "with_own_machines": [each.words for each in found.best(accounting, own_machines=True)],
            }
            for accounting in BILLS
        },
        "regrets": [_regret(each) for each in found.regrets],
        "statements": list(statements),
    }


def _contender(found: Frontier, contender: Contender) -> dict[str, Any]:  # Any: JSON
    goal = found.goal.value
    points = {accounting: function_point(contender, goal, accounting) for accounting in BILLS}
    return {
        "about": contender.about,
        **(dataclasses.asdict(contender.static) if contender.static else {}),
        "seeds_reached": contender.reached(goal),
        "failed": list(contender.failed),
        "final_return": dataclasses.asdict(statistics.interval(contender.finals)) if contender.finals else None,
        "to_the_goal": {accounting: _cost(point) if point else NOT_REACHED for accounting, point in points.items()},
        "own_machines": [_cost(point) for point in found.machines.get(contender.name, ())],
        "runs": [_run(each, goal) for each in contender.runs],
    }


def _cost(point: CostPoint) -> dict[str, Any]:  # Any: JSON
    return dataclasses.asdict(point) | {"mean_usd": point.mean_usd, "mean_s": point.mean_s}


def _run(run: SeedRun, goal: float) -> dict[str, Any]:  # Any: JSON
    """A run with what it took to the goal and to its end, and its curve at `_CURVE_POINTS` rounds at most."""
    known, last, arrival = run.progress, len(run.progress.env_steps) - 1, run.arrival(goal)
    step = max(1, -(-(last + 1) // _CURVE_POINTS))
    kept = [index for index in range(last + 1) if (last - index) % step == 0]
    return {
        **{"run": run.run, "seed": run.seed, "rounds": last + 1, "actors": run.actors},
        "waiting": run.waiting,
        **{"random": run.random, "greedy": run.greedy, "final_return": known.final},
        "to_the_goal": NOT_REACHED if arrival is None else _at(run, arrival),
        "to_the_end": _at(run, last),
        "curve": {
            "env_steps": [known.env_steps[index] for index in kept],
            "return": [known.returns[index] for index in kept],
            "seconds": [known.functions["paper"].seconds[index] for index in kept],
            **{f"{each}_usd": [known.functions[each].usd[index] for index in kept] for each in BILLS},
        },
    }


def _at(run: SeedRun, index: int) -> dict[str, Any]:  # Any: JSON
    known = run.progress
    return {
        "env_steps": known.env_steps[index],
        "seconds": known.functions["paper"].seconds[index],
        "usd": {accounting: known.functions[accounting].usd[index] for accounting in BILLS},
        "own_machines": {
            name: {"seconds": spent.seconds[index], "usd": spent.usd[index]} for name, spent in known.machines.items()
        },
    }


def _regret(each: Regret) -> dict[str, Any]:  # Any: JSON
    return {
        "preset": each.preset,
        "accounting": each.accounting,
        "own_machines": each.own_machines,
        "reached": each.reached,
        "against": each.best.words if each.best else None,
        "ratio": dataclasses.asdict(each.ratio) if each.ratio else None,
        "regret": each.value,
    }
