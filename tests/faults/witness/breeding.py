"""IPPO by another name, whose learners start processes and end none of them. Installed as `witness` is."""

from __future__ import annotations

import time
from typing import Literal

from marless.core.settings import Field
from marless.learning.algos.algorithm import AlgorithmConfig
from marless.learning.algos.learner import Learner, LearnerContext
from marless.learning.algos.ppo.algorithms import IPPO, IPPOConfig


class BreedingConfig(IPPOConfig):
    """Settings of IPPO; its processes have `brood` on their command lines, and its learners never come to be if they
    hang."""

    name: Literal["breeding"] = Field("breeding")  # type: ignore[assignment]
    brood: str = Field("", description="a name")
    hangs: bool = Field(False, description="for ever")


class Breeding(IPPO):
    """An entry of the registry."""

    config_type: type[AlgorithmConfig] = BreedingConfig

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        import brood

        given = BreedingConfig.model_validate(config)
        learner = super().learner(given, context)
        learner.brood = brood.start(given.brood)
        if given.hangs:
            time.sleep(1000)
        return learner


ALGORITHM = Breeding()
