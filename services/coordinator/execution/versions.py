"""Makes the versions of an asynchronous job: has gradients applied in the store, and records the version as a round."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from marless.core.errors import CancelledJobError, NotFoundError
from marless.core.limits import MAX_KEPT
from marless.core.machine import MachineRecord
from marless.core.stopwatch import Stopwatch
from marless.jobs.record import AggregationRecord, Distances, GradientRecord, InvocationRecord, RoundRecord
from marless.jobs.schedules.base import Learn, Publish
from marless.jobs.schedules.events import ScheduleEvent, written
from marless.jobs.schedules.overlapping import Overlapping, learner_of
from marless.jobs.usage import PARAMETER
from marless.learning.data.returns import EpisodeSums, Sums, returns_of
from marless.rpc.concurrency import both, to_the_end
from marless.rpc.param_store import Aggregation, AggregationReply, WeightedGradient
from marless.services.coordinator.execution import recording
from marless.services.coordinator.execution.asynchronous_state import Clocks, StoredGradients
from marless.services.coordinator.execution.evaluations import outstanding
from marless.services.coordinator.execution.executor import Result
from marless.services.coordinator.execution.interruptions import Steps
from marless.services.coordinator.execution.planning import RoundPlan
from marless.services.coordinator.execution.pools import GradientResult, JobContext, Rollout, RolloutResult, Update
from marless.services.coordinator.execution.recording import RoundRecorder
from marless.services.coordinator.execution.recovery import Recovery
from marless.services.coordinator.state.pending_rollouts import PendingRollouts
from marless.services.coordinator.state.status import PendingRollout

_Matrix = tuple[tuple[float, ...], ...]
SPARE_VERSIONS = 2
"""Versions that are kept beside those in use."""


@dataclass
class PendingVersion:
    """What has happened since the newest version."""

    events: list[ScheduleEvent] = field(default_factory=list)
    invocations: list[InvocationRecord] = field(default_factory=list)
    episodes: list[EpisodeSums] = field(default_factory=list)
    metrics: list[Mapping[str, Mapping[str, float]]] = field(default_factory=list)
    """Of each gradient that has arrived."""
    distances: list[tuple[Distances, ...]] = field(default_factory=list)
    """Likewise, if they were measured."""

    @classmethod
    def resumed(cls, pending: PendingRollout) -> PendingVersion:
        """What an earlier coordinator has written, without its events."""
        return cls(invocations=list(pending.invocations), episodes=[pending.sums] if pending.sums else [])

    def add(self, event: ScheduleEvent, result: Result = None) -> None:
        """Add an event, with what has arrived."""
        self.events.append(event)
        if result:
            self.invocations += result.invocations
        if isinstance(result, RolloutResult):
            self.episodes.append(result.sums)
        elif isinstance(result, GradientResult):
            self.metrics.append(result.metrics)
            self.distances.append(result.distances)

    def pending(self, round_: int, actors: int, waited_s: float, env_steps: int) -> PendingRollout:
        """The version that is being made, as a line of pending.json."""
        return PendingRollout(
            round=round_,
            rollout_s=waited_s,
            env_steps=env_steps,
            returns=returns_of(self.episodes),
            invocations=tuple(self.invocations),
            broken_episodes=sum(each.broken for each in self.episodes),
            actors=actors,
            arrivals=written(self.events),
            metrics=mean(self.metrics),
            distances=mean_distances(self.distances),
            sums=Sums.of(self.episodes),
        )


def mean(metrics: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The mean of each metric of each policy, over the gradients that have it."""
    found: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in metrics:
        for policy, values in each.items():
            for name, value in values.items():
                found[policy][name].append(value)
    return {
        policy: {name: sum(values) / len(values) for name, values in of_policy.items()}
        for policy, of_policy in found.items()
    }


