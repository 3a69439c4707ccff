"""Measures the control plane with up to 2,000 actors: `python -m bench.scale --json scale.json`.

The services are processes of their own, and so is the learner worker. The actor workers are real in protocol
(`bench.crowd`), and their rollouts are empty. They share the machine's cores with the services. So a round's seconds
tell what this machine can do with everything on it, and the services' CPU time a round tells what each service needs by
itself: it is that of its process, from which workers, relays and caches are apart.

With `--hosts 4`, as root, the workers run in four network namespaces, each with a cache of the parameter store and a
relay, and services and workers call one another over TLS with tokens. With `--light`, a host is one process
(`bench.light`), which leaves more of the cores to the services. With `--jobs 2`, two jobs share the actors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from bench import harness
from bench.harness import BenchError, Row, spread
from bench.stack import ON_HOSTS, Stack, on_hosts, services
from marless.app.client import AsyncClient
from marless.jobs.record import RoundRecord
from marless.rpc.client import Peer
from marless.rpc.concurrency import gather
from marless.rpc.roles import Role
from marless.rpc.v1 import actor_pool_pb2, common_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub

ACTORS = (10, 100, 500, 1000, 2000)
SETTLED = 2
"""First rounds that are not measured: learners start, and workers connect to the learner pool."""
STEPS = 5
START_S, ARRIVE_S, IDLE_S = 60.0, 600.0, 5.0


def document(actors: int, rounds: int, episodes: str) -> Row:
    """A job of short episodes for two agents with small nets, which evaluates nothing until its end."""
    return {
        "seed": 0,
        "env": {"name": "mpe/simple_spread", "options": {"agents": 2, "max_cycles": STEPS}},
        "algorithm": {"name": "ippo", "epochs": 1, "minibatches": 1},
        "model": {"hidden": [8]},
        "actors": {"count": actors, "envs": 1, "steps": STEPS, "episodes": episodes},
        "evaluation": {"every": 0, "episodes": 1, "random_episodes": 1},
        "checkpoint": {"every": 0},
        "stop": {"rounds": rounds},
    }


@dataclass(frozen=True)
class Arrival:
    """How workers arrived, from the request for them until all were connected."""

    seconds: float
    cpu_ms: float
    """CPU milliseconds of the actor pool for each worker."""


async def arrive(stack: Stack, workers: int) -> Arrival:
    """Scale the pool to so many workers."""
    peer = Peer(stack.address("actor_pool"), stack.security(Role.OPERATOR), "actor_pool")
    stub: Any = ActorPoolServiceStub(peer.channel)  # Any: the async stub is known to type checkers only
    try:
        await peer.call(stub.ListWorkers, common_pb2.ListWorkersRequest(), wait_for_ready=True, timeout_s=START_S)
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


async def measure(stack: Stack, actors: int, jobs: int, rounds: int, episodes: str) -> Row:
    """One row of the table; raises BenchError if a job does not succeed."""
    arrival = await arrive(stack, actors)
    harness.say(f"{actors} workers arrived in {arrival.seconds:.1f} s")
    async with stack.client() as client:
        documents = [document(actors // jobs, SETTLED + rounds + 1, episodes)] * jobs
        trained = await gather(_train(stack, client, each) for each in documents)
    idle = await _idle(stack)
    records = [record for each in trained for record in each.records[SETTLED:-1]]
    row = _row(actors // jobs, arrival, records, _cpu_ms(trained), max(each.line_bytes for each in trained))
    return {"actors": actors, "jobs": jobs} | row | idle | _memory(stack.peak_mb())


async def _idle(stack: Stack) -> Row:
    """Each service's CPU milliseconds a second while its workers are connected and idle: for keepalive, mostly."""
    before = stack.cpu_s()
    await asyncio.sleep(IDLE_S)
    after = stack.cpu_s()
    names = [name for name in before if name not in ON_HOSTS]
    return {f"{name} idle, CPU ms/s": round(1000 * (after[name] - before[name]) / IDLE_S) for name in names}


@dataclass(frozen=True)
class Trained:
    """A job's rounds, and the services' CPU seconds at the end of each, by a clock."""

    records: list[RoundRecord]
    looks: list[tuple[float, Mapping[str, float]]]
    line_bytes: int
    """Length of a round's record."""


