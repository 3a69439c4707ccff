"""Synthetic round records from a calibration: the records of a run whose functions take the measured times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from marless.algos.base import Group
from marless.job import Job
from marless.pricing.calibration import Calibration, FunctionSeconds
from marless.pricing.usage import HOST
from marless.record import GroupRecord, InvocationRecord, PhaseSeconds, RoundRecord
from marless.replay.cluster import MEASUREMENTS, Placement, Task, lanes, lanes_beside, makespan, schedule, waits
from marless.replay.durations import OF_SCOPE
from marless.sharing.groups import initial_groups
from marless.spec import FunctionSize, FunctionsSpec, JobSpec

ACTOR_START_S, LEARNER_START_S = 0.2, 2.0
"""Start-up seconds of workers, on the machine of docs/benchmarks.md."""
COORDINATOR_S = 0.005
"""Seconds of each phase in which no function runs, on the same machine."""
AROUND_S = 0.015
"""Seconds that a learner spends outside of any pass, reading trajectories and publishing, on the same machine."""
SECONDS_PER_SAMPLE = {"post_process": 1.0e-6, "critic": 5.0e-6, "mixer": 5.0e-6, "policy": 5.7e-6}
"""Seconds per agent sample, for a [64, 64] PPO net on the same machine, and assuming that a mixer is as large. Used
only if updates cannot be measured because torch is not installed."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The assumptions of one scenario."""

    actors: int
    factor: float
    """Factor on the measured times."""
    shared: bool
    """True if all agents of a class share a learner."""
    slots: int
    """Number of vCPUs on which functions run in parallel."""


def work_of(found: Calibration, job: Job) -> list[FunctionSeconds]:
    """Seconds of each function of an update: the shortest measured time, or estimated from the number of samples."""
    if found.updates:
        best = [min(each, key=attrgetter("seconds")) for each in zip(*found.updates, strict=True)]
        return list(best)
    spec, groups = job.spec, _groups(job)
    members = {group.policy: len(group.agents) if spec.sharing.samples == "pooled" else 1 for group in groups}
    guessed = []
    for each in job.functions(groups):
        node, agents = each.node, members.get(each.node.name, 1)
        if node.function in OF_SCOPE:
            agents = sum(len(served.agents) for served in each.scope.agent_classes(job.spaces))
        seconds = _samples(spec) * agents * SECONDS_PER_SAMPLE[node.function]
        guessed.append(FunctionSeconds(node.function, node.name, each.index, seconds, node.after))
    return guessed


def rounds(
    job: Job, work: Sequence[FunctionSeconds], actor_s: float, pace: Pace, count: int, episode_steps: int
) -> list[RoundRecord]:
    """Records of `count` rounds, with phases as long as modelled for `pace.slots` vCPUs.

    The first round starts the learners, and an actor worker on each slot, as `marless train` does. Update times are
    assumed to grow in proportion to the number of actors, unless batches are drawn from a replay. An episode lasts
    `episode_steps` env steps.
    """
    spec = job.spec
    grows = spec.algorithm.drawn(spec.actors.steps) is None
    share = pace.factor * (pace.actors / spec.actors.count if grows else 1.0)
    functions = [replace(each, seconds=each.seconds * share) for each in (_shared(work, job) if pace.shared else work)]
    records: list[RoundRecord] = []
    at = 0.0
    for number in range(count):
        records.append(_round(spec, functions, actor_s * pace.factor, pace, number, at, episode_steps))
        at = records[-1].ended_s
    return records


def _groups(job: Job) -> tuple[Group, ...]:
    """The groups of the first round."""
    return initial_groups(job.spec.sharing.groups, job.spaces)


def _samples(spec: JobSpec) -> int:
    """Number of samples of each agent in an update."""
    actors = spec.actors
    return spec.algorithm.samples(actors.count * actors.envs * actors.steps, actors.steps)


def _shared(work: Sequence[FunctionSeconds], job: Job) -> list[FunctionSeconds]:
    """The functions if each agent class shares one policy: one function of each kind per policy.

    Its time is the sum over the policies that it replaces; or that of one, if samples are drawn, or for measurements,
    which use a fixed number of samples. Functions that serve a whole scope, as mixers and joint critics, are unchanged.
    """
    shared: dict[str, str] = {}
    first: dict[str, str] = {}
    for group in _groups(job):
        agents = job.spaces.class_of(group.agents[0]).name
        shared[group.policy] = first.setdefault(agents, group.policy)
    merged: dict[tuple[int, str, str], FunctionSeconds] = {}
    for each in work:
        name = each.name if each.function in OF_SCOPE else shared.get(each.name, each.name)
        key = each.index, each.function, name
        if key not in merged:
            merged[key] = replace(each, name=name, after=tuple(dict.fromkeys(_renamed(each.after, shared))))
        elif job.spec.sharing.samples == "pooled" and each.function not in MEASUREMENTS:
            merged[key] = replace(merged[key], seconds=merged[key].seconds + each.seconds)
    return list(merged.values())


