"""The learned scheduler: a small policy, trained beforehand, that says how many actors a round gets (MinionsRL)."""

from __future__ import annotations

from marless.scaling.minions.kind import SCALING

__all__ = ["SCALING"]
