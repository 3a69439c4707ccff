"""The rule of asynchronous training: rollouts that never wait, learners on demand, gradients aggregated by staleness.

Source: Yu et al. 2024 (Stellaris), §4. What is durable of a job is the order of its events.

A round of such a job is one version: what arrived since the version before, and the gradients that it is made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field, SerializeAsAny

from marless.core.errors import InternalError, SpecError, unknown_name
from marless.jobs.schedules.base import Command, Learn, Publish, RollOut, ScheduleConfig, Step
from marless.jobs.schedules.events import ScheduleEvent
from marless.jobs.schedules.overlapping import (
    Overlapping,
    OverlappingConfig,
    Waiting,
    gradient_of,
    makes_versions,
)
from marless.learning.aggregation.config import RULES, AggregationConfig, AsyncRule, StellarisRule
from marless.learning.aggregation.queue import GradientBatch, GradientQueue
from marless.learning.algos.algorithm import AlgorithmConfig

T = TypeVar("T")


def _read_aggregation(value: object) -> AggregationConfig:
    """Validate a section, given as the name of its rule or with its settings; without a name, the rule is stellaris."""
    if isinstance(value, AggregationConfig):
        return value
    rule = value.get("rule", "stellaris") if isinstance(value, Mapping) else value
    if not isinstance(rule, str):
        raise ValueError("needs a rule, e.g. `aggregation: {rule: stellaris}`")
    if rule not in RULES:
        raise ValueError(unknown_name("rule", rule, RULES))
    return RULES[rule].model_validate({"rule": rule} if isinstance(value, str) else value)


Aggregation: TypeAlias = Annotated[SerializeAsAny[AggregationConfig], BeforeValidator(_read_aggregation)]
"""The section `aggregation` of a schedule: `aggregation: {rule: stellaris, decay: 0.96, root: 3}`."""


class StellarisConfig(OverlappingConfig):
    """Settings of asynchronous training."""

    name: Literal["stellaris"] = "stellaris"
    data_lag: int | None = Field(
        None,
        ge=0,
        le=4096,
        description="versions by which a rollout may be older than the one that learns from it; null: actors divided "
        "by batch; more keeps more slots busy",
    )
    barrier: bool = Field(
        False,
        description="true: rollouts start together, when all earlier ones are part of a version (synchronous SGD)",
    )
    aggregation: Aggregation = Field(
        StellarisRule(),
        description="how gradients become a version; off-policy algorithms always have async",
    )

    def fitted(self, algorithm: AlgorithmConfig) -> Self:
        """Check and fit: a learner that publishes its own versions is the only one, and waits for no other."""
        if not makes_versions(algorithm):
            return self
        only: dict[str, object] = {"learners": 1, "aggregation": AsyncRule(), "barrier": False}
        for name, value in only.items():
            # Only what the job says is refused: defaults, which are for other algorithms, give way.
            if name in self.model_fields_set and getattr(self, name) != value:
                raise ValueError(
                    f"{name} has no meaning with algorithm {algorithm.name}: its one learner makes each version by "
                    f"itself, as soon as a batch of rollouts is there; leave schedule.{name} out"
                )
        return self.model_copy(update=only)


@dataclass(frozen=True)
class Stellaris:
    """The transitions of jobs with these settings."""

    config: StellarisConfig
    ahead: ClassVar[int] = 0

    def begin(self, actors: int) -> Step[Overlapping]:
        """Start the first rollouts, so many at once."""
        self._check(actors)
        return self._started(Overlapping(actors=actors))

    def under_way(self, state: Overlapping) -> tuple[RollOut | Learn, ...]:
        """The learners, then the rollouts, each by number."""
        rollouts = (RollOut(number, clock) for number, clock in state.sampling.items())
        return (*state.learning.values(), *rollouts)

    def step(self, state: Overlapping, event: ScheduleEvent) -> Step[Overlapping]:
        """What follows from an event; raises InternalError for one that cannot happen in this state."""
        match event.kind:
            case "rollout":
                step = self.sampled(state, event.number, event.env_steps)
            case "lost rollout":
                step = self.not_sampled(state, event.number)
            case "gradient":
                step = self.computed(state, event.number)
            case "lost gradient":
                step = self.not_computed(state, event.number)
            case "actors":
                step = self.scaled(state, event.number)
            case "restart":
                step = self.restarted(state)
            case "version" | "last":
                step = Step(state, ())  # what follows from a version was decided with its `Publish`
        return step

    def scaled(self, state: Overlapping, actors: int) -> Step[Overlapping]:
        """Change how many rollouts are under way from now on; those that are too many go on to their end."""
        self._check(actors)
        return self._started(replace(state, actors=actors))

    def restarted(self, state: Overlapping) -> Step[Overlapping]:
        """All that was under way or waited is lost, and counted; the versions are there."""
        lost = len(state.sampling) + len(state.waiting) + len(state.learning)
        queue = self._aggregator.discard(state.queue, [each.id for each in state.queue.waiting])
        return self._started(replace(state, sampling={}, waiting=(), learning={}, queue=queue, lost=state.lost + lost))

    def sampled(self, state: Overlapping, rollout: int, env_steps: int) -> Step[Overlapping]:
        """A rollout has ended, and its trajectory is there."""
        clock, sampling = _taken(state.sampling, rollout)
        waiting = (*state.waiting, Waiting(rollout, clock, env_steps))
        return self._started(replace(state, sampling=sampling, waiting=waiting))

    def not_sampled(self, state: Overlapping, rollout: int) -> Step[Overlapping]:
        """A rollout has failed for good; another one takes its place, behind a barrier with the same versions."""
        _, sampling = _taken(state.sampling, rollout)
        state = replace(state, sampling=sampling, lost=state.lost + 1)
        if not self.config.barrier:
            return self._started(state)
        state, sample = _sampling(state)
        return Step(state, (sample,))

    def computed(self, state: Overlapping, learner: int) -> Step[Overlapping]:
        """A learner has returned its gradient."""
        done, learning = _taken(state.learning, learner)
        state = replace(state, learning=learning)
        outcome = self._aggregator.arrive(state.queue, gradient_of(done), self._under_way(state))
        return self._published(replace(state, queue=outcome.queue), outcome.aggregation)

    def not_computed(self, state: Overlapping, learner: int) -> Step[Overlapping]:
        """A learner has failed for good; its rollouts are lost, and those that wait need not wait for it."""
        _, learning = _taken(state.learning, learner)
        state = replace(state, learning=learning, lost=state.lost + 1)
        outcome = self._aggregator.ended(state.queue, self._under_way(state))
        return self._published(replace(state, queue=outcome.queue), outcome.aggregation)

    def _under_way(self, state: Overlapping) -> list[int]:
        """Clocks of the gradients that are to come; behind a barrier, also of those whose learners have not begun."""
        to_come = [learn.clock for learn in state.learning.values()]
        if self.config.barrier:
            to_come += [*state.sampling.values(), *(each.clock for each in state.waiting)]
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

    def _published(self, state: Overlapping, aggregation: GradientBatch | None) -> Step[Overlapping]:
        """Publish what was aggregated; what starts next starts from the new version."""
        if aggregation is None:
            return self._started(state)
        applied = sum(each.gradient.env_steps for each in aggregation.gradients)
        step = self._started(replace(state, env_steps=state.env_steps + applied))
        return replace(
            step, commands=(Publish(aggregation, separate=self.config.aggregation.step == "separate"), *step.commands)
        )

    def _started(self, state: Overlapping) -> Step[Overlapping]:
        """Start the learners and rollouts that are due."""
        state, learners = self._learners(self._fresh(state))
        # True if no learner can start before gradients that wait become a version.
        starved = not state.sampling and (self.config.barrier or not self._admitted(state))
        if not learners and not state.learning and state.queue.waiting and starved:
            # No event can come that would make the rule of aggregation fire: they become a
            # version, or the job stands still.
            outcome = self._aggregator.release(state.queue)
            return self._published(replace(state, queue=outcome.queue), outcome.aggregation)
        state, rollouts = self._rollouts(state)
        return Step(state, (*learners, *rollouts))

    def _fresh(self, state: Overlapping) -> Overlapping:
        """Drop the rollouts that are too old."""
        oldest = state.queue.clock - self.data_lag(state)
        if all(each.clock >= oldest for each in state.waiting):
            return state
        kept = tuple(each for each in state.waiting if each.clock >= oldest)
        return replace(state, waiting=kept, dropped=state.dropped + len(state.waiting) - len(kept))

    def _learners(self, state: Overlapping) -> tuple[Overlapping, list[Command]]:
        commands: list[Command] = []
        size, clock = self.config.batch, state.queue.clock
        while len(state.waiting) >= size and len(state.learning) < self.config.learners:
            batch = state.waiting[:size]
            learn = Learn(
                state.learners,
                tuple(each.rollout for each in batch),
                clock,
                sum(each.env_steps for each in batch),
                state.env_steps,
                tuple(sorted({each.clock for each in state.learning.values()} - {clock})),
            )
            commands.append(learn)
            state = replace(
                state,
                waiting=state.waiting[size:],
                learning={**state.learning, learn.learner: learn},
                learners=state.learners + 1,
            )
        return state, commands

    def _rollouts(self, state: Overlapping) -> tuple[Overlapping, list[Command]]:
        commands: list[Command] = []
        if self.config.barrier and (state.sampling or state.waiting or state.learning or state.queue.waiting):
            return state, commands
        while len(state.sampling) < state.actors and self._admitted(state):
            state, sample = _sampling(state)
            commands.append(sample)
        return state, commands

    def data_lag(self, state: Overlapping) -> int:
        """Versions by which a rollout may be older than the one that learns from it."""
        lag = self.config.data_lag
        return max(state.actors // self.config.batch, 1) if lag is None else lag

    def _admitted(self, state: Overlapping) -> bool:
        """True if a rollout that starts now could still be learned from, even if each gradient became a version.

        Before it come the gradients that wait, those under way, and those of all rollouts that no learner has.
        """
        # Rounded down, because a rest that makes no whole batch is learned from together with the new rollout.
        ahead = (len(state.sampling) + len(state.waiting)) // self.config.batch
        return ahead + len(state.learning) + len(state.queue.waiting) <= self.data_lag(state)


def _sampling(state: Overlapping) -> tuple[Overlapping, RollOut]:
    """The state with one more rollout under way, and the command that starts it."""
    sample = RollOut(state.rollouts, state.queue.clock)
    sampling = {**state.sampling, sample.number: sample.clock}
    return replace(state, sampling=sampling, rollouts=state.rollouts + 1), sample


def _taken(under_way: Mapping[int, T], number: int) -> tuple[T, dict[int, T]]:
    """What was under way under this number, and the rest; raises InternalError if it was not under way."""
    if number not in under_way:
        raise InternalError(f"number {number} is not under way; {sorted(under_way)} are")
    return under_way[number], {each: rest for each, rest in under_way.items() if each != number}


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
        if algorithm.needs_rounds:
            raise SpecError(f"schedule.name stellaris: {algorithm.needs_rounds}; leave it out, or use synchronous")

    def make(self, config: ScheduleConfig) -> Stellaris:
        assert isinstance(config, StellarisConfig)
        return Stellaris(config)


SCHEDULE = StellarisKind()
