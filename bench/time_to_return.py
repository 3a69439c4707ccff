"""Measures the seconds from a process's start until its greedy return per agent reaches a target.

`python -m bench.time_to_return --peers rllib,benchmarl --targets=-21 --json time_to_return.json`. Every system is
evaluated on 100 greedy episodes every 5 iterations. Evaluation time counts for marless, but not for the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from bench import harness, schedules
from bench.harness import Row, spread
from bench.systems import Curve, Measure, Request, crossing, named, systems
from bench.task import TASK

EVAL_EVERY = 5


def measure(found: Mapping[str, Measure], requests: Sequence[Request]) -> dict[str, list[Curve]]:
    """Run every request on every system, alternating between systems."""
    curves: dict[str, list[Curve]] = {name: [] for name in found}
    for request in requests:
        for name, run in found.items():
            curves[name].append(run(request))
            there = crossing(curves[name][-1], request.stop_return or 0.0)
            harness.say(f"seed {request.seed}: {name}: {there.wall_s:.1f} s to {request.stop_return}")
    return curves


def row(name: str, curves: Sequence[Curve], target: float) -> Row:
    """One row of the table."""
    reached = [crossing(curve, target) for curve in curves]
    there = [point.env_steps for point in reached if point.env_steps]
    return {
        "system": name,
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
    parser.add_argument("--targets", default=str(TASK.target_return), help="returns per agent, comma-separated")
    parser.add_argument("--env-steps", type=int, default=1_000_000, help="give up after this many env steps")
    parser.add_argument("--limit-s", type=float, default=300.0, help="give up after this many seconds")
    args = parser.parse_args()
    about, targets = harness.machine(), sorted(float(target) for target in args.targets.split(","))
    requests = [Request(seed, args.env_steps, EVAL_EVERY, targets[-1], args.limit_s) for seed in range(args.runs)]
    found = systems(args.peers, args.without_marless)
    if not args.without_marless:
        found["marless, pipelined, 1 actor"] = partial(schedules.marless, "pipelined", 1)
    curves = measure(found, requests)
    rows = [row(name, of, target) for target in targets for name, of in curves.items()]
    harness.report("time_to_return", about, rows, headline(curves, targets[0]), args.json)


if __name__ == "__main__":
    main()
