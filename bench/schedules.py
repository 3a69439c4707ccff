"""Measures schedules side by side on the common task: env steps per second, and greedy returns against env steps.

`python -m bench.schedules --json schedules.json` measures rates, beside the plain script on one thread and on all; with
`--before ../earlier`, beside the synchronous rounds of an earlier checkout, too, which has its environment in `.venv`.
`python -m bench.schedules --returns --runs 5 --json schedule_returns.json` evaluates the policies of every `EVERY`-th
round, and of the last. Runs of the systems alternate, so that other load on the machine affects all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from bench import harness
from bench.harness import Row, spread
from bench.systems import (
    ACTORS,
    Curve,
    Job,
    Measure,
    Request,
    actors,
    checkout,
    marless_job,
    rounds,
    settings,
    steady_rate,
    systems,
)
from bench.task import TASK
from marless.cost.comparison.statistics import difference

SCHEDULES = ("synchronous", "pipelined")
"""Those that train in rounds, with the same updates; `stellaris` computes one gradient of each rollout instead."""
BEFORE = "synchronous, before"
ENV_STEPS = 400_000
EVERY = 20
"""Rounds between evaluations."""


def marless(schedule: str, count: int, request: Request) -> Curve:
    """A run of marless under this schedule, with so many actors."""
    given = settings(request) | {"schedule": schedule, "actors": actors(count)}
    if schedule == "stellaris":
        given["actors"] = actors(count) | {"episodes": "fresh"}
        given["evaluation"] = {"every": 2 * request.eval_every, "episodes": TASK.evaluation_episodes}
    return _curve(marless_job(given, request.timeout_s))


def earlier(root: Path, count: int, request: Request) -> Curve:
    """A run of another checkout's marless, in synchronous rounds."""
    return _curve(marless_job(settings(request) | {"actors": actors(count)}, request.timeout_s, root=root))


def _curve(job: Job) -> Curve:
    return rounds(job.records, job.started_s)


def curves(found: Mapping[str, Measure], runs: int, eval_every: int) -> dict[str, list[Curve]]:
    """Run every system `runs` times, in turns."""
    done: dict[str, list[Curve]] = {name: [] for name in found}
    for seed in range(runs):
        for name, run in found.items():
            done[name].append(run(Request(seed, ENV_STEPS, eval_every)))
            harness.say(f"run {seed + 1} of {runs}: {name}: {steady_rate(done[name][-1]):,.0f} env steps/s")
    return done


def rate_row(name: str, of: Sequence[Curve]) -> Row:
    """A system's rate in its steady state."""
    rates = spread([steady_rate(curve) for curve in of])
    return {"system": name, "env steps/s": rates.cell(0), "env steps a run": of[0][-1].env_steps, "runs": rates.runs}


def rate_headline(of: Mapping[str, Sequence[Curve]]) -> Row:
    """The rates of `pipelined`, and their ratios to those of the others: medians, of ratios in one turn."""
    rates = {name: [steady_rate(curve) for curve in each] for name, each in of.items()}
    return {
        ours: {
            "env_steps_per_s": round(spread(rates[ours]).median),
            "ratio_to": {
                name: round(spread([a / b for a, b in zip(rates[ours], each, strict=True)]).median, 2)
                for name, each in rates.items()
                if name != ours
            },
        }
        for ours in rates
        if ours.startswith("pipelined")
    }


def return_rows(of: Mapping[str, Sequence[Curve]]) -> list[Row]:
    """Greedy returns of both schedules at equal env steps, and their difference with its 95 % interval over seeds."""
    rows = []
    for marks in zip(*(curve for name in SCHEDULES for curve in of[name]), strict=True):
        found = [point.greedy_return for point in marks]
        if all(value is not None for value in found):
            half = len(found) // 2
            before, after = ([value for value in part if value is not None] for part in (found[:half], found[half:]))
            apart = difference(after, before)
            rows.append(
                {
                    "env steps": marks[0].env_steps,
                    **{name: spread(part).cell(2) for name, part in zip(SCHEDULES, (before, after), strict=True)},
                    "pipelined − synchronous": f"{apart.mean:+.2f} [{apart.low:+.2f}, {apart.high:+.2f}]",
                }
            )
    return rows


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--returns", action="store_true", help="compare returns instead of rates")
    parser.add_argument("--before", type=Path, help="an earlier checkout, whose rates are measured, too")
    args = parser.parse_args()
    before = checkout(parser, args.before)
    about = harness.machine()
    found: dict[str, Measure] = {name: partial(marless, name, ACTORS) for name in SCHEDULES}
    if args.returns:
        done = curves(found, args.runs, EVERY)
        harness.report("schedule_returns", about, return_rows(done), {"iteration": TASK.iteration_env_steps}, args.json)
        return
    found["stellaris"] = partial(marless, "stellaris", ACTORS)
    found |= {f"{name}, 1 actor": partial(marless, name, 1) for name in (*SCHEDULES, "stellaris")}
    if before:
        found |= {BEFORE: partial(earlier, before, ACTORS), f"{BEFORE}, 1 actor": partial(earlier, before, 1)}
    done = curves(found | systems((), without_marless=True), args.runs, 0)
    rows = [rate_row(name, each) for name, each in done.items()]
    harness.report("schedules", about, rows, rate_headline(done) | {"iteration": TASK.iteration_env_steps}, args.json)


if __name__ == "__main__":
    main()
