"""Settings of asynchronous training, and what follows for them from the algorithm."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator

from marless.core.documents import MAX_TEXT
from marless.core.errors import SpecError
from marless.jobs.schedules.arrivals import Arrival, read
from marless.jobs.schedules.base import ScheduleConfig
from marless.learning.aggregation.config import Aggregation as Rule
from marless.learning.aggregation.config import AsyncRule, StellarisRule
from marless.learning.algos.algorithm import AlgorithmConfig

MAX_ORDER = 2**19
"""Characters of all events of an order, which is given as texts of any length that a document can hold."""


class StellarisConfig(ScheduleConfig):
    """Settings of asynchronous training."""

    overlapping: ClassVar[bool] = True
    name: Literal["stellaris"] = "stellaris"
    batch: int = Field(1, ge=1, le=4096, description="rollouts that a learner computes one gradient from")
    learners: int = Field(
        4, ge=1, le=4096, description="learners that may be under way at once; off-policy algorithms always have 1"
    )
    data_lag: int | None = Field(
        None,
        ge=0,
        le=4096,
        description="versions by which a rollout may be older than the one that learns from it; null: actors divided "
        "by batch. More keeps more slots busy, less learns from newer data",
    )
    barrier: bool = Field(
        False,
        description="true: rollouts start together, when all earlier ones are part of a version (synchronous SGD)",
    )
    aggregation: Rule = Field(
        StellarisRule.model_validate({}),
        description="how gradients become a version; off-policy algorithms always have async",
    )
    order: tuple[Annotated[str, Field(max_length=MAX_TEXT)], ...] = Field(
        (),
        description="events of an earlier run in the order in which they are to happen again, as its records have them "
        "(`marless train --replay RUN` sets it); after the last one, events happen in the order of their arrival",
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

    @property
    def to_repeat(self) -> tuple[Arrival, ...]:
        """The events of `order`."""
        return read(" ".join(self.order))

    def fitted(self, algorithm: AlgorithmConfig) -> Self:
        """See `ScheduleConfig`: a learner that publishes its own versions is the only one, and waits for no other."""
        if not makes_versions(algorithm):
            return self
        only: dict[str, object] = {"learners": 1, "aggregation": AsyncRule.model_validate({}), "barrier": False}
        for name, value in only.items():
            # Only what the job says is refused: defaults, which are for other algorithms, give way.
            if name in self.model_fields_set and getattr(self, name) != value:
                raise ValueError(
                    f"{name} has no meaning with algorithm {algorithm.name}: its one learner makes each version by "
                    f"itself, as soon as a batch of rollouts is there; leave schedule.{name} out"
                )
        return self.model_copy(update=only)


def makes_versions(algorithm: AlgorithmConfig) -> bool:
    """True if a learner makes and publishes each version by itself, as only the algorithm knows how nets take steps."""
    return not algorithm.net_steps(0)
