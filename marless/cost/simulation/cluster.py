"""Models how long recorded rounds would have taken on a cluster with a given number of slots (vCPUs).

A recording has the duration of each function. The model schedules the same functions onto other slots by list
scheduling: whenever a slot is free, the longest ready function starts (Graham 1969; for independent functions this is
LPT, whose makespan is at most 4/3 of the shortest).

When rollouts and updates begin is said by the job's schedule, on a virtual clock (`marless.cost.simulation.virtual`):

- rollout: all actors are ready at once. Until an update that runs meanwhile has ended, they occupy only slots that no
  learner function needs, and then all. The phase is the time that the job waits for them;
- update: every function inside a learner occupies a slot of its own, as it is billed (`marless.jobs.usage`,
  including its share of reading and publishing), and starts when its predecessors in the algorithm's function graph, as
  recorded, have ended. Functions that depend on each other in every gradient step are modelled as if all steps of one
  preceded all steps of the other, because another slot would not shorten their waiting. Records without a graph are of
  PPO: post-processing first, then critics and policies in parallel. A policy's curvature follows its training, and the
  similarity of agents follows post-processing;
- evaluation, of the round's own policies: all evaluations are ready at once;
- an evaluation beside the update (`InvocationRecord.during_update`) is ready when the update begins, and has slots as
  actors beside it have; its time after the update counts as evaluation. Actors and evaluations beside the same update
  are modelled as if each had those slots alone;
- each phase also has the recorded time before its first function was queued and after its last one ended; a function
  with a cold start also has the time that it waited for its worker.

The model assumes that a slot is as fast as the recording machine was under its load at the time, and that data
transfers take as long as they took there. By CPU seconds (`bill.time: cpu`), functions and starts hold no time in which
they waited for a core of that machine; the recorded time around them is what it is.

How much later the commands of a replayed run begin than those of the recorded one: both runs on virtual clocks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marless.core.errors import SpecError
from marless.core.settings import FunctionSize, FunctionsSpec
from marless.cost.simulation.virtual import Times, VirtualRun
from marless.jobs.prices import BilledTime
from marless.jobs.record import InvocationRecord, PhaseSeconds, RoundRecord
from marless.jobs.schedules.base import Schedule
from marless.jobs.schedules.rounds import SYNCHRONOUS
from marless.jobs.usage import HOST, PARAMETER, WHOLE, start_s, usage

MEASUREMENTS = ("curvature", "similarity")
"""Functions inside a learner that are not in an algorithm's function graph."""
_ROUNDING = 1e-9
"""Tolerance for rounding errors, so that functions of 0.1 vCPUs fit into 1 vCPU ten times."""


@dataclass(frozen=True)
class SimulatedFunction:
    """A function to be scheduled."""

    seconds: float
    after: tuple[int, ...] = ()
    """Indices of the tasks that must end before it starts."""


@dataclass(frozen=True)
class _Tasks:
    """The functions of a round."""

    actors: list[SimulatedFunction]
    updates: list[SimulatedFunction]
    concurrent: list[SimulatedFunction]
    """Evaluations during the update."""
    evaluations: list[SimulatedFunction]
    """Those after it."""


@dataclass(frozen=True)
class Placement:
    """The lane, start and end of a scheduled task, in seconds from the schedule's start."""

    lane: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class ModelledRun:
    """A run on a cluster, between two rounds. Immutable, so that runs on many clusters can share their past."""

    run: VirtualRun
    free: int = 0
    """Actors that ran at once beside the newest update."""
    until_s: float = 0.0
    """When that update ended, as the clock reads for the next round: 0 or earlier."""
    time: BilledTime = "duration"
    """Which seconds of a function occupy its slot."""

    def after(self, record: RoundRecord, functions: FunctionsSpec, slots: int) -> tuple[PhaseSeconds, ModelledRun]:
        """Modelled seconds of each phase of the next round on `slots` vCPUs, and the run after it.

        Raises SpecError if a function is larger than the cluster.
        """
        tasks, around = _tasks(record, functions, self.time), overheads(record)
        at_once = lanes(slots, functions.actor, "actor")
        update = schedule(tasks.updates, lanes(slots, functions.learner, "learner"))
        update_s = makespan(update) + around.update
        free = concurrent_lanes(update, functions, slots)
        concurrent = schedule(tasks.concurrent, at_once, taken=at_once - free, until_s=update_s)
        after_s = makespan(schedule(tasks.evaluations, at_once)) + around.evaluation
        evaluation_s = max(makespan(concurrent) - update_s, 0.0) + after_s

        def rolled_out(began_s: float) -> float:
            learning_s = max(self.until_s - began_s, 0.0)
            taken = at_once - self.free if learning_s else 0
            return makespan(schedule(tasks.actors, at_once, taken=taken, until_s=learning_s)) + around.rollout

        times, run = self.run.round(rolled_out, lambda _: update_s + evaluation_s)
        phases = PhaseSeconds(rollout=times.waited_s, update=update_s, evaluation=evaluation_s)
        then = (free, -evaluation_s) if run.ahead else (0, 0.0)
        return phases, ModelledRun(run, *then, time=self.time)


