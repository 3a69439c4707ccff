"""What schedules have in common whose rollouts overlap: settings, the form of their state, and names of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Self

from pydantic import Field, field_validator

from marless.core.documents import MAX_TEXT
from marless.core.errors import SpecError
from marless.jobs.schedules.base import Learn, ScheduleConfig
from marless.jobs.schedules.events import ScheduleEvent, read
from marless.learning.aggregation.queue import Queue, QueuedGradient
from marless.learning.algos.algorithm import AlgorithmConfig

MAX_ORDER = 2**19
"""Characters of all events of an order, which is given as texts of any length that a document can hold."""
SCOPE = "team"
"""All policies of a job have one clock: a learner computes the gradients of all of them from the same rollouts."""


class OverlappingConfig(ScheduleConfig):
    """Base of their configs, for schedules that make versions of gradients; see `fitted` for others."""

    overlapping: ClassVar[bool] = True
    batch: int = Field(1, ge=1, le=4096, description="rollouts that a learner computes one gradient from")
    learners: int = Field(
        4, ge=1, le=4096, description="learners that may be under way at once; off-policy algorithms always have 1"
    )
    order: tuple[Annotated[str, Field(max_length=MAX_TEXT)], ...] = Field(
        (),
        description="events of an earlier run, to be repeated in this order (`marless train --replay RUN` sets it); "
        "later ones happen as they arrive",
    )

    @field_validator("order", mode="before")
    @classmethod
    def _may_be_one_text(cls, order: object) -> object:
        return (order,) if isinstance(order, str) else order

    @field_validator("order")
    @classmethod
    def _is_an_order(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if (characters := sum(map(len, order))) > MAX_ORDER:
            raise ValueError(f"the events take {characters:,} characters; at most {MAX_ORDER:,} are taken")
        try:
            read(" ".join(order))
        except SpecError as error:
            raise ValueError(str(error)) from None
        return order

    def fitted(self, algorithm: AlgorithmConfig) -> Self:
        """Refuse algorithms whose learner makes each version by itself.

        A schedule that has one learner at a time, and publishes each of its results alone, may take them: it overrides
        this.
        """
        if makes_versions(algorithm):
            raise ValueError(
                f"name {self.name} makes versions of gradients, and the learner of algorithm {algorithm.name} makes "
                "each version by itself; use schedule.name stellaris, or one that trains in rounds"
            )
        return self

    @property
    def to_repeat(self) -> tuple[ScheduleEvent, ...]:
        """The events of `order`."""
        return read(" ".join(self.order))


@dataclass(frozen=True)
class Waiting:
    """A rollout that no learner has."""

    rollout: int
    clock: int
    """Clock of the versions that acted."""
    env_steps: int


@dataclass(frozen=True, kw_only=True)
class Overlapping:
    """The state of such a schedule: what records tell of it, and what the pools and the store must keep for it."""

    actors: int
    """Rollouts that are to be under way."""
    queue: Queue = field(default_factory=lambda: Queue(scope=SCOPE))
    sampling: Mapping[int, int] = field(default_factory=dict)
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


def gradient_of(learn: Learn) -> QueuedGradient:
    """The gradient of a learner, as it waits to become part of a version."""
    return QueuedGradient(
        id=f"gradient-{learn.learner}",
        learner=f"learner-{learn.learner}",
        scope=SCOPE,
        clock=learn.clock,
        env_steps=learn.env_steps,
    )


def learner_of(gradient: QueuedGradient) -> int:
    """The number of the learner that has computed a gradient."""
    return int(gradient.learner.removeprefix("learner-"))


def makes_versions(algorithm: AlgorithmConfig) -> bool:
    """True if a learner makes and publishes each version by itself, as only the algorithm knows how nets take steps."""
    return not algorithm.net_steps(0)
