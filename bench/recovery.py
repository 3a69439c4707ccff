"""Measures how soon a running job recovers after a part of the stack is killed.

`python -m bench.recovery --json recovery.json`. The job is the task of all benchmarks. A part is killed (signal 9) at a
random moment of a round; measured is the time from then until the next round that ends after the kill. The last line is
of a job with `--long` recorded rounds, all almost empty (`bench.round_overhead`): a coordinator that starts reads them.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # psutil ships no types

from bench import harness
from bench.harness import Row, percentile, spread
from bench.processes import role
from bench.round_overhead import SETTINGS
from bench.systems import Request, settings
from marless.app.cli.stack import SERVICES, LocalStack, StackOptions
from marless.app.cli.supervision import RestartLimits
from marless.app.client import AsyncClient
from marless.jobs import spec
from marless.jobs.record import RoundRecord

PARTS = (*SERVICES, "actor worker", "learner worker", "redis-server")
WARM_UP_ROUNDS = 20
ROUNDS_BETWEEN = 3
"""Number of undisturbed rounds before each kill."""
TIMEOUT_S = 60.0
_ENDLESS = {"stop": {"rounds": 10**9}, "checkpoint": {"every": 0}}


@dataclass(frozen=True)
class Running:
    """A job on a stack, and its rounds as they are recorded."""

    stack: LocalStack
    place: str
    """Directory of all its files."""
    rounds: AsyncIterator[RoundRecord]

    async def next_after(self, moment_s: float) -> RoundRecord:
        """Wait for the first round that ends after a moment (Unix seconds)."""
        async with asyncio.timeout(TIMEOUT_S):
            async for record in self.rounds:
                if record.ended_s > moment_s:
                    return record
        raise harness.BenchError("the job ended")

    async def pid(self, part: str) -> int:
        """Process id of a part of the stack; waits until there is one."""
        if part in SERVICES:
            return self.stack.pid(part)
        async with asyncio.timeout(TIMEOUT_S):
            while not (found := [each.pid for each in self._family() if role(each.cmdline()) == part]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # polls, as other processes start it
        return int(found[0])

    def _family(self) -> list[psutil.Process]:
        """This process's descendants, and a Redis that outlived the store that started it."""
        ours = psutil.Process().children(recursive=True)
        others = psutil.process_iter(["name", "cmdline"])
        return [*ours, *(each for each in others if self.place in " ".join(each.info["cmdline"] or ()))]


@asynccontextmanager
async def running(seed: int, sections: Mapping[str, object] | None = None) -> AsyncIterator[Running]:
    """Run an endless job on a stack of its own; `sections` replace some of its own."""
    job = spec.parse({"name": "recovery", **settings(Request(seed, 0)), **(sections or {}), **_ENDLESS}, "job")
    with tempfile.TemporaryDirectory(prefix="marless-bench-") as folder:
        place = Path(folder)
        options = StackOptions(restarts=RestartLimits(deaths=1000))
        stack = LocalStack(runs=place / "runs", logs=place / "logs", data=place / "store", options=options)
        async with stack, AsyncClient(stack.coordinator, contact_s=TIMEOUT_S) as client:
            await client.submit(job, job="recovery")
            async with aclosing(client.watch("recovery")) as events:
                yield Running(stack, folder, (event.record async for event in events if event.record))


async def measure(runs: int, seed: int) -> tuple[float, Mapping[str, list[float]]]:
    """Seconds of an undisturbed round, and from each kill until the next recorded round, by part."""
    chance, found = random.Random(seed), dict[str, list[float]]((part, []) for part in PARTS)
    async with running(seed) as job:
        first = [await anext(job.rounds) for _ in range(WARM_UP_ROUNDS)]
        round_s = statistics.median(after.ended_s - before.ended_s for before, after in pairwise(first))
        for _ in range(runs):
            for part in chance.sample(PARTS, len(PARTS)):
                found[part].append(await _recovery_s(job, part, chance.uniform(0.0, round_s)))
                harness.say(f"{part}: {found[part][-1]:.2f} s")
    return round_s, found


async def long_job(rounds: int, runs: int, seed: int) -> tuple[float, list[float]]:
    """The same of the coordinator alone, once an almost empty job has recorded so many rounds."""
    chance = random.Random(seed)
    async with running(seed, SETTINGS) as job:
        ends_s: deque[float] = deque(maxlen=WARM_UP_ROUNDS)
        async for record in job.rounds:
            ends_s.append(record.ended_s)
            if record.round + 1 >= rounds:
                break
        round_s = statistics.median(after - before for before, after in pairwise(ends_s))
        found = [await _recovery_s(job, "coordinator", chance.uniform(0.0, round_s)) for _ in range(runs)]
    return round_s, found


async def _recovery_s(job: Running, part: str, delay_s: float) -> float:
    for _ in range(ROUNDS_BETWEEN):
        await job.next_after(time.time())
    await asyncio.sleep(delay_s)
    pid = await job.pid(part)
    killed_s = time.time()
    os.kill(pid, signal.SIGKILL)
    return (await job.next_after(killed_s)).ended_s - killed_s


def row_of(part: str, round_s: float, values: list[float]) -> Row:
    """The line of a part; lost time is what exceeds an undisturbed round."""
    return {
        "killed": part,
        "next round recorded after (s)": spread(values).cell(2),
        "p95 (s)": round(percentile(values, 95), 2),
        "lost, median (s)": round(max(statistics.median(values) - round_s, 0.0), 2),
        "kills": len(values),
    }


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=10)
    parser.add_argument("--long", type=int, default=10_000, help="rounds of the long job")
    args = parser.parse_args()
    about = harness.machine()
    round_s, found = asyncio.run(measure(args.runs, seed=0))
    empty_s, late = asyncio.run(long_job(args.long, args.runs, seed=0))
    rows: list[Row] = [{"killed": "nothing", "next round recorded after (s)": round(round_s, 2)}]
    rows += [row_of(part, round_s, values) for part, values in found.items()]
    rows.append(row_of(f"coordinator, after {args.long:,} rounds", empty_s, late))
    everything = [value for values in found.values() for value in values]
    headline = {
        "round_s": round(round_s, 3),
        "recovery_p95_s": round(percentile(everything, 95), 2),
        "coordinator_s": round(statistics.median(found["coordinator"]), 2),
        "coordinator_long_s": round(statistics.median(late), 2),
        "kills": len(everything),
    }
    harness.report("recovery", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
