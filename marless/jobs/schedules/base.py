"""The protocol of schedules: which rollouts and updates are due, as a pure function of what is durable.

A schedule has no memory, no clock and no randomness. Its executor starts what is due and not yet under way, waits until
something ends, makes the result durable, and asks again. So what follows a failure, a kill or a restart is what follows
from the same state at any other time, and recovery is no case of its own. The executors are the coordinator
(`services/coordinator/execution/job_run.py`) and the virtual clock (`marless/cost/simulation/virtual.py`).

When policies are evaluated: beside the update of the round after the one that published them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from marless.core.settings import Strict
from marless.learning.algos.algorithm import AlgorithmConfig


class ScheduleConfig(Strict):
    """Base of every schedule's config; `name` selects the schedule in the registry."""

    overlapping: ClassVar[bool] = False
    """True if rollouts belong to no round: any number of them may be under way, and each is learned from on its own."""
    name: str

    def fitted(self, algorithm: AlgorithmConfig) -> Self:
        """The settings, with defaults that follow from the algorithm; raises ValueError for those that exclude it."""
        return self


@dataclass(frozen=True, kw_only=True)
class ScheduleState:
    """What is durable of a job, as far as its schedule must know. Rounds count from 0."""

    recorded: int
    """Number of recorded rounds, and so the number of the round that is trained next."""
    rolled_out: frozenset[int] = frozenset()
    """Rounds from `recorded` on whose trajectories are there."""
    last: int | None = None
    """The job's last round, once it is known; no later one is rolled out."""


@dataclass(frozen=True)
class RollOut:
    """Run the actors of a round."""

    round: int
    decided: int
    """Number of recorded rounds from which its actors, groups and versions follow; they act with what those rounds
    published. `round - decided` is the staleness of its trajectories when they are trained."""


@dataclass(frozen=True)
class Train:
    """Train every policy on the trajectories of the next round, run the evaluations that are due, record the round.

    Its groups are decided from all rounds before it.
    """

    round: int


Command = RollOut | Train


class Schedule(Protocol):
    """The rule of one job."""

    ahead: int
    """How many rounds may be rolled out beside the training of an earlier one: 0 or 1. Pools keep room, and the store
    keeps versions, for so many."""

    def due(self, state: ScheduleState) -> tuple[Command, ...]:
        """All commands that should be under way in this state, the most urgent first; never empty before the end.

        A round is rolled out after the one before it, which leaves the lanes that it goes on with, and with the same
        `decided` whatever happened before, so that a rollout that is repeated gives the same trajectories.
        """
        ...


class ScheduleKind(Protocol):
    """A registered schedule: its config type, what it refuses, and how to make it."""

    config_type: type[ScheduleConfig]

    def check(self, config: ScheduleConfig, algorithm: AlgorithmConfig) -> None:
        """Raise SpecError for an algorithm that cannot learn under this schedule."""
        ...

    def make(self, config: ScheduleConfig) -> Schedule:
        """The schedule of a job with this config."""
        ...


def is_due(every: int, rounds: int) -> bool:
    """True if the policies that exist after this many rounds are to be evaluated beside the next update.

    Args:
        every: The job's `evaluation.every`; 0: only those of its last round.
    """
    return every > 0 and rounds > 0 and rounds % every == 0