def mean_distances(measured: Iterable[Iterable[Distances]]) -> tuple[Distances, ...]:
    """The mean of the distances of each class, over the gradients that have them."""
    found: defaultdict[tuple[str, ...], list[_Matrix]] = defaultdict(list)
    for each in measured:
        for distances in each:
            found[distances.agents].append(distances.values)
    return tuple(
        Distances(
            agents=agents,
            values=tuple(
                tuple(sum(cells) / len(cells) for cells in zip(*rows, strict=True))
                for rows in zip(*matrices, strict=True)
            ),
        )
        for agents, matrices in found.items()
    )


@dataclass(frozen=True, kw_only=True)
class NextVersion:
    """What the next version is made of."""

    plan: RoundPlan
    command: Publish
    state: Overlapping
    """After it."""
    learns: Mapping[int, Learn]
    """What the learners of its gradients did."""
    pending: PendingRollout
    clocks: Clocks
    made: GradientResult | None = None
    """By its learner, which has published it by itself; None: its gradients are in the store, and are to be applied."""
    updating: Stopwatch | None = None
    """Since its learner began, if that has published it."""
    computed_by: tuple[str, ...] = ()
    """What the job's gradients so far were computed by, those that this coordinator knows."""

    @property
    def learners(self) -> list[int]:
        """The learners of its gradients, in order of arrival."""
        return [learner_of(each.gradient) for each in self.command.aggregation.gradients]


class Versions:
    """Publishes and records the versions of one job, and evaluates those that are due, beside later ones."""

    def __init__(
        self,
        context: JobContext,
        *,
        recovery: Recovery,
        steps: Steps,
        recorder: RoundRecorder,
        rolled_out: PendingRollouts,
    ) -> None:
        self._id, self._job, self._pools = context.job_id, context.job, context.pools
        self._recovery = recovery
        self._steps = steps
        self._recorder = recorder
        self._rolled_out = rolled_out
        self._evaluating: tuple[RoundRecord, asyncio.Task[Rollout]] | None = None

    @property
    def evaluating(self) -> int | None:
        """The number of rounds after which there was the version that is evaluated at present; None if none is."""
        return self._evaluating[0].round + 1 if self._evaluating else None

    async def stop(self) -> None:
        """Stop an evaluation that is under way."""
        if self._evaluating:
            self._evaluating[1].cancel()
            await asyncio.gather(self._evaluating[1], return_exceptions=True)

    def evaluate(self) -> None:
        """Begin to evaluate the newest version, if that is due and no other evaluation is under way."""
        last = self._recorder.journal.last
        if last and self._evaluating is None and outstanding(self._job.spec.evaluation.every, last):
            evaluating = self._recorder.evaluations.of(last, self._recovery.epoch)
            self._evaluating = last, asyncio.create_task(evaluating)

    async def publish(self, version: NextVersion, gradients: StoredGradients) -> None:
        """Have the gradients applied, unless their learner has done so, and record the new version.

        Until it is recorded, it can be repeated. Raises the errors of `ParamStore.aggregate`.
        """
        recorder, plan = self._recorder, version.plan
        await recorder.before()
        times = recorder.timing.present(version.pending.rollout_s)
        updating = version.updating or Stopwatch.start()
        update, machines = await self._updated(version, gradients)
        record = recording.trained(self._id, plan, version.pending, update, times=times, update_s=updating.seconds)
        record = replace(record, aggregation=_aggregation(version, gradients), computed_by=version.computed_by)
        waited_s = await self._wait_at_the_end(record)
        before, earlier = self._evaluated()
        record = recording.with_earlier(record, before, earlier)
        await recorder.record(record, machines, times=times, waited_s=waited_s, epoch=self._recovery.epoch)
        # Not before the record is there: until then the version may be asked for again, with the same gradients.
        gradients.applied(version.learners)

    async def _updated(
        self, version: NextVersion, gradients: StoredGradients
    ) -> tuple[Update, tuple[MachineRecord, ...]]:
        """The version as an update, and what the machines did."""
        plan, metrics, distances = version.plan, version.pending.metrics, version.pending.distances
        if version.made:
            return Update(version.made.versions, metrics, (), distances), await self._recorder.machines.look()
        # The line of an earlier attempt stays: the store may have made the version that it describes.
        if plan.round not in self._rolled_out.rounds:
            self._rolled_out.put(version.pending)
        async with self._steps.step(plan.round, "the store applies gradients"):
            meanwhile = both(self._recorder.machines.look(), to_the_end(self._recorder.catch_up))
            applied, (machines, _) = await both(self._applied(version, gradients), meanwhile)
        return Update(applied.versions, metrics, (_invocation(self._id, plan, applied),), distances), machines

    async def _applied(self, version: NextVersion, gradients: StoredGradients) -> AggregationReply:
        plan = version.plan
        config = self._job.spec.algorithm
        weighted = [
            WeightedGradient(gradients.of(learner), weight)
            for learner, weight in zip(version.learners, version.command.aggregation.weights, strict=True)
        ]
        return await self._pools.store.aggregate(
            Aggregation(
                job=self._id,
                epoch=self._recovery.epoch,
                round=plan.round,
                heads=version.clocks.heads,
                sources=version.clocks.sources,
                gradients=weighted,
                discarded=gradients.unneeded,
                steps=config.net_steps(plan.env_steps),
                separate=version.command.separate,
                keep=self.kept(version.state, version.state.queue.clock),
            )
        )

    def kept(self, state: Overlapping, clock: int) -> int:
        """How many of the newest versions are to be kept once there is one of this clock."""
        # Something under way may still read the oldest of these.
        evaluating = [self.evaluating] if self.evaluating is not None else []
        learning = [clock for each in state.learning.values() for clock in (each.clock, *each.peers)]
        oldest = min([state.queue.clock, *state.sampling.values(), *learning, *evaluating])
        return min(clock - oldest + SPARE_VERSIONS, MAX_KEPT)

    async def _wait_at_the_end(self, record: RoundRecord) -> float:
        """Wait for the evaluation that is under way, if no later version could tell its result; returns the seconds."""
        if self._evaluating is None or not self._recorder.is_last(record):
            return 0.0
        waiting = Stopwatch.start()
        with suppress(CancelledJobError):
            async with self._steps.step(record.round, "actors evaluate"):
                await asyncio.wait([self._evaluating[1]])
        return waiting.seconds

    def _evaluated(self) -> tuple[RoundRecord | None, Rollout | None]:
        """The evaluation that has ended since the version before, and the record of the version that it is of.

        Its version may have been removed from the store before an actor has read it: then there is none.
        """
        if self._evaluating is None or not self._evaluating[1].done():
            return None, None
        (before, task), self._evaluating = self._evaluating, None
        with suppress(NotFoundError):
            return before, task.result()
        return None, None


