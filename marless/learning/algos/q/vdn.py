"""Value decomposition networks (Sunehag et al. 2018): the team's value is the sum of its agents' Q values."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from marless.learning.algos.q.algorithm import QAlgorithm
from marless.learning.algos.q.config import TeamConfig


class VDNConfig(TeamConfig):
    """Settings of VDN."""

    name: Literal["vdn"] = Field("vdn", description="this algorithm")


class VDN(QAlgorithm):
    """VDN, as an `Algorithm`."""

    config_type = VDNConfig
    mixer = "sum"


ALGORITHM = VDN()
