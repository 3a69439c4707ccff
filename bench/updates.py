"""Measures the CPU time of an update, by how agents share policies and whether nets are recurrent.

`python -m bench.updates --json updates.json`. Independent PPO in spread, [64, 64] nets, one thread, as in a learner
worker; 4,000 env steps per round, six agents. A policy of several agents trains on all of their samples (pooled) or on
as many as one agent has (drawn). Recurrent nets learn from whole segments, here 40 of 100 steps, or 160 of 25. Each
case is measured with the kernels of NumPy and with compiled ones (docs/architecture.md), in processes that take turns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from bench import harness
from bench.harness import Row, spread
from bench.workers import UPDATE, Team, kernels, on_one_thread
from marless.core.compiling import COMPILED, NUMPY
from marless.jobs import spec as specs
from marless.jobs.spec import JobSpec

WARM_UP, ROUNDS = 2, 10
"""Numbers of rounds: for warm-up, and measured."""
AGENTS = 6
APART: Mapping[str, object] = {"name": "fixed", "groups": "independent"}
LONG, SHORT = {"count": 1, "envs": 40, "steps": 100}, {"count": 1, "envs": 160, "steps": 25}
"""4,000 env steps."""


def together(*sizes: int) -> dict[str, list[str]]:
    """Groups of the given sizes."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return {
        f"group_{i}": [f"agent_{j}" for j in range(end - size, end)]
        for i, (size, end) in enumerate(zip(sizes, ends, strict=True))
    }


def cases() -> dict[tuple[str, str], Mapping[str, object]]:
    """The cases: sections of a job, by groups and by variant."""
    found: dict[tuple[str, str], Mapping[str, object]] = {}
    for actors in (SHORT, LONG):
        for memory in ("none", "gru"):
            what = f"{actors['envs']} segments of {actors['steps']}, memory {memory}"
            found["a policy each", what] = {"sharing": APART, "actors": actors, "model": {"recurrent": memory}}
    for sizes in ((3, 2, 1), (3, 3), (6,)):
        for samples in ("pooled", "drawn"):
            sharing = {"name": "fixed", "groups": together(*sizes), "samples": samples}
            found[" + ".join(map(str, sizes)), samples] = {"sharing": sharing, "actors": SHORT}
    return found


def job(sections: Mapping[str, object], seed: int) -> JobSpec:
    """The job of a case."""
    env = {"name": "mpe/simple_spread", "options": {"agents": AGENTS}}
    shared: dict[str, object] = {"name": "bench", "seed": seed, "env": env, "algorithm": {"name": "ippo"}}
    return specs.parse({**shared, "stop": {"rounds": 1}, **sections}, "bench")


def cpu_ms(sections: Mapping[str, object], seed: int) -> float:
    """Mean CPU milliseconds of an update, in this process."""
    team = Team(job(sections, seed))
    for number in range(WARM_UP + ROUNDS):
        if number == WARM_UP:
            team.cpu_ms.clear()
        team.round(number)
    return team.cpu_ms[UPDATE] / ROUNDS


def measured(case: int, seed: int, choice: str) -> float:
    """`cpu_ms` of a case in a process with these kernels."""
    with kernels(choice):
        output = harness.run([sys.executable, "-m", "bench.updates", f"--case={case}", f"--seed={seed}"], timeout_s=600)
    return float(output.lines[-1]["cpu_ms"])


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--case", type=int, default=None, help="measure only this one, in this process")
    parser.add_argument("--seed", type=int, default=0, help="of the job of --case")
    args = parser.parse_args()
    if args.case is not None:
        on_one_thread()
        print(json.dumps({"cpu_ms": cpu_ms(list(cases().values())[args.case], args.seed)}))
        return
    about = harness.machine()
    rows: list[Row] = []
    for case, (groups, special) in enumerate(cases()):
        took: dict[str, list[float]] = {choice: [] for choice in (NUMPY, COMPILED)}
        for seed in range(args.runs):
            for choice, found in took.items():
                found.append(measured(case, seed, choice))
        cells = {f"CPU ms of an update, {choice}": spread(found).cell(0) for choice, found in took.items()}
        rows.append({"agents in groups of": groups, "with": special, **cells})
        harness.say(f"{groups}, {special}: {cells}")
    harness.report("updates", about, rows, {}, args.json)


if __name__ == "__main__":
    main()
