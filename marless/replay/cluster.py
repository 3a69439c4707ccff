"""How long recorded rounds would have taken on a cluster of so many slots. Every figure of this module is modelled.

A recording says how long each function worked; where there were fewer slots than functions, they queued. The model puts
the same functions onto other slots, a vCPU each, by list scheduling: whenever a slot is free, the longest function that
is ready begins (Graham 1969; for functions that wait for nothing, that is LPT, at most 4/3 of the shortest makespan).

A round is modelled phase by phase, as it runs:

- rollout: all actors are ready at once;
- update: every function inside a learner is a function with a slot of its own, as the bill has it
  (`marless.pricing.usage`, its part of reading and publishing included), and begins when those that it waits for have
  ended, by the graph that the algorithm declared and the record kept. Gradient steps of functions that wait for one
  another in each of them are taken as if all of one came before all of the other: a slot more would not have made any
  of them wait less. Records without a graph are of PPO: post-processing first, then critics and policies at once. A
  policy's curvature follows its training, the similarity of its agents post-processing;
- evaluation: all evaluations are ready at once;
- to each phase is added what the coordinator saw of it before its first function was queued and after its last one
  ended, and, in front of a function, what of its worker's start it had to wait for.

What this leaves out: a slot here is as fast as the recording machine was with as much running on it, and moving bytes
takes as long as it took there.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from marless.errors import SpecError
from marless.pricing.usage import HOST, WHOLE, usage
from marless.record import InvocationRecord, PhaseSeconds, RoundRecord
from marless.spec import FunctionSize, FunctionsSpec

MEASUREMENTS = ("curvature", "similarity")
"""Functions inside a learner that no algorithm declares."""
_ROUNDING = 1e-9
"""Slots are cut into lanes of floating-point width: 0.1 goes into 1 ten times."""


@dataclass(frozen=True)
class Task:
    """A function to be scheduled."""

    seconds: float
    after: tuple[int, ...] = ()
    """Numbers of the tasks that must have ended before."""


@dataclass(frozen=True)
class Placement:
    """When and where a task ran, in seconds after the schedule's start."""

    lane: int
    start_s: float
    end_s: float


def modelled(record: RoundRecord, functions: FunctionsSpec, slots: int) -> PhaseSeconds:
    """Seconds that each phase of this round would have taken on `slots` vCPUs; never less than its longest function.

    Raises SpecError if a function is larger than the cluster.
    """
    busy = scheduled(record, functions, slots)
    around = overheads(record)
    return PhaseSeconds(
        rollout=busy.rollout + around.rollout,
        update=busy.update + around.update,
        evaluation=busy.evaluation + around.evaluation,
    )


def modelled_run(records: Iterable[RoundRecord], functions: FunctionsSpec, slots: int) -> float:
    """Seconds of all modelled phases of these rounds together; what lay between rounds is not in it."""
    return sum(total(modelled(record, functions, slots)) for record in records)


def total(phases: PhaseSeconds) -> float:
    """Seconds of a round."""
    return phases.rollout + phases.update + phases.evaluation


def scheduled(record: RoundRecord, functions: FunctionsSpec, slots: int) -> PhaseSeconds:
    """Seconds that the functions of each phase take on `slots` vCPUs, without what the coordinator saw around them."""
    actors, updates, evaluations = _tasks(record, functions)
    for_actors, for_learners = lanes(slots, functions.actor, "actor"), lanes(slots, functions.learner, "learner")
    return PhaseSeconds(
        rollout=makespan(schedule(actors, for_actors)),
        update=makespan(schedule(updates, for_learners)),
        evaluation=makespan(schedule(evaluations, for_actors)),
    )


def overheads(record: RoundRecord) -> PhaseSeconds:
    """Seconds of each phase in which the coordinator waited for no function: its own work, messages, bookkeeping."""
    rollout = [each for each in record.invocations if each.function == "actor"]
    evaluation = [each for each in record.invocations if each.function == "evaluation"]
    inner = [each for each in record.invocations if each.function not in WHOLE]
    update = [each for each in inner if each.function == HOST] or inner
    return PhaseSeconds(
        rollout=max(record.phases.rollout - span(rollout), 0.0),
        update=max(record.phases.update - span(update), 0.0),
        evaluation=max(record.phases.evaluation - span(evaluation), 0.0),
    )


