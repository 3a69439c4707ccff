"""Sums that a decision keeps in its inputs, as JSON, so that the next decision adds one round to them."""

from __future__ import annotations

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
