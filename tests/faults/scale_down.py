"""R16: workers leave while they sample. No trajectory that was accepted is lost, and none is missing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from operator import attrgetter
from pathlib import Path

from marless.core import process_environment
from marless.fleet.handover import new_ticket
from marless.fleet.launchers.base import ACCEPTED, LaunchOrder, WorkerProgram
from marless.fleet.launchers.local import LocalLauncher
from marless.fleet.launchers.registry import Choice
from marless.rpc.roles import Role
from marless.rpc.v1 import actor_pool_pb2, common_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.services.coordinator.execution.pools import Rollout
from marless.services.learner_pool.content import check_checksum
from tests import tokens
from tests.faults.pools import RunningPools, running_pools, small_job
from tests.faults.rig import WITNESS

WORKERS = 3
ACTORS = 9
JOB = "scaling"
STEPS = 100
"""Of an actor, if all workers leave at once: at 20 ms each, those that remain have work for seconds."""
SCALE_S = 300.0
"""Longest wait for workers to come or go."""


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
            again += _again(rollout, ACTORS)
            _check_trajectories(running, round_, ACTORS)
            running.buffer.advance(JOB, round_ + 1)
        counts = running.buffer.counts
        assert counts.applied == times * ACTORS, f"{counts.applied} of {times * ACTORS} trajectories were applied"
        await running.pools.close_job(JOB)
    return {"scale-downs": times, "accepted": counts.applied, "lost": 0, "actors run again": again}


async def at_once(
    place: Path, launcher: Choice, *, workers: int, remaining: int, steps: int | None = None, ports: bool = False
) -> dict[str, int]:
    """All workers but a few leave while they sample. The launcher's own are released by their pool, which waits for
    their tasks; workers that something else has started are killed. Raises AssertionError if a trajectory is lost.

    Steps take 20 ms until they have left, so that the others cannot end the round before. Containers do not know the
    environments of tests: for them, give so many `steps` of each actor that the round lasts longer than workers leave.
    """
    external = launcher.name == "external"
    known = tokens.made(place / "tokens") if external else None
    actors = 2 * workers
    hold = place / "hold"
    hold.touch()
    held = {"name": "waiting", "options": {"agents": 2, "max_cycles": 7, "hold": str(hold)}}
    changes = {} if steps else {"env": held}
    own = 0 if external else workers
    async with (
        _with_witnesses(),
        running_pools(place, actor_workers=own, launcher=launcher, tokens=known, ports=ports) as running,
        _others(running, workers if external else 0) as others,
    ):
        job = small_job(**changes, actors={"count": actors, "envs": 8, "steps": steps or STEPS})
        await _connected(running, workers, own)
        _, versions = await running.open(JOB, job)
        groups = job.sharing.decide(()).groups
        sampling = asyncio.create_task(running.pools.train(JOB, job, 0, actors, groups, versions, epoch=1))
        await _until(running, lambda found: all(each.busy for each in found))
        await (_kill(others, workers - remaining) if external else _release(running, remaining))
        assert not sampling.done(), "the workers were to leave while they sample"
        hold.unlink()
        await _until(running, lambda found: len(found) == remaining)
        rollout = await sampling
        again = _again(rollout, actors)
        _check_trajectories(running, 0, actors)
        assert bool(again) == external, "killed workers were in mid-task, released ones never are"
        await running.pools.close_job(JOB)
    return {"workers": workers, "left": workers - remaining, "accepted": actors, "lost": 0, "actors run again": again}


@asynccontextmanager
async def _with_witnesses() -> AsyncIterator[None]:
    """Context in which this process and workers that it starts know the environments of `witness/`."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(WITNESS), *([before] if before else [])])
    sys.path.append(str(WITNESS))
    try:
        yield
    finally:
        sys.path.remove(str(WITNESS))
        os.environ.pop("PYTHONPATH")
        os.environ.update({"PYTHONPATH": before} if before else {})


@asynccontextmanager
async def _others(running: RunningPools, workers: int) -> AsyncIterator[LocalLauncher]:
    """Workers that this process starts, and not their pool: it knows none of their tickets."""
    security = running.actor_config.server.security
    arguments = ["--pool", running.actors.address, "--param-store", running.store_address]
    environs = process_environment.inherited(os.environ) | process_environment.ACTOR
    program = WorkerProgram("marless.services.actor_pool.worker", arguments, environs, security.showing(Role.ACTOR))
    launcher = LocalLauncher(program)
    try:
        answers = await launcher.launch([LaunchOrder(f"other-{number}", new_ticket()) for number in range(workers)])
        assert all(answer == ACCEPTED for answer in answers), answers
        yield launcher
    finally:
        await launcher.close()


async def _kill(others: LocalLauncher, workers: int) -> None:
    await asyncio.gather(*(others.drain(f"other-{number}", 0.0) for number in range(workers)))


async def _release(running: RunningPools, remaining: int) -> None:
    stub = ActorPoolServiceStub(running.operator.channel)
    await running.operator.call(stub.Scale, actor_pool_pb2.ScaleRequest(workers=remaining), timeout_s=SCALE_S)


async def _connected(running: RunningPools, workers: int, own: int) -> None:
    if own:
        await _release(running, own)
    await _until(running, lambda found: len(found) == workers)


async def _until(running: RunningPools, reached: Callable[[Sequence[common_pb2.WorkerInfo]], bool]) -> None:
    stub, asked = ActorPoolServiceStub(running.operator.channel), common_pb2.ListWorkersRequest()
    async with asyncio.timeout(SCALE_S):
        while not reached((await running.operator.call(stub.ListWorkers, asked)).workers):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def _again(rollout: Rollout, actors: int) -> int:
    """How many actors ran more than once; raises AssertionError unless all are recorded, with each attempt."""
    last = {each.index: each.attempt for each in sorted(rollout.invocations, key=attrgetter("attempt"))}
    assert sorted(last) == list(range(actors))
    assert len(rollout.invocations) == sum(last.values()), "every attempt is recorded, lost or not"
    return sum(attempt > 1 for attempt in last.values())


def _check_trajectories(running: RunningPools, round_: int, actors: int) -> None:
    for file in running.buffer.trajectories(JOB, round_, actors):  # raises StaleError if one is missing
        check_checksum(file.header, memoryview(file.path.read_bytes()))


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
    workers = (await running.actors.call(stub.ListWorkers, common_pb2.ListWorkersRequest())).workers
    if workers:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(workers).pid, signal.SIGTERM)
