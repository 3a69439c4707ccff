"""Scaling policy `minions`, the learned scheduler of MinionsRL: a small policy that is trained before the job."""

from __future__ import annotations

from marless.jobs.scaling.minions.kind import SCALING

__all__ = ["SCALING"]
