"""Synthetic round records from a calibration: the records of a run whose functions take the measured times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypedDict

from marless.core.settings import FunctionsSpec
from marless.cost.estimates.calibration import Calibration, FunctionSeconds
from marless.cost.simulation.cluster import (
    MEASUREMENTS,
    Placement,
    SimulatedFunction,
    concurrent_lanes,
    lanes,
    makespan,
    schedule,
    waits,
)
from marless.cost.simulation.durations import OF_SCOPE
from marless.cost.simulation.virtual import VirtualRun, of_rounds
from marless.jobs.job import PreparedJob
from marless.jobs.record import GroupRecord, InvocationRecord, PhaseSeconds, RoundRecord
from marless.jobs.schedules.base import is_due
from marless.jobs.sharing.base import initial_groups
from marless.jobs.spec import JobSpec
from marless.jobs.usage import HOST

ACTOR_START_S, LEARNER_START_S = 0.2, 2.0
"""Start-up seconds of workers, on the machine of docs/benchmarks_services.md."""
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


def work_of(found: Calibration, job: PreparedJob) -> list[FunctionSeconds]:
    """Seconds of each function of an update: the shortest measured time, or estimated from the number of samples."""
    if found.updates:
        # The shortest, because whatever else the machine does only makes a measurement longer.
        return [min(each, key=attrgetter("seconds")) for each in zip(*found.updates, strict=True)]
    spec, groups = job.spec, initial_groups(job.spec.sharing.groups, job.spaces)
    members = {group.policy: len(group.agents) if spec.sharing.samples == "pooled" else 1 for group in groups}
    actors, guessed = spec.actors, []
    of_agent = spec.algorithm.samples(actors.count * actors.envs * actors.steps, actors.steps)
    for each in job.functions(groups):
        node, agents = each.node, members.get(each.node.name, 1)
        if node.function in OF_SCOPE:
            agents = sum(len(served.agents) for served in each.scope.agent_classes(job.spaces))
        seconds = of_agent * agents * SECONDS_PER_SAMPLE[node.function]
        guessed.append(FunctionSeconds(node.function, node.name, each.index, seconds, node.after))
    return guessed


def rounds(
    job: PreparedJob, work: Sequence[FunctionSeconds], actor_s: float, pace: Pace, count: int, episode_steps: int
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
    run = _Run(spec, functions, actor_s * pace.factor, pace, episode_steps)
    return [run.next() for _ in range(count)]


def _shared(work: Sequence[FunctionSeconds], job: PreparedJob) -> list[FunctionSeconds]:
    """The functions if each agent class shares one policy: one function of each kind per policy.

    Its time is the sum over the policies that it replaces; or that of one, if samples are drawn, or for measurements,
    which use a fixed number of samples. Functions that serve a whole scope, as mixers and joint critics, are unchanged.
    """

    def renamed(function: str, name: str) -> str:
        return name if function in OF_SCOPE else shared.get(name, name)

    shared: dict[str, str] = {}
    first: dict[str, str] = {}
    for group in initial_groups(job.spec.sharing.groups, job.spaces):
        agents = job.spaces.class_of(group.agents[0]).name
        shared[group.policy] = first.setdefault(agents, group.policy)
    merged: dict[tuple[int, str, str], FunctionSeconds] = {}
    for each in work:
        name = renamed(each.function, each.name)
        key = each.index, each.function, name
        if key not in merged:
            waits_for = (one.split("/", 1) for one in each.after)
            after = dict.fromkeys(f"{function}/{renamed(function, other)}" for function, other in waits_for)
            merged[key] = replace(each, name=name, after=tuple(after))
        elif job.spec.sharing.samples == "pooled" and each.function not in MEASUREMENTS:
            merged[key] = replace(merged[key], seconds=merged[key].seconds + each.seconds)
    return list(merged.values())


class _Run:
    """Makes the rounds of a scenario one after another, as the job's schedule runs them on a virtual clock."""

    def __init__(
        self,
        spec: JobSpec,
        functions: Sequence[FunctionSeconds],
        actor_s: float,
        pace: Pace,
        episode_steps: int,
    ) -> None:
        self._spec, self._functions, self._actor_s, self._pace = spec, functions, actor_s, pace
        self._episode_steps = episode_steps
        self._names = dict.fromkeys(each.name for each in functions if each.function == "policy")
        self._clock = VirtualRun.of(of_rounds(spec.schedule))
        self._at = 0.0
        """End of the newest round."""
        self._concurrent: tuple[float, int] | None = None
        """When the newest update ended, and the actors that ran at once beside it."""
        self._made: dict[str, list[InvocationRecord]] = {}
        """The functions of the present round."""
        self._updated_s = 0.0

    def next(self) -> RoundRecord:
        """The record of the next round."""
        number, at, pace, actors = self._clock.recorded, self._at, self._pace, self._spec.actors
        times, self._clock = self._clock.round(self._roll_out, self._train)
        self._at = at + times.ended_s
        rolled_s, updated_s = at + times.waited_s, self._updated_s
        return RoundRecord(
            job=self._spec.name,
            round=number,
            env_steps=(number + 1) * pace.actors * actors.envs * actors.steps,
            actors=pace.actors,
            groups=tuple(GroupRecord(policy=name, agents=(name,), version=number + 2) for name in self._names),
            versions={},
            started_s=at,
            ended_s=self._at,
            phases=PhaseSeconds(rollout=times.waited_s, update=updated_s - rolled_s, evaluation=self._at - updated_s),
            returns=None,
            evaluation=None,
            metrics={},
            invocations=(*self._made["rollout"], *self._made["update"], *self._made["evaluation"]),
            decisions=(),
            idle_s=0.0 if number else None,
        )

    def _roll_out(self, began_s: float) -> float:
        """Make the actors of the next round, which begin then; returns how long they take."""
        pace, at = self._pace, self._at + began_s
        tasks = [SimulatedFunction(self._actor_s)] * pace.actors
        placed = schedule(tasks, **self._slots(at, "actor"))
        acting = _placed("actor", placed, at)
        if not self._clock.recorded:
            started = [replace(each, cold=True, init_s=ACTOR_START_S) for each in acting[: pace.slots]]
            acting = started + acting[pace.slots :]
        self._made["rollout"] = acting
        return _end(acting, at) - at

    def _train(self, began_s: float) -> float:
        """Make the functions of the next update, and the evaluations beside it; returns how long they take."""
        spec, number, at = self._spec, self._clock.recorded, self._at + began_s
        learning, free = _learning(spec.functions, self._functions, at, self._pace.slots, number == 0)
        self._updated_s = _end(learning, at)
        self._concurrent = (self._updated_s, free)
        evaluating: list[InvocationRecord] = []
        if is_due(spec.evaluation.every, number):
            # Episodes are split over actors, which play one per copy at a time.
            count = min(spec.actors.count, spec.evaluation.episodes)
            batches = math.ceil(math.ceil(spec.evaluation.episodes / count) / spec.actors.envs)
            batch_s = self._actor_s * self._episode_steps / spec.actors.steps
            tasks = [SimulatedFunction(batch_s * batches)] * count
            found = _placed("evaluation", schedule(tasks, **self._slots(at, "evaluation")), at)
            evaluating = [replace(each, during_update=True, queued_s=at) for each in found]
        self._made |= {"update": learning, "evaluation": evaluating}
        return max(_end(evaluating, self._updated_s), self._updated_s) - at

    def _slots(self, at: float, what: str) -> _Slots:
        """The slots for actors that begin then: those that an update leaves, until it has ended."""
        at_once = lanes(self._pace.slots, self._spec.functions.actor, what)
        until_s, free = self._concurrent or (at, at_once)
        if until_s <= at:
            return {"at_once": at_once, "taken": 0, "until_s": 0.0}
        return {"at_once": at_once, "taken": at_once - free, "until_s": until_s - at}


class _Slots(TypedDict):
    """Arguments of `schedule`."""

    at_once: int
    taken: int
    until_s: float


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
        replace(
            _invocation(each.function, each.name, each.index, start_s, start_s, each.seconds),
            after=each.after,
            pass_cpu_s=each.seconds,
        )
        for each in functions
    ]
    tasks = [SimulatedFunction(each.seconds, waits(one, inner)) for each, one in zip(functions, inner, strict=True)]
    placed = schedule(tasks, lanes(slots, sizes.learner, "learner"))
    end_s = start_s + makespan(placed)
    made = []
    for index in sorted({each.index for each in functions}):
        host = _invocation(HOST, "", index, at, end_s, end_s - at)
        made.append(replace(host, cold=cold, init_s=LEARNER_START_S if cold else 0.0))
    return made + [replace(each, end_s=end_s) for each in inner], concurrent_lanes(placed, sizes, slots)


def _end(invocations: Sequence[InvocationRecord], at: float) -> float:
    """End of a phase with these functions; `at` if there are none."""
    return max(each.end_s for each in invocations) + COORDINATOR_S if invocations else at


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