async def _train(stack: Stack, client: AsyncClient, spec: Row) -> Trained:
    job = (await client.submit(spec)).job
    records: list[RoundRecord] = []
    looks: list[tuple[float, Mapping[str, float]]] = []
    async for event in client.watch(job):
        if event.record:
            records.append(event.record)
            looks.append((time.monotonic(), stack.cpu_s()))
            harness.say(f"  {job}, round {len(records)}: {event.record.took_s:.2f} s")
    ended = await client.get(job)
    if ended.state != "SUCCEEDED":
        raise BenchError(f"the job has ended {ended.state} after {len(records)} rounds: {ended.reason}")
    return Trained(records, looks, len((await client.read(job, "rounds.jsonl")).splitlines()[-2]))


def _cpu_ms(trained: Sequence[Trained]) -> Row:
    """Each service's CPU milliseconds a round of a job, while all jobs train and none evaluates."""
    first_s, before = max((each.looks[SETTLED - 1] for each in trained), key=itemgetter(0))
    last_s, after = min((each.looks[-2] for each in trained), key=itemgetter(0))
    rounds = sum(first_s < at_s <= last_s for each in trained for at_s, _ in each.looks)
    return {name: 1000 * (after[name] - before[name]) / rounds for name in before}


def _row(
    actors: int, arrival: Arrival, records: Sequence[RoundRecord], cpu_ms: Mapping[str, float], line_bytes: int
) -> Row:
    of_services = sum(ms for name, ms in cpu_ms.items() if name not in ON_HOSTS)
    overheads = spread([record.spent_s - learner_s(record) for record in records])
    return {
        "overhead s/round": overheads.cell(2),
        "of it rollout s": round(spread([record.phases.rollout for record in records]).median, 2),
        "arrival s": round(arrival.seconds, 1),
        "arrival CPU ms/worker": round(arrival.cpu_ms, 2),
        **{f"{name} CPU ms/round": round(ms, 1) for name, ms in cpu_ms.items() if name not in ON_HOSTS},
        "all services CPU ms/round": round(of_services, 1),
        "all services CPU µs/actor": round(1000 * of_services / actors),
        **{f"{name} of all hosts, CPU ms": round(ms) for name, ms in cpu_ms.items() if name in ON_HOSTS},
        "lost": sum(max(each.attempt - 1, 0) for record in records for each in record.invocations),
        "record kB": round(line_bytes / 1000, 1),
    }


def _memory(peaks: Mapping[str, float]) -> Row:
    return {f"{name} MB": round(mb) for name, mb in peaks.items()}


def transposed(rows: Sequence[Row]) -> list[Row]:
    """A row for each quantity, and a column for each number of actors, so that the table is not too wide to read."""
    return [
        {"actors": name} | {f"{row['actors']:,}": row[name] for row in rows} for name in rows[0] if name != "actors"
    ]


def headline(rows: Sequence[Row]) -> Row:
    """The figures that the project aims at, for the largest number of actors."""
    largest = rows[-1]
    memory = {name: value for name, value in largest.items() if name.endswith(" MB")}
    return {
        "actors": largest["actors"],
        "overhead_s": largest["overhead s/round"]["median"],
        "services_cpu_s": largest["all services CPU ms/round"] / 1000,
        "arrival_cpu_ms": largest["arrival CPU ms/worker"],
        "largest_service_mb": max(memory.values()),
    }


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=10)
    parser.add_argument("--actors", default=",".join(map(str, ACTORS)), help="comma list of numbers of actors")
    parser.add_argument("--jobs", type=int, default=1, help="jobs that share the actors and train at once")
    what = "carried: actors play, and return the state of their environments; fresh: a rollout is empty"
    parser.add_argument("--episodes", choices=("fresh", "carried"), default="fresh", help=what)
    parser.add_argument("--light", action="store_true", help="workers of a host share one process with its relay")
    parser.add_argument("--hosts", type=int, default=0, help="network namespaces for actor workers; 0: one host")
    args = parser.parse_args()
    if on_hosts(args.hosts):
        return
    about, rows = harness.machine(), []
    for actors in map(int, args.actors.split(",")):
        with services(actors, light=args.light) as stack:
            rows.append(
                {"hosts": max(args.hosts, 1)} | asyncio.run(measure(stack, actors, args.jobs, args.runs, args.episodes))
            )
    harness.report("scale", about, transposed(rows), headline(rows), args.json)


if __name__ == "__main__":
    main()
