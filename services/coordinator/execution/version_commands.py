"""What the commands of a schedule do whose rollouts overlap: rollouts, gradients, and versions that are made of those.

The schedule's state follows from the events in the records (`AggregationRecord`), so that a coordinator that takes the
job over goes on from the same state: it starts again what was under way. Events after the newest record are forgotten
with their coordinator, unless they have led to a version: then they are in pending.json before it is published, be it
by the store, which applies gradients, or by a learner itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from marless.core.errors import ConflictError, InternalError, NotFoundError, StaleError
from marless.core.group import Versions as VersionNumbers
from marless.core.stopwatch import Stopwatch
from marless.jobs.schedules.base import Command, Learn, Publish, RollOut, Schedule, Step
from marless.jobs.schedules.events import ScheduleEvent, read
from marless.jobs.schedules.overlapping import Overlapping, learner_of, makes_versions
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.rpc.concurrency import both, to_the_end
from marless.rpc.gradients import is_gradient
from marless.rpc.param_store import PolicyListing
from marless.services.coordinator.execution.asynchronous_state import Clocks, StoredGradients
from marless.services.coordinator.execution.executor import Result, Resumed
from marless.services.coordinator.execution.interruptions import Steps
from marless.services.coordinator.execution.planning import FIRST_VERSION, Planner, RoundPlan
from marless.services.coordinator.execution.pools import GradientResult, JobContext, RolloutResult
from marless.services.coordinator.execution.recording import RoundRecorder
from marless.services.coordinator.execution.recovery import Recovery
from marless.services.coordinator.execution.versions import NextVersion, PendingVersion, Versions
from marless.services.coordinator.state.pending_rollouts import PendingRollouts
from marless.services.coordinator.state.status import PendingRollout
from marless.storage.round_file import arrivals

MOST_PEERS = 64
"""Other versions over which the ratios of a gradient are truncated, at most: the newest ones."""


class VersionCommands:
    """The rollouts, gradients and versions of one job."""

    def __init__(
        self,
        context: JobContext,
        schedule: Schedule[Overlapping],
        *,
        recovery: Recovery,
        planner: Planner,
        steps: Steps,
        recorder: RoundRecorder,
        rolled_out: PendingRollouts,
    ) -> None:
        self._id, self._job, self._folder, self._pools = context.job_id, context.job, context.folder, context.pools
        self._schedule = schedule
        self._recovery = recovery
        self._planner = planner
        self._steps = steps
        self._recorder = recorder
        self._journal, self._timing = recorder.journal, recorder.timing
        self._rolled_out = rolled_out
        self._pending: PendingRollout | None = None
        """What an earlier coordinator knew of the version that it was publishing."""
        self._learns: dict[int, Learn] = {}
        """Learners under way, and those whose gradients wait."""
        self._since = PendingVersion()
        self._clocks = Clocks(context.job)
        self._versions = Versions(context, recovery=recovery, steps=steps, recorder=recorder, rolled_out=rolled_out)
        config = context.job.spec.algorithm
        algorithm = algorithms.algorithm(config.name)
        self._gradients = StoredGradients(len(scopes(algorithm, config, context.job.spaces)))
        self._learner_publishes = makes_versions(config)
        self._made: GradientResult | None = None
        """By the newest learner, if it has published a version itself."""
        self._updating: Stopwatch | None = None
        """Since such a learner began."""
        self._computed_by: frozenset[str] = frozenset()
        """What all gradients so far were computed by: few learners arrive for each version."""

    async def resume(self) -> Resumed[Overlapping]:
        """Go on after the recorded events, or after those that have led to a version which is being made."""
        step, happened = await asyncio.to_thread(self._follow_records)  # some 100 ms for each thousand versions
        recovery = self._recovery
        found = None if recovery.restored else await self._go_on(step)
        if found:
            since = len(self._since.events)
            publishes = tuple(each for each in found.commands if since and isinstance(each, Publish))
            return Resumed(found.state, publishes + self._schedule.under_way(found.state), happened + since)
        await self._rolled_out.discard()
        # Not before the line above has succeeded: if the write fails, the next attempt must still know of the loss.
        recovery.forgotten()
        # The numbers of what is lost are given to other work only now that the disk no longer names them.
        restarted = self._apply(step, ScheduleEvent("restart"))
        return Resumed(restarted.state, restarted.commands, happened + 1, restarted=True)

    def _follow_records(self) -> tuple[Step[Overlapping], int]:
        """The state after the recorded events, and their number."""
        happened = 0
        self._clocks.follow(self._journal.history)
        self._note_learners(step := self._schedule.begin(self._job.spec.actors.count))
        for round_, text in enumerate(arrivals(self._folder.rounds_path)):
            events = read(text)
            happened += len(events)
            for event in (*events, ScheduleEvent("version", round_)):
                self._note_learners(step := self._schedule.step(step.state, event))
        self._release_learners(step.state)
        return step, happened

    async def _go_on(self, recorded: Step[Overlapping]) -> Step[Overlapping] | None:
        """The state after what an earlier coordinator has left; None if the store has lost gradients that wait."""
        step, pending, learns = recorded, next(iter(self._rolled_out.found), None), self._learns.copy()
        if pending and self._learner_publishes:
            self._since = PendingVersion.resumed(pending)
        elif pending and pending.arrivals:
            self._pending = pending
        for event in read(pending.arrivals) if pending else ():
            step = self._apply(step, event)
        if self._learner_publishes or await self._are_stored(step):
            return step
        self._learns, self._pending, self._since = learns, None, PendingVersion()
        return None

    async def _are_stored(self, step: Step[Overlapping]) -> bool:
        """True if the store has the gradients that wait or are to become a version, or that version."""
        present = (await self._pools.store.list(self._id)).policies
        published = step.published if self._since.events else None  # else it is recorded
        gradients = [*(each.gradient for each in (published.gradients if published else ())), *step.state.queue.waiting]
        waiting = [learner_of(each) for each in gradients]
        if self._gradients.find(present, waiting=waiting, learning=step.state.learning):
            return True
        return published is not None and self._is_next(present)

    def _is_next(self, present: Mapping[str, PolicyListing]) -> bool:
        """True if the store has the version after the recorded ones."""
        versions = self._journal.versions or dict.fromkeys(present, FIRST_VERSION)
        return any(
            present[name].head.version > version
            for name, version in versions.items()
            if name in present and not is_gradient(name)
        )

    def last_round(self) -> int | None:
        """Overlapping rollouts end with the job, and are for no round."""
        return None

    def enter(self, plan: RoundPlan, state: Overlapping, *, fixed: bool) -> tuple[ScheduleEvent, ...]:
        """Groups that change lose what is under way; actors that do are more or fewer from now on."""
        self._timing.begin(plan.round)
        self._versions.evaluate()
        regrouped = self._clocks.enter(plan)
        if fixed:
            return ()
        found: tuple[ScheduleEvent, ...] = ()
        # After a recovery everything has been dropped already: one restart is enough.
        if regrouped and all(each.kind != "restart" for each in self._since.events):
            found = (ScheduleEvent("restart"),)
        return found if plan.actors == state.actors else (*found, ScheduleEvent("actors", plan.actors))

    def begins(self, command: Command, plan: RoundPlan, state: Overlapping) -> None:
        """Write down what has led to an update whose learner publishes a version by itself."""
        if not isinstance(command, Learn):
            return
        self._gradients.begins(command.learner)
        if self._learner_publishes:
            # Reset first: the line must not leave out the time since an update whose trajectories were lost.
            self._updating = None
            self._rolled_out.put(self._as_pending(plan, state, command.env_steps))
            self._updating = Stopwatch.start()

    async def do(self, command: Command, plan: RoundPlan, state: Overlapping) -> Result:
        """Run one actor or one learner, or make a version; `plan` is that of the round in which it began."""
        match command:
            case RollOut():
                return await self._sample(command, plan)
            case Learn():
                make = self._make if self._learner_publishes else self._learn
                return await make(command, plan, state)
            case Publish():
                await self._publish(command, plan, state)
                return None
        raise InternalError(f"{command} is no command of a schedule whose rollouts overlap")

    def happened(self, event: ScheduleEvent, result: Result, step: Step[Overlapping]) -> None:
        """Keep what an event has brought for the version that is made of it."""
        if event.kind == "version":
            self._since, self._pending, self._made, self._updating = PendingVersion(), None, None, None
            self._release_learners(step.state)
            return
        if isinstance(result, GradientResult):
            self._gradients.put(event.number, result.parts)
            self._made = result if self._learner_publishes else None
            self._computed_by |= set(result.computed_by)
        self._note_learners(step)
        self._since.add(event, result)
        applied = step.published.gradients if step.published else ()
        waiting = [*(each.gradient for each in applied), *step.state.queue.waiting]
        self._gradients.keep([learner_of(each) for each in waiting])

    def waiting(self, plan: RoundPlan) -> AbstractAsyncContextManager[None]:
        """Watchers are told, and the job can be cancelled."""
        learning = "the learner updates" if self._learner_publishes else "learners compute gradients"
        return self._steps.step(plan.round, f"actors sample, {learning}")

    def in_flight(self, state: Overlapping) -> int:
        return len(state.sampling) + len(state.waiting) + len(state.learning) + len(state.queue.waiting)

    def recorded(self, round_: int) -> bool:
        return self._journal.rounds > round_

    @property
    def evaluating(self) -> int | None:
        return self._versions.evaluating

    async def stop(self) -> None:
        """Stop an evaluation that is under way."""
        await self._versions.stop()

    def _apply(self, step: Step[Overlapping], event: ScheduleEvent) -> Step[Overlapping]:
        """What follows from an event of which there is no result."""
        after = self._schedule.step(step.state, event)
        self.happened(event, None, after)
        return after

    def _note_learners(self, step: Step[Overlapping]) -> None:
        self._learns |= {each.learner: each for each in step.commands if isinstance(each, Learn)}

    def _release_learners(self, state: Overlapping) -> None:
        """Forget the learners whose gradients are applied, or lost."""
        kept = {*state.learning, *(learner_of(each) for each in state.queue.waiting)}
        self._learns = {number: each for number, each in self._learns.items() if number in kept}

    async def _publish(self, command: Publish, plan: RoundPlan, state: Overlapping) -> None:
        env_steps = sum(each.gradient.env_steps for each in command.aggregation.gradients)
        # A line that an earlier coordinator has written is used as it is: its events were repeated here without their
        # results, so that measurements and invocations are in that line alone.
        version = NextVersion(
            plan=plan,
            command=command,
            state=state,
            learns=self._learns,
            pending=self._pending or self._as_pending(plan, state, env_steps),
            clocks=self._clocks,
            made=self._made,
            updating=self._updating,
            computed_by=tuple(sorted(self._computed_by)),
        )
        await self._versions.publish(version, self._gradients)

    async def _sample(self, command: RollOut, plan: RoundPlan) -> RolloutResult | None:
        """Run a rollout; None if its versions are gone."""
        versions = self._clocks.versions(command.clock)
        groups = self._clocks.groups(command.clock)
        try:
            return await self._pools.sample(
                self._id, self._job, command.number, groups, versions, epoch=self._recovery.epoch
            )
        except NotFoundError:
            # A store without the newest versions either needs a recovery; the rule only counts what newer versions
            # displaced.
            if not await self._are_gone(versions, plan):
                raise
            return None

    async def _learn(self, command: Learn, plan: RoundPlan, state: Overlapping) -> GradientResult | None:
        """Compute a gradient; None if its versions or trajectories are gone."""
        versions = self._clocks.versions(command.clock)
        groups, peers = self._clocks.groups(command.clock), [*map(self._clocks.peer, command.peers[-MOST_PEERS:])]
        try:
            return await self._pools.gradient(
                self._id,
                learn=command,
                groups=groups,
                versions=versions,
                peers=peers,
                measure=self._planner.measure_at(command.clock),
                oldest=_oldest(state),
                epoch=self._recovery.epoch,
            )
        except StaleError:
            return None
        except NotFoundError:
            if not await self._are_gone(versions, plan):
                raise
            return None

    async def _make(self, command: Learn, plan: RoundPlan, state: Overlapping) -> GradientResult | None:
        """Have the learner make the version of this plan's round by itself: its algorithm's usual update.

        For algorithms whose nets take no steps elsewhere. The next version exists before its event has happened. So
        the events that have led to the update are in pending.json before the learner pool is asked: a coordinator that
        takes the job over asks for the same update, and the pool or the store answers with what is there.

        Returns None if trajectories are gone, and nothing is made of the others. Raises StaleError if a version of this
        round has been made from other rollouts: then the job goes back to its newest checkpoint.
        """
        await self._recorder.before()
        update = self._pools.update(
            self._id,
            round_=plan.round,
            epoch=self._recovery.epoch,
            env_steps=plan.env_steps,
            groups=plan.groups,
            versions=plan.versions,
            measure=self._planner.measure_at(plan.round),
            rollouts=command.rollouts,
            oldest=_oldest(state),
            keep=self._versions.kept(state, state.queue.clock + 1),
        )
        try:
            made, _ = await both(update, to_the_end(self._recorder.catch_up))
        except StaleError:
            return None
        except ConflictError as error:
            self._recovery.go_back()
            raise StaleError(f"{error}; the job goes back to its newest checkpoint") from error
        return GradientResult(
            parts={},
            metrics=made.metrics,
            invocations=made.invocations,
            distances=made.distances,
            versions=made.versions,
            computed_by=made.computed_by,
        )

    async def _are_gone(self, versions: VersionNumbers, plan: RoundPlan) -> bool:
        """True if the store has kept newer versions instead of these; False if it has them, or has lost the newest."""
        policies = (await self._pools.store.list(self._id)).policies

        def has(wanted: VersionNumbers) -> bool:
            return all(name in policies and version in policies[name].versions for name, version in wanted.items())

        return has(self._journal.versions or plan.versions) and not has(versions)

    def _as_pending(self, plan: RoundPlan, state: Overlapping, env_steps: int) -> PendingRollout:
        waited_s = self._timing.waited_s(plan.round) - (self._updating.seconds if self._updating else 0.0)
        return self._since.pending(plan.round, state.actors, waited_s, env_steps)


def _oldest(state: Overlapping) -> int:
    """The first rollout that is not done with."""
    learning = (min(each.rollouts) for each in state.learning.values())
    waiting = (each.rollout for each in state.waiting)
    return min((*state.sampling, *waiting, *learning), default=state.rollouts)
