"""Courses: a run's returns over its env steps, rounds, seconds or costs, and those of several seeds as a line and band.

Runs of a group are read off at common places by linear interpolation between their points, from where the last of them
begins to where the first of them ends: nothing is extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

from marless.core.errors import SpecError
from marless.cost.comparison import statistics
from marless.cost.comparison.choices import Band, Center, Over, Quantity, Returns
from marless.cost.comparison.runs import curves
from marless.cost.comparison.statistics import MeanInterval
from marless.jobs.prices import Accounting
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from marless.learning.data.returns import EpisodeReturns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_PLACES = 200
"""Places at which a group's line is computed; where its runs have more points together, these are evenly spaced."""
COLUMNS = ("group", "run", "seed", "x", "env_steps", "value", "center", "low", "high")
FEW = 4
"""With fewer runs, a bootstrap says little, and an interquartile mean is the mean."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """The points of one run, in the order of their places."""

    run: str
    seed: int
    returns: Returns
    places: tuple[float, ...]
    """Strictly increasing, in units of the horizontal axis."""
    env_steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Line:
    """Several runs' courses as one: a centre at each place, and the ends of a band; all tuples have one length."""

    places: tuple[float, ...]
    center: tuple[float, ...]
    low: tuple[float, ...]
    """Empty without a band: of one run, or if none was asked for."""
    high: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """Runs that are one line of a picture."""

    label: str
    courses: tuple[Course, ...]
    line: Line
    differing: tuple[str, ...] = ()
    """Settings, beside the seed, that are not equal in all of its runs."""

    @property
    def returns(self) -> Returns:
        """Whose episodes they are; the same for all its runs."""
        return self.courses[0].returns


def course(
    run: str,
    spec: JobSpec,
    records: Sequence[RoundRecord],
    *,
    axis: Over,
    quantity: Quantity,
    returns: Returns,
    accounting: Accounting,
) -> Course:
    """The course of a run.

    A run with fewer than two greedy evaluations has that of its returns while exploring, if these are more. Raises
    SpecError if it has no point at all.
    """
    exploring = [(record.round + 1, record.returns) for record in records if record.returns]
    greedy = [(each.rounds, each.returns) for record in records for each in record.evaluations]
    chosen = {Returns.greedy: greedy, Returns.exploring: exploring}
    if returns is Returns.greedy and len(greedy) < 2 and len(exploring) > len(greedy):
        returns = Returns.exploring
    places, steps = _places(records, spec, axis, accounting), {record.round + 1: record.env_steps for record in records}
    points: dict[float, tuple[int, float]] = {}  # of several at one place, the last
    for rounds, each in sorted(chosen[returns], key=itemgetter(0)):
        value = each.mean if quantity is Quantity.returns else each.win_rate
        if value is None:
            raise SpecError(f"{run}: {spec.env.name} does not report wins; omit --y {quantity}")
        if rounds in places:
            points[places[rounds]] = steps[rounds], value
    if not points:
        raise SpecError(f"{run}: no episode has ended yet: there is nothing to draw")
    return Course(
        run=run,
        seed=spec.seed,
        returns=returns,
        places=tuple(points),
        env_steps=tuple(count for count, _ in points.values()),
        values=tuple(value for _, value in points.values()),
    )


def _places(records: Sequence[RoundRecord], spec: JobSpec, axis: Over, accounting: Accounting) -> Mapping[int, float]:
    """Number of rounds → place on the axis where they have been trained."""
    numbers = [record.round + 1 for record in records]
    match axis:
        case Over.env_steps:
            found: Iterable[float] = (record.env_steps for record in records)
        case Over.rounds:
            found = numbers
        case Over.seconds:
            found = accumulate(record.spent_s for record in records)
        case Over.usd:
            found = curves(records, spec).cost_usd[accounting]
    return dict(zip(numbers, found, strict=True))


def smoothed(given: Course, points: int) -> Course:
    """The course with each value replaced by the mean of the last `points` values; at the start, of those there are."""
    values = [fmean(given.values[max(0, end - points) : end]) for end in range(1, len(given.values) + 1)]
    return Course(**(vars(given) | {"values": tuple(values)}))


