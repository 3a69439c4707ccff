"""R6: uploads come twice, late, under epochs that are over, for rounds that have not begun, and over connections that
break. Each genuine one is applied once; the others change nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marless.core.errors import FencedError, JobStateError, StaleError
from marless.core.settings import Measure
from marless.jobs.job import PreparedJob, schema_of
from marless.learning.data.trajectory import Trajectory
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from marless.rpc.v1 import actor_pool_pb2
from marless.services.actor_pool.worker import Actor
from marless.services.learner_pool.trajectory_buffer import UploadCounts
from tests.faults.pools import RunningPools, running_pools, small_job
from tests.faults.proxy import Proxy, disturb

UPLOADERS = 16
DUPLICATED, LATE, STRAY = 0.10, 0.05, 0.02
TAKEN_OVER_EVERY = 3
"""Rounds: then another coordinator opens the job in the midst of its uploads."""


@dataclass(frozen=True)
class Send:
    """One upload; content other than 0 is nobody's."""

    round: int
    index: int
    epoch: int
    content: int = 0


class Storm:
    """One job, fed by hand: its trajectories follow from its seed alone."""

    def __init__(self, name: str, job: PreparedJob, running: RunningPools, sink: str) -> None:
        self.name, self.job = name, job
        self.running = running
        self.sink = sink
        self.epoch = 0
        self.versions: dict[str, int] = {}
        self._schema = schema_of(job.spec, job.spaces)
        self._actors = [Actor(ParamStore(running.actors), Security()) for _ in range(UPLOADERS)]

    async def open(self, round_: int = 0) -> None:
        """As a coordinator that takes the job over before this round's update."""
        self.epoch, versions = await self.running.open(self.name, self.job, round_=round_)
        self.versions = dict(versions)

    async def upload(self, send: Send, actor: int = 0) -> None:
        """Upload as an actor does, until there is an answer."""
        settings = actor_pool_pb2.RolloutSettings(sink=self.sink, epoch=send.epoch)
        task = actor_pool_pb2.RolloutTask(job=self.name, round=send.round, index=send.index, settings=settings)
        await self._actors[actor]._upload(task, self._trajectory(send))

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

    async def round(self, round_: int) -> None:
        """A round that nothing befalls."""
        for index in range(self.job.spec.actors.count):
            await self.upload(Send(round_, index, self.epoch))
        await self.update(round_)

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

    def _trajectory(self, send: Send) -> Trajectory:
        rng = np.random.default_rng((send.round, send.index, send.content))
        arrays = {}
        for name, (dtype, shape) in self._schema.shapes(boot_rows=0).items():
            if name.startswith(("obs", "reward")):
                arrays[name] = rng.normal(size=shape).astype(dtype)
            else:
                arrays[name] = np.zeros(shape, dtype)
        arrays["log_prob/0"] -= np.float32(1.6)
        return Trajectory(arrays)


async def run(seed: int, place: Path, *, uploads: int, per_round: int) -> dict[str, int]:
    """Raises AssertionError if an upload is lost, applied twice, displaced by a stray one, or trained on though it was
    late or its epoch over; returns counts.
    """
    job = small_job(actors={"count": per_round, "envs": 4, "steps": 5})
    rounds = uploads // per_round
    async with running_pools(place, actor_workers=1) as running:
        calm = Storm("calm", job, running, running.learner_address)
        await calm.open()
        for round_ in range(rounds):
            await calm.round(round_)
        before = running.buffer.counts
        assert before == UploadCounts(applied=uploads)

        async with Proxy(running.learner_address, f"unix:{place}/proxy.sock") as proxy:
            storm = Storm("storm", job, running, proxy.address)
            await storm.open()
            sent = await _disturbed(storm, proxy, rounds, per_round, random.Random(seed))
        after = running.buffer.counts
        assert after.applied - before.applied == uploads, f"{after.applied - before.applied} uploads were applied"
        for what, least, counted in (
            ("twice", sent["twice"], after.duplicate),
            ("late", sent["late"], after.stale),
            ("of an old epoch", sent["fenced"], after.fenced),
            ("astray", sent["astray"], after.refused),
        ):
            assert counted >= least, f"{least} came {what}, {counted} were counted"
        assert await storm.weights() == await calm.weights(), "what came late, twice or astray changed the weights"
        for each in (calm, storm):
            await each.close()
    return {
        "applied": after.applied - before.applied,
        "sent twice": sent["twice"],
        "dropped as duplicate": after.duplicate,
        "sent late": sent["late"],
        "refused as late": after.stale,
        "sent under an old epoch": sent["fenced"],
        "refused as such": after.fenced,
        "sent astray": sent["astray"],
        "resets": proxy.resets,
    }


async def _disturbed(storm: Storm, proxy: Proxy, rounds: int, per_round: int, rng: random.Random) -> Counter[str]:
    disturbing = asyncio.create_task(disturb(proxy, rng, every_s=0.2))
    try:
        return await _storm(storm, rounds, per_round, rng)
    finally:
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)


async def _storm(storm: Storm, rounds: int, per_round: int, rng: random.Random) -> Counter[str]:
    """Upload everything; returns how many were sent again within their round and after it, under an epoch that was
    over, and as nobody's.
    """
    sent: Counter[str] = Counter()
    belated: list[int] = []
    for round_ in range(rounds):
        if round_ % TAKEN_OVER_EVERY == 1:  # half of it was uploaded already, under the epoch that ends
            await _send_all(storm, [Send(round_, index, storm.epoch) for index in range(per_round // 2)], round_, rng)
            await storm.open(round_)
            sent["twice"] += per_round // 2
        epoch, some = storm.epoch, max(1, round(STRAY * per_round))
        sends = [Send(round_, index, epoch) for index in range(per_round)]
        again = rng.sample(sends, round(DUPLICATED * per_round))
        late = [Send(round_ - 1, index, epoch) for index in belated]
        fenced = [Send(round_, index, epoch - 1, content=1) for index in rng.sample(range(per_round), some)]
        astray = [Send(round_ + 1, index, epoch, content=1) for index in rng.sample(range(per_round), some)]
        await _send_all(storm, [*sends, *again, *late, *fenced, *astray], round_, rng)
        await storm.update(round_)
        belated = rng.sample(range(per_round), round(LATE * per_round)) if round_ + 1 < rounds else []
        sent += Counter({"twice": len(again), "late": len(late), "fenced": len(fenced), "astray": len(astray)})
    return sent


async def _send_all(storm: Storm, sends: Sequence[Send], round_: int, rng: random.Random) -> None:
    shared = iter(rng.sample(sends, len(sends)))
    async with asyncio.TaskGroup() as group:
        for actor in range(UPLOADERS):
            group.create_task(_send(storm, shared, round_, actor))


async def _send(storm: Storm, sends: Iterator[Send], round_: int, actor: int) -> None:
    for send in sends:
        answer: type[Exception] | None = None
        try:
            await storm.upload(send, actor)
        except (StaleError, FencedError, JobStateError) as error:
            answer = type(error)
        assert answer is _expected(send, round_, storm.epoch), f"{send} of round {round_} was answered by {answer}"


def _expected(send: Send, round_: int, epoch: int) -> type[Exception] | None:
    if send.epoch < epoch:
        return FencedError
    if send.round < round_:
        return StaleError
    return JobStateError if send.round > round_ else None
