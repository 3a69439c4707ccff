"""Schedules whose rollouts overlap on a virtual clock, on slots of given speeds.

Each actor has a slot, and so has each learner that may be under way. How long functions take is drawn from recorded
durations, by a seed. By itself, nothing learns: the results are times, staleness, and how busy the slots are. With a
`Work`, functions are really run, in the order in which they begin on the virtual clock. `modelled` does the former
for a recorded run, for as many gradients as were recorded.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from marless.core.errors import SpecError
from marless.jobs.prices import BilledTime
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.base import Command, Learn, Publish, RollOut, Schedule, Step, made
from marless.jobs.schedules.events import ScheduleEvent
from marless.jobs.schedules.overlapping import Overlapping, OverlappingConfig
from marless.jobs.spec import JobSpec
from marless.jobs.usage import ACTOR, HOST, PARAMETER, working_s
from marless.learning.aggregation.queue import GradientBatch


@dataclass(frozen=True, kw_only=True)
class SlotSeconds:
    """Seconds of functions on a slot of speed 1."""

    sample_s: Sequence[float]
    """Of actors; one is drawn for each rollout."""
    learn_s: Sequence[float]
    """Of learners, for one gradient."""
    publish_s: float = 0.0
    """Of the parameter function, which applies gradients one aggregation after another."""


@dataclass(frozen=True, kw_only=True)
class SpeedSpread:
    """How speeds differ."""

    slow: float = 0.0
    """Fraction of the actors' slots that run at half speed."""
    straggling: float = 0.0
    """Fraction of functions that take `straggler_factor` times as long."""
    straggler_factor: float = 5.0


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """What happened."""

    ended_s: float
    """When the last version was published."""
    aggregations: tuple[GradientBatch, ...]
    """One for each version."""
    published_s: tuple[float, ...]
    """When, in seconds since the start."""
    actors_busy: float
    """Fraction of the actors' slot seconds in which a function ran."""
    learners_busy: float
    longest_queue: int
    """Most rollouts that waited for a learner at once."""
    state: Overlapping
    """At the end."""

    @property
    def staleness(self) -> list[int]:
        """The staleness of every gradient that was applied."""
        return [each.staleness for aggregation in self.aggregations for each in aggregation.gradients]


class Work(Protocol):
    """What functions do, if they are really run; `RollOut` and `Learn` use the newest versions when they begin."""

    def do(self, command: Command) -> None:
        """Run a function."""
        ...


@dataclass(frozen=True)
class SlotCounts:
    """Numbers of slots: each actor has one, and so has each learner that may be under way."""

    actors: int
    learners: int


@dataclass
class _PoolSlots:
    """The slots of one pool, and the seconds in which they ran something."""

    speeds: Sequence[float]
    free: list[int] = field(default_factory=list)
    busy_s: float = 0.0

    def __post_init__(self) -> None:
        self.free = list(range(len(self.speeds)))[::-1]


def simulate(
    schedule: Schedule[Overlapping],
    slots: SlotCounts,
    durations: SlotSeconds,
    machines: SpeedSpread,
    *,
    gradients: int,
    seed: int,
    work: Work | None = None,
) -> SimulatedRun:
    """Run until so many gradients have been applied; equal arguments give equal courses."""
    run = _Run(schedule, slots, durations, machines, random.Random(seed), work)
    run.start(schedule.begin(slots.actors))
    while run.applied < gradients:
        run.next()
    return run.course()


