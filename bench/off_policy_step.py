"""What an off-policy round takes of the CPU beside torch and the environment: acting, replay, transport, publishing.

`python -m bench.off_policy_step --json off_policy_step.json`. Spread, rounds of 4,000 env steps, algorithm and model at
their defaults. The parts are measured in this process: CPU time of all that the workers do in a round. What the system
takes beyond them (messages, trajectories on their way, the store, the coordinator's books) is the CPU time of every
process of a `marless train`, between two moments of its steady state, less the parts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import psutil  # type: ignore[import-untyped]  # psutil ships no types

from bench import harness
from bench.algorithms import Request, names, settings
from bench.harness import Row, spread
from bench.systems import marless_job
from bench.task import ALGORITHMS, ON_POLICY, TASK
from bench.workers import ENVIRONMENT, PARTS, TORCH, Team, on_one_thread
from marless import spec as specs

OFF_POLICY = tuple(name for name in ALGORITHMS if name not in ON_POLICY)
SYSTEM = "services, messages"
WARM_UP, ROUNDS = 3, 10
"""Rounds in this process: before measuring, and measured."""
SYSTEM_ENV_STEPS = 100_000
STEADY_AFTER = 5
"""Rounds of the system before its steady state."""


def parts(algorithm: str, seed: int) -> dict[str, float]:
    """CPU milliseconds of each part of a round, in this process."""
    team = Team(specs.parse({"name": "bench", **settings(Request("spread", algorithm, seed, 1, 1.0))}, "bench"))
    for number in range(WARM_UP + ROUNDS):
        if number == WARM_UP:
            team.cpu_ms.clear()
        team.round(number)
    return {part: ms / ROUNDS for part, ms in team.cpu_ms.items()}


class Cpu:
    """CPU seconds of a process and all that it started, now and then."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []
        """Unix seconds, and CPU seconds by then."""
        self._by_process: dict[tuple[int, float], float] = {}

    def __call__(self, process: psutil.Process) -> None:
        """Look once; what a process that has ended had used still counts."""
        for member in [process, *process.children(recursive=True)]:
            try:
                used, key = member.cpu_times(), (member.pid, member.create_time())
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            self._by_process[key] = used.user + used.system
        self.seen.append((time.time(), sum(self._by_process.values())))


def system_ms(algorithm: str, seed: int) -> float:
    """CPU milliseconds of a round of the whole system in its steady state; raises BenchError for too short a run."""
    cpu = Cpu()
    request = Request("spread", algorithm, seed, SYSTEM_ENV_STEPS, 1200.0)
    job = marless_job({**settings(request), "evaluation": {"every": 0}}, request.timeout_s, watch=cpu)
    return per_round_ms(cpu.seen, [record["ended_s"] for record in job.records[STEADY_AFTER:-1]])


def per_round_ms(seen: list[tuple[float, float]], ended_s: list[float]) -> float:
    """CPU milliseconds of a round, from what had been used at some moments and the ends of steady rounds."""
    within = [moment for moment in seen if ended_s and ended_s[0] <= moment[0] <= ended_s[-1]]
    rounds = sum(within[0][0] < end <= within[-1][0] for end in ended_s) if within else 0
    if not rounds:
        raise harness.BenchError("the run was too short to be looked at twice in its steady state")
    (_, before_s), *_, (_, after_s) = within
    return 1000 * (after_s - before_s) / rounds


def row(algorithm: str, runs: list[Mapping[str, float]]) -> Row:
    """One line of the table: medians over runs, and the share that neither torch nor the environment had."""
    beyond = [outside(run) for run in runs]
    total = spread([sum(run.values()) for run in runs]).cell(1)
    each = {part: round(spread([run.get(part, 0.0) for run in runs]).median, 2) for part in (*PARTS, SYSTEM)}
    return {"algorithm": algorithm, "CPU ms a round": total, **each, "outside": f"{spread(beyond).median:.0%}"}


def outside(run: Mapping[str, float]) -> float:
    """The share of a round's CPU time that neither torch nor the environment had."""
    total = sum(run.values())
    return (total - run[TORCH] - run[ENVIRONMENT]) / total


def main() -> None:
    """Measure, print, write."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument(
        "--algorithms", type=names(OFF_POLICY), default=OFF_POLICY, help="comma-separated; default: all"
    )
    args = parser.parse_args()
    on_one_thread()
    about = harness.machine()
    found: dict[str, list[Mapping[str, float]]] = {}
    for algorithm in args.algorithms:
        for seed in range(args.runs):
            alone = parts(algorithm, seed)
            whole = system_ms(algorithm, seed)
            found.setdefault(algorithm, []).append({**alone, SYSTEM: max(whole - sum(alone.values()), 0.0)})
            harness.say(f"{algorithm} seed {seed}: {outside(found[algorithm][-1]):.0%} outside torch and environment")
    rows = [row(algorithm, runs) for algorithm, runs in found.items()]
    headline = {
        "round_env_steps": TASK.iteration_env_steps,
        "outside": {algorithm: round(spread(list(map(outside, runs))).median, 3) for algorithm, runs in found.items()},
    }
    harness.report("off_policy_step", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
