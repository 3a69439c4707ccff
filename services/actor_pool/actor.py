"""The actor function: runs a batch of environment copies under given policy versions."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

import numpy as np

from marless.core import documents
from marless.core.errors import AlreadyExistsError, FencedError, SpecError, StaleError, shown
from marless.core.failpoint import failpoint
from marless.core.lanes import LaneRecord
from marless.core.stopwatch import RunningTime
from marless.learning.data.bounds import PlayLimits, batches
from marless.learning.data.carry import decode, encode
from marless.learning.data.episodes import EpisodeStats, total
from marless.learning.data.returns import returns_of
from marless.learning.data.rollout import play, rollout
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs import registry
from marless.learning.envs.base import BatchedEnv, agents_checksum
from marless.learning.nets.acting import ActingPolicies, ActingState
from marless.learning.nets.serial import decode_acting
from marless.rpc import carries, chunks
from marless.rpc.caches import Caches
from marless.rpc.client import Peer
from marless.rpc.concurrency import both, stoppable
from marless.rpc.param_store import ParamStore
from marless.rpc.relay import SMALL_BYTES, Relay
from marless.rpc.retry import retry
from marless.rpc.security import Security
from marless.rpc.v1 import actor_pool_pb2, learner_pool_pb2
from services.actor_pool.lanes import EnvKey, Living, LivingLanes, close_env

UPLOAD_TIMEOUT_S = 60.0
UPLOAD_PATIENCE_S = 20.0
_CACHED_ENVS = 4
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
        self._envs: OrderedDict[EnvKey, BatchedEnv] = OrderedDict()
        self._lanes = LivingLanes(partial(_made, registry.make_carried))
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
        self._lanes.close()
        for env in self._envs.values():
            close_env(env)
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
        settings = task.settings
        env = self._env(settings, settings.envs)
        return rollout(
            env,
            _policies(env, acting),
            steps=settings.steps,
            seed=actor_seed(settings.seed, task.mode, task.round, task.index),
            with_state=settings.with_state,
            stopped=stop.is_set,
        )

    async def _go_on(
        self, task: actor_pool_pb2.RolloutTask, acting: Mapping[str, ActingState]
    ) -> actor_pool_pb2.RolloutReceipt:
        """Run a lane on from where the round before left it; a large carry is published beside the upload."""
        start = LaneRecord(lane=task.index, version=task.lane.version, digest=task.lane.digest)
        here = self._lanes.has(_env_key(task.settings, task.settings.envs), (task.job, task.index), start.digest)
        loaded = b"" if here or not start.digest else await carries.fetch(self._store, task.job, start)
        living, trajectory, stats, carry = await stoppable(partial(_run_on, task, acting, self._lanes, loaded))
        left, returned = carries.after(start, carry), carries.is_returned(carry, task.actors)
        kept = {} if returned else {left: carry}
        failpoint("actor.carry.before")
        uploaded, _ = await both(
            self._deliver(task, trajectory),
            carries.publish(self._store, task.job, task.settings.epoch, task.round, kept),
        )
        failpoint("actor.carry.after")
        # Not before all is delivered: if this task fails, its repetition must begin where it began, and load that
        # carry.
        living.digest = left.digest
        receipt = _receipt(task, stats, uploaded)
        receipt.lane.CopyFrom(actor_pool_pb2.Lane(lane=left.lane, version=left.version, digest=left.digest))
        receipt.carry = carry if returned else b""
        return receipt

    def _play(
        self, task: actor_pool_pb2.RolloutTask, acting: Mapping[str, ActingState], stop: threading.Event
    ) -> actor_pool_pb2.RolloutReceipt:
        """Run whole episodes with greedy or random actions, in batches, until a bound is reached."""
        settings, running, played = task.settings, RunningTime(), list[EpisodeStats]()
        bounds = PlayLimits(
            episodes=task.episodes,
            limit_s=settings.limit_s,
            relative_error=settings.relative_error,
            parts=max(task.actors, 1),
        )
        seed = actor_seed(settings.seed, task.mode, task.round, task.index)
        for number, episodes in enumerate(_batches(task)):
            if bounds.reached(returns_of(played), running.seconds, episodes):
                break
            env = self._env(settings, min(settings.envs, episodes))
            policies = _policies(env, acting) if acting else None
            at = batch_seed(seed, number)
            # An episode of a known length ends, however long it takes; another one may not.
            limit_s = bounds.limit_s if env.spaces.max_steps is None else 0.0
            played.append(play(env, policies, episodes=episodes, seed=at, stopped=stop.is_set, limit_s=limit_s))
            # No episode has ended within the time limit, and none would in another batch.
            if not played[-1].episodes:
                break
        receipt = _receipt(task, total(played), 0)
        receipt.played_s = running.seconds
        return receipt

    def _env(self, settings: actor_pool_pb2.RolloutSettings, batch: int) -> BatchedEnv:
        key = _env_key(settings, batch)
        if key not in self._envs:
            self._envs[key] = _made(registry.make, key)
            while len(self._envs) > _CACHED_ENVS:
                close_env(self._envs.popitem(last=False)[1])
        self._envs.move_to_end(key)
        return self._envs[key]

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
        sink = self._sink(task.settings.sink)
        name, response = "LearnerPoolService/Upload", learner_pool_pb2.UploadResponse
        await retry(
            lambda: sink.send(name, header, views, response, timeout_s=UPLOAD_TIMEOUT_S), patience_s=UPLOAD_PATIENCE_S
        )
        return size

    def _sink(self, address: str) -> Peer:
        if address not in self._sinks:
            self._sinks[address] = Peer(address, self._security, "learner_pool")
        return self._sinks[address]


def actor_seed(job_seed: int, mode: int, round_: int, index: int) -> int:
    """The 64-bit seed of one actor, a function of job, mode, round and index only."""
    low, high = np.random.SeedSequence((job_seed, mode, round_, index)).generate_state(2)
    return int(high) << 32 | int(low)


def batch_seed(seed: int, number: int) -> int:
    """The seed of batch `number` of an actor's episodes."""
    return actor_seed(seed, 0, 0, number) if number else seed


