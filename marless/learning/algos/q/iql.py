"""Independent Q-learning (Tan 1993; with deep nets, Tampuu et al. 2017): every policy trains on its own rewards."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from marless.learning.algos.q.algorithm import QAlgorithm
from marless.learning.algos.q.config import QConfig
from marless.learning.algos.team import RewardConfig


class IQLConfig(RewardConfig, QConfig):
    """Settings of IQL."""

    name: Literal["iql"] = Field("iql", description="this algorithm")


class IQL(QAlgorithm):
    """Independent Q-learning, as an `Algorithm`."""

    config_type = IQLConfig
    mixer = "none"


ALGORITHM = IQL()
