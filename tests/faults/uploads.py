"""R6: uploads come twice, late, and over connections that break. Each is applied once; the late ones change nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from marless.data.trajectory import Trajectory
from marless.errors import StaleError
from marless.job import Job
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from marless.rpc.v1 import actor_pool_pb2
from marless.rpc.v1.learner_pool_pb2 import Measure
from services.actor_pool.actor import Actor
from services.learner_pool.updates import schema_of
from tests.faults.pools import RunningPools, running_pools, small_job
from tests.faults.proxy import Proxy, disturb

UPLOADERS = 16
DUPLICATED, LATE = 0.10, 0.05


class Storm:
    """One job, fed by hand: its trajectories follow from its seed alone."""

    def __init__(self, name: str, job: Job, running: RunningPools, sink: str) -> None:
        self.name, self.job = name, job
        self.running = running
        self.sink = sink
        self.epoch = 0
        self.versions: dict[str, int] = {}
        self._schema = schema_of(job.spec, job.spaces)
        self._actors = [Actor(ParamStore(running.actors), Security()) for _ in range(UPLOADERS)]

    async def open(self) -> None:
        self.epoch, versions = await self.running.open(self.name, self.job)
        self.versions = dict(versions)

    async def upload(self, round_: int, index: int, actor: int) -> None:
        """Upload as an actor does, until there is an answer."""
        settings = actor_pool_pb2.RolloutSettings(sink=self.sink)
        task = actor_pool_pb2.RolloutTask(job=self.name, round=round_, index=index, settings=settings)
        await self._actors[actor]._upload(task, self._trajectory(round_, index))

    async def update(self, round_: int) -> None:
        spec = self.job.spec.actors
        update = await self.running.pools.update(
            self.name,
            round_=round_,
            epoch=self.epoch,
            env_steps=round_ * spec.count * spec.envs * spec.steps,
            actors=spec.count,
            groups=self.job.sharing.decide(()).groups,
            versions=self.versions,
            measure=Measure(),
        )
        self.versions |= update.versions

    async def weights(self) -> list[dict[str, bytes]]:
        """Of every version, by policy."""
        newest = max(self.versions.values())
        stored = [
            await self.running.store.get(self.name, dict.fromkeys(self.versions, version), ["acting", "learning"])
            for version in range(1, newest + 1)
        ]
        return [
            {f"{name}.{part}": bytes(blob) for name, each in by_policy.items() for part, blob in each.blobs.items()}
            for by_policy in stored
        ]

    async def close(self) -> None:
        for actor in self._actors:
            await actor.close()
        await self.running.pools.close_job(self.name)

    def _trajectory(self, round_: int, index: int) -> Trajectory:
        rng = np.random.default_rng((round_, index))
        arrays = {}
        for name, (dtype, shape) in self._schema.shapes(boot_rows=0).items():
            if name.startswith(("obs", "reward")):
                arrays[name] = rng.normal(size=shape).astype(dtype)
            else:
                arrays[name] = np.zeros(shape, dtype)
        arrays["log_prob/0"] -= np.float32(1.6)
        return Trajectory(arrays)


async def run(seed: int, place: Path, *, uploads: int, per_round: int) -> dict[str, int]:
    """Raises AssertionError if an upload is lost, applied twice, or trained on though it was late; returns counts."""
    job = small_job(actors={"count": per_round, "envs": 4, "steps": 5})
    rounds = uploads // per_round
    async with running_pools(place, actor_workers=1) as running:
        calm = Storm("calm", job, running, running.learner_address)
        await calm.open()
        for round_ in range(rounds):
            for index in range(per_round):
                await calm.upload(round_, index, 0)
            await calm.update(round_)
        before = running.intake.counts
        assert (before.applied, before.duplicate, before.stale) == (uploads, 0, 0)

        rng = random.Random(seed)
        async with Proxy(running.learner_address, f"unix:{place}/proxy.sock") as proxy:
            storm = Storm("storm", job, running, proxy.address)
            await storm.open()
            disturbing = asyncio.create_task(disturb(proxy, rng, every_s=0.2))
            late, repeated = await _storm(storm, rounds, per_round, rng)
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)
        after = running.intake.counts
        assert after.applied - before.applied == uploads, f"{after.applied - before.applied} uploads were applied"
        assert after.stale >= late, f"{late} came late, {after.stale} were counted"
        assert after.duplicate >= repeated, f"{repeated} came twice, {after.duplicate} were counted"
        assert await storm.weights() == await calm.weights(), "what came late or twice changed the weights"
        for each in (calm, storm):
            await each.close()
    return {
        "applied": after.applied - before.applied,
        "sent twice": repeated,
        "dropped as duplicate": after.duplicate,
        "sent late": late,
        "refused as late": after.stale,
        "resets": proxy.resets,
    }


async def _storm(storm: Storm, rounds: int, per_round: int, rng: random.Random) -> tuple[int, int]:
    """Upload everything; returns how many were sent again after their round, and how many twice within it."""
    late = repeated = 0
    belated: list[tuple[int, int]] = []
    for round_ in range(rounds):
        sends = [(round_, index) for index in range(per_round)]
        again = rng.sample(sends, round(DUPLICATED * per_round))
        repeated += len(again)
        late += len(belated)
        order = [*sends, *again, *belated]
        rng.shuffle(order)
        shared = iter(order)
        async with asyncio.TaskGroup() as group:
            for actor in range(UPLOADERS):
                group.create_task(_send(storm, shared, round_, actor))
        await storm.update(round_)
        belated = rng.sample(sends, round(LATE * per_round)) if round_ + 1 < rounds else []
    return late, repeated


async def _send(storm: Storm, sends: Iterator[tuple[int, int]], round_: int, actor: int) -> None:
    for send in sends:
        try:
            await storm.upload(*send, actor)
        except StaleError:
            assert send[0] < round_, f"{send} was refused as late in round {round_}"
        else:
            assert send[0] == round_, f"{send} was taken in round {round_}"
