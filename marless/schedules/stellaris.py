"""The rule of asynchronous training: rollouts that never wait, learners on demand, gradients aggregated by staleness.

Source: Yu et al. 2024 (Stellaris), §4. A pure state machine: an event and a `Progress` give a new `Progress` and the
commands to start. It has no clock, no randomness and no I/O, so that equal events in equal order give equal commands:
what is durable of a job is the order of its events. `marless.simulation.asynchronous` runs it on a virtual clock. The
coordinator does not run it yet, so that it is not in the registry of schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeVar

from pydantic import Field

from marless.aggregation.config import Aggregation as Rule
from marless.aggregation.config import StellarisRule
from marless.aggregation.queue import Aggregation, Aggregator, Gradient, Queue
from marless.errors import InternalError, SpecError
from marless.schedules.base import ScheduleConfig

SCOPE = "team"
"""All policies of a job have one clock: a learner computes the gradients of all of them from the same rollouts."""
_NOTHING: Mapping[int, int] = MappingProxyType({})
T = TypeVar("T")


class StellarisConfig(ScheduleConfig):
    """Settings of asynchronous training."""

    name: Literal["stellaris"] = "stellaris"
    batch: int = Field(1, ge=1, le=4096, description="rollouts that a learner computes one gradient from")
    learners: int = Field(4, ge=1, le=4096, description="learners that may be under way at once")
    data_lag: int = Field(
        64, ge=0, le=4096, description="versions by which a rollout may be older than the one that learns from it"
    )
    barrier: bool = Field(
        False,
        description="true: rollouts start together, when all earlier ones are part of a version (synchronous SGD)",
    )
    aggregation: Rule = Field(StellarisRule.model_validate({}), description="how gradients become a version")


@dataclass(frozen=True)
class Sample:
    """Run one actor with the newest versions."""

    rollout: int
    """Counts from 0, without gaps."""
    clock: int
    """Clock of the versions that act."""


@dataclass(frozen=True)
class Learn:
    """Compute one gradient with the newest versions, from these rollouts."""

    learner: int
    """Counts from 0, without gaps."""
    rollouts: tuple[int, ...]
    """In order of arrival."""
    clock: int
    """Clock of the versions that the gradient is of."""


@dataclass(frozen=True)
class Publish:
    """Apply these gradients; the result is the version of clock `aggregation.clock + 1`."""

    aggregation: Aggregation


Command = Sample | Learn | Publish


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a job is."""

    queue: Queue = field(default_factory=lambda: Queue(scope=SCOPE))
    sampling: Mapping[int, int] = field(default_factory=lambda: _NOTHING)
    """Rollouts under way, each with the clock of the versions that act."""
    waiting: tuple[tuple[int, int], ...] = ()
    """Rollouts that no learner has, each with that clock, in order of arrival."""
    learning: Mapping[int, Learn] = field(default_factory=dict)
    """Learners under way."""
    rollouts: int = 0
    """Rollouts started so far."""
    learners: int = 0
    """Learners started so far."""
    dropped: int = 0
    """Rollouts that were too old to be learned from."""
    lost: int = 0
    """Rollouts and gradients that failed."""


@dataclass(frozen=True)
class Step:
    """What follows from an event."""

    progress: Progress
    commands: tuple[Command, ...]
    """To be started, in this order."""


