"""Rounds made up from a calibration: records as a run would write them, of functions that take what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from marless.pricing.calibration import Calibration, FunctionSeconds
from marless.pricing.usage import HOST
from marless.record import GroupRecord, InvocationRecord, PhaseSeconds, RoundRecord
from marless.replay.cluster import Task, lanes, makespan, schedule
from marless.spec import FunctionSize, FunctionsSpec, JobSpec

ACTOR_START_S, LEARNER_START_S = 0.2, 2.0
"""Of workers on the machine of docs/benchmarks.md."""
COORDINATOR_S = 0.005
"""Of each phase, in which no function runs; likewise."""
AROUND_S = 0.015
"""What a learner does in no pass, reading trajectories and publishing; likewise."""
SECONDS_PER_SAMPLE = {"post_process": 1.0e-6, "critic": 5.0e-6, "policy": 5.7e-6}
"""Per agent sample: a [64, 64] net of PPO on that machine. Used only where there is no torch to measure with."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """One guess at how a job goes."""

    actors: int
    factor: float
    """Times what was measured."""
    shared: bool
    """All agents of a class share a learner."""
    slots: int
    """vCPUs that functions run on side by side."""


def work_of(found: Calibration, spec: JobSpec, groups: Mapping[str, int]) -> list[FunctionSeconds]:
    """What each function of an update takes, the quickest time of each; guessed from samples where none was measured.

    `groups` has the number of agents of each policy.
    """
    if found.updates:
        best = [min(each, key=attrgetter("seconds")) for each in zip(*found.updates, strict=True)]
        return list(best)
    per_agent = spec.actors.count * spec.actors.envs * spec.actors.steps
    guessed = [_guess("post_process", "all", per_agent * sum(groups.values()))]
    for function in ("critic", "policy"):
        for name, agents in groups.items():
            members = agents if spec.sharing.samples == "pooled" else 1
            guessed.append(_guess(function, name, per_agent * members))
    return guessed


def rounds(
    spec: JobSpec, work: Sequence[FunctionSeconds], actor_s: float, pace: Pace, count: int, episode_steps: int
) -> list[RoundRecord]:
    """`count` rounds; phases take as long as is modelled for `pace.slots` vCPUs.

    The first starts the learners, and an actor worker on each slot: as few as `marless train` has. An update's time is
    taken to grow in proportion to the actors; an episode lasts `episode_steps`.
    """
    share = pace.factor * pace.actors / spec.actors.count
    functions = [replace(each, seconds=each.seconds * share) for each in (_shared(work, spec) if pace.shared else work)]
    records: list[RoundRecord] = []
    at = 0.0
    for number in range(count):
        records.append(_round(spec, functions, actor_s * pace.factor, pace, number, at, episode_steps))
        at = records[-1].ended_s
    return records


def _guess(function: str, name: str, samples: int) -> FunctionSeconds:
    return FunctionSeconds(function=function, name=name, index=0, seconds=samples * SECONDS_PER_SAMPLE[function])


def _shared(work: Sequence[FunctionSeconds], spec: JobSpec) -> list[FunctionSeconds]:
    """One function of each kind and agent class: it does the work of all that it stands for, or of one, if it draws."""
    merged: dict[tuple[str, int], FunctionSeconds] = {}
    for each in work:
        key = each.function, each.index
        if key not in merged:
            merged[key] = each
        elif spec.sharing.samples == "pooled" or each.function == "post_process":
            merged[key] = replace(merged[key], seconds=merged[key].seconds + each.seconds)
    return list(merged.values())


def _round(
    spec: JobSpec,
    functions: Sequence[FunctionSeconds],
    actor_s: float,
    pace: Pace,
    number: int,
    at: float,
    episode_steps: int,
) -> RoundRecord:
    """One phase after the other, each with its functions on the slots there are."""
    names = dict.fromkeys(each.name for each in functions if each.function == "policy")
    every, cold = spec.evaluation.every, number == 0
    acting = _side_by_side("actor", [actor_s] * pace.actors, at, spec.functions.actor, pace.slots)
    acting = [
        replace(each, cold=True, init_s=ACTOR_START_S) if cold and each.index < pace.slots else each for each in acting
    ]
    rolled_s = _end(acting, at)
    learning = _learning(spec.functions, functions, rolled_s, pace.slots, cold)
    updated_s = _end(learning, rolled_s)
    evaluating: list[InvocationRecord] = []
    if every and (number + 1) % every == 0:
        seconds = _evaluation_s(spec, actor_s * episode_steps / spec.actors.steps)
        evaluating = _side_by_side("evaluation", seconds, updated_s, spec.functions.actor, pace.slots)
    ended_s = _end(evaluating, updated_s)
    return RoundRecord(
        job=spec.name,
        round=number,
        env_steps=(number + 1) * pace.actors * spec.actors.envs * spec.actors.steps,
        actors=pace.actors,
        groups=tuple(GroupRecord(policy=name, agents=(name,), version=number + 2) for name in names),
        versions={},
        started_s=at,
        ended_s=ended_s,
        phases=PhaseSeconds(rollout=rolled_s - at, update=updated_s - rolled_s, evaluation=ended_s - updated_s),
        returns=None,
        evaluation=None,
        metrics={},
        invocations=(*acting, *learning, *evaluating),
        decisions=(),
    )


def _side_by_side(
    function: str, seconds: Sequence[float], at: float, size: FunctionSize, slots: int
) -> list[InvocationRecord]:
    """Functions that are ready at once."""
    placed = schedule([Task(each) for each in seconds], lanes(slots, size, function))
    return [
        _invocation(function, "", index, at + each.start_s, at + each.end_s, each.end_s - each.start_s)
        for index, each in enumerate(placed)
    ]


def _learning(
    sizes: FunctionsSpec, functions: Sequence[FunctionSeconds], at: float, slots: int, cold: bool
) -> list[InvocationRecord]:
    """A learner per agent class, side by side, with its functions: post-processing first, all others after it."""
    first = [number for number, each in enumerate(functions) if each.function == "post_process"]
    tasks = [
        Task(each.seconds, tuple(other for other in first if other != number and functions[other].index == each.index))
        for number, each in enumerate(functions)
    ]
    end_s = at + AROUND_S + makespan(schedule(tasks, lanes(slots, sizes.learner, "learner")))
    made = []
    for index in sorted({each.index for each in functions}):
        host = _invocation(HOST, "", index, at, end_s, end_s - at)
        made.append(replace(host, cold=cold, init_s=LEARNER_START_S if cold else 0.0))
    for each in functions:
        made.append(_invocation(each.function, each.name, each.index, at + AROUND_S, end_s, each.seconds))
    return made


def _end(invocations: Sequence[InvocationRecord], at: float) -> float:
    """When a phase of these functions is over; at once if there are none."""
    return max(each.end_s for each in invocations) + COORDINATOR_S if invocations else at


def _evaluation_s(spec: JobSpec, batch_s: float) -> list[float]:
    """Episodes are dealt to the actors; each plays as many at once as it has copies."""
    count = min(spec.actors.count, spec.evaluation.episodes)
    return [batch_s * math.ceil(math.ceil(spec.evaluation.episodes / count) / spec.actors.envs)] * count


def _invocation(function: str, name: str, index: int, start_s: float, end_s: float, vcpu_s: float) -> InvocationRecord:
    return InvocationRecord(
        id=f"{function}/{name or index}",
        function=function,
        name=name,
        index=index,
        attempt=1,
        worker="",
        queued_s=start_s,
        start_s=start_s,
        end_s=end_s,
        vcpu_s=vcpu_s,
        memory_bytes=0,
        cold=False,
    )
