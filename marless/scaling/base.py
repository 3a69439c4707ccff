"""The actor-scaling protocol: how many actors the next round gets, decided from the rounds so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from marless.record import RoundRecord


@dataclass(frozen=True)
class ScalingDecision:
    """A number of actors, and why."""

    actors: int
    reason: str


class ActorScaling(Protocol):
    """Deterministic given its inputs: a resumed job decides as an undisturbed one."""

    def decide(self, history: Sequence[RoundRecord]) -> ScalingDecision:
        """Actors for the round after `history`, which is empty before the first."""
        ...


@dataclass(frozen=True)
class FixedScaling:
    """The same number of actors in every round."""

    actors: int

    def decide(self, history: Sequence[RoundRecord]) -> ScalingDecision:
        """Always `actors`."""
        return ScalingDecision(self.actors, f"fixed: {self.actors} actors in every round")
