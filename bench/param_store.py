"""Measures the latency until a published policy is visible, and the throughput of the parameter store's process.

One connection publishes, another watches: a version is visible when the watch reports it, and then also durable.

`python -m bench.param_store --json param_store.json`
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from bench import harness
from bench.harness import Row, percentile, spread
from marless.rpc.client import Peer
from marless.rpc.param_store import LATEST, ParamStore, PolicyWrite
from marless.rpc.security import Security

SIZES = {"10 kB": 10_000, "100 kB": 100_000, "1 MB": 1_000_000}
WARM_UP = 20
WRITERS = 4


@asynccontextmanager
async def store_process() -> AsyncIterator[Callable[[], ParamStore]]:
    """Run a parameter store with its own Redis; yields a function that opens a connection."""
    with tempfile.TemporaryDirectory(prefix="marless-bench-") as directory:
        address = f"unix:{directory}/store.sock"
        command = [sys.executable, "-m", "marless.services.param_store", "--listen", address, "--exit-with-stdin"]
        process = subprocess.Popen(  # noqa: ASYNC220  # started once, before anything is measured
            [*command, "--data-dir", directory], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=harness.ROOT
        )
        peers: list[Peer] = []

        def connect() -> ParamStore:
            peers.append(Peer(address, Security()))
            return ParamStore(peers[-1])

        try:
            yield connect
        finally:
            for peer in peers:
                await peer.close()
            process.communicate()


@dataclass
class Samples:
    """Seconds of single operations in one run."""

    visible: list[float] = field(default_factory=list)
    publish: list[float] = field(default_factory=list)
    get: list[float] = field(default_factory=list)


async def latencies(connect: Callable[[], ParamStore], job: str, size_bytes: int, count: int) -> Samples:
    """Measure single operations, one after another: publish, become visible, get."""
    writer, reader, watcher = connect(), connect(), connect()
    samples = Samples()
    blob = os.urandom(size_bytes)
    async with aclosing(watcher.watch(job)) as changes:
        seen = asyncio.ensure_future(anext(changes))
        for version in range(count + WARM_UP):
            write = PolicyWrite("a", version, f"{job}/{version}", {"acting": blob})
            start_s = time.perf_counter()
            published = asyncio.create_task(_timed(writer.publish(job, 0, version, [write])))
            await seen
            samples.visible.append(time.perf_counter() - start_s)
            samples.publish.append(await published)
            samples.get.append(await _timed(reader.get(job, {"a": LATEST}, ["acting"])))
            seen = asyncio.ensure_future(anext(changes))
        seen.cancel()
        await asyncio.gather(seen, return_exceptions=True)
    return Samples(samples.visible[WARM_UP:], samples.publish[WARM_UP:], samples.get[WARM_UP:])


async def throughput(connect: Callable[[], ParamStore], job: str, size_bytes: int, count: int) -> tuple[float, float]:
    """Publishes and gets per second, by several concurrent clients, each with its own policy."""
    clients = {f"policy_{i}": connect() for i in range(WRITERS)}
    blob = os.urandom(size_bytes)

    async def publish(policy: str, client: ParamStore) -> None:
        for version in range(count):
            await client.publish(job, 0, version, [PolicyWrite(policy, version, f"{version}", {"acting": blob})])

    async def get(policy: str, client: ParamStore) -> None:
        for _ in range(count):
            await client.get(job, {policy: LATEST}, ["acting"])

    async def rate(operation: Callable[[str, ParamStore], Awaitable[None]]) -> float:
        took_s = await _timed(asyncio.gather(*(operation(*client) for client in clients.items())))
        return WRITERS * count / took_s

    return await rate(publish), await rate(get)


async def _timed(operation: Awaitable[object]) -> float:
    start_s = time.perf_counter()
    await operation
    return time.perf_counter() - start_s


async def measure(runs: int, count: int) -> list[Row]:
    """One row per policy size; medians over runs."""
    rows: list[Row] = []
    async with store_process() as connect:
        for name, size_bytes in SIZES.items():
            harness.say(f"{name} …")
            samples = [
                await latencies(connect, f"latency-{run}-{size_bytes}", size_bytes, count) for run in range(runs)
            ]
            rates = [
                await throughput(connect, f"rate-{run}-{size_bytes}", size_bytes, count // 4) for run in range(runs)
            ]
            rows.append(
                {
                    "policy": name,
                    "visible p50 (ms)": _ms([each.visible for each in samples], 50),
                    "visible p99 (ms)": _ms([each.visible for each in samples], 99),
                    "publish p50 (ms)": _ms([each.publish for each in samples], 50),
                    "get p50 (ms)": _ms([each.get for each in samples], 50),
                    "publishes/s": spread([rate for rate, _ in rates]).cell(0),
                    "gets/s": spread([rate for _, rate in rates]).cell(0),
                }
            )
    return rows


def _ms(runs: list[list[float]], percent: float) -> Row:
    return spread([1000 * percentile(run, percent) for run in runs]).cell(2)


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--count", type=int, default=200, help="publishes of each run and size")
    args = parser.parse_args()
    about = harness.machine()
    rows = asyncio.run(measure(args.runs, args.count))
    visible = {row["policy"]: row["visible p50 (ms)"]["median"] for row in rows}
    harness.report("param_store", about, rows, {"publish_to_visible_ms_p50": visible}, args.json)


if __name__ == "__main__":
    main()
