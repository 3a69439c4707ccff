"""Schedules that train in rounds: `synchronous`, `pipelined`, and the base class of both, and of yours.

The base class makes the state machine; a schedule says only what is due in a state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from marless.core.errors import InternalError, SpecError
from marless.jobs.schedules.base import RollOut, ScheduleConfig, Step, Train
from marless.jobs.schedules.events import ScheduleEvent
from marless.learning.algos.algorithm import AlgorithmConfig


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How far a job is, as what is durable of it says. Rounds count from 0."""

    recorded: int
    """Number of recorded rounds, and so the number of the round that is trained next."""
    rolled_out: frozenset[int] = frozenset()
    """Rounds from `recorded` on whose trajectories are there."""
    last: int | None = None
    """The job's last round, once it is known; no later one is rolled out."""


class RoundSchedule(ABC):
    """A schedule that trains one round after another: what is due in a state, and not yet under way, is started."""

    ahead: ClassVar[int]
    """See `Schedule`."""

    @abstractmethod
    def due(self, state: Rounds) -> tuple[RollOut | Train, ...]:
        """All commands that should be under way in this state, the most urgent first; never empty before the end.

        A round is rolled out after the one before it, which leaves the lanes that it goes on with, and with the same
        `clock` whatever happened before, so that a rollout that is repeated gives the same trajectories.
        """

    def begin(self, actors: int) -> Step[Rounds]:
        """Start the first rollout; any number of actors fits."""
        state = Rounds(recorded=0)
        return Step(state, self.due(state))

    def step(self, state: Rounds, event: ScheduleEvent) -> Step[Rounds]:
        """Start what is due now and was not before."""
        now = _after(state, event)
        before = () if event.kind == "restart" else self.due(state)
        return Step(now, tuple(each for each in self.due(now) if each not in before))

    def under_way(self, state: Rounds) -> tuple[RollOut | Train, ...]:
        """All that is due."""
        return self.due(state)


def _after(state: Rounds, event: ScheduleEvent) -> Rounds:
    match event.kind:
        case "rollout":
            return replace(state, rolled_out=state.rolled_out | {event.number})
        case "version":
            recorded = event.number + 1
            return replace(state, recorded=recorded, rolled_out=frozenset(k for k in state.rolled_out if k >= recorded))
        case "last":
            return replace(state, last=event.number)
        case "restart":
            return replace(state, rolled_out=frozenset())
        case "actors":
            return state  # each round has as many as its plan says
    raise InternalError(f"a schedule that trains in rounds knows no {event.kind}: a command that fails is repeated")


class SynchronousConfig(ScheduleConfig):
    """No settings."""

    name: Literal["synchronous"] = "synchronous"


class Synchronous(RoundSchedule):
    """One round after another: rolled out with the newest versions, then trained on what these did."""

    config_type = SynchronousConfig
    ahead = 0

    def check(self, config: ScheduleConfig, algorithm: AlgorithmConfig) -> None:
        """Every algorithm learns under it."""

    def make(self, config: ScheduleConfig) -> Synchronous:
        """Make the schedule, which has no settings."""
        return self

    def due(self, state: Rounds) -> tuple[RollOut | Train, ...]:
        k = state.recorded
        return (Train(k),) if k in state.rolled_out else (RollOut(k, clock=k),)


class PipelinedConfig(ScheduleConfig):
    """No settings."""

    name: Literal["pipelined"] = "pipelined"


class Pipelined(RoundSchedule):
    """Round k + 1 is rolled out with the versions of round k - 1 while round k is trained.

    So actors and learners work at the same time, and all rounds but the first are trained on what policies did that
    are one version old. The staleness is exactly 1, whatever takes how long, and equal jobs come to equal weights.
    """

    config_type = PipelinedConfig
    ahead = 1

    def check(self, config: ScheduleConfig, algorithm: AlgorithmConfig) -> None:
        """Raise SpecError for an algorithm that learns only from what its present policies do."""
        if not algorithm.learns_from_earlier:
            raise SpecError(
                f"schedule.name pipelined trains policies on what an earlier version of them did, and algorithm "
                f"{algorithm.name} does not say that it can (learns_from_earlier); use schedule.name synchronous"
            )

    def make(self, config: ScheduleConfig) -> Pipelined:
        """Make the schedule, which has no settings."""
        return self

    def due(self, state: Rounds) -> tuple[RollOut | Train, ...]:
        k = state.recorded
        if k not in state.rolled_out:
            # As if it had begun beside round k - 1, as it does unless that was interrupted: a
            # decision must not depend on that.
            return (RollOut(k, clock=max(k - 1, 0)),)
        if k + 1 in state.rolled_out or k == state.last:
            return (Train(k),)
        return (Train(k), RollOut(k + 1, clock=k))


SYNCHRONOUS = Synchronous()
PIPELINED = Pipelined()