def grid(courses: Sequence[Course]) -> tuple[float, ...]:
    """The places that all courses span, in order: every place at which one of them has a point, `MOST_PLACES` at most.

    Raises SpecError if there is no place that all of them reach.
    """
    first = max(each.places[0] for each in courses)
    last = min(each.places[-1] for each in courses)
    if first > last:
        late = next(each.run for each in courses if each.places[0] == first)
        early = next(each.run for each in courses if each.places[-1] == last)
        raise SpecError(
            f"{early} ends before {late} begins, so they have no line in common; draw them apart with --group job"
        )
    found = sorted({place for each in courses for place in each.places if first <= place <= last})
    if len(found) > MOST_PLACES:
        step = (last - first) / (MOST_PLACES - 1)
        return (*(first + number * step for number in range(MOST_PLACES - 1)), last)
    return tuple(found)


def read_off(given: Course, places: Sequence[float]) -> NDArray[np.float64]:
    """The course's values at these places, all of which it spans, by linear interpolation."""
    import numpy as np

    return np.interp(places, given.places, given.values)


def line(courses: Sequence[Course], center: Center, band: Band) -> Line:
    """The centre and band of several runs; it does not depend on their order.

    Args:
        courses: At least one; a single one is its own line, without a band.
        center: Interquartile mean, mean or median. Of fewer than four runs, the first is the mean.
        band: The 95 % interval of the centre (Student's t for a mean, of a bootstrap for the others), the range, or one
            sample standard deviation to either side.
    """
    if len(courses) == 1:
        return Line(places=courses[0].places, center=courses[0].values, low=(), high=())
    places = grid(courses)
    columns = [sorted(column) for column in zip(*(read_off(each, places).tolist() for each in courses), strict=True)]
    found = [_spread(column, center, band) for column in columns]
    low, high = statistics.ends(found)
    return Line(places=places, center=tuple(each.mean for each in found), low=low, high=high)


def _spread(values: Sequence[float], center: Center, band: Band) -> MeanInterval:
    """The centre and band of at least two values."""
    center = Center.mean if center is Center.iqm and len(values) < FEW else center
    if band is Band.ci:
        return _INTERVALS[center](values)
    middle = _CENTERS[center](values)
    low: float | None = None
    high: float | None = None
    if band is Band.range:
        low, high = min(values), max(values)
    elif band is Band.std:
        low, high = middle - stdev(values), middle + stdev(values)
    return MeanInterval(mean=middle, low=low, high=high, n=len(values))


_CENTERS: Mapping[Center, Callable[[Sequence[float]], float]] = {
    Center.mean: fmean,
    Center.median: median,
    Center.iqm: statistics.middle,
}
_INTERVALS: Mapping[Center, Callable[[Sequence[float]], MeanInterval]] = {
    Center.mean: statistics.interval,
    Center.median: statistics.median_interval,
    Center.iqm: lambda values: statistics.interquartile_mean([values]),
}


def table(groups: Iterable[RunGroup], axis: Over) -> Iterator[tuple[object, ...]]:
    """Every run's points, and every group's line and band, as rows of `COLUMNS`; what does not apply is empty."""
    for group in groups:
        for each in group.courses:
            for place, steps, value in zip(each.places, each.env_steps, each.values, strict=True):
                yield group.label, each.run, each.seed, place, steps, value, "", "", ""
        line = group.line
        low, high = (ends or ("",) * len(line.places) for ends in (line.low, line.high))
        for place, middle, below, above in zip(line.places, line.center, low, high, strict=True):
            yield group.label, "", "", place, place if axis is Over.env_steps else "", "", middle, below, above


def chance(jobs: Iterable[tuple[JobSpec, EpisodeReturns | None]], quantity: Quantity) -> list[tuple[str, float]]:
    """The random policy's name and value in each environment, which is the mean over its jobs' baselines."""
    found: dict[str, tuple[str, list[float]]] = {}
    for spec, random in jobs:
        if random and (value := random.mean if quantity is Quantity.returns else random.win_rate) is not None:
            found.setdefault(spec.env.model_dump_json(), (spec.env.name, []))[1].append(value)
    several = len(found) > 1
    return [
        (f"random policy, {name}" if several else "random policy", math.fsum(values) / len(values))
        for name, values in found.values()
    ]
