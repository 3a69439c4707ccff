"""Independent DDPG (Lillicrap et al. 2016, once per policy): a critic reads the observation and action of one agent."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from marless.learning.algos.ddpg.algorithm import DDPGAlgorithm
from marless.learning.algos.ddpg.config import DDPGConfig


class IDDPGConfig(DDPGConfig):
    """Settings of IDDPG."""

    name: Literal["iddpg"] = Field("iddpg", description="this algorithm")


class IDDPG(DDPGAlgorithm):
    """Independent DDPG, as an `Algorithm`."""

    config_type = IDDPGConfig
    critic = "own"


ALGORITHM = IDDPG()