def modelled(record: RoundRecord, functions: FunctionsSpec, slots: int) -> PhaseSeconds:
    """Modelled seconds of each phase of a round that overlaps no other; see `ModelledRun.after`."""
    return ModelledRun(VirtualRun.of(SYNCHRONOUS)).after(record, functions, slots)[0]


def modelled_run(
    records: Iterable[RoundRecord],
    functions: FunctionsSpec,
    slots: int,
    schedule_: Schedule[Any] = SYNCHRONOUS,
    time: BilledTime = "duration",
) -> float:
    """Modelled seconds of all phases of these rounds together, without the time between rounds."""
    run, seconds = ModelledRun(VirtualRun.of(schedule_), time=time), 0.0
    for record in records:
        phases, run = run.after(record, functions, slots)
        seconds += total(phases)
    return seconds


def total(phases: PhaseSeconds) -> float:
    """Seconds of all phases of a round."""
    return phases.rollout + phases.update + phases.evaluation


def concurrent_lanes(update: Sequence[Placement], functions: FunctionsSpec, slots: int) -> int:
    """Number of actors that run on `slots` vCPUs at the same time as the learner functions of this schedule."""
    learning = len({each.lane for each in update}) * functions.learner.vcpus
    return max(math.floor((slots - learning) / functions.actor.vcpus + _ROUNDING), 0)


def later_s(concurrent: Sequence[InvocationRecord], update_s: float) -> float:
    """Seconds by which evaluations that begin with an update of `update_s` seconds end later than that."""
    return max(span(concurrent) - update_s, 0.0)


def overheads(record: RoundRecord) -> PhaseSeconds:
    """Recorded seconds of each phase before its first function was queued and after its last one ended."""
    rollout = [each for each in record.invocations if each.function == "actor"]
    evaluation = [each for each in record.invocations if each.function == "evaluation"]
    own = [each for each in evaluation if not each.during_update]
    waited_s = later_s([each for each in evaluation if each.during_update], record.phases.update)
    inner = [each for each in record.invocations if each.function not in WHOLE]
    # Of learners whose results came from the store, only the functions inside them are recorded.
    update = [each for each in inner if each.function == HOST] or inner
    return PhaseSeconds(
        rollout=max(record.phases.rollout - span(rollout), 0.0),
        update=max(record.phases.update - span(update), 0.0),
        evaluation=max(record.phases.evaluation - waited_s - span(own), 0.0),
    )


def lanes(slots: int, size: FunctionSize, what: str = "function") -> int:
    """Number of functions of this size that run at once on `slots` vCPUs; raises SpecError if none fits."""
    count = math.floor(slots / size.vcpus + _ROUNDING)
    if count < 1:
        raise SpecError(
            f"slots: {slots} vCPUs hold no {what} of {size.vcpus:g} vCPUs; give at least {math.ceil(size.vcpus)}"
        )
    return count


def schedule(
    tasks: Sequence[SimulatedFunction], at_once: int, *, taken: int = 0, until_s: float = 0.0
) -> tuple[Placement, ...]:
    """List scheduling, longest ready task first, ties by index; returns placements in the order of `tasks`.

    Of the `at_once` lanes, the last `taken` ones are free from `until_s` on, the others at once.

    Raises ValueError if dependencies are circular.
    """
    waits, followers = [len(task.after) for task in tasks], [*_followers(tasks), *[[]] * taken]
    ready = [(-task.seconds, number) for number, task in enumerate(tasks) if not task.after]
    heapq.heapify(ready)
    free, now = list(range(at_once - taken)), 0.0
    # Lanes that are taken at first hold tasks of their own, numbered after the real ones, which end and free them.
    placed = {len(tasks) + number: Placement(at_once - 1 - number, 0.0, until_s) for number in range(taken)}
    running = [(until_s, number) for number in placed]
    while ready or running:
        while ready and free:
            _, number = heapq.heappop(ready)
            placed[number] = Placement(heapq.heappop(free), now, now + tasks[number].seconds)
            heapq.heappush(running, (placed[number].end_s, number))
        now = running[0][0]
        while running and running[0][0] <= now:  # all tasks that end now, before the next is chosen
            _, done = heapq.heappop(running)
            heapq.heappush(free, placed[done].lane)
            for number in followers[done]:
                waits[number] -= 1
                if not waits[number]:
                    heapq.heappush(ready, (-tasks[number].seconds, number))
    if len(placed) < len(tasks) + taken:
        raise ValueError("tasks wait for each other in a circle")
    return tuple(placed[number] for number in range(len(tasks)))


def makespan(placements: Iterable[Placement]) -> float:
    """Seconds until the last task has ended; 0 without tasks."""
    return max((placement.end_s for placement in placements), default=0.0)


def _followers(tasks: Sequence[SimulatedFunction]) -> list[list[int]]:
    """The tasks that wait for each task."""
    followers: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for before in task.after:
            followers[before].append(number)
    return followers


