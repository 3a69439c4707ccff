"""Measures how much a busy machine adds to a bill: by the durations of functions, and by their CPU seconds.

`python -m bench.busy --json busy.json`. Each run trains the task of all benchmarks twice with the same seed: on the
machine as it is, and beside endless loops on all cores. Both runs are billed twice, by *paper*. "waiting" is by how
much the durations of actors and evaluations exceed their CPU seconds.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path

from bench import harness
from bench.harness import Row, spread
from bench.systems import Request, settings
from marless.app.cli.stack import LocalStack
from marless.app.client import AsyncClient
from marless.cost.billing.bill import bill
from marless.jobs import prices, spec
from marless.jobs.record import RoundRecord
from marless.jobs.usage import waiting

ROUNDS = 100
LOOPS = 4
"""Endless loops for each core: each function has a fifth of a core then."""
TIMEOUT_S = 600.0
_JOB = "busy"


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that never wait, until the block ends."""
    # In sessions of their own: Linux may share cores evenly between sessions, however many processes each has.
    loop = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(loop, start_new_session=True) for _ in range(loops)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


async def train(job: spec.JobSpec, place: Path) -> list[RoundRecord]:
    """Train the job on a stack of its own; returns its records."""
    found: list[RoundRecord] = []
    stack = LocalStack(runs=place / "runs", logs=place / "logs", data=place / "store")
    async with stack, AsyncClient(stack.coordinator, contact_s=TIMEOUT_S) as client, asyncio.timeout(TIMEOUT_S):
        await client.submit(job, job=_JOB)
        async with aclosing(client.watch(_JOB)) as events:
            found = [event.record async for event in events if event.record]
    if len(found) < ROUNDS:
        raise harness.BenchError(f"the job ended after {len(found)} rounds")
    return found


def row(seed: int, loops: int, records: Sequence[RoundRecord], job: spec.JobSpec) -> Row:
    """A line a run: its bill by either time, and how much its functions waited."""
    listed = prices.load()
    usd = {
        time: bill(records, job.model_copy(update={"bill": job.bill.model_copy(update={"time": time})}), listed)
        for time in ("duration", "cpu")
    }
    return {
        "seed": seed,
        "loops": loops,
        "by duration ($)": round(usd["duration"].total_usd("paper"), 6),
        "by CPU time ($)": round(usd["cpu"].total_usd("paper"), 6),
        "waiting": round(waiting(records), 3),
        "training time (s)": round(sum(record.spent_s for record in records), 1),
    }


async def measure(runs: int) -> tuple[list[Row], dict[str, list[float]]]:
    """Make all runs; returns their rows, and by either time the ratio of the bills of each pair."""
    rows: list[Row] = []
    ratios: dict[str, list[float]] = {"by duration ($)": [], "by CPU time ($)": []}
    for seed in range(runs):
        job = spec.parse({"name": _JOB, **settings(Request(seed, 0)), "stop": {"rounds": ROUNDS}}, "job")
        for loops in (0, LOOPS * (os.cpu_count() or 1)):
            with tempfile.TemporaryDirectory(prefix="marless-bench-") as folder, busy(loops):
                rows.append(row(seed, loops, await train(job, Path(folder)), job))
            harness.say(str(rows[-1]))
        for name, found in ratios.items():
            alone, beside = (float(str(each[name])) for each in rows[-2:])
            found.append(beside / alone)
    return rows, ratios


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args = harness.parser(__doc__, runs=3).parse_args()
    about = harness.machine()
    rows, ratios = asyncio.run(measure(args.runs))
    headline = {f"busy_over_alone, {name}": spread(found).cell(3) for name, found in ratios.items()}
    harness.report("busy", about, rows, headline | {"rounds": ROUNDS}, args.json)


if __name__ == "__main__":
    main()
