"""Measures what browsers that show a job cost its rounds, in pairs of blocks of one job: with them, and without.

`python -m bench.dashboard_crowd --json crowd.json`. One job trains on a stack of `marless up`; browsers come and go,
and rounds are compared with those just before or after. More pairs are taken until the 95 % interval of the slowdown is
narrow. A neighbour of a shared machine makes some pairs useless, so that an interquartile mean is told beside the
mean. Browsers are connections of a process that reads bytes and has the scheduling class "idle": they would run on
other machines, and must not take the cores whose share the dashboard is charged for. CPU seconds are told beside, of
services and workers, of the dashboard and of the browsers; a busy machine changes them little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil  # type: ignore[import-untyped]  # psutil ships no types

from bench.harness import percentile
from bench.jobs import stack
from marless.app.cli.ps import of_marless
from marless.app.client import AsyncClient
from marless.core import process_table
from marless.cost.comparison.statistics import interquartile_mean
from marless.jobs.record import RoundRecord

BROWSERS = 50
BLOCK = 40
"""Rounds of a block: two evaluations are among them."""
SETTLED_S = 0.5
"""Seconds after browsers have come or gone in which no round is counted."""
READ_BYTES = 2**16
TRAINED: dict[str, Any] = {  # Any: YAML
    "name": "watched",
    "env": {"name": "mpe/simple_spread"},
    "algorithm": "ippo",
    "actors": {"count": 2, "envs": 32, "steps": 25},
    "evaluation": {"every": 20, "episodes": 20, "random_episodes": 20},
    "stop": {"rounds": 1_000_000},
}


@contextmanager
def dashboard(*words: str) -> Iterator[tuple[str, str, psutil.Process]]:
    """Run a dashboard; yields its address, its token and its process."""
    command = [sys.executable, "-P", "-m", "marless", "dashboard", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        address, _, token = process.stdout.readline().strip().partition("/#token=")
        try:
            yield address, token, psutil.Process(process.pid)
        finally:
            process.terminate()


def read_streams(address: str, token: str) -> None:
    """Be browsers: as many as each number on standard input says follow the job; what they get is only read."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    place, reading = urlsplit(address), selectors.DefaultSelector()
    reading.register(0, selectors.EVENT_READ)
    opened: list[socket.socket] = []
    while True:
        for key, _ in reading.select():
            if isinstance(key.fileobj, socket.socket):
                if key.fileobj.fileno() >= 0:  # else a line, read just before, has closed it
                    key.fileobj.recv(READ_BYTES)
                continue
            if not (line := os.read(0, 64)):  # one line: the next is sent after the answer
                return
            for each in opened:
                reading.unregister(each)
                each.close()
            opened = [_browser(place.hostname or "", place.port or 0, token) for _ in range(int(line))]
            for each in opened:
                reading.register(each, selectors.EVENT_READ)
            print("ready", flush=True)  # for the process that measures


def _browser(host: str, port: int, token: str) -> socket.socket:
    """A connection that follows the job, and has got the first bytes."""
    found = socket.create_connection((host, port))
    lines = (
        f"GET /api/jobs/{TRAINED['name']}/events HTTP/1.1",
        f"Host: {host}:{port}",
        f"Authorization: Bearer {token}",
    )
    found.sendall("\r\n".join([*lines, "", ""]).encode())
    if not found.recv(READ_BYTES).startswith(b"HTTP/1.1 200"):
        raise ConnectionError("the dashboard has refused a browser")
    return found


@asynccontextmanager
async def browsers(address: str, token: str) -> AsyncIterator[Crowd]:
    """The process of the browsers; at first there is none."""
    command = [sys.executable, "-P", "-m", "bench.dashboard_crowd", "--read", address, "--token", token]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Crowd(process)
    finally:
        with suppress(ProcessLookupError):  # it may have failed, which is told where it was asked for something
            process.kill()
        await process.wait()


class Crowd:
    """Browsers that come and go."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.process = psutil.Process(process.pid)

    async def come(self, count: int) -> None:
        """Have so many browsers follow the job; returns once each has got its first bytes."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{count}\n".encode())
        if not await self._process.stdout.readline():
            raise ConnectionError("the browsers have ended")


class Cpu:
    """CPU seconds of the processes that train, of the dashboard, and of the browsers."""

    def __init__(self, runs: Path, dashboard_: psutil.Process, crowd: psutil.Process) -> None:
        named = [each for each in of_marless(process_table.own_processes()) if each.place.startswith(str(runs))]
        training = [psutil.Process(each.pid) for each in named if each.pid != dashboard_.pid]
        self._of = {"training": training, "dashboard": [dashboard_], "browsers": [crowd]}

    def seconds(self) -> dict[str, float]:
        """As many as each has used so far."""
        return {name: sum(_used_s(each) for each in processes) for name, processes in self._of.items()}


def _used_s(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        return float(sum(process.cpu_times()[:2]))
    return 0.0


@dataclass
class Block:
    """Rounds during which the same browsers were there."""

    watched: bool
    took_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)

    @property
    def round_s(self) -> float:
        """Mean seconds of its rounds."""
        return statistics.fmean(self.took_s)


