"""The learned scheduler of MinionsRL: a small policy, trained before the job, that chooses the number of actors."""

from __future__ import annotations

from marless.scaling.minions.kind import SCALING

__all__ = ["SCALING"]
