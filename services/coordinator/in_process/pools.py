"""The pools of one job, without services: what it asks of them is done by calls in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from marless.core.errors import StaleError
from marless.core.group import Group, LaneRecord, Versions
from marless.core.machine import MachineRecord
from marless.core.settings import Measure
from marless.jobs.job import PreparedJob
from marless.jobs.record import InvocationRecord
from marless.jobs.schedules.base import Learn
from marless.learning.data.player import EnvKey, Mode
from marless.learning.data.returns import returns_of
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import agents_checksum
from marless.rpc import carries
from marless.services.coordinator.execution.pools import GradientResult, Played, Rollout, RolloutResult, Update
from marless.services.coordinator.in_process.actors import ActorRunner
from marless.services.coordinator.in_process.learners import JobLearners, LearnInput
from marless.services.coordinator.in_process.store import MemoryStore
from marless.services.coordinator.in_process.tasks import ActorResult, ActorTask

_FUNCTION = {Mode.TRAIN: "actor", Mode.GREEDY: "evaluation", Mode.RANDOM: "evaluation"}


class InProcessPools:
    """Actors and learners of the one job that this process runs.

    Args:
        place: Directory for the replay buffers of off-policy jobs.
        wait: Called before learners are made; returns once torch is ready.
    """

    def __init__(self, actors: ActorRunner, place: Path, wait: Callable[[], None] = lambda: None) -> None:
        self.store = MemoryStore()
        self._wait = wait
        self._actors = actors
        self._place = place
        self._learners: JobLearners | None = None
        self._trajectories: dict[tuple[int, int], Trajectory] = {}
        """By round, or number of the rollout, and by index of the actor."""
        self._epoch = 0
        """Of the coordinator's newest claim to the job."""

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
        """Make the job's learners; returns the newest version of every policy and joint critic."""
        await asyncio.to_thread(self._wait)
        self._learners = self._learners or JobLearners(job_id, job, self.store, self._place)
        if epoch != self._epoch:
            self._epoch = epoch
            self._learners.begin_epoch()
            self._trajectories.clear()
        return self._learners.open(groups)

    async def close_job(self, job_id: str, *, epoch: int = 0, keep_replay: bool = False) -> None:
        """Drop the job's trajectories; its replay buffers lie in its own folder, and go with it."""
        self._trajectories.clear()

    async def reserve(self, job_id: str, job: PreparedJob, round_: int, actors: int, *, epoch: int) -> None:
        """There is room."""

    async def prewarm(self, job_id: str, actors: int) -> None:
        """There is nothing to start."""

    async def machines(self, job_id: str) -> tuple[MachineRecord, ...]:
        """No machine but this one, which nobody bills."""
        return ()

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
        """Run the actors of a round; keep their trajectories for its update."""
        tasks = [self._rollout(job_id, job, round_, index, groups, versions) for index in range(actors)]
        if not job.carried:
            return _rollout_of(tasks, await self._sampled(tasks, {}))
        known = {lane.lane: lane for lane in lanes}
        starts = [known.get(index, LaneRecord(lane=index, version=0, digest="")) for index in range(actors)]
        tasks = [replace(task, digest=start.digest) for task, start in zip(tasks, starts, strict=True)]
        begun = [start for start in starts if start.digest]
        loaded = {lane.lane: data for lane, data in await carries.fetch_all(self.store, job_id, begun)}
        results = await self._sampled(tasks, loaded)
        ends = (carries.after(start, each.carry) for start, each in zip(starts, results, strict=True))
        left = {lane: each.carry for lane, each in zip(ends, results, strict=True)}
        return replace(_rollout_of(tasks, results), lanes=tuple(left), carries=left)

    async def evaluate(
        self, job_id: str, job: PreparedJob, round_: int, groups: Sequence[Group], versions: Versions, *, epoch: int
    ) -> Rollout:
        """Run greedy episodes, bounded by the spec's `evaluation`."""
        bounds = job.spec.evaluation
        actors = min(job.spec.actors.count, bounds.episodes)
        share, rest = divmod(bounds.episodes, actors)
        tasks = [
            ActorTask(
                job=job_id,
                mode=Mode.GREEDY,
                round=round_,
                index=index,
                env=_env_key(job),
                seed=job.spec.seed,
                acting=_acting(groups, versions),
                episodes=share + (index < rest),
                limit_s=bounds.limit_s or 0.0,
                relative_error=bounds.relative_error,
                actors=actors,
                timeout_s=job.spec.actors.timeout_s,
            )
            for index in range(actors)
        ]
        return _rollout_of(tasks, await self._play(tasks, {}))

    async def play_randomly(
        self, job_id: str, job: PreparedJob, batch: int, episodes: int, *, background: bool = True
    ) -> Played:
        """Run one batch of the random baseline's episodes.

        What plays in the background of services would hold up training here. So a call with `background` does nothing
        until its caller cancels it, because training is done, and calls again without.
        """
        if background:
            await asyncio.get_running_loop().create_future()
        task = ActorTask(
            job=job_id,
            mode=Mode.RANDOM,
            round=batch,
            index=0,
            env=_env_key(job),
            seed=job.spec.seed,
            acting={},
            episodes=episodes,
            limit_s=job.spec.evaluation.limit_s or 0.0,
            timeout_s=job.spec.actors.timeout_s,
        )
        [result] = await self._play([task], {})
        return Played(result.stats, result.played_s)

    async def update(  # noqa: PLR0913  # as `Pools` has it
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
        """Update every policy once: from the round's `actors` actors, or from these rollouts of one actor each."""
        keys = [(rollout, 0) for rollout in rollouts] or [(round_, index) for index in range(actors)]
        given = LearnInput(
            round=round_,
            env_steps=env_steps,
            groups=tuple(groups),
            versions=versions,
            trajectories=self._of(keys),
            measure=measure,
        )
        update = self._open.update(given)
        self._release(keys, oldest)
        return update

    async def sample(
        self, job_id: str, job: PreparedJob, rollout: int, groups: Sequence[Group], versions: Versions, *, epoch: int
    ) -> RolloutResult:
        """Run one rollout of an asynchronous job, and keep its trajectory."""
        task = self._rollout(job_id, job, rollout, 0, groups, versions)
        [result] = await self._sampled([task], {})
        return RolloutResult(result.stats.env_steps, result.stats, _invocations([task], [result]))

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
        """Compute one gradient of every policy at these versions, and put it into the store."""
        keys = [(rollout, 0) for rollout in learn.rollouts]
        given = LearnInput(
            round=learn.learner,
            env_steps=learn.after,
            groups=tuple(groups),
            versions=versions,
            trajectories=self._of(keys),
            measure=measure,
        )
        found = self._open.gradient(given, peers)
        self._release(keys, oldest)
        return found

    async def close(self) -> None:
        """End the actors."""
        await self._actors.close()

    @property
    def _open(self) -> JobLearners:
        assert self._learners is not None  # `open_job` comes first
        return self._learners

    def _rollout(
        self, job_id: str, job: PreparedJob, round_: int, index: int, groups: Sequence[Group], versions: Versions
    ) -> ActorTask:
        return ActorTask(
            job=job_id,
            mode=Mode.TRAIN,
            round=round_,
            index=index,
            env=_env_key(job),
            seed=job.spec.seed,
            acting=_acting(groups, versions),
            steps=job.spec.actors.steps,
            timeout_s=job.spec.actors.timeout_s,
        )

    async def _sampled(self, tasks: Sequence[ActorTask], loaded: Mapping[int, bytes]) -> list[ActorResult]:
        """The results of rollouts, whose trajectories are kept for an update."""
        results = await self._play(tasks, loaded)
        for task, result in zip(tasks, results, strict=True):
            assert result.trajectory is not None  # of mode TRAIN
            self._trajectories[task.round, task.index] = result.trajectory
        return results

    async def _play(self, tasks: Sequence[ActorTask], loaded: Mapping[int, bytes]) -> list[ActorResult]:
        wanted = {version for task in tasks for version in task.acting.values()}
        states = {(name, version): self.store.acting(name, version) for name, version in wanted}
        return await self._actors.play(tasks, states, loaded)

    def _of(self, keys: Sequence[tuple[int, int]]) -> list[Trajectory]:
        """The trajectories that an update learns from, in order; raises StaleError if one is gone."""
        if missing := [key for key in keys if key not in self._trajectories]:
            raise StaleError(f"there is no trajectory of rollout {missing[0][0]}")
        return [self._trajectories[key] for key in keys]

    def _release(self, keys: Sequence[tuple[int, int]], oldest: int) -> None:
        for key in [key for key in self._trajectories if key in keys or key[0] < oldest]:
            del self._trajectories[key]


def _env_key(job: PreparedJob) -> EnvKey:
    return EnvKey(
        name=job.spec.env.name,
        options_json=json.dumps(job.spec.env.arguments),
        with_state=job.with_state,
        envs=job.spec.actors.envs,
        agents_crc32=agents_checksum(job.spaces),
    )


def _acting(groups: Sequence[Group], versions: Versions) -> dict[str, tuple[str, int]]:
    """The policy and version that act for each agent."""
    return {agent: (group.start, versions[group.start]) for group in groups for agent in group.agents}


def _rollout_of(tasks: Sequence[ActorTask], results: Sequence[ActorResult]) -> Rollout:
    return Rollout(
        env_steps=sum(each.stats.env_steps for each in results),
        returns=returns_of(each.stats for each in results),
        invocations=_invocations(tasks, results),
        broken_episodes=sum(each.stats.broken for each in results),
    )


def _invocations(tasks: Sequence[ActorTask], results: Sequence[ActorResult]) -> tuple[InvocationRecord, ...]:
    return tuple(
        InvocationRecord(
            id=f"{task.job}/{task.round}/{task.mode.name.lower()}/{task.index}",
            function=_FUNCTION[task.mode],
            name="",
            index=task.index,
            attempt=result.attempt,
            worker=result.worker,
            queued_s=result.start_s,
            start_s=result.start_s,
            end_s=result.end_s,
            vcpu_s=result.vcpu_s,
            memory_bytes=result.memory_bytes,
            cold=False,
        )
        for task, result in zip(tasks, results, strict=True)
    )