async def block(rounds: AsyncIterator[RoundRecord], crowd: Crowd, cpu: Cpu, browsers_: int) -> Block:
    """Measure a block with so many browsers."""
    await crowd.come(browsers_)
    found, from_s, before = Block(bool(browsers_)), time.time() + SETTLED_S, dict[str, float]()
    async for record in rounds:
        if record.started_s < from_s:
            before = cpu.seconds()
            continue
        found.took_s.append(record.took_s)
        if len(found.took_s) == BLOCK:
            break
    found.cpu_s = {name: used_s - before[name] for name, used_s in cpu.seconds().items()}
    return found


async def late(address: str, token: str, late_s: list[float]) -> None:
    """Follow the job as a page does; adds, for each event, the seconds since the end of the oldest round in it."""
    async with aiohttp.ClientSession(address, headers={"Authorization": f"Bearer {token}"}) as browser:
        path, forever = f"/api/jobs/{TRAINED['name']}/events", aiohttp.ClientTimeout(total=None)
        async with browser.get(path, timeout=forever, read_bufsize=2**22) as answer:
            async for line in answer.content:
                if line.startswith(b"data: [{"):
                    late_s.append(time.time() - json.loads(line[6:])[0]["ended_s"])


async def measured(runs: Path, pairs: int, within: float) -> dict[str, Any]:  # Any: JSON
    """Compare blocks until the interval of the slowdown is within so much, or for so many pairs."""
    taken, late_s = list[tuple[Block, Block]](), list[float]()
    with dashboard("--runs", str(runs)) as (address, token, process):
        async with AsyncClient(runs=runs) as client, browsers(address, token) as crowd:
            job = (await client.submit(TRAINED, job=TRAINED["name"])).job
            async with aclosing(client.watch(job)) as events:
                rounds = (event.record async for event in events if event.record)
                await anext(rounds)
                cpu = Cpu(runs, process, crowd.process)
                await block(rounds, crowd, cpu, BROWSERS)  # workers, and the dashboard, are warm now
                while len(taken) < pairs and (len(taken) < 10 or half_width(slowdowns(taken)) > within):
                    # In turn first with browsers and first without, so that a drift of the machine cancels out.
                    order = [BROWSERS, 0] if len(taken) % 2 else [0, BROWSERS]
                    both = [await block(rounds, crowd, cpu, count) for count in order]
                    taken.append((both[0], both[1]) if both[1].watched else (both[1], both[0]))
                    print(f"pair {len(taken)}: {slowdowns(taken[-1:])[0]:+.2%}", file=sys.stderr, flush=True)
                await crowd.come(BROWSERS - 1)
                looking = asyncio.create_task(late(address, token, late_s))
                for _ in range(5 * BLOCK):
                    await anext(rounds)
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
            await client.cancel(job)
    return figures(taken) | {
        "event_ms": 1e3 * statistics.median(late_s),
        "event_ms_95": 1e3 * percentile(late_s, 95),
        "event_ms_most": 1e3 * max(late_s),
        "events": len(late_s),
    }


def slowdowns(pairs: Sequence[tuple[Block, Block]]) -> list[float]:
    """By which fraction rounds were longer with browsers, pair by pair."""
    return [watched.round_s / alone.round_s - 1 for alone, watched in pairs]


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean; with ten pairs or more, t is near 2."""
    return 2.0 * statistics.stdev(values) / math.sqrt(len(values))


def figures(pairs: Sequence[tuple[Block, Block]]) -> dict[str, Any]:  # Any: JSON
    """What the pairs show."""
    found = slowdowns(pairs)
    middle = interquartile_mean([found])

    def cpu_ms(which: int, name: str) -> float:
        blocks = [pair[which] for pair in pairs]
        return 1e3 * sum(each.cpu_s[name] for each in blocks) / (BLOCK * len(blocks))

    return {
        "browsers": BROWSERS,
        "pairs": len(pairs),
        "round_ms_alone": 1e3 * statistics.fmean(alone.round_s for alone, _ in pairs),
        "round_ms_watched": 1e3 * statistics.fmean(watched.round_s for _, watched in pairs),
        "slower": statistics.fmean(found),
        "slower_within": half_width(found),
        "slower_interquartile": middle.mean,
        "slower_interquartile_95": [middle.low, middle.high],
        "slower_pairs": found,
        "training_cpu_ms_alone": cpu_ms(0, "training"),
        "training_cpu_ms_watched": cpu_ms(1, "training"),
        "dashboard_cpu_ms_alone": cpu_ms(0, "dashboard"),  # it follows the job, and sends it to nobody
        "dashboard_cpu_ms_watched": cpu_ms(1, "dashboard"),
        "browsers_cpu_ms": cpu_ms(1, "browsers"),
        "cores": os.cpu_count(),
    }


def main() -> None:
    """Measure, and print or write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--pairs", type=int, default=200, help="most pairs of blocks")
    parser.add_argument("--within", type=float, default=0.005, help="width of the interval at which to stop")
    parser.add_argument("--read", default="", help=argparse.SUPPRESS)
    parser.add_argument("--token", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read_streams(given.read, given.token)
        return
    with stack() as runs:
        found = asyncio.run(measured(runs, given.pairs, given.within))
    text = json.dumps(found, indent=1)
    if given.json:
        given.json.write_text(text + "\n")
    print(text)  # the figures, for people


if __name__ == "__main__":
    main()
