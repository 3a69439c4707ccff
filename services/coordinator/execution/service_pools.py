"""Calls to the actor pool and the learner pool: builds the requests, returns plain dataclasses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marless.core.errors import MarlessError
from marless.core.group import Group, LaneRecord, Versions
from marless.core.limits import MAX_TIMEOUT_S
from marless.core.machine import MachineRecord
from marless.core.settings import Measure
from marless.jobs.job import PreparedJob
from marless.jobs.schedules.base import Learn
from marless.jobs.spec import spaces_to_json
from marless.learning.data.returns import returns_of
from marless.learning.envs.base import agents_checksum
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.tracing import phase
from marless.rpc.v1 import actor_pool_pb2, common_pb2, learner_pool_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceStub
from marless.services.coordinator.execution.pools import GradientResult, Played, Rollout, RolloutResult, Update
from marless.services.coordinator.execution.wire import (
    distances_of,
    groups_of,
    invocations_of,
    lane_of,
    machine_of,
    measure_of,
    versions_of,
)

if TYPE_CHECKING:
    from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceAsyncStub
    from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceAsyncStub

PREWARM_TIMEOUT_S = 5.0
MACHINES_TIMEOUT_S = 5.0
RESERVED_S = 60.0  # how long reserved room is kept after the last upload, beyond the timeout of an actor
CALL_TIMEOUT_S = 24 * 3600.0  # a round has no time limit of its own; actors and learners have their own deadlines
BACKGROUND_FACTOR = 10
"""The timeout of a batch on the background worker, which runs at low priority, as a multiple of `actors.timeout_s`."""


class ServicePools:
    """The pools as services, and the parameter store as one."""

    def __init__(self, actor_pool: Peer, learner_pool: Peer, store: ParamStore) -> None:
        self._actor_pool = actor_pool
        self._learner_pool = learner_pool
        self._sink = learner_pool.address
        """The address that actors dial to upload; the learner pool tells it whenever a job is opened."""
        self._actors: ActorPoolServiceAsyncStub = ActorPoolServiceStub(actor_pool.channel)
        self._learners: LearnerPoolServiceAsyncStub = LearnerPoolServiceStub(learner_pool.channel)
        self.store = store

    async def open_job(
        self,
        job_id: str,
        job: PreparedJob,
        epoch: int,
        groups: Sequence[Group],
        *,
        round_: int,
        opener: str = "",
        opening: int = 0,
    ) -> Versions:
        request = learner_pool_pb2.OpenJobRequest(
            job=job_id,
            # A learner pool writes to no sink, and need not know those of the coordinator's machine.
            spec_json=job.spec.model_copy(update={"sinks": ()}).to_json(),
            spaces_json=spaces_to_json(job.spaces),
            epoch=epoch,
            groups=groups_of(groups, {}),
            round=round_,
            opener=opener,
            opening=opening,
        )
        reply = await self._learner_pool.call(self._learners.OpenJob, request, timeout_s=CALL_TIMEOUT_S)
        self._sink = reply.address or self._sink
        return {version.policy: version.version for version in reply.versions}

    async def close_job(self, job_id: str, *, epoch: int = 0, keep_replay: bool = False) -> None:
        request = learner_pool_pb2.CloseJobRequest(job=job_id, epoch=epoch, keep_replay=keep_replay)
        await self._learner_pool.call(self._learners.CloseJob, request)

    async def reserve(self, job_id: str, job: PreparedJob, round_: int, actors: int, *, epoch: int) -> None:
        idle_s = job.spec.actors.timeout_s + RESERVED_S
        request = learner_pool_pb2.ReserveRequest(job=job_id, round=round_, actors=actors, idle_s=idle_s, epoch=epoch)
        await self._learner_pool.call(self._learners.Reserve, request, timeout_s=CALL_TIMEOUT_S)

    async def prewarm(self, job_id: str, actors: int) -> None:
        request = actor_pool_pb2.PrewarmRequest(actors=actors, job=job_id)
        await self._actor_pool.call(self._actors.Prewarm, request, timeout_s=PREWARM_TIMEOUT_S)

    async def machines(self, job_id: str) -> tuple[MachineRecord, ...]:
        request = common_pb2.ListMachinesRequest(job=job_id)
        pools = (("actor", self._actor_pool, self._actors), ("learner", self._learner_pool, self._learners))
        calls = (peer.call(stub.ListMachines, request, timeout_s=MACHINES_TIMEOUT_S) for _, peer, stub in pools)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        found: list[MachineRecord] = []
        for (pool, _, _), answer in zip(pools, answers, strict=True):
            if isinstance(answer, common_pb2.ListMachinesResponse):
                found += (machine_of(each, pool, answer.launcher) for each in answer.machines)
            elif not isinstance(answer, MarlessError):
                raise answer
        return tuple(found)

    async def train(
        self,
        job_id: str,
        job: PreparedJob,
        round_: int,
        actors: int,
        groups: Sequence[Group],
        versions: Versions,
        lanes: Sequence[LaneRecord] = (),
        *,
        epoch: int,
    ) -> Rollout:
        request = self._rollout(job_id, job, round_, actor_pool_pb2.ROLLOUT_MODE_TRAIN, epoch)
        request.actors, request.settings.carried = actors, job.carried
        request.lanes.extend(
            actor_pool_pb2.Lane(lane=each.lane, version=each.version, digest=each.digest)
            for each in lanes
            if each.lane < actors
        )
        request.groups.extend(groups_of(groups, versions))
        with phase("rollout", round_):
            return await self._run(request)

    async def evaluate(
        self, job_id: str, job: PreparedJob, round_: int, groups: Sequence[Group], versions: Versions, *, epoch: int
    ) -> Rollout:
        request = self._rollout(job_id, job, round_, actor_pool_pb2.ROLLOUT_MODE_GREEDY, epoch)
        request.actors, request.episodes = job.spec.actors.count, job.spec.evaluation.episodes
        request.settings.limit_s = job.spec.evaluation.limit_s or 0.0
        request.settings.relative_error = job.spec.evaluation.relative_error
        request.groups.extend(groups_of(groups, versions))
        with phase("evaluation", round_ - 1, recorded=True):  # of the policies that this round published
            return await self._run(request)

    async def play_randomly(
        self, job_id: str, job: PreparedJob, batch: int, episodes: int, *, background: bool = True
    ) -> Played:
        # Without an epoch, because actors that act at random read no weights and upload nothing.
        request = self._rollout(job_id, job, batch, actor_pool_pb2.ROLLOUT_MODE_RANDOM, epoch=0)
        request.actors, request.episodes, request.background = 1, episodes, background
        request.settings.limit_s = job.spec.evaluation.limit_s or 0.0
        if background:
            request.settings.timeout_s = min(BACKGROUND_FACTOR * job.spec.actors.timeout_s, MAX_TIMEOUT_S)
        with phase("baseline", None):
            reply = await self._actor_pool.call(self._actors.Rollout, request, timeout_s=CALL_TIMEOUT_S)
        return Played(reply.receipts[0], reply.receipts[0].played_s)

    async def update(  # noqa: PLR0913  # the fields of one request
        self,
        job_id: str,
        *,
        round_: int,
        epoch: int,
        env_steps: int,
        actors: int = 0,
        groups: Sequence[Group],
        versions: Versions,
        measure: Measure,
        rollouts: Sequence[int] = (),
        oldest: int = 0,
        keep: int = 0,
    ) -> Update:
        request = learner_pool_pb2.UpdateRequest(
            job=job_id,
            round=round_,
            epoch=epoch,
            env_steps=env_steps,
            actors=actors,
            groups=groups_of(groups, versions),
            versions=versions_of(versions),
            measure=measure_of(measure),
            rollouts=rollouts,
            oldest=oldest,
            keep=keep,
        )
        with phase("update", round_):
            reply = await self._learner_pool.call(self._learners.Update, request, timeout_s=CALL_TIMEOUT_S)
        return Update(
            versions={version.policy: version.version for version in reply.versions},
            metrics={name: dict(metrics.values) for name, metrics in reply.metrics.items()},
            invocations=invocations_of(reply.invocations),
            distances=tuple(distances_of(each) for each in reply.distances),
            room=reply.room,
            computed_by=tuple(reply.computed_by),
        )

    async def sample(
        self, job_id: str, job: PreparedJob, rollout: int, groups: Sequence[Group], versions: Versions, *, epoch: int
    ) -> RolloutResult:
        request = self._rollout(job_id, job, rollout, actor_pool_pb2.ROLLOUT_MODE_TRAIN, epoch)
        request.actors = 1
        request.groups.extend(groups_of(groups, versions))
        with phase("rollout", None):
            reply = await self._actor_pool.call(self._actors.Rollout, request, timeout_s=CALL_TIMEOUT_S)
        [receipt] = reply.receipts
        return RolloutResult(receipt.env_steps, receipt, invocations_of(reply.invocations))

    async def gradient(
        self,
        job_id: str,
        learn: Learn,
        groups: Sequence[Group],
        versions: Versions,
        peers: Sequence[Versions],
        *,
        measure: Measure,
        oldest: int,
        epoch: int,
    ) -> GradientResult:
        request = learner_pool_pb2.GradientRequest(
            job=job_id,
            epoch=epoch,
            learner=learn.learner,
            rollouts=learn.rollouts,
            env_steps=learn.after,
            groups=groups_of(groups, versions),
            versions=versions_of(versions),
            peers=[learner_pool_pb2.VersionSet(versions=versions_of(each)) for each in peers],
            measure=measure_of(measure),
            oldest=oldest,
        )
        with phase("gradient", None):
            reply = await self._learner_pool.call(self._learners.Gradient, request, timeout_s=CALL_TIMEOUT_S)
        return GradientResult(
            parts={each.policy: each.version for each in reply.gradients},
            metrics={name: dict(metrics.values) for name, metrics in reply.metrics.items()},
            invocations=invocations_of(reply.invocations),
            distances=tuple(distances_of(each) for each in reply.distances),
            computed_by=tuple(reply.computed_by),
        )

    def _rollout(
        self, job_id: str, job: PreparedJob, round_: int, mode: actor_pool_pb2.RolloutMode.ValueType, epoch: int
    ) -> actor_pool_pb2.RolloutRequest:
        spec = job.spec
        settings = actor_pool_pb2.RolloutSettings(
            env=spec.env.name,
            env_options_json=json.dumps(spec.env.arguments),
            agents_crc32=agents_checksum(job.spaces),
            envs=spec.actors.envs,
            steps=spec.actors.steps,
            seed=spec.seed,
            with_state=job.with_state,
            sink=self._sink,
            timeout_s=spec.actors.timeout_s,
            epoch=epoch,
        )
        return actor_pool_pb2.RolloutRequest(job=job_id, round=round_, mode=mode, settings=settings)

    async def _run(self, request: actor_pool_pb2.RolloutRequest) -> Rollout:
        reply = await self._actor_pool.call(self._actors.Rollout, request, timeout_s=CALL_TIMEOUT_S)
        lanes = {lane_of(receipt): receipt.carry for receipt in reply.receipts if receipt.HasField("lane")}
        return Rollout(
            env_steps=sum(receipt.env_steps for receipt in reply.receipts),
            returns=returns_of(reply.receipts),
            invocations=invocations_of(reply.invocations),
            lanes=tuple(lanes),
            carries={lane: carry for lane, carry in lanes.items() if carry},
            broken_episodes=sum(receipt.broken for receipt in reply.receipts),
        )
