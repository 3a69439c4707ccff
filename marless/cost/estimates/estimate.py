"""Forecasts of a job's rounds, seconds and costs by the three accountings, each as a range.

They are based either on the records of a run of the same shape, or on synthetic records made from a calibration. In
both cases the records are billed by the ledger, so that estimates and bills follow the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean
from typing import Any

from marless.cost.billing.bill import bill
from marless.cost.billing.billed import Clock
from marless.cost.pricing import usd
from marless.jobs.prices import ACCOUNTINGS, Accounting, Prices
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec

PER_ROUNDS = 100
"""Number of rounds that an estimate is for if the number of rounds cannot be foreseen from the spec."""
SHAPE = ("env", "algorithm", "model", "schedule", "actors", "scaling", "sharing", "curvature", "evaluation", "learner")
"""Sections that must be equal for a recorded run to predict another job."""


@dataclass(frozen=True, kw_only=True)
class CostScenario:
    """One scenario of a job: the totals of its first rounds, and the averages of later ones."""

    env_steps: float
    """Env steps per round."""
    head: int
    """Number of first rounds: the very first, which starts all functions, and those covered by its minimum charges."""
    head_s: float
    head_usd: Mapping[Accounting, float]
    round_s: float
    round_usd: Mapping[Accounting, float]

    def seconds(self, rounds: int) -> float:
        """Seconds of this many rounds, at least one."""
        return _total(self.head_s, self.round_s, rounds, self.head)

    def usd(self, accounting: Accounting, rounds: int) -> float:
        """Cost in US dollars of this many rounds, at least one."""
        return _total(self.head_usd[accounting], self.round_usd[accounting], rounds, self.head)


@dataclass(frozen=True)
class Range:
    """The least, the likely and the greatest value."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The forecast for a job."""

    rounds: Range
    ends_by: str
    """The stop rule that is probably reached first; "" if none can be foreseen: then all is for PER_ROUNDS rounds."""
    env_steps: Range
    seconds: Range
    """Seconds of all rounds, without the start of the services."""
    usd: Mapping[Accounting, Range]

    def to_dict(self) -> dict[str, Any]:  # Any: JSON
        """The estimate as a JSON object."""
        figures = {"rounds": self.rounds, "env_steps": self.env_steps, "seconds": self.seconds}
        return {
            "ends_by": self.ends_by or None,
            **{name: vars(each) for name, each in figures.items()},
            "usd": {name: vars(each) for name, each in self.usd.items()},
        }


def estimate(spec: JobSpec, courses: Sequence[CostScenario]) -> Estimate:
    """The ranges over several scenarios, of which the first is the likely one."""
    ends = [_rounds(spec, course) for course in courses]
    rounds = [count for count, _ in ends]
    return Estimate(
        rounds=_range(rounds),
        ends_by=ends[0][1],
        env_steps=_range([course.env_steps * count for course, count in zip(courses, rounds, strict=True)]),
        seconds=_range([course.seconds(count) for course, count in zip(courses, rounds, strict=True)]),
        usd={
            accounting: _range([course.usd(accounting, count) for course, count in zip(courses, rounds, strict=True)])
            for accounting in ACCOUNTINGS
        },
    )


def same_shape(one: JobSpec, other: JobSpec) -> bool:
    """True if a run of one job predicts the other: all sections that determine a round are equal."""
    sections = set(SHAPE)
    return one.model_dump(include=sections) == other.model_dump(include=sections)


def course(records: Sequence[RoundRecord], spec: JobSpec, prices: Prices) -> CostScenario:
    """The scenario in which a job continues as in these records (at least one).

    If all records belong to the first rounds, the averages of later rounds are taken from those.
    """
    made = bill(records, spec, prices)
    clock = Clock(prices.keep_alive_s)
    lengths_s = [clock.span(record).length_ms / 1000 for record in records]
    ends = list(accumulate(lengths_s, initial=0.0))
    # The very first round starts all functions, and its minimum charges cover those that end within them.
    head = max(sum(end <= ends[0] + minimum_s(prices) for end in ends[1:]), 1)
    rest = slice(head, None) if len(records) > head else slice(0, None)
    costs = {accounting: [usd(each.picos(accounting)) for each in made.rounds] for accounting in ACCOUNTINGS}
    return CostScenario(
        env_steps=records[-1].env_steps / len(records),
        head=head,
        head_s=sum(lengths_s[:head]),
        head_usd={accounting: sum(each[:head]) for accounting, each in costs.items()},
        round_s=fmean(lengths_s[rest]),
        round_usd={accounting: fmean(each[rest]) for accounting, each in costs.items()},
    )


def minimum_s(prices: Prices) -> int:
    """Minimum charge for a container or machine of the backend, in seconds."""
    match prices.backend:
        case "lambda":
            return 0
        case "fargate":
            return prices.fargate.minimum_s
        case "ec2":
            return prices.ec2.minimum_s


def courses_of_run(records: Sequence[RoundRecord], spec: JobSpec, prices: Prices) -> list[CostScenario]:
    """Scenarios from the whole run, and from each third of it, because durations change as policies learn."""
    third = len(records) // 3
    whole = course(records, spec, prices)
    if third < 2:
        return [whole]
    found = [whole]
    for at in (0, third, 2 * third):
        part = course(records[at : at + third], spec, prices)
        before = records[at - 1].env_steps if at else 0
        env_steps = (records[at + third - 1].env_steps - before) / third
        found.append(replace(whole, env_steps=env_steps, round_s=part.round_s, round_usd=part.round_usd))
    return found


def _rounds(spec: JobSpec, course: CostScenario) -> tuple[int, str]:
    """Number of rounds until a stop rule ends the job, and that rule.

    `stop.return` cannot be foreseen, and neither can the cost of machines.
    """
    stop, accounting = spec.stop, spec.bill.accounting
    limits: dict[str, float] = {}
    if stop.rounds is not None:
        limits["stop.rounds"] = stop.rounds
    if stop.env_steps is not None:
        limits["stop.env_steps"] = stop.env_steps / course.env_steps if course.env_steps else math.inf
    if stop.wall_s is not None:
        limits["stop.wall_s"] = _until(stop.wall_s, course.head_s, course.round_s, course.head)
    if stop.cost_usd is not None and accounting != "machines":
        head, each = course.head_usd[accounting], course.round_usd[accounting]
        limits["stop.cost_usd"] = _until(stop.cost_usd, head, each, course.head)
    rule = min(limits, key=lambda each: limits[each], default="")
    if not rule or math.isinf(limits[rule]):
        return PER_ROUNDS, ""
    return max(math.ceil(limits[rule]), 1), rule


def _total(head_total: float, each: float, rounds: int, head: int) -> float:
    """Total of this many rounds; fewer than the head take a proportional part of its total."""
    return head_total * rounds / head if rounds <= head else head_total + (rounds - head) * each


def _until(limit: float, head_total: float, each: float, head: int) -> float:
    """Number of rounds until a total reaches a limit; infinite if it never does."""
    if limit <= head_total:
        return head * limit / head_total
    return head + (limit - head_total) / each if each > 0 else math.inf


def _range(values: Sequence[float]) -> Range:
    return Range(min(values), values[0], max(values))
