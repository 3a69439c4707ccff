"""Measures the control plane with up to 2,000 actors: `python -m bench.scale --json scale.json`.

The services are processes of their own, and so is the learner worker. The actor workers are real in protocol and play
an empty rollout (`bench.crowd`). They share the machine's cores with the services. So a round's seconds tell what this
machine can do with everything on it, and the services' CPU time a round tells what each service needs by itself.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # psutil ships no types

from bench import harness
from bench.harness import BenchError, Row, spread
from marless.client import Client
from marless.record import RoundRecord
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.v1 import actor_pool_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub

ACTORS = (10, 100, 500, 1000, 2000)
SETTLED = 2
"""First rounds that are not measured: learners start, and workers connect to the learner pool."""
STEPS = 5
START_S, ARRIVE_S, JOB_S = 60.0, 600.0, 1200.0
SERVICES = ("param_store", "learner_pool", "actor_pool", "coordinator")


def document(actors: int, rounds: int) -> Row:
    """A job of short episodes for two agents with small nets, which evaluates nothing until its end."""
    return {
        "seed": 0,
        "env": {"name": "mpe/simple_spread", "options": {"agents": 2, "max_cycles": STEPS}},
        "algorithm": {"name": "ippo", "epochs": 1, "minibatches": 1},
        "model": {"hidden": [8]},
        "actors": {"count": actors, "envs": 1, "steps": STEPS},
        "evaluation": {"every": 0, "episodes": 1, "random_episodes": 1},
        "checkpoint": {"every": 0},
        "stop": {"rounds": rounds},
    }


@dataclass(frozen=True)
class Services:
    """The processes of a stack, each at a unix socket in a directory."""

    place: Path
    processes: Mapping[str, psutil.Process]

    def address(self, service: str) -> str:
        """The address of a service."""
        return _address(self.place, service)

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds that each service has used, without its children."""
        times = {name: process.cpu_times() for name, process in self.processes.items()}
        return {name: each.user + each.system for name, each in times.items()}

    def peak_mb(self) -> dict[str, float]:
        """The largest memory that each service has had resident, in MB of 10^6 bytes."""
        return {name: _peak_kib(process.pid) * 1024 / 1e6 for name, process in self.processes.items()}


def _peak_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _address(place: Path, service: str) -> str:
    return f"unix:{place}/{service}.sock"


@contextmanager
def services(actors: int) -> Iterator[Services]:
    """Run the four services; their logs are in the directory, and are printed if the block raises BenchError."""
    with tempfile.TemporaryDirectory(prefix="marless-") as name, ExitStack() as stack:
        place = Path(name)
        peers = [word for each in SERVICES for word in (f"--{each.replace('_', '-')}", _address(place, each))]
        options = {
            "param_store": ("services.param_store", "--data-dir", place / "data"),
            "learner_pool": ("services.learner_pool", *peers[:2], "--warm-workers", "1"),
            "actor_pool": ("bench.crowd", *peers[:2], "--actor-workers", str(actors)),
            "coordinator": ("services.coordinator", *peers[:6], "--runs", place / "runs"),
        }
        running = {}
        for service, (module, *arguments) in options.items():
            command = (module, "--listen", _address(place, service), "--exit-with-stdin", *arguments)
            running[service] = stack.enter_context(_process(place / f"{service}.log", *map(str, command)))
        yield Services(place, running)


