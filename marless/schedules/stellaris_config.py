"""Settings of asynchronous training, and what follows for them from the algorithm."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator

from marless.aggregation.config import Aggregation as Rule
from marless.aggregation.config import AsyncRule, StellarisRule
from marless.algos.algorithm import AlgorithmConfig
from marless.errors import SpecError
from marless.schedules.arrivals import read
from marless.schedules.base import ScheduleConfig

MAX_ORDER = 2**19
"""Characters of an order of events."""


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
    order: str = Field(
        "",
        max_length=MAX_ORDER,
        description="events of an earlier run in the order in which they are to happen again, as its records have them "
        "(`marless train --replay RUN` sets it); after the last one, events happen in the order of their arrival",
    )

    @field_validator("order")
    @classmethod
    def _is_an_order(cls, order: str) -> str:
        try:
            read(order)
        except SpecError as error:
            raise ValueError(str(error)) from None
        return order

    def fitted(self, algorithm: AlgorithmConfig) -> Self:
        """See `ScheduleConfig`: a learner that publishes its own versions is the only one, and waits for no other."""
        if not makes_versions(algorithm):
            return self
        only: dict[str, object] = {"learners": 1, "aggregation": AsyncRule.model_validate({}), "barrier": False}
        for name, value in only.items():
            if name in self.model_fields_set and getattr(self, name) != value:
                raise ValueError(
                    f"{name} has no meaning with algorithm {algorithm.name}: its one learner makes each version by "
                    f"itself, as soon as a batch of rollouts is there; leave schedule.{name} out"
                )
        return self.model_copy(update=only)


def makes_versions(algorithm: AlgorithmConfig) -> bool:
    """True if a learner makes and publishes each version by itself, as only the algorithm knows how nets take steps."""
    return not algorithm.net_steps(0)
