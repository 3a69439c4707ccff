"""Multi-agent DDPG (Lowe et al. 2017): each agent has a critic of all agents' observations and actions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from marless.learning.algos.ddpg.algorithm import DDPGAlgorithm
from marless.learning.algos.ddpg.config import DDPGConfig


class MADDPGConfig(DDPGConfig):
    """Settings of MADDPG."""

    name: Literal["maddpg"] = Field("maddpg", description="this algorithm")


class MADDPG(DDPGAlgorithm):
    """Multi-agent DDPG, as an `Algorithm`."""

    config_type = MADDPGConfig
    critic = "joint"


ALGORITHM = MADDPG()