@dataclass(frozen=True)
class Stellaris:
    """The transitions of one job."""

    config: StellarisConfig
    actors: int
    """Rollouts that are always under way."""

    def __post_init__(self) -> None:
        if self.config.barrier and self.actors % self.config.batch:
            raise SpecError(
                f"schedule.barrier: {self.actors} actors do not make whole batches of {self.config.batch} rollouts "
                "(schedule.batch); choose numbers of which one divides the other"
            )

    def begin(self) -> Step:
        """The first commands."""
        return self._started(Progress())

    def sampled(self, progress: Progress, rollout: int) -> Step:
        """A rollout has ended, and its trajectories are there."""
        clock, sampling = _taken(progress.sampling, rollout)
        waiting = (*progress.waiting, (rollout, clock))
        return self._started(replace(progress, sampling=sampling, waiting=waiting))

    def not_sampled(self, progress: Progress, rollout: int) -> Step:
        """A rollout has failed for good; another one takes its place, behind a barrier with the same versions."""
        _, sampling = _taken(progress.sampling, rollout)
        progress = replace(progress, sampling=sampling, lost=progress.lost + 1)
        if not self.config.barrier:
            return self._started(progress)
        progress, sample = _sampling(progress)
        return Step(progress, (sample,))

    def computed(self, progress: Progress, learner: int, env_steps: int) -> Step:
        """A learner has returned its gradient, which was computed from so many env steps."""
        done, learning = _taken(progress.learning, learner)
        gradient = Gradient(
            id=f"gradient-{learner}", learner=f"learner-{learner}", scope=SCOPE, clock=done.clock, env_steps=env_steps
        )
        progress = replace(progress, learning=learning)
        outcome = self._aggregator.arrive(progress.queue, gradient, self._under_way(progress))
        return self._published(replace(progress, queue=outcome.queue), outcome.aggregation)

    def not_computed(self, progress: Progress, learner: int) -> Step:
        """A learner has failed for good; its rollouts are lost, and those that wait need not wait for it."""
        _, learning = _taken(progress.learning, learner)
        progress = replace(progress, learning=learning, lost=progress.lost + 1)
        outcome = self._aggregator.ended(progress.queue, self._under_way(progress))
        return self._published(replace(progress, queue=outcome.queue), outcome.aggregation)

    def _under_way(self, progress: Progress) -> list[int]:
        """Clocks of the gradients that are to come; behind a barrier, also of those whose learners have not begun."""
        to_come = [learn.clock for learn in progress.learning.values()]
        if self.config.barrier:
            to_come += [*progress.sampling.values(), *(clock for _, clock in progress.waiting)]
        return to_come

    @property
    def _aggregator(self) -> Aggregator:
        return Aggregator(self.config.aggregation)

    def _published(self, progress: Progress, aggregation: Aggregation | None) -> Step:
        """Publish what was aggregated; what starts next starts from the new version."""
        if aggregation is None:
            return self._started(progress)
        step = self._started(progress)
        return replace(step, commands=(Publish(aggregation), *step.commands))

    def _started(self, progress: Progress) -> Step:
        """Start the learners and rollouts that are due."""
        progress, learners = self._learners(self._fresh(progress))
        if not learners and not progress.learning and progress.queue.waiting and self._starved(progress):
            outcome = self._aggregator.release(progress.queue)
            return self._published(replace(progress, queue=outcome.queue), outcome.aggregation)
        progress, rollouts = self._rollouts(progress)
        return Step(progress, (*learners, *rollouts))

    def _starved(self, progress: Progress) -> bool:
        """True if no learner can start before gradients that wait become a version."""
        return not progress.sampling and (self.config.barrier or not self._admitted(progress))

    def _fresh(self, progress: Progress) -> Progress:
        """Drop the rollouts that are too old."""
        oldest = progress.queue.clock - self.config.data_lag
        kept = tuple(each for each in progress.waiting if each[1] >= oldest)
        return replace(progress, waiting=kept, dropped=progress.dropped + len(progress.waiting) - len(kept))

    def _learners(self, progress: Progress) -> tuple[Progress, list[Command]]:
        commands: list[Command] = []
        size, clock = self.config.batch, progress.queue.clock
        while len(progress.waiting) >= size and len(progress.learning) < self.config.learners:
            rollouts = tuple(rollout for rollout, _ in progress.waiting[:size])
            learn = Learn(progress.learners, rollouts, clock)
            commands.append(learn)
            progress = replace(
                progress,
                waiting=progress.waiting[size:],
                learning={**progress.learning, learn.learner: learn},
                learners=progress.learners + 1,
            )
        return progress, commands

    def _rollouts(self, progress: Progress) -> tuple[Progress, list[Command]]:
        commands: list[Command] = []
        if self.config.barrier and (
            progress.sampling or progress.waiting or progress.learning or progress.queue.waiting
        ):
            return progress, commands
        while len(progress.sampling) < self.actors and self._admitted(progress):
            progress, sample = _sampling(progress)
            commands.append(sample)
        return progress, commands

    def _admitted(self, progress: Progress) -> bool:
        """True if a rollout that starts now could still be learned from, even if each gradient became a version.

        Before it come the gradients that wait, those under way, and those of all rollouts that no learner has.
        """
        ahead = (len(progress.sampling) + len(progress.waiting)) // self.config.batch
        return ahead + len(progress.learning) + len(progress.queue.waiting) <= self.config.data_lag


def _sampling(progress: Progress) -> tuple[Progress, Sample]:
    """With one more rollout under way, and the command that starts it."""
    sample = Sample(progress.rollouts, progress.queue.clock)
    sampling = {**progress.sampling, sample.rollout: sample.clock}
    return replace(progress, sampling=sampling, rollouts=progress.rollouts + 1), sample


def _taken(under_way: Mapping[int, T], number: int) -> tuple[T, dict[int, T]]:
    """What was under way under this number, and the rest; raises InternalError if it was not under way."""
    if number not in under_way:
        raise InternalError(f"number {number} is not under way; {sorted(under_way)} are")
    return under_way[number], {each: rest for each, rest in under_way.items() if each != number}
