"""The rule of asynchronous training: rollouts that never wait, learners on demand, gradients aggregated by staleness.

Source: Yu et al. 2024 (Stellaris), §4. A pure state machine: an event and a `StellarisProgress` give a new one and
the commands to start. It has no clock, no randomness and no I/O, so that equal events in equal order give equal
commands: what is durable of a job is the order of its events. The coordinator runs it on the pools
(`services/coordinator/execution/asynchronous.py`), `marless.cost.simulation.asynchronous` on a virtual clock.

A round of such a job is one version: what arrived since the version before, and the gradients that it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from marless.core.errors import InternalError, SpecError
from marless.jobs.schedules.arrivals import Arrival
from marless.jobs.schedules.base import Command as RoundCommand
from marless.jobs.schedules.base import ScheduleConfig, ScheduleState
from marless.jobs.schedules.pipelined import SCHEDULE as PIPELINED
from marless.jobs.schedules.stellaris_config import StellarisConfig
from marless.learning.aggregation.queue import GradientBatch, GradientQueue, Queue, QueuedGradient
from marless.learning.algos.algorithm import AlgorithmConfig

SCOPE = "team"
"""All policies of a job have one clock: a learner computes the gradients of all of them from the same rollouts."""
_NOTHING: Mapping[int, int] = MappingProxyType({})
T = TypeVar("T")


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
    env_steps: int = 0
    """Of these rollouts."""
    after: int = 0
    """Env steps of all gradients that were applied up to those versions."""
    peers: tuple[int, ...] = ()
    """Clocks of the other versions that learners compute from when this one starts, ascending."""


@dataclass(frozen=True)
class Publish:
    """Apply these gradients; the result is the version of clock `aggregation.clock + 1`."""

    aggregation: GradientBatch


Command = Sample | Learn | Publish


@dataclass(frozen=True)
class Waiting:
    """A rollout that no learner has."""

    rollout: int
    clock: int
    """Clock of the versions that acted."""
    env_steps: int


@dataclass(frozen=True, kw_only=True)
class StellarisProgress:
    """How far a job is."""

    actors: int
    """Rollouts that are to be under way."""
    queue: Queue = field(default_factory=lambda: Queue(scope=SCOPE))
    sampling: Mapping[int, int] = field(default_factory=lambda: _NOTHING)
    """Rollouts under way, each with the clock of the versions that act."""
    waiting: tuple[Waiting, ...] = ()
    """In order of arrival."""
    learning: Mapping[int, Learn] = field(default_factory=dict)
    """Learners under way."""
    rollouts: int = 0
    """Rollouts started so far."""
    learners: int = 0
    """Learners started so far."""
    env_steps: int = 0
    """Of all gradients that were applied."""
    dropped: int = 0
    """Rollouts that were too old to be learned from."""
    lost: int = 0
    """Rollouts and gradients that failed."""


@dataclass(frozen=True)
class StellarisStep:
    """What follows from an event."""

    progress: StellarisProgress
    commands: tuple[Command, ...]
    """To be started, in this order; a `Publish` is the first, if there is one."""

    @property
    def published(self) -> GradientBatch | None:
        """The gradients that become a version now, if any."""
        return next((each.aggregation for each in self.commands if isinstance(each, Publish)), None)


@dataclass(frozen=True)
class Stellaris:
    """The transitions of one job."""

    config: StellarisConfig
    actors: int
    """Rollouts that are under way from the start."""

    def __post_init__(self) -> None:
        self._check(self.actors)

    def begin(self) -> StellarisStep:
        """The first commands."""
        return self._started(StellarisProgress(actors=self.actors))

    def step(self, progress: StellarisProgress, arrival: Arrival) -> StellarisStep:
        """What follows from an event; raises InternalError for one that cannot happen in this state."""
        match arrival.kind:
            case "rollout":
                return self.sampled(progress, arrival.number, arrival.env_steps)
            case "lost rollout":
                return self.not_sampled(progress, arrival.number)
            case "gradient":
                return self.computed(progress, arrival.number)
            case "lost gradient":
                return self.not_computed(progress, arrival.number)
            case "actors":
                return self.scaled(progress, arrival.number)
            case "restart":
                return self.restarted(progress)

    def after(self, arrivals: Iterable[Arrival]) -> StellarisStep:
        """The state after these events since the beginning, with what the last one has started."""
        step = self.begin()
        for arrival in arrivals:
            step = self.step(step.progress, arrival)
        return step

    def scaled(self, progress: StellarisProgress, actors: int) -> StellarisStep:
        """Change how many rollouts are under way from now on; those that are too many go on to their end."""
        self._check(actors)
        return self._started(replace(progress, actors=actors))

    def restarted(self, progress: StellarisProgress) -> StellarisStep:
        """All that was under way or waited is lost, and counted; the versions are there."""
        lost = len(progress.sampling) + len(progress.waiting) + len(progress.learning)
        queue = self._aggregator.discard(progress.queue, [each.id for each in progress.queue.waiting])
        return self._started(
            replace(progress, sampling=_NOTHING, waiting=(), learning={}, queue=queue, lost=progress.lost + lost)
        )

    def sampled(self, progress: StellarisProgress, rollout: int, env_steps: int) -> StellarisStep:
        """A rollout has ended, and its trajectory is there."""
        clock, sampling = _taken(progress.sampling, rollout)
        waiting = (*progress.waiting, Waiting(rollout, clock, env_steps))
        return self._started(replace(progress, sampling=sampling, waiting=waiting))

    def not_sampled(self, progress: StellarisProgress, rollout: int) -> StellarisStep:
        """A rollout has failed for good; another one takes its place, behind a barrier with the same versions."""
        _, sampling = _taken(progress.sampling, rollout)
        progress = replace(progress, sampling=sampling, lost=progress.lost + 1)
        if not self.config.barrier:
            return self._started(progress)
        progress, sample = _sampling(progress)
        return StellarisStep(progress, (sample,))

    def computed(self, progress: StellarisProgress, learner: int) -> StellarisStep:
        """A learner has returned its gradient."""
        done, learning = _taken(progress.learning, learner)
        gradient = QueuedGradient(
            id=f"gradient-{learner}",
            learner=f"learner-{learner}",
            scope=SCOPE,
            clock=done.clock,
            env_steps=done.env_steps,
        )
        progress = replace(progress, learning=learning)
        outcome = self._aggregator.arrive(progress.queue, gradient, self._under_way(progress))
        return self._published(replace(progress, queue=outcome.queue), outcome.aggregation)

    def not_computed(self, progress: StellarisProgress, learner: int) -> StellarisStep:
        """A learner has failed for good; its rollouts are lost, and those that wait need not wait for it."""
        _, learning = _taken(progress.learning, learner)
        progress = replace(progress, learning=learning, lost=progress.lost + 1)
        outcome = self._aggregator.ended(progress.queue, self._under_way(progress))
        return self._published(replace(progress, queue=outcome.queue), outcome.aggregation)

    def _under_way(self, progress: StellarisProgress) -> list[int]:
        """Clocks of the gradients that are to come; behind a barrier, also of those whose learners have not begun."""
        to_come = [learn.clock for learn in progress.learning.values()]
        if self.config.barrier:
            to_come += [*progress.sampling.values(), *(each.clock for each in progress.waiting)]
        return to_come

    @property
    def _aggregator(self) -> GradientQueue:
        return GradientQueue(self.config.aggregation)

    def _check(self, actors: int) -> None:
        if self.config.barrier and actors % self.config.batch:
            raise SpecError(
                f"schedule.barrier: {actors} actors do not make whole batches of {self.config.batch} rollouts "
                "(schedule.batch); choose numbers of which one divides the other"
            )

    def _published(self, progress: StellarisProgress, aggregation: GradientBatch | None) -> StellarisStep:
        """Publish what was aggregated; what starts next starts from the new version."""
        if aggregation is None:
            return self._started(progress)
        applied = sum(each.gradient.env_steps for each in aggregation.gradients)
        step = self._started(replace(progress, env_steps=progress.env_steps + applied))
        return replace(step, commands=(Publish(aggregation), *step.commands))

    def _started(self, progress: StellarisProgress) -> StellarisStep:
        """Start the learners and rollouts that are due."""
        progress, learners = self._learners(self._fresh(progress))
        if not learners and not progress.learning and progress.queue.waiting and self._starved(progress):
            # No event can come that would make the rule of aggregation fire: they become a
            # version, or the job stands still.
            outcome = self._aggregator.release(progress.queue)
            return self._published(replace(progress, queue=outcome.queue), outcome.aggregation)
        progress, rollouts = self._rollouts(progress)
        return StellarisStep(progress, (*learners, *rollouts))

    def _starved(self, progress: StellarisProgress) -> bool:
        """True if no learner can start before gradients that wait become a version."""
        return not progress.sampling and (self.config.barrier or not self._admitted(progress))

    def _fresh(self, progress: StellarisProgress) -> StellarisProgress:
        """Drop the rollouts that are too old."""
        oldest = progress.queue.clock - self.data_lag(progress)
        if all(each.clock >= oldest for each in progress.waiting):
            return progress
        kept = tuple(each for each in progress.waiting if each.clock >= oldest)
        return replace(progress, waiting=kept, dropped=progress.dropped + len(progress.waiting) - len(kept))

    def _learners(self, progress: StellarisProgress) -> tuple[StellarisProgress, list[Command]]:
        commands: list[Command] = []
        size, clock = self.config.batch, progress.queue.clock
        while len(progress.waiting) >= size and len(progress.learning) < self.config.learners:
            batch = progress.waiting[:size]
            learn = Learn(
                progress.learners,
                tuple(each.rollout for each in batch),
                clock,
                sum(each.env_steps for each in batch),
                progress.env_steps,
                tuple(sorted({each.clock for each in progress.learning.values()} - {clock})),
            )
            commands.append(learn)
            progress = replace(
                progress,
                waiting=progress.waiting[size:],
                learning={**progress.learning, learn.learner: learn},
                learners=progress.learners + 1,
            )
        return progress, commands

    def _rollouts(self, progress: StellarisProgress) -> tuple[StellarisProgress, list[Command]]:
        commands: list[Command] = []
        if self.config.barrier and (
            progress.sampling or progress.waiting or progress.learning or progress.queue.waiting
        ):
            return progress, commands
        while len(progress.sampling) < progress.actors and self._admitted(progress):
            progress, sample = _sampling(progress)
            commands.append(sample)
        return progress, commands

    def data_lag(self, progress: StellarisProgress) -> int:
        """Versions by which a rollout may be older than the one that learns from it."""
        lag = self.config.data_lag
        return max(progress.actors // self.config.batch, 1) if lag is None else lag

    def _admitted(self, progress: StellarisProgress) -> bool:
        """True if a rollout that starts now could still be learned from, even if each gradient became a version.

        Before it come the gradients that wait, those under way, and those of all rollouts that no learner has.
        """
        # Rounded down, because a rest that makes no whole batch is learned from together with the new rollout.
        ahead = (len(progress.sampling) + len(progress.waiting)) // self.config.batch
        return ahead + len(progress.learning) + len(progress.queue.waiting) <= self.data_lag(progress)


def learner_of(gradient: QueuedGradient) -> int:
    """The number of the learner that has computed a gradient."""
    return int(gradient.learner.removeprefix("learner-"))


def _sampling(progress: StellarisProgress) -> tuple[StellarisProgress, Sample]:
    """The progress with one more rollout under way, and the command that starts it."""
    sample = Sample(progress.rollouts, progress.queue.clock)
    sampling = {**progress.sampling, sample.rollout: sample.clock}
    return replace(progress, sampling=sampling, rollouts=progress.rollouts + 1), sample


def _taken(under_way: Mapping[int, T], number: int) -> tuple[T, dict[int, T]]:
    """What was under way under this number, and the rest; raises InternalError if it was not under way."""
    if number not in under_way:
        raise InternalError(f"number {number} is not under way; {sorted(under_way)} are")
    return under_way[number], {each: rest for each, rest in under_way.items() if each != number}


@dataclass(frozen=True)
class StellarisSchedule:
    """The schedule of a job; `rule` is what the coordinator runs."""

    config: StellarisConfig
    ahead: int = 1
    """In models of its time and cost, which see versions as rounds."""

    def due(self, state: ScheduleState) -> tuple[RoundCommand, ...]:
        """The commands that are due if versions were rounds, for models of time and cost.

        A version's rollouts run while the one before it is made.
        """
        return PIPELINED.due(state)

    def rule(self, actors: int) -> Stellaris:
        """The transitions of a job that begins with so many actors; raises SpecError if they do not fit."""
        return Stellaris(self.config, actors)


class StellarisKind:
    """Schedule `stellaris`, as a `ScheduleKind`."""

    config_type = StellarisConfig

    def check(self, config: ScheduleConfig, algorithm: AlgorithmConfig) -> None:
        """Raise SpecError for an algorithm that cannot learn from what an earlier version did."""
        if not algorithm.learns_from_earlier:
            raise SpecError(
                f"schedule.name stellaris trains policies on what an earlier version of them did, and algorithm "
                f"{algorithm.name} does not say that it can (learns_from_earlier); use schedule.name synchronous"
            )

    def make(self, config: ScheduleConfig) -> StellarisSchedule:
        assert isinstance(config, StellarisConfig)
        return StellarisSchedule(config)


SCHEDULE = StellarisKind()
