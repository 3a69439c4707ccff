"""Measures training on 1, 2, 4, 8 and 16 cores, as far as there are: `python -m bench.cores --json cores.json`.

An actor worker a core, and nothing else on the machine: the process is bound to as many cores as there are workers, so
that services and learner share them. Each task has as many copies a worker whatever their number, as one would use more
cores; so a round has more env steps. On `spread`, the plain script (torch's threads on all cores) and RLlib's env
runners (`--peers rllib`), one a core, train beside it; the others have no twin there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from bench import harness
from bench.harness import Row, spread
from bench.peers import install
from bench.systems import Curve, Measure, Request, marless_job, program, rounds, settings, steady_rate
from bench.task import TASK

CORES = (1, 2, 4, 8, 16)
ITERATIONS = 20


@dataclass(frozen=True)
class CoresTask:
    """An environment, and the actors that play it on one core."""

    env: Mapping[str, object]
    envs: int
    steps: int

    def actors(self, workers: int) -> dict[str, object]:
        """The actors of so many workers, one each."""
        return {"count": workers, "envs": self.envs, "steps": self.steps}

    def env_steps(self, workers: int) -> int:
        """Env steps of a run."""
        return ITERATIONS * workers * self.envs * self.steps


TASKS = {
    "spread": CoresTask(
        {"name": "mpe/simple_spread", "options": {"agents": TASK.agents, "local_ratio": TASK.local_ratio}},
        envs=160,
        steps=TASK.episode_steps,
    ),
    "8m": CoresTask({"name": "smac/8m"}, envs=16, steps=50),
    "slow": CoresTask({"name": "slow_spread", "options": {"agents": TASK.agents}}, envs=4, steps=TASK.episode_steps),
}


def cores_to_use(most: int) -> tuple[int, ...]:
    """The numbers of cores to measure with: those of `CORES` up to `most` and to what this process may use."""
    return tuple(each for each in CORES if each <= min(most, len(os.sched_getaffinity(0))))


@contextmanager
def bound_to(cores: int) -> Iterator[None]:
    """Context in which this process, and what it starts, has so many cores, and pools start a worker on each."""
    before, variables = os.sched_getaffinity(0), dict(os.environ)
    os.sched_setaffinity(0, sorted(before)[:cores])
    workers = {"MARLESS_ACTOR_WORKERS": str(cores), "BENCH_RUNNERS": str(cores)}
    given = harness.own_environments(os.environ) | workers
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        os.sched_setaffinity(0, before)


def marless_on(cores: int, task: CoresTask, request: Request) -> Curve:
    """Train with an actor on each core."""
    wanted = settings(request) | {"env": task.env, "actors": task.actors(cores)}
    job = marless_job(wanted, request.timeout_s)
    return rounds(job.records, job.started_s)


def systems_of(name: str, cores: int, peers: Sequence[str]) -> dict[str, Measure]:
    """What is measured on a task with so many cores."""
    found: dict[str, Measure] = {"marless": partial(marless_on, cores, TASKS[name])}
    if name != "spread":
        return found
    found["plain script"] = program(Path(sys.executable), "bench.plain_ppo", cores)
    for peer in peers:
        found[peer] = program(install.interpreter(peer), f"bench.peers.run_{peer}")
    return found


def row(name: str, system: str, rates: Mapping[int, Sequence[float]]) -> Row:
    """A system's env steps a second on a task, by cores, and how many times those of its fewest cores."""
    medians = {cores: spread(each).median for cores, each in rates.items()}
    first = medians[min(medians)]
    columns: Row = {}
    for cores, each in rates.items():
        columns[f"{cores} cores"] = spread(each).cell(0)
        columns[f"× on {cores}"] = round(medians[cores] / first, 2)
    return {"task": name, "system": system} | columns


def headline(rates: Mapping[tuple[str, str], Mapping[int, Sequence[float]]]) -> Row:
    """How many times the env steps of one core marless reaches with the most cores, by task."""
    found = {}
    for (name, system), by_cores in rates.items():
        if system == "marless":
            most, fewest = (spread(by_cores[pick(by_cores)]).median for pick in (max, min))
            found[name] = round(most / fewest, 2)
    return {"speedup": found, "cores": max(max(each) for each in rates.values())}


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--most", type=harness.positive, default=CORES[-1], help="largest number of cores")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma list of spread, 8m, slow")
    parser.add_argument("--peers", default="", help="comma list of peers on spread: rllib")
    args = parser.parse_args()
    peers = [each for each in args.peers.split(",") if each]
    if missing := [each for each in peers if not install.installed(each)]:
        sys.exit(f"{missing[0]} is not installed: python -m bench.peers.install {missing[0]}")
    about = harness.machine()
    rates: dict[tuple[str, str], dict[int, list[float]]] = {}
    for seed, name, cores in product(range(args.runs), args.tasks.split(","), cores_to_use(args.most)):
        with bound_to(cores):
            for system, run in systems_of(name, cores, peers).items():
                rate = steady_rate(run(Request(seed, TASKS[name].env_steps(cores))))
                rates.setdefault((name, system), {}).setdefault(cores, []).append(rate)
                harness.say(f"run {seed + 1} of {args.runs}: {name}, {cores} cores, {system}: {rate:,.0f} env steps/s")
    rows = [row(*key, by_cores) for key, by_cores in rates.items()]
    harness.report("cores", about, rows, headline(rates), args.json)


if __name__ == "__main__":
    main()
