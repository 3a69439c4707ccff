"""`python -m marless.services.actor_pool.worker`: one actor worker process.

Its function runs a batch of environment copies under given policy versions. It starts fast, without torch.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from marless.core.errors import AlreadyExistsError, FencedError, StaleError
from marless.core.failpoint import failpoint
from marless.core.group import LaneRecord
from marless.fleet.session import work
from marless.fleet.worker_process import WorkerOptions, serve
from marless.learning.data.episodes import EpisodeStats
from marless.learning.data.player import EnvKey, Player, Rolled, actor_seed
from marless.learning.data.returns import PlayLimits, batches
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs import registry
from marless.learning.nets.acting import ActingState
from marless.learning.nets.serial import decode_acting
from marless.rpc import carries, chunks
from marless.rpc.client import Peer
from marless.rpc.concurrency import both, retry, stoppable
from marless.rpc.nearby import SMALL_BYTES, Caches, Relay
from marless.rpc.param_store import ParamStore
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.v1 import actor_pool_pb2, learner_pool_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub

if TYPE_CHECKING:
    from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceAsyncStub

UPLOAD_TIMEOUT_S = 60.0
UPLOAD_PATIENCE_S = 20.0
_NOT_NEEDED = (StaleError, FencedError, AlreadyExistsError)
"""Refusals of an upload that do not fail the actor, because its trajectory is no longer needed: the round's update is
done, another coordinator runs the job, or an earlier attempt at this actor has uploaded its trajectory. The actor's
receipt is valid all the same."""


class Actor:
    """Runs rollout tasks; caches environments, policy versions and connections between them.

    It reads weights through `caches` of the store, if there are any, and everything else in the store itself. Small
    trajectories go through the `relay` of its host, if there is one.
    """

    def __init__(
        self, store: ParamStore, security: Security, caches: Caches | None = None, relay: Relay | None = None
    ) -> None:
        self._store = store
        self._relay = relay
        self._weights = caches or store
        self._security = security
        self._sinks: dict[str, Peer] = {}
        self._player = Player()
        self._versions: OrderedDict[tuple[str, int, str, int], ActingState] = OrderedDict()

    async def run(self, payload: bytes) -> bytes:
        """Run one serialised RolloutTask; returns its serialised RolloutReceipt."""
        task = actor_pool_pb2.RolloutTask.FromString(payload)
        acting = {} if task.mode == actor_pool_pb2.ROLLOUT_MODE_RANDOM else await self._pull(task)
        if task.mode != actor_pool_pb2.ROLLOUT_MODE_TRAIN:
            return (await stoppable(partial(self._play, task, acting))).SerializeToString()
        if task.settings.carried:
            return (await self._go_on(task, acting)).SerializeToString()
        trajectory, stats = await stoppable(partial(self._act, task, acting))
        return _receipt(task, stats, await self._deliver(task, trajectory)).SerializeToString()

    async def close(self) -> None:
        """Close all environments and connections."""
        self._player.close()
        for sink in self._sinks.values():
            await sink.close()

    async def _pull(self, task: actor_pool_pb2.RolloutTask) -> dict[str, ActingState]:
        """The weights of each agent's policy; versions that are not cached are fetched in one call."""
        sources = {group.source.policy: group.source.version for group in task.groups}
        # By epoch, too: a store that has lost its data counts versions anew, and the number of a kept one may be
        # another's.
        keys = {policy: (task.job, task.settings.epoch, policy, version) for policy, version in sources.items()}
        missing = {policy: sources[policy] for policy, key in keys.items() if key not in self._versions}
        if missing:
            got = await self._weights.get(task.job, missing, ("acting",), epoch=task.settings.epoch)
            for policy, stored in got.items():
                self._versions[keys[policy]] = decode_acting(bytes(stored.blobs["acting"]))
        held = {policy: self._versions[key] for policy, key in keys.items()}
        for key in keys.values():
            self._versions.move_to_end(key)
        while len(self._versions) > 2 * len(keys):  # this round's and the last one's
            self._versions.popitem(last=False)
        return {agent: held[group.source.policy] for group in task.groups for agent in group.agents}

    def _act(
        self, task: actor_pool_pb2.RolloutTask, acting: Mapping[str, ActingState], stop: threading.Event
    ) -> tuple[Trajectory, EpisodeStats]:
        steps, seed = task.settings.steps, _seed(task)
        return self._player.roll_out(_env_key(task), acting, steps=steps, seed=seed, stopped=stop.is_set)

    async def _go_on(
        self, task: actor_pool_pb2.RolloutTask, acting: Mapping[str, ActingState]
    ) -> actor_pool_pb2.RolloutReceipt:
        """Run a lane on from where the round before left it; a large carry is published beside the upload."""
        start = LaneRecord(lane=task.index, version=task.lane.version, digest=task.lane.digest)
        here = self._player.has_lane(_env_key(task), (task.job, task.index), start.digest)
        loaded = b"" if here or not start.digest else await carries.fetch(self._store, task.job, start)
        rolled = await stoppable(partial(self._roll_on, task, acting, loaded))
        left, returned = carries.after(start, rolled.carry), carries.is_returned(rolled.carry, task.actors)
        kept = {} if returned else {left: rolled.carry}
        failpoint("actor.carry.before")
        uploaded, _ = await both(
            self._deliver(task, rolled.trajectory),
            carries.publish(self._store, task.job, task.settings.epoch, task.round, kept),
        )
        failpoint("actor.carry.after")
        # Not before all is delivered: if this task fails, its repetition must begin where it began, and load that
        # carry.
        rolled.living.digest = left.digest
        receipt = _receipt(task, rolled.stats, uploaded)
        receipt.lane.CopyFrom(actor_pool_pb2.Lane(lane=left.lane, version=left.version, digest=left.digest))
        receipt.carry = rolled.carry if returned else b""
        return receipt

    def _roll_on(
        self, task: actor_pool_pb2.RolloutTask, acting: Mapping[str, ActingState], loaded: bytes, stop: threading.Event
    ) -> Rolled:
        return self._player.go_on(
            _env_key(task),
            acting,
            whose=(task.job, task.index),
            digest=task.lane.digest,
            loaded=loaded,
            steps=task.settings.steps,
            seed=_seed(task),
            stopped=stop.is_set,
        )

    def _play(
        self, task: actor_pool_pb2.RolloutTask, acting: Mapping[str, ActingState], stop: threading.Event
    ) -> actor_pool_pb2.RolloutReceipt:
        """Run whole episodes with greedy or random actions, in batches, until a limit is reached."""
        limits = PlayLimits(
            episodes=task.episodes,
            limit_s=task.settings.limit_s,
            relative_error=task.settings.relative_error,
            parts=max(task.actors, 1),
        )
        # Random episodes arrive from the coordinator as single batches.
        random = task.mode == actor_pool_pb2.ROLLOUT_MODE_RANDOM
        sizes = (
            (task.episodes,)
            if random
            else batches(task.episodes, task.settings.envs, one_by_one=registry.one_by_one(task.settings.env))
        )
        seed = _seed(task)
        stats, played_s = self._player.play(
            _env_key(task), acting, sizes=sizes, limits=limits, seed=seed, stopped=stop.is_set
        )
        receipt = _receipt(task, stats, 0)
        receipt.played_s = played_s
        return receipt

    async def _deliver(self, task: actor_pool_pb2.RolloutTask, trajectory: Trajectory) -> int:
        """Upload the trajectory; returns its size in bytes, or 0 if it is no longer needed."""
        with suppress(*_NOT_NEEDED):
            return await self._upload(task, trajectory)
        return 0

    async def _upload(self, task: actor_pool_pb2.RolloutTask, trajectory: Trajectory) -> int:
        """Send the trajectory to the learner pool; returns its size in bytes."""
        arrays = {name: np.ascontiguousarray(array) for name, array in trajectory.arrays.items()}
        # Views, because a copy of a large trajectory takes time, and its memory once more.
        views = [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
        header = learner_pool_pb2.UploadHeader(
            job=task.job,
            round=task.round,
            index=task.index,
            epoch=task.settings.epoch,
            arrays=[
                learner_pool_pb2.ArrayInfo(name=name, dtype=array.dtype.name, shape=array.shape)
                for name, array in arrays.items()
            ],
        )
        header.crc32 = chunks.checksum(header, views)
        size = sum(view.nbytes for view in views)
        if self._relay and size <= SMALL_BYTES and await self._relay.upload(header, views):
            return size
        address = task.settings.sink
        if address not in self._sinks:
            self._sinks[address] = Peer(address, self._security, "learner_pool")
        sink = self._sinks[address]
        name, response = "LearnerPoolService/Upload", learner_pool_pb2.UploadResponse
        await retry(
            lambda: sink.send(name, header, views, response, timeout_s=UPLOAD_TIMEOUT_S), patience_s=UPLOAD_PATIENCE_S
        )
        return size


def _env_key(task: actor_pool_pb2.RolloutTask) -> EnvKey:
    settings = task.settings
    return EnvKey(
        name=settings.env,
        options_json=settings.env_options_json,
        with_state=settings.with_state,
        envs=settings.envs,
        agents_crc32=settings.agents_crc32,
    )


def _seed(task: actor_pool_pb2.RolloutTask) -> int:
    return actor_seed(task.settings.seed, task.mode, task.round, task.index)


def _receipt(task: actor_pool_pb2.RolloutTask, stats: EpisodeStats, uploaded: int) -> actor_pool_pb2.RolloutReceipt:
    return actor_pool_pb2.RolloutReceipt(
        index=task.index,
        env_steps=stats.env_steps,
        episodes=stats.episodes,
        episode_steps=stats.episode_steps,
        return_sum=stats.return_sum,
        return_scatter=stats.return_scatter,
        mean_scatter=stats.mean_scatter,
        trajectory_bytes=uploaded,
        judged=stats.judged,
        wins=stats.wins,
        broken=stats.broken,
    )


async def run(options: WorkerOptions, make: Callable[..., Actor] = Actor) -> None:
    """Connect to the pool, and run its tasks until it releases this worker."""
    pool = Peer(options.pool, options.security, "actor_pool")
    store = Peer(options.param_store, options.security, "param_store")
    caches = Caches(ParamStore(store), options.caches, options.security, options.worker)
    relay = Relay(options.relay, options.security) if options.relay else None
    actor = make(ParamStore(store), options.security, caches, relay)
    through = relay.peer if relay and await relay.serves() else pool
    stub: ActorPoolServiceAsyncStub = ActorPoolServiceStub(through.channel)
    try:
        await work(options, through, stub.Work, actor.run)
    finally:
        await actor.close()
        if relay:
            await relay.close()
        await caches.close()
        await store.close()
        await pool.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a worker with these command-line arguments (by default, those of this process) to its end."""
    serve(run, Role.ACTOR, arguments)


if __name__ == "__main__":
    main()
