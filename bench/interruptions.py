"""Measures the cost of interruptions: compares the bill of a job that is interrupted ten times to an undisturbed one.

`python -m bench.interruptions --json interruptions.json`. Each run trains the task of all benchmarks twice with the
same seed, for the same number of rounds. The ratio excludes charges for starts, because stopped functions must be
started again.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

from bench import harness
from bench.harness import Row, spread
from bench.systems import Request, settings
from marless.app.cli.stack import LocalStack
from marless.app.client import AsyncClient
from marless.cost.billing.bill import bill
from marless.jobs import prices, spec
from marless.jobs.record import RoundRecord

ROUNDS = 660
"""A minute or more: the first rounds after a start are slower, which would be most of a shorter job."""
INTERRUPTIONS = 10
DOWN_S = 5.0
"""Seconds that the stack is down; a round takes a fiftieth of it, so that a charge for it would be noticed."""
TIMEOUT_S = 120.0
_JOB = "interrupted"


@dataclass(frozen=True)
class Run:
    """What a job was charged, and for how long it trained."""

    billed_usd: float
    without_starts_usd: float
    """As if every function had been there when it was called."""
    trained_s: float
    """Its rounds and the time between them."""


async def train(seed: int, interruptions: int, place: Path) -> Run:
    """Train the job with this many interruptions; returns what it was charged."""
    job = spec.parse({"name": _JOB, **settings(Request(seed, 0)), "stop": {"rounds": ROUNDS}}, "job")
    ends = [ROUNDS * n // (interruptions + 1) for n in range(1, interruptions + 2)]
    for until in ends:
        stack = LocalStack(runs=place / "runs", logs=place / "logs", data=place / "store")
        async with stack, AsyncClient(stack.coordinator, contact_s=TIMEOUT_S) as client:
            if until == ends[0]:
                await client.submit(job, job=_JOB)
            records = await _records(client, until)
        if until < ROUNDS:
            await asyncio.sleep(DOWN_S)
    return charges(records, job)


async def _records(client: AsyncClient, rounds: int) -> list[RoundRecord]:
    """Wait for the job's first `rounds` rounds; returns their records."""
    found: list[RoundRecord] = []
    async with asyncio.timeout(TIMEOUT_S), aclosing(client.watch(_JOB)) as events:
        async for event in events:
            if event.record:
                found.append(event.record)
            if len(found) == rounds:
                return found
    raise harness.BenchError(f"the job ended after {len(found)} rounds")


def charges(records: Sequence[RoundRecord], job: spec.JobSpec) -> Run:
    """What these rounds are charged as billed."""
    listed = prices.load()
    billed, without = (bill(each, job, listed).total_usd("billed") for each in (records, map(without_starts, records)))
    return Run(billed, without, sum(record.spent_s for record in records))


def without_starts(record: RoundRecord) -> RoundRecord:
    """The round with functions that were all there already."""
    return replace(record, invocations=tuple(replace(each, cold=False, init_s=0.0) for each in record.invocations))


def row(seed: int, interruptions: int, run: Run) -> Row:
    """A line a run."""
    return {
        "seed": seed,
        "interruptions": interruptions,
        "billed ($)": round(run.billed_usd, 6),
        "of it starts ($)": round(run.billed_usd - run.without_starts_usd, 6),
        "without starts ($)": round(run.without_starts_usd, 6),
        "training time (s)": round(run.trained_s, 1),
    }


async def measure(runs: int) -> tuple[list[Row], list[float]]:
    """Make all runs; returns their rows, and the ratio of bills without starts for each pair."""
    rows, ratios = [], []
    for seed in range(runs):
        found = []
        for interruptions in (0, INTERRUPTIONS):
            with tempfile.TemporaryDirectory(prefix="marless-bench-") as folder:
                run = await train(seed, interruptions, Path(folder))
            rows.append(row(seed, interruptions, run))
            harness.say(str(rows[-1]))
            found.append(run.without_starts_usd)
        ratios.append(found[1] / found[0])
    return rows, ratios


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args = harness.parser(__doc__, runs=3).parse_args()
    about = harness.machine()
    rows, ratios = asyncio.run(measure(args.runs))
    headline = {"interrupted_over_undisturbed": spread(ratios).cell(3), "down_s": DOWN_S, "rounds": ROUNDS}
    harness.report("interruptions", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
