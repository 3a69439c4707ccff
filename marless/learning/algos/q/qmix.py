"""QMIX (Rashid et al. 2018): the team's value is a monotone function of its agents' Q values."""

from __future__ import annotations

from marless.learning.algos.q.algorithm import QAlgorithm
from marless.learning.algos.q.config import QMIXConfig


class QMIX(QAlgorithm):
    """QMIX, as an `Algorithm`."""

    config_type = QMIXConfig
    mixer = "monotone"


ALGORITHM = QMIX()
