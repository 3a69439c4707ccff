"""What an update measures for the decisions on the next round."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from marless.core.settings import Strict


class CurvatureSpec(Strict):
    """Settings of curvature measurement, which runs if a scaling or sharing policy needs it."""

    samples: int = Field(
        128, ge=1, le=65_536, description="samples of the round used per policy, drawn anew each round"
    )
    steps: int = Field(8, ge=2, le=1000, description="Lanczos steps, a Hessian-vector product each")
    probes: int = Field(1, ge=1, le=100, description="random starts; the extreme eigenvalues over all starts count")


class SimilarityConfig(Strict):
    """Base of every similarity's config; `name` selects it in `marless.learning.similarity.measures`."""

    name: str
    samples: int = Field(256, ge=8, le=500, description="samples of the round used per agent, drawn anew each time")


@dataclass(frozen=True)
class Measure:
    """Measurements to make during an update, for the decisions on the next round."""

    curvature: CurvatureSpec | None = None
    """If set: per policy, after the update, metrics "lambda_max", "lambda_min" and "curvature", their ratio C."""
    noise: bool = False
    """If true: per policy, metric "noise_scale", the gradient noise scale in samples."""
    similarity: SimilarityConfig | None = None
    """If set: distances between all agents of each class, from the round's samples."""
