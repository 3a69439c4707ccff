"""Sums that a decision keeps in its inputs, as JSON, so that the next decision adds one round to them; and those of
what the gradients of one policy have shown so far.

The measurements of gradients are those of `marless.learning.algos.training.measuring`, unbiased but noisy, so
that only means over several rounds say something. Weights of older measurements decay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class KeptSums:
    """Base of dataclasses whose fields are all numbers, 0 before the first round."""

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Self:  # Any: JSON
        """The sums that a decision kept; those of no round if it kept none."""
        return cls(**{field.name: float(kept.get(field.name, 0.0)) for field in fields(cls)})

    def to_json(self) -> dict[str, float]:
        """The form that `read` reads."""
        return dict(vars(self))


EARLY = 8
"""Gradients are measured in so many first rounds, and then once in so many rounds."""
DECAY = 0.5 ** (1 / 8)
"""What a measurement keeps of its weight with each later one: half of it after eight."""
FEWEST = 3
"""Measurements before which nothing is concluded about noise."""
DOUBT = 2.0
"""Standard errors beyond which agents are opposed, because a split is for good."""
LARGEST = 1e100
"""Larger measurements come from a net that diverges."""


@dataclass(frozen=True, kw_only=True)
class GradientEvidence(KeptSums):
    """Decayed sums of measurements, and of their squares."""

    count: float = 0.0
    """Number of measurements, none of them decayed."""
    weight: float = 0.0
    weight_square: float = 0.0
    trace: float = 0.0
    signal: float = 0.0
    signal_square: float = 0.0
    own: float = 0.0
    own_square: float = 0.0
    common: float = 0.0
    common_square: float = 0.0

    def after(self, metrics: Mapping[str, float]) -> GradientEvidence:
        """The evidence with a round's measurements of the policy; the same without, or if they are not finite."""
        names = ("trace", "signal", "own", "common")
        measured = {name: metrics.get(f"gradient_{name}", 0.0) for name in names}
        if "gradient_trace" not in metrics or not all(abs(value) <= LARGEST for value in measured.values()):
            return self
        squares = {f"{name}_square": value**2 for name, value in measured.items() if name != "trace"}
        added = {"weight": 1.0, **measured, **squares}
        sums = {name: DECAY * getattr(self, name) + value for name, value in added.items()}
        return GradientEvidence(count=self.count + 1, weight_square=DECAY**2 * self.weight_square + 1, **sums)

    @property
    def noise_scale(self) -> float | None:
        """B = tr Σ / |G|² in samples; None with too few measurements, or if all gradients were 0.

        |G|² is the mean and its standard error: few measurements in which noise drowns the gradient are no evidence of
        a noise that would be worth many samples.
        """
        if self.count < FEWEST:
            return None
        signal = max(self.signal / self.weight, 0.0) + self._error("signal")
        return max(self.trace / self.weight, 0.0) / signal if signal > 0 else None

    @property
    def opposed(self) -> bool:
        """True if the gradients of the policy's agents point in opposite directions.

        That is, after all early measurements, the mean product over pairs of agents is below 0 by more than `DOUBT`
        standard errors, while agents have gradients of their own that are above 0 by more than as many.
        """
        return (
            self.count >= EARLY
            and self.common / self.weight + DOUBT * self._error("common") < 0
            and self.own / self.weight - DOUBT * self._error("own") > 0
        )

    def _error(self, name: str) -> float:
        """Standard error of a weighted mean, with the effective number of measurements (Kish)."""
        mean = getattr(self, name) / self.weight
        variance = max(getattr(self, f"{name}_square") / self.weight - mean**2, 0.0)
        effective = self.weight**2 / self.weight_square
        return math.sqrt(variance / (effective - 1)) if effective > 1 else math.inf
