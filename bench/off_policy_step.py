"""Breaks down the CPU time of an off-policy round: torch, environment, and the rest (acting, replay, transport, …).

`python -m bench.off_policy_step --json off_policy_step.json`. Spread, rounds of 4,000 env steps, settings of
`bench.task.OWN`. CPU times of all processes are measured in one `marless train`, between two moments of its steady
state. The learner worker's time is split by the seconds that its functions report, the actor worker's by the share of
the environment in a rollout in this process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench import harness
from bench.algorithms import names, settings
from bench.harness import Row, spread
from bench.processes import ACTOR, LEARNER, Cpu, Look
from bench.run_file import Request
from bench.systems import marless_job
from bench.task import ALGORITHMS, ON_POLICY, TASK
from bench.workers import ACTING, ENVIRONMENT, Team, on_one_thread
from marless.jobs import spec as specs

OFF_POLICY = tuple(name for name in ALGORITHMS if name not in ON_POLICY)
PARTS = TORCH, REPLAY, UPDATE, WORLD, SAMPLING, SERVICES = (
    "torch", "replay", "learner worker, rest", "environment", "actor worker, rest", "services",
)  # fmt: skip
FUNCTIONS = {"policy": TORCH, "critic": TORCH, "mixer": TORCH, "post_process": REPLAY}
"""Function of an update → part; gradient steps count as torch, including the Python code that calls it."""
ENV_STEPS = 200_000
STEADY_AFTER = 5
"""Number of rounds before the steady state."""
WARM_UP, ROLLOUTS = 3, 20
"""Numbers of rollouts in this process: for warm-up, and measured."""


def environment_share(algorithm: str, seed: int) -> float:
    """The environment's share of a rollout's CPU time."""
    team = Team(specs.parse({"name": "bench", **settings(Request("spread", algorithm, seed, 1, 1.0))}, "bench"))
    for number in range(WARM_UP + ROLLOUTS):
        if number == WARM_UP:
            team.cpu_ms.clear()
        team.sample(number)
    return team.cpu_ms[ENVIRONMENT] / (team.cpu_ms[ENVIRONMENT] + team.cpu_ms[ACTING])


@dataclass(frozen=True)
class Steady:
    """CPU times between two moments of a run's steady state."""

    cpu_s: Mapping[str, float]
    """CPU seconds by role."""
    function_s: Mapping[str, float]
    """Seconds by function, from the round records."""
    rounds: float
    """Number of rounds; the first and the last count in part."""


def steady(looks: Sequence[Look], records: Sequence[Row]) -> Steady:
    """CPU times between the first and the last measurement in steady rounds; raises BenchError for too short a run."""
    ends = [record["ended_s"] for record in records]
    within = [look for look in looks if ends and ends[0] <= look.at_s <= ends[-1]]
    if len(within) < 2:
        raise harness.BenchError("the run was too short to be looked at twice in its steady state")
    begin, end = within[0], within[-1]
    rounds, function_s = 0.0, defaultdict[str, float](float)
    for (started_s, ended_s), record in zip(pairwise(ends), records[1:], strict=True):
        share = max(min(ended_s, end.at_s) - max(started_s, begin.at_s), 0.0) / (ended_s - started_s)
        rounds += share
        for invocation in record["invocations"]:
            function_s[invocation["function"]] += share * invocation["vcpu_s"]
    return Steady(end.since(begin), function_s, rounds)


def parts(run: Steady, environment: float) -> dict[str, float]:
    """CPU milliseconds of a round's parts; `environment` is its share of what an actor worker does."""
    learner_s, actor_s = run.cpu_s[LEARNER], run.cpu_s[ACTOR]
    working = min(1.0, learner_s / run.function_s["learner"])  # an update may spend part of its time waiting
    took_s: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for function, part in FUNCTIONS.items():
        took_s[part] += working * run.function_s.get(function, 0.0)
    took_s[UPDATE] = learner_s - took_s[TORCH] - took_s[REPLAY]
    took_s[WORLD] = environment * actor_s
    took_s[SAMPLING] = actor_s - took_s[WORLD]
    took_s[SERVICES] = sum(run.cpu_s.values()) - learner_s - actor_s
    return {part: 1000 * part_s / run.rounds for part, part_s in took_s.items()}


def measured(algorithm: str, seed: int) -> dict[str, float]:
    """CPU milliseconds of a round's parts, in a run of the whole system; raises BenchError for too short a run."""
    cpu = Cpu()
    request = Request("spread", algorithm, seed, ENV_STEPS, 1200.0)
    job = marless_job({**settings(request), "evaluation": {"every": 0}}, request.timeout_s, watch=cpu)
    return parts(steady(cpu.looks, job.records[STEADY_AFTER:-1]), environment_share(algorithm, seed))


def outside(run: Mapping[str, float]) -> float:
    """The share of a round's CPU time outside of torch and the environment."""
    return 1.0 - (run[TORCH] + run[WORLD]) / sum(run.values())


def row(algorithm: str, runs: Sequence[Mapping[str, float]]) -> Row:
    """One row of the table: medians over runs."""
    total = spread([sum(run.values()) for run in runs]).cell(0)
    each = {part: round(spread([run[part] for run in runs]).median, 1) for part in PARTS}
    beyond = spread([100 * outside(run) for run in runs]).cell(1)
    return {"algorithm": algorithm, "CPU ms a round": total, **each, "outside (%)": beyond}


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument(
        "--algorithms", type=names(OFF_POLICY), default=OFF_POLICY, help="comma-separated; default: all"
    )
    args = parser.parse_args()
    on_one_thread()
    about = harness.machine()
    found: dict[str, list[dict[str, float]]] = {}
    for algorithm in args.algorithms:
        for seed in range(args.runs):
            found.setdefault(algorithm, []).append(measured(algorithm, seed))
            harness.say(f"{algorithm} seed {seed}: {outside(found[algorithm][-1]):.0%} outside torch and environment")
    rows = [row(algorithm, runs) for algorithm, runs in found.items()]
    headline = {
        "round_env_steps": TASK.iteration_env_steps,
        "outside": {algorithm: round(spread(list(map(outside, runs))).median, 3) for algorithm, runs in found.items()},
    }
    harness.report("off_policy_step", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