def _env_key(settings: actor_pool_pb2.RolloutSettings, batch: int) -> EnvKey:
    return settings.env, settings.env_options_json, settings.with_state, batch, settings.agents_crc32


def _made(make: Callable[..., BatchedEnv], key: EnvKey) -> BatchedEnv:
    name, options_json, with_state, batch, agents = key
    options = documents.from_json(options_json, "env_options_json")
    if not isinstance(options, dict):
        raise SpecError("env_options_json: options are a JSON object")
    env = make(name, options, batch, with_state=with_state)
    if agents and agents_checksum(env.spaces) != agents:
        close_env(env)
        raise SpecError(
            f"environment {name} has other agents here than where the job was accepted, or the same in another order: "
            f"{shown(list(env.spaces.agents))}; it must have the same agents in the same order in every process, so do "
            "not list them from a set"
        )
    return env


def _run_on(
    task: actor_pool_pb2.RolloutTask,
    acting: Mapping[str, ActingState],
    lanes: LivingLanes,
    loaded: bytes,
    stop: threading.Event,
) -> tuple[Living, Trajectory, EpisodeStats, bytes]:
    """Begin the lane if it is not here, or load it if there are bytes, and roll it on; returns its new carry as bytes,
    too.
    """
    settings = task.settings
    living, goes_on = lanes.take(_env_key(settings, settings.envs), (task.job, task.index), task.lane.digest)
    lane, seed = living.lane, actor_seed(settings.seed, task.mode, task.round, task.index)
    if loaded:
        lane.load(decode(loaded))
    elif not goes_on:
        lane.begin(seed)
    trajectory, stats = lane.roll(
        _policies(living.env, acting),
        steps=settings.steps,
        seed=seed,
        with_state=settings.with_state,
        index=task.index,
        stopped=stop.is_set,
    )
    return living, trajectory, stats, encode(lane.save())


def _batches(task: actor_pool_pb2.RolloutTask) -> Iterator[int]:
    """The number of episodes of each batch; random episodes arrive from the coordinator as single batches."""
    if task.mode == actor_pool_pb2.ROLLOUT_MODE_RANDOM:
        return iter((task.episodes,))
    return batches(task.episodes, task.settings.envs, one_by_one=registry.one_by_one(task.settings.env))


def _policies(env: BatchedEnv, acting: Mapping[str, ActingState]) -> list[ActingPolicies]:
    return [
        ActingPolicies.from_states(agent_class, [acting[agent] for agent in agent_class.agents])
        for agent_class in env.spaces.classes
    ]


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
    )