def _aggregation(version: NextVersion, gradients: StoredGradients) -> AggregationRecord:
    found, state, counts = version.command.aggregation, version.state, version.state.queue.counts
    return AggregationRecord(
        arrivals=version.pending.arrivals,
        gradients=tuple(
            GradientRecord(
                learner=learner,
                rollouts=version.learns[learner].rollouts,
                env_steps=each.gradient.env_steps,
                staleness=each.staleness,
                weight=round(each.weight, 6),
                waited_s=round(gradients.waited_s(learner), 6),
            )
            for learner, each in zip(version.learners, found.gradients, strict=True)
        ),
        because=found.because,
        bound=found.bound,
        sampling=len(state.sampling),
        waiting=len(state.waiting),
        learning=len(state.learning),
        dropped=state.dropped,
        lost=state.lost + counts.lost,
        refused=counts.repeated + counts.too_stale + counts.from_future + counts.other_scope,
    )


def _invocation(job: str, plan: RoundPlan, made: AggregationReply) -> InvocationRecord:
    """The parameter function as an invocation; it runs in the param_store, which is always warm."""
    return InvocationRecord(
        id=f"{job}/{plan.round}/{PARAMETER}/0",
        function=PARAMETER,
        name="",
        index=0,
        attempt=1,
        worker="",
        queued_s=round(made.start_s, 6),
        start_s=round(made.start_s, 6),
        end_s=round(made.end_s, 6),
        vcpu_s=round(made.vcpu_s, 6),
        memory_bytes=0,
        cold=False,
    )
