"""Measures many small jobs on one pool of workers, beside one machine for each job: cost, makespan, utilisation.

`python -m bench.many_jobs --jobs 8 --json many_jobs.json`. A pool of as many workers as this machine has cores, one
coordinator, and one store serve all jobs at once. Beside it, some of the jobs run alone on the same services, one after
another: a machine each would be as quick as the median of these, all at once. Both are measured here, on the same
cores. A machine costs what the smallest c6a with these vCPUs costs, for as long as it is used, and at least a minute.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from bench import harness
from bench.harness import Row
from bench.systems import MARLESS
from marless.app.client import Client
from marless.cost.billing.bill import bill
from marless.cost.billing.machines import HOUR_US, MICRO, charged_us
from marless.cost.pricing import Rate, usd
from marless.jobs import prices, spec
from marless.jobs.record import RoundRecord, from_json
from marless.jobs.usage import HOST, WHOLE

ROUNDS = 30
LIMIT_S = 900.0
ALONE = 4
"""Jobs that are measured alone."""
JOB: Row = {
    "env": {"name": "mpe/simple_spread", "options": {"agents": 3}},
    "algorithm": "ippo",
    "actors": {"count": 2, "envs": 20},
    "stop": {"rounds": ROUNDS},
}


@dataclass(frozen=True)
class Done:
    """What was measured of one job."""

    began_s: float
    """Unix time at which it was submitted."""
    ended_s: float
    work_s: float
    """CPU seconds of its actors, evaluations and learners."""
    billed_usd: float
    """What its functions cost by accounting `billed`."""


@contextmanager
def pool(workers: int) -> Iterator[Path]:
    """Serve a pool with so many actor workers, and as many learner workers; yields the directory of run folders."""
    with tempfile.TemporaryDirectory(prefix="marless-") as place:
        runs = Path(place) / "runs"
        size = ["--actor-workers", str(workers), "--learner-workers", str(workers)]
        subprocess.run([MARLESS, "up", "--runs", runs, *size], check=True, capture_output=True)
        try:
            yield runs
        finally:
            subprocess.run([MARLESS, "down", "--runs", runs], check=True, capture_output=True)


def together(runs: Path, seeds: Sequence[int]) -> list[Done]:
    """Submit a job for each seed at once, and wait for all."""
    with Client(runs=runs) as client:
        submitted = [(time.time(), client.submit({**JOB, "seed": seed}).job) for seed in seeds]
        return [_done(client, runs, job, began_s) for began_s, job in submitted]


def _done(client: Client, runs: Path, job: str, began_s: float) -> Done:
    ended = client.wait(job, timeout_s=LIMIT_S)
    if ended.state != "SUCCEEDED" or ended.ended_s is None:
        raise harness.BenchError(f"job {job} ended as {ended.state}: {ended.reason}")
    records = [from_json(line) for line in (runs / job / "rounds.jsonl").read_text("utf-8").splitlines()]
    found = bill(records, spec.load_resolved(runs / job / "spec.yaml"), prices.load())
    return Done(began_s, ended.ended_s, _work_s(records), found.total_usd("billed"))


def _work_s(records: Sequence[RoundRecord]) -> float:
    invocations = (each for record in records for each in record.invocations)
    return sum(each.vcpu_s for each in invocations if each.function in (*WHOLE, HOST))


def machine_usd(seconds: float, vcpus: int) -> tuple[str, float]:
    """The smallest machine of the serverful family with these vCPUs, and what it costs for this long."""
    table = prices.load()
    name, price = next(each for each in table.family() if each[1].vcpus >= vcpus)
    us = charged_us(round(seconds * MICRO), table.machines.minimum_s)
    return name, usd(Rate.per(price.usd_h, HOUR_US).of(us))


def rows_of(pooled: Sequence[Done], alone: Sequence[Done], vcpus: int) -> list[Row]:
    """The rows of the table: the pool, and a machine for each job."""
    makespan_s = max(each.ended_s for each in pooled) - min(each.began_s for each in pooled)
    alone_s = median(each.ended_s - each.began_s for each in alone)
    name, one_usd = machine_usd(alone_s, vcpus)
    return [
        _row(f"one pool on one {name}", makespan_s, machine_usd(makespan_s, vcpus)[1], pooled, makespan_s * vcpus),
        _row(f"{len(pooled)} × {name}", alone_s, len(pooled) * one_usd, alone, alone_s * vcpus * len(alone)),
    ]


def _row(what: str, makespan_s: float, machines_usd: float, jobs: Sequence[Done], vcpu_s: float) -> Row:
    return {
        "on": what,
        "makespan (s)": round(makespan_s, 1),
        "machines (m$)": round(1000 * machines_usd, 3),
        "functions, a job (m$)": round(1000 * fmean(each.billed_usd for each in jobs), 3),
        "utilisation (%)": round(100 * sum(each.work_s for each in jobs) / vcpu_s, 1),
    }


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=ALONE)
    parser.add_argument("--jobs", type=int, default=8, help="jobs on the pool at once")
    args = parser.parse_args()
    about, vcpus = harness.machine(), os.cpu_count() or 1
    with pool(vcpus) as runs:
        together(runs, [0])  # the first job, which starts the workers, is not measured
        alone = [done for seed in range(1, args.runs + 1) for done in together(runs, [seed])]
        pooled = together(runs, range(101, 101 + args.jobs))
    rows = rows_of(pooled, alone, vcpus)
    headline = {
        "jobs": args.jobs,
        "makespan_ratio": round(rows[0]["makespan (s)"] / rows[1]["makespan (s)"], 2),
        "cost_ratio": round(rows[0]["machines (m$)"] / rows[1]["machines (m$)"], 3),
    }
    harness.report("many_jobs", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