def _tasks(record: RoundRecord, functions: FunctionsSpec, time: BilledTime) -> _Tasks:
    """The functions of a round as tasks, cold starts included."""
    timed = _timed(record, functions, time)
    evaluations = [(each, SimulatedFunction(seconds)) for each, seconds in timed if each.function == "evaluation"]
    inner = [(each, seconds) for each, seconds in timed if each.function not in WHOLE]
    return _Tasks(
        actors=[SimulatedFunction(seconds) for each, seconds in timed if each.function == "actor"],
        updates=[SimulatedFunction(seconds, waits(each, [other for other, _ in inner])) for each, seconds in inner],
        concurrent=[task for each, task in evaluations if each.during_update],
        evaluations=[task for each, task in evaluations if not each.during_update],
    )


def _timed(record: RoundRecord, functions: FunctionsSpec, time: BilledTime) -> list[tuple[InvocationRecord, float]]:
    """The functions to schedule, each with the seconds that it occupies its slot.

    A learner is left out if the functions inside it are recorded.
    """
    hosts = {each.index: each for each in record.invocations if each.function == HOST}
    hosting = {each.index for each in record.invocations if each.function not in (*WHOLE, HOST, PARAMETER)}
    counted = [each for each in record.invocations if each.function != HOST or each.index not in hosting]
    return [
        (each, use.seconds + awaited(each if each.function in WHOLE else hosts.get(each.index, each), time))
        for each, use in zip(counted, usage(record, functions, time), strict=True)
    ]


def waits(one: InvocationRecord, graph: Sequence[InvocationRecord]) -> tuple[int, ...]:
    """The predecessors of a function inside a learner, as indices of `graph`, which contains it."""
    if one.function == HOST:
        return ()
    concurrent = [(number, other) for number, other in enumerate(graph) if other.index == one.index]
    declared = any(other.after for _, other in concurrent)
    if one.function not in MEASUREMENTS and declared:
        return tuple(number for number, other in concurrent if other.node in one.after)
    return tuple(number for number, other in concurrent if _comes_first(other, one))


def _comes_first(other: InvocationRecord, one: InvocationRecord) -> bool:
    """True if `other` precedes `one`: the order of measurements, and of PPO's functions in records without a graph."""
    if one.function == "curvature" and other.function == "policy":
        return other.name == one.name
    return other.function == "post_process" != one.function


def awaited(invocation: InvocationRecord, time: BilledTime = "duration") -> float:
    """Seconds that an invocation waited for the cold start of its worker; 0 for a warm one."""
    if not invocation.cold:
        return 0.0
    return min(start_s(invocation, time), max(invocation.start_s - invocation.queued_s, 0.0))


def span(invocations: Sequence[InvocationRecord]) -> float:
    """Seconds from the first being queued (functions inside a learner: started) to the end of the last."""
    if not invocations:
        return 0.0
    begin = min(each.queued_s or each.start_s for each in invocations)
    return max(max(each.end_s for each in invocations) - begin, 0.0)


@dataclass(frozen=True, kw_only=True)
class Later:
    """How many seconds later parts of a replayed round begin than those of the recorded one."""

    round_s: float
    """The round itself, which begins when the one before it is recorded."""
    rollout_s: float
    update_s: float
    end_s: float
    waited_s: float
    """How much longer the job waited for the rollout."""


@dataclass(frozen=True)
class Timelines:
    """A recorded and a replayed run of one schedule, between two rounds."""

    recorded: VirtualRun
    replayed: VirtualRun
    later_s: float = 0.0

    @classmethod
    def of(cls, schedule: Schedule[Any]) -> Timelines:
        """The timelines of both runs before their first round."""
        return cls(VirtualRun.of(schedule), VirtualRun.of(schedule))

    def after(self, recorded: PhaseSeconds, replayed: PhaseSeconds, idle_s: float | None) -> tuple[Later, Timelines]:
        """The next round of both.

        Args:
            recorded: The seconds that its actors, its update and its evaluations took; not how long the job waited.
            replayed: The same of the replayed round.
            idle_s: Seconds between the round before and this one.
        """
        # An interruption, of which the length is unknown, counts as no time for both.
        idle_s = max(idle_s or 0.0, 0.0)
        then, recorded_run = _after(self.recorded.rest(idle_s), recorded)
        now, replayed_run = _after(self.replayed.rest(idle_s), replayed)
        waited_s = now.waited_s - then.waited_s
        longer_s = waited_s + (replayed.update - recorded.update) + (replayed.evaluation - recorded.evaluation)
        later = Later(
            round_s=self.later_s,
            rollout_s=self.later_s + (now.began_s - then.began_s),
            update_s=self.later_s + waited_s,
            end_s=self.later_s + longer_s,
            waited_s=waited_s,
        )
        return later, replace(self, recorded=recorded_run, replayed=replayed_run, later_s=self.later_s + longer_s)


def _after(run: VirtualRun, took: PhaseSeconds) -> tuple[Times, VirtualRun]:
    return run.round(lambda _: took.rollout, lambda _: took.update + took.evaluation)
