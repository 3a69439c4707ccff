"""The protocol of schedules: which commands follow from which events.

A schedule is a pure state machine: an event and a state give a new state and the commands to start. It has no memory,
no clock and no randomness, so that equal events in equal order give equal commands. What follows a failure, a kill or
a restart is what follows from the events before it, and recovery is no case of its own. Whoever runs a schedule starts
the commands, waits until one ends, makes its result durable, and tells the schedule. The coordinator does so on real
pools (`services/coordinator/execution/executor.py`), models of time on a virtual clock
(`marless/cost/simulation/virtual.py`).

A schedule is of one of two kinds (`ScheduleConfig.overlapping`):

- it trains in rounds: a rollout is that of a whole round, and a round's update makes its version (`Train`);
- its rollouts overlap: a rollout is that of one actor, learners compute gradients from some of them (`Learn`), and
  versions are made of gradients (`Publish`). A round is then what led to one version.

When policies are evaluated: beside the update of the round after the one that published them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from marless.core.registry import Registry
from marless.core.validation import Strict
from marless.jobs.schedules.events import ScheduleEvent
from marless.learning.aggregation.queue import GradientBatch
from marless.learning.algos.algorithm import AlgorithmConfig

State = TypeVar("State")


class ScheduleConfig(Strict):
    """Base of every schedule's config; `name` selects the schedule in the registry."""

    overlapping: ClassVar[bool] = False
    """True if rollouts belong to no round: any number of them may be under way, and each is learned from on its own."""
    name: str

    def fitted(self, algorithm: AlgorithmConfig) -> Self:
        """The settings, with defaults that follow from the algorithm; raises ValueError for those that exclude it."""
        return self


@dataclass(frozen=True)
class RollOut:
    """Run actors."""

    number: int
    """Of the round whose actors run or, if rollouts overlap, of the rollout: both count from 0, without gaps."""
    clock: int
    """How many versions there were when its groups, its policies' versions and its actors were decided, so that they
    follow from as many recorded rounds. A later version that is trained on it has seen it grow stale by the rest."""


@dataclass(frozen=True)
class Train:
    """Train every policy on the trajectories of the next round, run the evaluations that are due, record the round.

    Its groups are decided from all rounds before it.
    """

    round: int


@dataclass(frozen=True)
class Learn:
    """Compute one gradient with the newest versions, from these rollouts."""

    learner: int
    """Counts from 0, without gaps."""
    rollouts: tuple[int, ...]
    """In order of arrival."""
    clock: int
    """Clock of the versions that the gradient is of."""
    env_steps: int = 0
    """Of these rollouts."""
    after: int = 0
    """Env steps of all gradients that were applied up to those versions."""
    peers: tuple[int, ...] = ()
    """Clocks of the other versions that learners compute from when this one starts, ascending."""


@dataclass(frozen=True)
class Publish:
    """Apply these gradients, and record the round; the result is the version of clock `aggregation.clock + 1`."""

    aggregation: GradientBatch
    separate: bool = False
    """True: each gradient takes a step of its own; False: their weighted mean takes one."""


Command = RollOut | Train | Learn | Publish


@dataclass(frozen=True)
class Step(Generic[State]):
    """What follows from an event."""

    state: State
    commands: tuple[Command, ...]
    """To be started, in this order. A `Publish` is the first, if there is one, and has to end before those after it
    begin, which are of its version."""

    @property
    def published(self) -> GradientBatch | None:
        """The gradients that become a version now, if any."""
        return next((each.aggregation for each in self.commands if isinstance(each, Publish)), None)


class Schedule(Protocol[State]):
    """The rule of one job. States are immutable."""

    @property
    def ahead(self) -> int:
        """How many rounds may be rolled out beside the training of an earlier one: 0 or 1.

        Pools keep room, and the store keeps versions, for so many. 0 if rollouts overlap.
        """
        ...

    def begin(self, actors: int) -> Step[State]:
        """The first commands of a job with so many actors; raises SpecError if they do not fit the settings."""
        ...

    def step(self, state: State, event: ScheduleEvent) -> Step[State]:
        """What follows from an event; raises InternalError for one that cannot happen in this state."""
        ...

    def under_way(self, state: State) -> tuple[Command, ...]:
        """All commands that were started and have not ended, the most urgent first; without a `Publish`."""
        ...


class ScheduleKind(Protocol):
    """A registered schedule: its config type, what it refuses, and how to make it."""

    config_type: type[ScheduleConfig]

    def check(self, config: ScheduleConfig, algorithm: AlgorithmConfig) -> None:
        """Raise SpecError for an algorithm that cannot learn under this schedule."""
        ...

    def make(self, config: ScheduleConfig) -> Schedule[Any]:  # Any: each schedule has states of its own
        """The schedule of a job with this config; its states are `overlapping.Overlapping` if rollouts overlap."""
        ...


SCHEDULES: Registry[ScheduleKind] = Registry(
    "schedule",
    "marless.schedules",
    "SCHEDULE",
    {
        "synchronous": "marless.jobs.schedules.rounds:SYNCHRONOUS",
        "pipelined": "marless.jobs.schedules.rounds:PIPELINED",
        "stellaris": "marless.jobs.schedules.stellaris:SCHEDULE",
    },
)
"""Schedules by name: ours, and those of other packages, by entry points of the group "marless.schedules"."""


def made(config: ScheduleConfig) -> Schedule[Any]:  # Any: each schedule has states of its own
    """The schedule of a job with this config; raises SpecError with the nearest match for an unknown name."""
    return SCHEDULES.find(config.name).make(config)


def after(schedule: Schedule[State], actors: int, events: Iterable[ScheduleEvent]) -> Step[State]:
    """The state after these events since the beginning of a job, with what the last one has started."""
    step = schedule.begin(actors)
    for event in events:
        step = schedule.step(step.state, event)
    return step


def is_due(every: int, rounds: int) -> bool:
    """True if the policies that exist after this many rounds are to be evaluated beside the next update.

    Args:
        every: The job's `evaluation.every`; 0: only those of its last round.
    """
    return every > 0 and rounds > 0 and rounds % every == 0
