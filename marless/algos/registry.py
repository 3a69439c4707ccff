"""Algorithms by name: those of marless, and those of other packages, by entry points of the group "marless.algos"."""

from __future__ import annotations

from marless.algos.base import Algorithm
from marless.registry import Registry

ALGORITHMS: Registry[Algorithm] = Registry(
    "algorithm",
    "marless.algos",
    "ALGORITHM",
    {name: f"marless.algos.{name}" for name in ("iddpg", "ippo", "iql", "maddpg", "mappo", "qmix", "vdn")},
)

algorithm = ALGORITHMS.find
"""Look up an algorithm by name; raises SpecError with the nearest match for an unknown name."""