def lanes(slots: int, size: FunctionSize, what: str = "function") -> int:
    """How many functions of this size run at once on `slots` vCPUs; raises SpecError if not even one does."""
    count = math.floor(slots / size.vcpus + _ROUNDING)
    if count < 1:
        raise SpecError(
            f"slots: {slots} vCPUs hold no {what} of {size.vcpus:g} vCPUs; give at least {math.ceil(size.vcpus)}"
        )
    return count


def schedule(tasks: Sequence[Task], at_once: int) -> tuple[Placement, ...]:
    """List scheduling, longest ready task first, the earlier one of two as long; in the order of `tasks`.

    Raises ValueError if tasks wait for each other in a circle.
    """
    waits, followers = [len(task.after) for task in tasks], _followers(tasks)
    ready = [(-task.seconds, number) for number, task in enumerate(tasks) if not task.after]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    free, now = list(range(at_once)), 0.0
    placed: dict[int, Placement] = {}
    while ready or running:
        while ready and free:
            _, number = heapq.heappop(ready)
            placed[number] = Placement(heapq.heappop(free), now, now + tasks[number].seconds)
            heapq.heappush(running, (placed[number].end_s, number))
        now = running[0][0]
        while running and running[0][0] <= now:  # whatever ends now has ended before the next, the longest, is chosen
            _, done = heapq.heappop(running)
            heapq.heappush(free, placed[done].lane)
            for number in followers[done]:
                waits[number] -= 1
                if not waits[number]:
                    heapq.heappush(ready, (-tasks[number].seconds, number))
    if len(placed) < len(tasks):
        raise ValueError("tasks wait for each other in a circle")
    return tuple(placed[number] for number in range(len(tasks)))


def makespan(placements: Iterable[Placement]) -> float:
    """Seconds until the last task has ended; 0 without tasks."""
    return max((placement.end_s for placement in placements), default=0.0)


def _followers(tasks: Sequence[Task]) -> list[list[int]]:
    """For each task, the tasks that wait for it."""
    followers: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for before in task.after:
            followers[before].append(number)
    return followers


def _tasks(record: RoundRecord, functions: FunctionsSpec) -> tuple[list[Task], list[Task], list[Task]]:
    """The functions of rollout, update and evaluation, with the starts that they had to wait for."""
    timed = _timed(record, functions)
    actors = [Task(seconds) for each, seconds in timed if each.function == "actor"]
    evaluations = [Task(seconds) for each, seconds in timed if each.function == "evaluation"]
    inner = [(each, seconds) for each, seconds in timed if each.function not in WHOLE]
    updates = [Task(seconds, waits(each, [other for other, _ in inner])) for each, seconds in inner]
    return actors, updates, evaluations


def _timed(record: RoundRecord, functions: FunctionsSpec) -> list[tuple[InvocationRecord, float]]:
    """Every function that counts, and how long it occupies its slot."""
    hosts = {each.index: each for each in record.invocations if each.function == HOST}
    hosting = {each.index for each in record.invocations if each.function not in (*WHOLE, HOST)}
    counted = [each for each in record.invocations if each.function != HOST or each.index not in hosting]
    return [
        (each, use.seconds + awaited(each if each.function in WHOLE else hosts.get(each.index, each)))
        for each, use in zip(counted, usage(record, functions), strict=True)
    ]


def waits(one: InvocationRecord, graph: Sequence[InvocationRecord]) -> tuple[int, ...]:
    """What must have ended before a function inside a learner begins, as numbers of `graph`, which holds it too."""
    if one.function == HOST:
        return ()
    beside = [(number, other) for number, other in enumerate(graph) if other.index == one.index]
    declared = any(other.after for _, other in beside)
    if one.function not in MEASUREMENTS and declared:
        return tuple(number for number, other in beside if other.node in one.after)
    return tuple(number for number, other in beside if _comes_first(other, one))


def _comes_first(other: InvocationRecord, one: InvocationRecord) -> bool:
    """The order of measurements, and of PPO's functions, where none was declared."""
    if one.function == "curvature" and other.function == "policy":
        return other.name == one.name
    return other.function == "post_process" != one.function


def awaited(invocation: InvocationRecord) -> float:
    """Seconds that an invocation waited for its worker to start; the rest of the start was before, or is queueing."""
    if not invocation.cold:
        return 0.0
    return min(max(invocation.init_s, 0.0), max(invocation.start_s - invocation.queued_s, 0.0))


def span(invocations: Sequence[InvocationRecord]) -> float:
    """Seconds from the first being queued to the last one's end; functions inside a learner are not queued."""
    if not invocations:
        return 0.0
    begin = min(each.queued_s or each.start_s for each in invocations)
    return max(max(each.end_s for each in invocations) - begin, 0.0)
