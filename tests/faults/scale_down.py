"""R16: workers leave while they sample. No trajectory that was accepted is lost, and none is missing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

from marless.rpc.v1 import actor_pool_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from services.learner_pool.intake import check_checksum
from tests.faults.pools import RunningPools, running_pools, small_job

WORKERS = 3
ACTORS = 9
JOB = "scaling"


async def run(seed: int, place: Path, *, times: int) -> dict[str, int]:
    """Raises AssertionError if a trajectory is lost; returns counts."""
    rng = random.Random(seed)
    job = small_job(actors={"count": ACTORS, "envs": 8, "steps": 50})
    again = 0
    async with running_pools(place, actor_workers=WORKERS) as running:
        _, versions = await running.open(JOB, job)
        groups = job.sharing.decide(()).groups
        for round_ in range(times):
            sampling = asyncio.create_task(running.pools.train(JOB, job, round_, ACTORS, groups, versions, epoch=1))
            await (_terminate if round_ % 2 else _scale)(running, rng)
            rollout = await sampling
            last = {each.index: each.attempt for each in sorted(rollout.invocations, key=attrgetter("attempt"))}
            assert sorted(last) == list(range(ACTORS))
            assert len(rollout.invocations) == sum(last.values()), "every attempt is recorded, lost or not"
            again += sum(attempt > 1 for attempt in last.values())
            for file in running.intake.trajectories(JOB, round_, ACTORS):  # raises StaleError if one is missing
                check_checksum(file.header, memoryview(file.path.read_bytes()))
            running.intake.advance(JOB, round_ + 1)
        counts = running.intake.counts
        assert counts.applied == times * ACTORS, f"{counts.applied} of {times * ACTORS} trajectories were applied"
        await running.pools.close_job(JOB)
    return {"scale-downs": times, "accepted": counts.applied, "lost": 0, "actors run again": again}


async def _scale(running: RunningPools, rng: random.Random) -> None:
    """Ask for fewer workers while they sample, then for all of them."""
    stub = ActorPoolServiceStub(running.actors.channel)
    await asyncio.sleep(rng.uniform(0, 0.1))
    for workers in (rng.randrange(1, WORKERS), WORKERS):
        await running.actors.call(stub.Scale, actor_pool_pb2.ScaleRequest(workers=workers))


async def _terminate(running: RunningPools, rng: random.Random) -> None:
    """End one worker politely, as a machine that is shut down does."""
    stub = ActorPoolServiceStub(running.actors.channel)
    await asyncio.sleep(rng.uniform(0, 0.1))
    workers = (await running.actors.call(stub.ListWorkers, actor_pool_pb2.ListWorkersRequest())).workers
    if workers:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(workers).pid, signal.SIGTERM)
