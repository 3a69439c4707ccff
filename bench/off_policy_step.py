"""What an off-policy round takes of the CPU beside torch and the environment: acting, replay, transport, publishing.

`python -m bench.off_policy_step --json off_policy_step.json`. Spread, rounds of 4,000 env steps, algorithm and model at
their defaults. All is counted in one `marless train`, between two moments of its steady state: the CPU time of each
process; of the learner worker's, the seconds that its functions report; of the actor worker's, the share of the
environment in a rollout in this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from bench import harness
from bench.algorithms import Request, names, settings
from bench.harness import Row, spread
from bench.processes import ACTOR, LEARNER, Cpu, Look
from bench.systems import marless_job
from bench.task import ALGORITHMS, ON_POLICY, TASK
from bench.workers import ACTING, ENVIRONMENT, Team, on_one_thread
from marless import spec as specs

OFF_POLICY = tuple(name for name in ALGORITHMS if name not in ON_POLICY)
PARTS = TORCH, REPLAY, UPDATE, WORLD, SAMPLING, SERVICES = (
    "torch", "replay", "learner worker, rest", "environment", "actor worker, rest", "services",
)  # fmt: skip
FUNCTIONS = {"policy": TORCH, "critic": TORCH, "mixer": TORCH, "post_process": REPLAY}
"""What an update's functions do; gradient steps count as torch's, with the Python that calls it."""
ENV_STEPS = 200_000
STEADY_AFTER = 5
"""Rounds before the steady state."""
WARM_UP, ROLLOUTS = 3, 20
"""Rollouts in this process: before measuring, and measured."""


def environment_share(algorithm: str, seed: int) -> float:
    """Of a rollout's CPU time, what the environment has."""
    team = Team(specs.parse({"name": "bench", **settings(Request("spread", algorithm, seed, 1, 1.0))}, "bench"))
    for number in range(WARM_UP + ROLLOUTS):
        if number == WARM_UP:
            team.cpu_ms.clear()
        team.sample(number)
    return team.cpu_ms[ENVIRONMENT] / (team.cpu_ms[ENVIRONMENT] + team.cpu_ms[ACTING])


def steady(looks: Sequence[Look], records: Sequence[Row]) -> tuple[dict[str, float], list[Row]]:
    """CPU seconds by role between the first and the last look at steady rounds, and the rounds that ended between.

    Raises BenchError for too short a run.
    """
    begin, *_, end = [record["ended_s"] for record in records] if len(records) > 1 else (0.0, 0.0)
    within = [look for look in looks if begin <= look.at_s <= end]
    rounds = [each for each in records if within and within[0].at_s < each["ended_s"] <= within[-1].at_s]
    if not rounds:
        raise harness.BenchError("the run was too short to be looked at twice in its steady state")
    return within[-1].since(within[0]), rounds


def parts(cpu_s: Mapping[str, float], rounds: Sequence[Row], environment: float) -> dict[str, float]:
    """CPU milliseconds of a round's parts; `environment` is its share of what an actor worker does."""
    learner_s, actor_s = cpu_s[LEARNER], cpu_s[ACTOR]
    took_s: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    invocations = list(chain.from_iterable(each["invocations"] for each in rounds))
    working = _working(learner_s, invocations)
    for invocation in invocations:
        if part := FUNCTIONS.get(invocation["function"]):
            took_s[part] += working * invocation["vcpu_s"]
    took_s[UPDATE] = learner_s - took_s[TORCH] - took_s[REPLAY]
    took_s[WORLD] = environment * actor_s
    took_s[SAMPLING] = actor_s - took_s[WORLD]
    took_s[SERVICES] = sum(cpu_s.values()) - learner_s - actor_s
    return {part: 1000 * part_s / len(rounds) for part, part_s in took_s.items()}


def _working(learner_s: float, invocations: Sequence[Mapping[str, Any]]) -> float:  # Any: JSON
    """CPU seconds of a second of an update: functions report wall-clock seconds, of which some may be waited."""
    held_s = sum(float(each["vcpu_s"]) for each in invocations if each["function"] == "learner")
    return min(1.0, learner_s / held_s)


def measured(algorithm: str, seed: int) -> dict[str, float]:
    """CPU milliseconds of a round's parts, in a run of the whole system; raises BenchError for too short a run."""
    cpu = Cpu()
    request = Request("spread", algorithm, seed, ENV_STEPS, 1200.0)
    job = marless_job({**settings(request), "evaluation": {"every": 0}}, request.timeout_s, watch=cpu)
    return parts(*steady(cpu.looks, job.records[STEADY_AFTER:-1]), environment_share(algorithm, seed))


def outside(run: Mapping[str, float]) -> float:
    """The share of a round's CPU time that neither torch nor the environment had."""
    return 1.0 - (run[TORCH] + run[WORLD]) / sum(run.values())


def row(algorithm: str, runs: Sequence[Mapping[str, float]]) -> Row:
    """One line of the table: medians over runs."""
    total = spread([sum(run.values()) for run in runs]).cell(0)
    each = {part: round(spread([run[part] for run in runs]).median, 1) for part in PARTS}
    beyond = spread([100 * outside(run) for run in runs]).cell(1)
    return {"algorithm": algorithm, "CPU ms a round": total, **each, "outside (%)": beyond}


def main() -> None:
    """Measure, print, write."""
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
