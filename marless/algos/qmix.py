"""QMIX (Rashid et al. 2018): the team's value is a monotone function of its agents' Q values."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from marless.algos.q import QAlgorithm, TeamConfig


class QMIXConfig(TeamConfig):
    """Settings of QMIX."""

    name: Literal["qmix"] = Field("qmix", description="this algorithm")
    target_every: int | None = Field(200, ge=1, le=10**9, description="gradient steps between copies to target nets")
    embed: int = Field(32, ge=1, le=8192, description="units of the mixer's hidden layer")
    hypernet: int = Field(64, ge=1, le=8192, description="hidden units of the nets that compute the mixer's weights")


class QMIX(QAlgorithm):
    """QMIX, as an `Algorithm`."""

    config_type = QMIXConfig
    mixer = "monotone"


ALGORITHM = QMIX()
