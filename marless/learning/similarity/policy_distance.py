"""Similarity `policy_distance`: distance between the actions of policies on the same observations, of all agents.

A substitute for MAPD (Hu et al.) that needs no training, and ours: distances of the action distributions themselves,
over a pooled batch of observations. `marless.learning.similarity.distributions` computes it.
"""

from __future__ import annotations

from typing import Literal

from marless.core.settings import SimilarityConfig
from marless.learning.similarity.measures import Similarity, SimilarityKind


class PolicyDistanceConfig(SimilarityConfig):
    """Mean Jensen-Shannon distance, in [0, 1], of discrete actions; mean 2-Wasserstein distance of normal ones."""

    name: Literal["policy_distance"] = "policy_distance"


def _make(_: PolicyDistanceConfig) -> Similarity:
    from marless.learning.similarity.distributions import PolicyDistances

    return PolicyDistances()


SIMILARITY = SimilarityKind(config_type=PolicyDistanceConfig, make=_make, package="scipy", install="marless[sharing]")