def _renamed(after: Iterable[str], shared: Mapping[str, str]) -> Iterator[str]:
    for each in after:
        function, _, name = each.partition("/")
        yield each if function in OF_SCOPE else f"{function}/{shared.get(name, name)}"


def _round(
    spec: JobSpec,
    functions: Sequence[FunctionSeconds],
    actor_s: float,
    pace: Pace,
    number: int,
    at: float,
    episode_steps: int,
) -> RoundRecord:
    """The record of one round: one phase after another, each with its functions scheduled on the slots.

    Every so many rounds, the policies of the round before are evaluated during the update.
    """
    names = dict.fromkeys(each.name for each in functions if each.function == "policy")
    every, cold = spec.evaluation.every, number == 0
    acting = _side_by_side("actor", [actor_s] * pace.actors, at, spec.functions.actor, pace.slots)
    acting = [
        replace(each, cold=True, init_s=ACTOR_START_S) if cold and each.index < pace.slots else each for each in acting
    ]
    rolled_s = _end(acting, at)
    learning, free = _learning(spec.functions, functions, rolled_s, pace.slots, cold)
    updated_s = _end(learning, rolled_s)
    evaluating: list[InvocationRecord] = []
    if every and number and number % every == 0:
        tasks = [Task(each) for each in _evaluation_s(spec, actor_s * episode_steps / spec.actors.steps)]
        at_once = lanes(pace.slots, spec.functions.actor, "evaluation")
        placed = schedule(tasks, at_once, taken=at_once - free, until_s=updated_s - rolled_s)
        found = _placed("evaluation", placed, rolled_s)
        evaluating = [replace(each, during_update=True, queued_s=rolled_s) for each in found]
    ended_s = max(_end(evaluating, updated_s), updated_s)
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
        idle_s=0.0 if number else None,
    )


def _side_by_side(
    function: str, seconds: Sequence[float], at: float, size: FunctionSize, slots: int
) -> list[InvocationRecord]:
    """Invocations of functions that are all ready at time `at`, scheduled on the slots."""
    return _placed(function, schedule([Task(each) for each in seconds], lanes(slots, size, function)), at)


def _placed(function: str, placed: Iterable[Placement], at: float) -> list[InvocationRecord]:
    """Invocations of functions that are scheduled from time `at` on."""
    return [
        _invocation(function, "", index, at + each.start_s, at + each.end_s, each.end_s - each.start_s)
        for index, each in enumerate(placed)
    ]


def _learning(
    sizes: FunctionsSpec, functions: Sequence[FunctionSeconds], at: float, slots: int, cold: bool
) -> tuple[list[InvocationRecord], int]:
    """Invocations of one learner per scope, in parallel, and of its functions, each after those that it depends on.

    Also the number of actors that run on the slots at the same time.
    """
    start_s = at + AROUND_S
    inner = [
        replace(_invocation(each.function, each.name, each.index, start_s, start_s, each.seconds), after=each.after)
        for each in functions
    ]
    tasks = [Task(each.seconds, waits(one, inner)) for each, one in zip(functions, inner, strict=True)]
    placed = schedule(tasks, lanes(slots, sizes.learner, "learner"))
    end_s = start_s + makespan(placed)
    made = []
    for index in sorted({each.index for each in functions}):
        host = _invocation(HOST, "", index, at, end_s, end_s - at)
        made.append(replace(host, cold=cold, init_s=LEARNER_START_S if cold else 0.0))
    return made + [replace(each, end_s=end_s) for each in inner], lanes_beside(placed, sizes, slots)


def _end(invocations: Sequence[InvocationRecord], at: float) -> float:
    """End of a phase with these functions; `at` if there are none."""
    return max(each.end_s for each in invocations) + COORDINATOR_S if invocations else at


def _evaluation_s(spec: JobSpec, batch_s: float) -> list[float]:
    """Seconds of each actor in an evaluation: episodes are split over actors, which play one per copy at a time."""
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
