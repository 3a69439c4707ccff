"""The page that compares jobs: seeds as lines with bands, final returns against cost, and which jobs nobody beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from marless.app.dashboard.bills import spec_of
from marless.app.dashboard.following import JobFollower
from marless.app.dashboard.series import AXES
from marless.core.errors import MarlessError, SpecError, unknown_name
from marless.cost.comparison import courses, statistics
from marless.cost.comparison.choices import Band, Center, Returns
from marless.cost.comparison.courses import Course
from marless.cost.comparison.grouping import grouped

if TYPE_CHECKING:
    from marless.app.dashboard.sources import JobSource
    from marless.jobs.spec import JobSpec

MOST_JOBS = 40
QUANTITIES = {"return": ("return/greedy", "return/exploring"), "win-rate": ("won/greedy", "won/exploring")}
"""Curves of each quantity: of greedy evaluations, and of the episodes of training."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One job of a comparison."""

    run: str
    group: str
    seed: int
    value: float
    """The last of its course."""
    random: float | None
    cost_usd: float | None
    undominated: bool
    """True if no other job has at least this return for less, or more for at most this cost."""


async def compare(
    source: JobSource, followers: Sequence[JobFollower], *, axis: str, quantity: str, group: str
) -> dict[str, Any]:  # Any: JSON
    """The comparison as JSON. Jobs that cannot be compared are named in `problems`, and left out.

    Raises SpecError for an unknown axis, quantity or grouping.
    """
    if axis not in AXES:
        raise SpecError(f"x: {unknown_name('axis', axis, AXES)}")
    if quantity not in QUANTITIES:
        raise SpecError(f"y: {unknown_name('quantity', quantity, tuple(QUANTITIES))}")
    problems: list[str] = []
    known: list[tuple[JobFollower, JobSpec, Course]] = []
    for each in followers:
        try:
            spec = await spec_of(source, each.name)
            known.append((each, spec, course_of(each, spec, axis, quantity)))
        except MarlessError as error:
            problems.append(str(error))
    groups = grouped([(each.name, spec) for each, spec, _ in known], group) if known else {}
    lines = []
    for label, members in groups.items():
        own = [known[index][2] for index in members]
        try:
            line = courses.line(own, Center.iqm, Band.ci)
        except SpecError as error:
            problems.append(str(error))
            continue
        lines.append(
            {
                "label": label,
                "line": asdict(line),
                "courses": [asdict(each) for each in own],
                "final": asdict(_final([each.values[-1] for each in own])),
            }
        )
    labels = {index: label for label, members in groups.items() for index in members}
    runs = [_run(each, spec, course, labels[index]) for index, (each, spec, course) in enumerate(known)]
    return {"groups": lines, "runs": [asdict(each) for each in _with_frontier(runs)], "problems": problems}


def course_of(follower: JobFollower, spec: JobSpec, axis: str, quantity: str) -> Course:
    """The course of a job; raises SpecError if it has no point.

    As in `marless plot`, a job with fewer than two evaluations has the returns of its training.
    """
    series = follower.series
    places = series.places(axis)
    steps = series.column("env_steps")
    greedy, exploring = (series.column(name) for name in QUANTITIES[quantity])
    few = np.count_nonzero(~np.isnan(greedy)) < 2 and np.count_nonzero(~np.isnan(exploring)) > 0
    values = exploring if few else greedy
    at = np.flatnonzero(~np.isnan(values) & ~np.isnan(places))
    if not len(at):
        waits = "its cost is being computed" if axis == "usd" else "no episode has ended yet"
        raise SpecError(f"{follower.name}: there is nothing to draw; {waits}, or it has no {quantity}")
    points = {float(places[index]): index for index in at}  # of several at one place, the last
    chosen = list(points.values())
    return Course(
        run=follower.name,
        seed=spec.seed,
        returns=Returns.exploring if few else Returns.greedy,
        places=tuple(points),
        env_steps=tuple(int(steps[index]) for index in chosen),
        values=tuple(float(values[index]) for index in chosen),
    )


def _final(values: Sequence[float]) -> statistics.MeanInterval:
    """The interquartile mean of the seeds' last values, of fewer than four the mean, with its interval."""
    if len(values) < courses.FEW:
        return statistics.interval(values)
    return statistics.interquartile_mean([values])


def _run(follower: JobFollower, spec: JobSpec, course: Course, group: str) -> ComparedRun:
    cost = follower.series.column("cost/billed")
    priced = cost[~np.isnan(cost)]
    return ComparedRun(
        run=follower.name,
        group=group,
        seed=spec.seed,
        value=course.values[-1],
        random=follower.job.random_return if follower.job else None,
        cost_usd=float(priced[-1]) if len(priced) else None,
        undominated=False,
    )


def _with_frontier(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """The runs, with those marked that no other one beats in return and cost."""

    def beaten(run: ComparedRun) -> bool:
        return any(
            other.cost_usd is not None
            and run.cost_usd is not None
            and other.value >= run.value
            and other.cost_usd <= run.cost_usd
            and (other.value, other.cost_usd) != (run.value, run.cost_usd)
            for other in runs
        )

    return [ComparedRun(**(vars(run) | {"undominated": run.cost_usd is not None and not beaten(run)})) for run in runs]
