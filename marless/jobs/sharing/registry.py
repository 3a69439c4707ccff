"""Sharing policies by name: ours, and those of other packages, by entry points of the group "marless.sharing"."""

from __future__ import annotations

from marless.core.registry import Registry
from marless.jobs.sharing.base import SharingKind

SHARING_POLICIES: Registry[SharingKind] = Registry(
    "sharing policy",
    "marless.sharing",
    "SHARING",
    {name: f"marless.jobs.sharing.{name}" for name in ("fixed", "marless")},
)

sharing = SHARING_POLICIES.find
"""Look up a sharing policy by name; raises SpecError with the nearest match for an unknown name."""
