"""Measures the seconds from a process's start until its greedy return per agent reaches a target.

`python -m bench.time_to_return --peers rllib,benchmarl --targets=-21 --json time_to_return.json`. Every system is
evaluated on 100 greedy episodes every 5 iterations. Evaluation time counts for marless, but not for the others.

With `--rates 5e-4,1e-3,2e-3`, each system has its own learning rate: the one with which most tuning seeds, which are
used for nothing else, reach the highest target, soonest; the table has the mean of their seconds. `--without-script`
leaves out the plain script. `--control` compares marless with itself instead: with and without its normalisation of
values, which the other systems do not have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench import harness, schedules
from bench.harness import Row, spread
from bench.systems import (
    Curve,
    Measure,
    Request,
    actors,
    crossing,
    marless_job,
    named,
    rounds,
    settings,
    systems,
)
from bench.task import TASK

EVAL_EVERY = 5
TUNING = 1000
"""The first tuning seed."""


def values_as_they_are(request: Request) -> Curve:
    """A run of marless with one actor whose critics learn values that are not normalised."""
    given: dict[str, Any] = settings(request) | {"actors": actors(1)}  # Any: sections of a job file
    algorithm = {**given["algorithm"], "value_normalisation": False}
    job = marless_job(given | {"algorithm": algorithm}, request.timeout_s)
    return rounds(job.records, job.started_s)


def measure(
    found: Mapping[str, Measure], requests: Sequence[Request], rates: Mapping[str, float]
) -> dict[str, list[Curve]]:
    """Run every request on every system with its learning rate, alternating between systems."""
    curves: dict[str, list[Curve]] = {name: [] for name in found}
    for request in requests:
        for name, run in found.items():
            curves[name].append(run(replace(request, lr=rates[name])))
            there = crossing(curves[name][-1], request.stop_return or 0.0)
            harness.say(f"seed {request.seed}: {name}: {there.wall_s:.1f} s to {request.stop_return}")
    return curves


def mean_s(curves: Sequence[Curve], target: float) -> float:
    """The mean of the seconds to the target, over the curves that reach it; infinite if none does."""
    there = [seconds for curve in curves if math.isfinite(seconds := crossing(curve, target).wall_s)]
    return sum(there) / len(there) if there else math.inf


def best_rate(curves: Mapping[float, Sequence[Curve]], target: float) -> float:
    """The learning rate with which most curves reach the target, and of those rates the soonest by its mean."""

    def merit(rate: float) -> tuple[int, float]:
        there = sum(math.isfinite(crossing(curve, target).wall_s) for curve in curves[rate])
        return there, -mean_s(curves[rate], target)

    return max(curves, key=merit)


@dataclass(frozen=True)
class Tuned:
    """A system's learning rate."""

    rate: float
    mean_s: float = math.inf
    """See `mean_s`, over the tuning seeds; infinite, too, if there was nothing to choose."""


def best_rates(
    found: Mapping[str, Measure], requests: Sequence[Request], rates: Sequence[float], target: float
) -> dict[str, Tuned]:
    """Every system's best learning rate, by runs of these requests."""
    if len(rates) == 1:
        return dict.fromkeys(found, Tuned(rates[0]))
    tried = {rate: measure(found, requests, dict.fromkeys(found, rate)) for rate in rates}
    best = {name: best_rate({rate: of[name] for rate, of in tried.items()}, target) for name in found}
    return {name: Tuned(rate, mean_s(tried[rate][name], target)) for name, rate in best.items()}


def row(name: str, rate: str, tuned: Tuned, curves: Sequence[Curve], target: float) -> Row:
    """One row of the table."""
    reached = [crossing(curve, target) for curve in curves]
    there = [point.env_steps for point in reached if point.env_steps]
    return {
        "system": name,
        "rate": rate,
        **({"tuning (s)": round(tuned.mean_s, 1)} if math.isfinite(tuned.mean_s) else {}),
        "return": target,
        "seconds": spread([point.wall_s for point in reached]).cell(1),
        "env steps": round(spread(there).median) if there else None,
        "seeds that reached it": f"{len(there)} of {len(curves)}",
    }


def headline(curves: Mapping[str, Sequence[Curve]], target: float) -> Row:
    """marless's median time to `target`, and how many times faster it is than each other system."""
    seconds = {name: spread([crossing(curve, target).wall_s for curve in of]).median for name, of in curves.items()}
    ours = seconds.pop("marless", math.inf)
    if math.isinf(ours):
        return {"target_return": target, "seconds": None}
    sooner = {name: round(other / ours, 2) if math.isfinite(other) else None for name, other in seconds.items()}
    return {"target_return": target, "seconds": round(ours, 2), "times_sooner_than": sooner}


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument(
        "--peers", type=named, default=(), help="comma-separated: rllib,benchmarl,benchmarl/marless,jaxmarl"
    )
    parser.add_argument("--without-marless", action="store_true", help="measure only the others")
    parser.add_argument("--without-script", action="store_true", help="measure only marless and peers")
    parser.add_argument(
        "--targets", type=harness.numbers, default=str(TASK.target_return), help="returns per agent, by comma"
    )
    parser.add_argument("--env-steps", type=int, default=1_000_000, help="give up after this many env steps")
    parser.add_argument("--limit-s", type=float, default=300.0, help="give up after this many seconds")
    parser.add_argument(
        "--rates", type=harness.rates, default=str(TASK.learning_rate), help="learning rates to choose from, by comma"
    )
    parser.add_argument("--tuning-seeds", type=harness.positive, default=2, help="seeds for that choice")
    parser.add_argument("--control", action="store_true", help="instead: marless with and without normalised values")
    args = parser.parse_args()
    about, targets = harness.machine(), sorted(args.targets)
    tuning, requests = (
        [Request(first + seed, args.env_steps, EVAL_EVERY, targets[-1], args.limit_s) for seed in range(count)]
        for first, count in ((TUNING, args.tuning_seeds), (0, args.runs))
    )
    found = {} if args.control else systems(args.peers, args.without_marless, args.without_script)
    if args.control:
        found |= {"marless": partial(schedules.marless, "synchronous", 1), "values not normalised": values_as_they_are}
    elif not args.without_marless:
        found |= {f"marless, {name}, 1 actor": partial(schedules.marless, name, 1) for name in schedules.SCHEDULES}
    tuned = best_rates(found, tuning, args.rates, targets[-1])
    curves = measure(found, requests, {name: each.rate for name, each in tuned.items()})
    chosen = {name: harness.chosen(each.rate, args.rates) for name, each in tuned.items()}
    rows = [row(name, chosen[name], tuned[name], of, target) for target in targets for name, of in curves.items()]
    harness.report(
        "time_to_return", about, rows, {"sooner": [headline(curves, target) for target in targets]}, args.json
    )


if __name__ == "__main__":
    main()