class _Run:
    def __init__(
        self,
        schedule: Schedule[Overlapping],
        slots: SlotCounts,
        durations: SlotSeconds,
        machines: SpeedSpread,
        rng: random.Random,
        work: Work | None,
    ) -> None:
        self._schedule, self._durations, self._machines = schedule, durations, machines
        self._rng, self._work = rng, work
        slow = round(machines.slow * slots.actors)
        self._actors = _PoolSlots([0.5] * slow + [1.0] * (slots.actors - slow))
        self._learners = _PoolSlots([1.0] * slots.learners)
        self._now_s = self._publisher_free_s = 0.0
        self._events: list[tuple[float, int, RollOut | Learn, int]] = []
        """When, in which order, what ends, and on which slot."""
        self._order = itertools.count()
        self._state = Overlapping(actors=slots.actors)
        self._published: list[tuple[float, GradientBatch]] = []
        self._longest = 0

    @property
    def applied(self) -> int:
        """Gradients applied so far."""
        return self._state.queue.counts.applied

    def next(self) -> None:
        """Go on to the next end of a function."""
        self._now_s, _, ended, slot = heapq.heappop(self._events)
        if isinstance(ended, RollOut):
            self._actors.free.append(slot)
            event = ScheduleEvent("rollout", ended.number, env_steps=1)
        else:
            self._learners.free.append(slot)
            event = ScheduleEvent("gradient", ended.learner)
        self.start(self._schedule.step(self._state, event))

    def start(self, step: Step[Overlapping]) -> None:
        """Start what follows from an event."""
        self._state = step.state
        self._longest = max(self._longest, len(step.state.waiting))
        for command in step.commands:
            self._do(command)
        if step.published:
            self.start(self._schedule.step(self._state, ScheduleEvent("version", step.published.clock)))

    def _do(self, command: Command) -> None:
        if self._work:
            self._work.do(command)
        if isinstance(command, Publish):
            self._publisher_free_s = max(self._now_s, self._publisher_free_s) + self._durations.publish_s
            self._published.append((self._publisher_free_s, command.aggregation))
            return
        assert isinstance(command, RollOut | Learn)  # rollouts overlap
        slots, drawn_s = self._learners, self._durations.learn_s
        if isinstance(command, RollOut):
            slots, drawn_s = self._actors, self._durations.sample_s
        slot = slots.free.pop()
        took_s = self._rng.choice(drawn_s) / slots.speeds[slot]
        if self._rng.random() < self._machines.straggling:
            took_s *= self._machines.straggler_factor
        slots.busy_s += took_s
        # The rule may start a function on a version that the parameter function is still making.
        published_s = self._published[command.clock - 1][0] if command.clock else 0.0
        begins_s = max(self._now_s, published_s)
        # Numbered, so that of events at one time the older comes first, and commands are never compared.
        heapq.heappush(self._events, (begins_s + took_s, next(self._order), command, slot))

    def course(self) -> SimulatedRun:
        """What has happened so far. Functions under way count until now."""
        ended_s = self._published[-1][0]
        # SlotCounts were counted as busy until the end of what they run: what lies beyond the end is taken off again.
        beyond = [(kind, max(ends_s - ended_s, 0.0)) for ends_s, _, kind, _ in self._events]
        return SimulatedRun(
            ended_s=ended_s,
            aggregations=tuple(aggregation for _, aggregation in self._published),
            published_s=tuple(at_s for at_s, _ in self._published),
            actors_busy=_share(self._actors, ended_s, (s for kind, s in beyond if isinstance(kind, RollOut))),
            learners_busy=_share(self._learners, ended_s, (s for kind, s in beyond if isinstance(kind, Learn))),
            longest_queue=self._longest,
            state=self._state,
        )


def _share(slots: _PoolSlots, ended_s: float, beyond_s: Iterable[float]) -> float:
    return (slots.busy_s - sum(beyond_s)) / (len(slots.speeds) * ended_s)


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """A recorded run on modelled slots."""

    actors: int
    """SlotCounts of actors; each has a rollout under way."""
    learners: int
    """SlotCounts of learners."""
    gradients: int
    """That were applied."""
    course: SimulatedRun

    @property
    def staleness(self) -> float:
        """Mean of all gradients."""
        return sum(self.course.staleness) / len(self.course.staleness)


def modelled(records: Sequence[RoundRecord], spec: JobSpec, *, slots: int | None, seed: int) -> Modelled:
    """Model a run with the settings of `spec` on `slots` vCPUs; None: as many as its actors and learners need.

    Learners have their slots first. Raises SpecError for a run without a gradient, and for too few slots.
    """
    config = spec.schedule
    assert isinstance(config, OverlappingConfig)
    gradients = sum(len(each.aggregation.gradients) for each in records if each.aggregation)
    if not gradients:
        raise SpecError("the run has no version yet: there is nothing to model")
    actors, sizes = spec.actors.count, spec.functions
    if slots is not None:
        left = math.floor((slots - config.learners * sizes.learner.vcpus) / sizes.actor.vcpus)
        if left < 1:
            least = math.ceil(config.learners * sizes.learner.vcpus + sizes.actor.vcpus)
            raise SpecError(
                f"--slots {slots}: {config.learners} learners and an actor need {least} vCPUs; give as many, or fewer "
                "learners (--set schedule.learners=N)"
            )
        actors = min(actors, left)
    durations = recorded(records, spec.bill.time)
    given = SlotCounts(actors=actors, learners=config.learners), durations, SpeedSpread()
    course = simulate(made(config), *given, gradients=gradients, seed=seed)
    return Modelled(actors=actors, learners=config.learners, gradients=gradients, course=course)


def recorded(records: Sequence[RoundRecord], time: BilledTime = "duration") -> SlotSeconds:
    """The durations of a run's functions, or their CPU seconds, without cold starts.

    A gradient of several scopes takes as long as the longest of them.
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    gradients: defaultdict[str, float] = defaultdict(float)
    for each in (invocation for record in records for invocation in record.invocations):
        seconds = working_s(each, time)
        if each.function == HOST:
            learner = each.id.rpartition("/")[0]
            gradients[learner] = max(gradients[learner], seconds)
        else:
            found[each.function].append(seconds)
    return SlotSeconds(
        sample_s=found[ACTOR], learn_s=list(gradients.values()), publish_s=median(found[PARAMETER] or [0.0])
    )