@contextmanager
def _process(log: Path, *command: str) -> Iterator[psutil.Process]:
    with log.open("w") as file:
        process = psutil.Popen(
            [sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=file, stderr=file, cwd=harness.ROOT
        )
        try:
            yield psutil.Process(process.pid)
        except BenchError:
            harness.say(f"{log.name}:\n{log.read_text(encoding='utf-8')[-3000:]}")
            raise
        finally:
            harness.end_tree(process)


@dataclass(frozen=True)
class Arrival:
    """How workers arrived, from the request for them until all were connected."""

    seconds: float
    cpu_ms: float
    """CPU milliseconds of the actor pool for each worker."""


async def arrive(stack: Services, workers: int) -> Arrival:
    """Scale the pool to so many workers."""
    peer = Peer(stack.address("actor_pool"), Security(), "actor_pool")
    stub: Any = ActorPoolServiceStub(peer.channel)  # Any: the async stub is known to type checkers only
    try:
        await peer.call(stub.ListWorkers, actor_pool_pb2.ListWorkersRequest(), wait_for_ready=True, timeout_s=START_S)
        began_s, before = time.perf_counter(), stack.cpu_s()["actor_pool"]
        await peer.call(stub.Scale, actor_pool_pb2.ScaleRequest(workers=workers), timeout_s=ARRIVE_S)
        took_s, used_s = time.perf_counter() - began_s, stack.cpu_s()["actor_pool"] - before
    finally:
        await peer.close()
    return Arrival(took_s, 1000 * used_s / workers)


def learner_s(record: RoundRecord) -> float:
    """Seconds of the learners' own work in a round, which is no overhead."""
    learners = [each for each in record.invocations if each.function == "learner"]
    return max((each.end_s for each in learners), default=0.0) - min((each.start_s for each in learners), default=0.0)


def measure(actors: int, rounds: int) -> Row:
    """One row of the table; raises BenchError if the job does not succeed."""
    with services(actors) as stack:
        arrival = asyncio.run(arrive(stack, actors))
        harness.say(f"{actors} workers arrived in {arrival.seconds:.1f} s")
        with Client(stack.address("coordinator")) as client:
            records, cpu_ms, line_bytes = _train(stack, client, actors, SETTLED + rounds + 1)
        return _row(actors, arrival, records[SETTLED:-1], cpu_ms, line_bytes) | _memory(stack.peak_mb())


def _train(stack: Services, client: Client, actors: int, rounds: int) -> tuple[list[RoundRecord], Row, int]:
    """Run a job: its records, each service's CPU milliseconds a round after the first ones, and bytes of a record."""
    job = client.submit(document(actors, rounds)).job
    records: list[RoundRecord] = []
    looks: list[Mapping[str, float]] = []
    for event in client.watch(job):
        if event.record:
            records.append(event.record)
            looks.append(stack.cpu_s())
            harness.say(f"  round {len(records)}: {event.record.took_s:.2f} s")
    ended = client.get(job)
    if ended.state != "SUCCEEDED":
        raise BenchError(f"the job has ended {ended.state} after {len(records)} rounds: {ended.reason}")
    first, last = looks[SETTLED - 1], looks[-2]  # the last round evaluates
    cpu_ms = {name: 1000 * (last[name] - first[name]) / (len(looks) - 1 - SETTLED) for name in first}
    return records, cpu_ms, len(client.read(job, "rounds.jsonl").splitlines()[-2])


def _row(
    actors: int, arrival: Arrival, records: Sequence[RoundRecord], cpu_ms: Mapping[str, float], line_bytes: int
) -> Row:
    overheads = spread([record.spent_s - learner_s(record) for record in records])
    return {
        "actors": actors,
        "overhead s/round": overheads.cell(2),
        "of it rollout s": round(spread([record.phases.rollout for record in records]).median, 2),
        "arrival s": round(arrival.seconds, 1),
        "arrival CPU ms/worker": round(arrival.cpu_ms, 2),
        **{f"{name} CPU ms/round": round(ms) for name, ms in cpu_ms.items()},
        "lost": sum(max(each.attempt - 1, 0) for record in records for each in record.invocations),
        "record kB": round(line_bytes / 1000, 1),
    }


def _memory(peaks: Mapping[str, float]) -> Row:
    return {f"{name} MB": round(mb) for name, mb in peaks.items()}


def headline(rows: Sequence[Row]) -> Row:
    """The figures that the project aims at, for the largest number of actors."""
    largest = rows[-1]
    memory = {name: value for name, value in largest.items() if name.endswith(" MB")}
    return {
        "actors": largest["actors"],
        "overhead_s": largest["overhead s/round"]["median"],
        "arrival_cpu_ms": largest["arrival CPU ms/worker"],
        "largest_service_mb": max(memory.values()),
    }


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=10)
    parser.add_argument("--actors", default=",".join(map(str, ACTORS)), help="comma list of numbers of actors")
    args = parser.parse_args()
    about, rows = harness.machine(), []
    for actors in map(int, args.actors.split(",")):
        rows.append(measure(actors, args.runs))
    harness.report("scale", about, rows, headline(rows), args.json)


if __name__ == "__main__":
    main()
