"""Measures where the CPU time of a round goes: milliseconds of each process of `marless train` on the common task.

`python -m bench.round_cpu --json round_cpu.json`. Synchronous rounds with the kernels of NumPy and with compiled ones
(docs/architecture.md, "Compiled kernels"), and pipelined rounds, in turns. CPU times are those that the system counts
for each process between two moments of the steady state. Other load hardly affects them, except that processes which
take turns on a core empty its caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench import harness
from bench.harness import Row, spread
from bench.off_policy_step import steady
from bench.processes import Cpu
from bench.systems import WARM_UP, Request, marless_job, settings
from bench.task import TASK
from bench.workers import kernels
from marless.core.compiling import COMPILED, NUMPY

ENV_STEPS = 800_000
LEAST_MS = 0.1
"""Processes with less are left out: those that only wait."""
TOTAL = "all"


@dataclass(frozen=True)
class Case:
    """How rounds are run."""

    schedule: str
    kernels: str

    def __str__(self) -> str:
        return f"{self.schedule}, {self.kernels} (CPU ms)"


CASES = (Case("synchronous", NUMPY), Case("synchronous", COMPILED), Case("pipelined", COMPILED))


def measured(case: Case, seed: int, env_steps: int) -> dict[str, float]:
    """CPU milliseconds of a round by role, and in all; raises BenchError for too short a run."""
    cpu = Cpu()
    with kernels(case.kernels):
        job = marless_job(settings(Request(seed, env_steps)) | {"schedule": case.schedule}, 1200.0, watch=cpu)
    found = steady(cpu.looks, job.records[WARM_UP:-1])
    by_role = {role: 1000 * used_s / found.rounds for role, used_s in found.cpu_s.items()}
    return {role: ms for role, ms in by_role.items() if ms >= LEAST_MS} | {TOTAL: sum(by_role.values())}


def rows(found: Mapping[Case, Sequence[Mapping[str, float]]]) -> list[Row]:
    """A row for each role, the largest first, and one for all."""
    [first, *_] = found.values()
    roles = sorted({role for runs in found.values() for run in runs for role in run} - {TOTAL})
    roles.sort(key=lambda role: -first[0].get(role, 0.0))
    return [
        {
            "process": role,
            **{str(case): spread([run.get(role, 0.0) for run in runs]).cell(1) for case, runs in found.items()},
        }
        for role in (*roles, TOTAL)
    ]


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--env-steps", type=int, default=ENV_STEPS, help="of each run")
    args = parser.parse_args()
    about = harness.machine()
    found: dict[Case, list[dict[str, float]]] = {case: [] for case in CASES}
    for seed in range(args.runs):
        for case in CASES:
            found[case].append(measured(case, seed, args.env_steps))
            shown = {role: round(ms, 1) for role, ms in found[case][-1].items()}
            harness.say(f"run {seed + 1} of {args.runs}: {case}: {shown}")
    headline = {
        "round_env_steps": TASK.iteration_env_steps,
        "cpu_ms": {str(case): round(spread([run[TOTAL] for run in runs]).median, 1) for case, runs in found.items()},
    }
    harness.report("round_cpu", about, rows(found), headline, args.json)


if __name__ == "__main__":
    main()
