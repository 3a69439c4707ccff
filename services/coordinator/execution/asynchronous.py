"""Executes schedule `stellaris`: starts rollouts and learners as its rule says, and publishes one version at a time.

The rule is `marless.jobs.schedules.stellaris`. Its state follows from the events in the records (`AggregationRecord`),
so that a coordinator that takes the job over goes on from the same state: it starts again what was under way. Events
after the newest record are forgotten with their coordinator, unless they have led to a version: then they are in
pending.json before it is published, be it by the store, which applies gradients, or by a learner itself
(`learner_versions`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

from marless.core.errors import NotFoundError, SpecError, StaleError, UnreachableError
from marless.core.group import Versions as VersionNumbers
from marless.core.stopwatch import Stopwatch
from marless.jobs.job import PreparedJob
from marless.jobs.record import RoundRecord
from marless.jobs.schedules import arrivals as events
from marless.jobs.schedules.arrivals import Arrival
from marless.jobs.schedules.stellaris import (
    Learn,
    Publish,
    Sample,
    StellarisProgress,
    StellarisSchedule,
    StellarisStep,
    learner_of,
)
from marless.jobs.schedules.stellaris_config import makes_versions
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.rpc.gradients import is_gradient
from marless.rpc.param_store import PolicyListing
from marless.storage.round_file import arrivals
from services.coordinator.execution.clocks import Clocks, make_version
from services.coordinator.execution.parts import Parts
from services.coordinator.execution.planning import FIRST_VERSION, RoundPlan
from services.coordinator.execution.pools import GradientResult, RolloutResult
from services.coordinator.execution.stored_gradients import StoredGradients
from services.coordinator.execution.versions import NextVersion, PendingVersion, Versions
from services.coordinator.state.status import PendingRollout

MOST_LOST = 64
"""Rollouts and gradients that are lost, without one gradient between them, before the job waits for its services to
recover, beside those that may be lost at once, because they wait."""
MOST_PEERS = 64
"""Other versions over which the ratios of a gradient are truncated, at most: the newest ones."""
_Result = RolloutResult | GradientResult | None
"""None: it is lost."""


class Asynchronous:
    """Runs the rule of one job from what is recorded; an async context manager, in which commands are under way.

    Args:
        is_last: Whether a version that is not recorded yet may be the job's last: then it is evaluated.
        recorded: Called once a version is recorded, with the record before it.
    """

    def __init__(
        self,
        parts: Parts,
        schedule: StellarisSchedule,
        is_last: Callable[[RoundRecord], bool],
        recorded: Callable[[RoundRecord | None], None],
    ) -> None:
        self._parts = parts
        self._recorded = recorded
        self._rule = schedule.rule(parts.job.spec.actors.count)
        self._order = deque(schedule.config.to_repeat)
        """Events that are to happen as in an earlier run."""
        self._progress = StellarisProgress(actors=0)
        self._published: Publish | None = None
        self._pending: PendingRollout | None = None
        """What an earlier coordinator knew of the version that it was publishing."""
        self._due: list[Sample | Learn] = []
        self._learns: dict[int, Learn] = {}
        """Learners under way, and those whose gradients wait."""
        self._since = PendingVersion()
        self._clocks = Clocks(parts.job)
        self._versions = Versions(parts, schedule.config, is_last)
        self._gradients = StoredGradients(_scopes(parts.job))
        self._learner_publishes = makes_versions(parts.job.spec.algorithm)
        self._made: GradientResult | None = None
        """By the newest learner, if it has published a version itself."""
        self._updating: Stopwatch | None = None
        """Since such a learner began."""
        self._what = (
            f"actors sample, {'the learner updates' if self._learner_publishes else 'learners compute gradients'}"
        )
        self._tasks: dict[Sample | Learn, asyncio.Task[_Result]] = {}
        self._ended: asyncio.Queue[Sample | Learn] = asyncio.Queue()  # bounded by the number of tasks
        self._dropped: list[asyncio.Task[_Result]] = []
        """Cancelled tasks that may not have ended."""
        self._lost_in_a_row = 0

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._begin)  # some 100 ms for each thousand versions
        recovery = self._parts.recovery
        if recovery.restored or not await self._resume():
            await self._parts.rolled_out.discard()
            # Not before the line above has succeeded: if the write fails, the next attempt must still know of the loss.
            recovery.forgotten()
            # The numbers of what is lost are given to other work only now that the disk no longer names them.
            self._apply_event(Arrival("restart"))
        return self

    async def _resume(self) -> bool:
        """Go on with what an earlier coordinator has left; False if the store has lost gradients that wait."""
        # What the records say, to fall back on if gradients that pending.json names are lost.
        before = self._progress, self._due, self._learns
        pending = next(iter(self._parts.rolled_out.found), None)
        if self._learner_publishes:
            self._go_on_from(pending)
            return True
        if pending and pending.arrivals:
            self._pending = pending
            for each in events.read(pending.arrivals):
                self._apply_event(each)
            self._due = self._under_way()
        present = (await self._parts.pools.store.list(self._parts.job_id)).policies
        applied = self._published.aggregation.gradients if self._published else ()
        gradients = [*(each.gradient for each in applied), *self._progress.queue.waiting]
        waiting = [learner_of(each) for each in gradients]
        if self._gradients.find(present, waiting=waiting, learning=self._progress.learning):
            return True
        if self._published and self._is_next(present):  # they are part of it
            return True
        (self._progress, self._due, self._learns), self._published, self._pending = before, None, None
        self._since = PendingVersion()
        return False

    def _go_on_from(self, pending: PendingRollout | None) -> None:
        """Go on from the events that have led to a learner's update: it may be under way, or done."""
        if pending:
            self._since = PendingVersion.resumed(pending)
            for each in events.read(pending.arrivals):
                self._apply_event(each)
            self._due = self._under_way()

    def _is_next(self, present: Mapping[str, PolicyListing]) -> bool:
        """True if the store has the version after the recorded ones."""
        versions = self._parts.journal.versions or dict.fromkeys(present, FIRST_VERSION)
        return any(
            present[name].head.version > version
            for name, version in versions.items()
            if name in present and not is_gradient(name)
        )

    async def __aexit__(self, *_: object) -> None:
        self._drop_tasks()
        await asyncio.gather(*self._dropped, self._versions.stop(), return_exceptions=True)

    async def advance(self, plan: RoundPlan) -> None:
        """Go on until the version of this plan's round is recorded."""
        self._parts.timing.begin(plan.round)
        self._versions.evaluate()
        self._decided(plan)
        while self._published is None:
            # These events are decisions of the earlier run, and no task has to end for them.
            while self._order and self._order[0].kind in ("actors", "restart"):
                self._apply_event(self._order[0])
            self._start(plan)
            async with self._parts.steps.step(plan.round, self._what):
                self._apply_event(*await self._next())
        published, self._published = self._published, None
        # A line that an earlier coordinator has written is used as it is: its events were repeated here without their
        # results, so that measurements and invocations are in that line alone.
        version = NextVersion(
            plan=plan,
            aggregation=published.aggregation,
            progress=self._progress,
            learns=self._learns,
            pending=self._pending or self._as_pending(plan, _env_steps(published)),
            clocks=self._clocks,
            made=self._made,
            updating=self._updating,
        )
        before = self._parts.journal.last
        await self._versions.publish(version, self._gradients)
        self._recorded(before)
        self._since, self._pending, self._made, self._updating = PendingVersion(), None, None, None
        self._discard_gradients()

    def _decided(self, plan: RoundPlan) -> None:
        """What the policies have decided happens now, unless it has, or happens in its place in the order."""
        regrouped = self._clocks.enter(plan)
        if self._order or self._published:
            return
        # After a recovery everything has been dropped already: one restart is enough.
        if regrouped and all(each.kind != "restart" for each in self._since.arrivals):
            self._apply_event(Arrival("restart"))
        if plan.actors != self._progress.actors:
            self._apply_event(Arrival("actors", plan.actors))

    def _begin(self) -> None:
        """Bring the rule to the state after the recorded events."""
        recorded = [each for text in arrivals(self._parts.folder.rounds_path) for each in events.read(text)]
        self._clocks.follow(self._parts.journal.history)
        self._follow(self._rule.begin())
        for each in recorded:
            self._follow(self._rule.step(self._progress, each))
        # The recorded events are the beginning of the order that is followed.
        for _ in range(min(len(recorded), len(self._order))):
            self._order.popleft()
        self._published = None  # recorded
        self._due = self._under_way()
        self._discard_gradients()

    def _under_way(self) -> list[Sample | Learn]:
        """All commands that have not ended, for a coordinator that has started none of them."""
        samples = [Sample(rollout, clock) for rollout, clock in self._progress.sampling.items()]
        return [*self._progress.learning.values(), *samples]

    def _follow(self, step: StellarisStep) -> None:
        self._progress = step.progress
        for command in step.commands:
            if isinstance(command, Learn):
                self._learns[command.learner] = command
            elif isinstance(command, Publish):
                self._published = command

    def _apply_event(self, arrival: Arrival, result: _Result = None) -> None:
        """An event has happened: find what follows from it, which is started by `_start`."""
        if self._order:
            self._order.popleft()
        if arrival.kind == "restart":
            self._drop_tasks()
        elif arrival.kind == "gradient" and isinstance(result, GradientResult):
            self._gradients.put(arrival.number, result.parts)
            self._made = result if self._learner_publishes else None
        step = self._rule.step(self._progress, arrival)
        self._follow(step)
        self._since.add(arrival, result)
        self._due += [each for each in step.commands if not isinstance(each, Publish)]
        applied = [learner_of(each.gradient) for each in step.published.gradients] if step.published else []
        self._gradients.keep([*applied, *(learner_of(each) for each in step.progress.queue.waiting)])

    def _drop_tasks(self) -> None:
        """Stop all that is under way: it is not waited for any more."""
        for task in self._tasks.values():
            task.cancel()
        self._dropped += self._tasks.values()
        self._tasks, self._due = {}, []

    def _start(self, plan: RoundPlan) -> None:
        """Start what is due, with the versions of its clock."""
        due, self._due = self._due, []
        for command in due:
            if isinstance(command, Learn):
                self._gradients.begins(command.learner)
                self._is_asked_for(command, plan)
            self._tasks[command] = task = asyncio.create_task(self._do(command, plan))
            task.add_done_callback(partial(self._has_ended, command))

    def _is_asked_for(self, command: Learn, plan: RoundPlan) -> None:
        """Write down what has led to this update, if its learner publishes a version by itself."""
        if self._learner_publishes:
            # Reset first: the line must not leave out the time since an update whose trajectories were lost.
            self._updating = None
            self._parts.rolled_out.put(self._as_pending(plan, command.env_steps))
            self._updating = Stopwatch.start()

    def _has_ended(self, command: Sample | Learn, _: asyncio.Task[_Result]) -> None:
        self._ended.put_nowait(command)

    async def _do(self, command: Sample | Learn, plan: RoundPlan) -> _Result:
        return await (self._sample(command, plan) if isinstance(command, Sample) else self._learn(command, plan))

    async def _next(self) -> tuple[Arrival, _Result]:
        """The next event: the next one of the order that is followed, else whatever ends first."""
        if self._order:
            return await self._in_order(self._order[0])
        while True:
            command = await self._ended.get()
            # The command of a task that was dropped is in the queue, too, because a cancelled task has ended.
            if task := self._tasks.pop(command, None):
                return self._arrival(command, task.result())

    async def _in_order(self, wanted: Arrival) -> tuple[Arrival, _Result]:
        """Wait until this event can happen; raises SpecError if it cannot."""
        command = self._awaited(wanted)
        task = self._tasks.pop(command)
        # Lost in the earlier run, it must not count here either, even if it would succeed.
        if wanted.kind.startswith("lost"):
            task.cancel()
            self._dropped.append(task)
            return wanted, None
        found = self._arrival(command, await task)
        if found[0] != wanted:
            raise SpecError(f"schedule.order: {wanted} is to happen next, and {found[0]} has; the runs differ")
        return found

    def _awaited(self, wanted: Arrival) -> Sample | Learn:
        kind = Sample if wanted.kind.endswith("rollout") else Learn
        for command in self._tasks:
            number = command.rollout if isinstance(command, Sample) else command.learner
            if isinstance(command, kind) and number == wanted.number:
                return command
        raise SpecError(f"schedule.order: {wanted} is to happen next, and it is not under way; the runs differ")

    def _arrival(self, command: Sample | Learn, result: _Result) -> tuple[Arrival, _Result]:
        """The event that a command has ended; raises UnreachableError once too many are lost without a gradient."""
        if result is None:
            self._lost_in_a_row += 1
        # Rollouts do not end a row of losses: they go on with weights that actors hold in memory, also if the store has
        # lost those versions and every gradient fails.
        elif isinstance(command, Learn):
            self._lost_in_a_row = 0
        most = MOST_LOST + self._rule.data_lag(self._progress)
        if self._lost_in_a_row > most:
            raise UnreachableError(f"{most} rollouts and gradients were lost without one gradient between them")
        if isinstance(command, Learn):
            return Arrival("gradient" if result else "lost gradient", command.learner), result
        if isinstance(result, RolloutResult):
            return Arrival("rollout", command.rollout, result.env_steps), result
        return Arrival("lost rollout", command.rollout), None

    async def _sample(self, command: Sample, plan: RoundPlan) -> RolloutResult | None:
        """Run a rollout; None if its versions are gone."""
        parts, versions = self._parts, self._clocks.versions(command.clock)
        groups = self._clocks.groups(command.clock)
        try:
            return await parts.pools.sample(
                parts.job_id, parts.job, command.rollout, groups, versions, epoch=parts.recovery.epoch
            )
        except NotFoundError:
            # A store without the newest versions either needs a recovery; the rule only counts what newer versions
            # displaced.
            if not await self._are_gone(versions, plan):
                raise
            return None

    async def _learn(self, command: Learn, plan: RoundPlan) -> GradientResult | None:
        """Compute a gradient; None if its versions or trajectories are gone."""
        if self._learner_publishes:
            return await self._make(command, plan)
        parts, versions = self._parts, self._clocks.versions(command.clock)
        groups, peers = self._clocks.groups(command.clock), [*map(self._clocks.peer, command.peers[-MOST_PEERS:])]
        try:
            return await parts.pools.gradient(
                parts.job_id,
                learn=command,
                groups=groups,
                versions=versions,
                peers=peers,
                measure=parts.planner.measure_at(command.clock),
                oldest=self._oldest(),
                epoch=parts.recovery.epoch,
            )
        except StaleError:
            return None
        except NotFoundError:
            if not await self._are_gone(versions, plan):
                raise
            return None

    async def _make(self, command: Learn, plan: RoundPlan) -> GradientResult | None:
        """Have a version made; None if trajectories are gone, or were in the run whose order is followed."""
        ends = (
            each.kind
            for each in self._order
            if each.kind == "restart" or (each.kind.endswith("gradient") and each.number == command.learner)
        )
        if next(ends, "gradient") != "gradient":
            return None
        keep = self._versions.kept(self._progress, self._progress.queue.clock + 1)
        return await make_version(
            self._parts,
            command=command,
            plan=plan,
            oldest=self._oldest(),
            keep=keep,
            meanwhile=self._versions.catch_up,
        )

    async def _are_gone(self, versions: VersionNumbers, plan: RoundPlan) -> bool:
        """True if the store has kept newer versions instead of these; False if it has them, or has lost the newest."""
        policies = (await self._parts.pools.store.list(self._parts.job_id)).policies

        def has(wanted: VersionNumbers) -> bool:
            return all(name in policies and version in policies[name].versions for name, version in wanted.items())

        return has(self._parts.journal.versions or plan.versions) and not has(versions)

    def _oldest(self) -> int:
        """The first rollout that is not done with."""
        progress = self._progress
        learning = (min(each.rollouts) for each in progress.learning.values())
        waiting = (each.rollout for each in progress.waiting)
        return min((*progress.sampling, *waiting, *learning), default=progress.rollouts)

    def _discard_gradients(self) -> None:
        """Forget the learners whose gradients are applied, or lost."""
        kept = {*self._progress.learning, *(learner_of(each) for each in self._progress.queue.waiting)}
        self._learns = {number: each for number, each in self._learns.items() if number in kept}

    def _as_pending(self, plan: RoundPlan, env_steps: int) -> PendingRollout:
        waited_s = self._parts.timing.waited_s(plan.round) - (self._updating.seconds if self._updating else 0.0)
        return self._since.pending(plan.round, self._progress.actors, waited_s, env_steps)


def _env_steps(published: Publish) -> int:
    return sum(each.gradient.env_steps for each in published.aggregation.gradients)


def _scopes(job: PreparedJob) -> int:
    return len(scopes(algorithms.algorithm(job.spec.algorithm.name), job.spec.algorithm, job.spaces))
