"""Similarity `kde`: divergence between the densities of the (observation, action) pairs of agents.

Source: Wei et al. 2025 (MARLess), §4.2: samples (observation, action) compressed by PCA, a kernel density estimate
per agent, the Kullback-Leibler divergence of every pair. `marless.learning.similarity.densities` computes it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from marless.core.settings import SimilarityConfig
from marless.learning.similarity.measures import Similarity, SimilarityKind


class KdeConfig(SimilarityConfig):
    """Symmetrised Kullback-Leibler divergence, in nats, between kernel density estimates."""

    name: Literal["kde"] = "kde"
    dimensions: int = Field(8, ge=1, le=32, description="largest number of principal components")
    variance: float = Field(
        0.95, gt=0, le=1, description="fraction of the variance that the principal components explain"
    )


def _make(config: KdeConfig) -> Similarity:
    from marless.learning.similarity.densities import Densities

    return Densities(config.dimensions, config.variance)


SIMILARITY = SimilarityKind(config_type=KdeConfig, make=_make, package="sklearn", install="marless[sharing]")
