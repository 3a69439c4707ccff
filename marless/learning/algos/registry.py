"""Algorithms by name: those of marless, and those of other packages, by entry points of the group "marless.algos"."""

from __future__ import annotations

from marless.core.registry import Registry
from marless.learning.algos.algorithm import Algorithm

_FAMILIES = {
    "ppo": ("ippo", "mappo", "impact"),
    "q": ("iql", "vdn", "qmix"),
    "pqn": ("pqn", "pqn_vdn"),
    "ddpg": ("iddpg", "maddpg", "ddpg", "td3", "matd3", "sac", "masac"),
}
"""Ours, by the package that has their settings, functions, losses and learner."""

ALGORITHMS: Registry[Algorithm] = Registry(
    "algorithm",
    "marless.algos",
    "ALGORITHM",
    {
        name: f"marless.learning.algos.{family}.algorithms:{name}"
        for family, names in _FAMILIES.items()
        for name in names
    },
)

algorithm = ALGORITHMS.find
"""Look up an algorithm by name; raises SpecError with the nearest match for an unknown name."""
