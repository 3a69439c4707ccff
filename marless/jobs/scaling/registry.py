"""Scaling policies by name: ours, and those of plug-ins and other packages, by entry points (marless.scaling)."""

from __future__ import annotations

from marless.core.registry import Registry
from marless.jobs.scaling.base import ScalingKind

SCALING_POLICIES: Registry[ScalingKind] = Registry(
    "scaling policy",
    "marless.scaling",
    "SCALING",
    {name: f"marless.jobs.scaling.{name}" for name in ("fixed", "max", "adapt", "nitro", "gns", "marless")},
)

scaling = SCALING_POLICIES.find
"""Look up a scaling policy by name; raises SpecError with the nearest match for an unknown name."""
