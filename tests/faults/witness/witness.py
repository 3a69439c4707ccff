"""IPPO by another name, which notes every update that it really computes: a line "round" in the file $TRAININGS.

It is installed by putting this directory on PYTHONPATH, as any third party's algorithm would be.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

from pydantic import Field

from marless.algos.base import AlgorithmConfig, Learner, LearnerContext
from marless.algos.ippo import IPPO, IPPOConfig

UPDATE_S = 0.02
"""An update takes at least so long, that there is time to kill it in."""


class WitnessedConfig(IPPOConfig):
    """Settings of IPPO."""

    name: Literal["witnessed"] = Field("witnessed")  # type: ignore[assignment]


class Witnessed(IPPO):
    """The registry's entry."""

    config_type: type[AlgorithmConfig] = WitnessedConfig

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        from marless.learners.ppo.learner import PPOLearner

        class WitnessedLearner(PPOLearner):
            def update(self, inputs):
                with Path(os.environ["TRAININGS"]).open("a") as file:
                    file.write(f"{inputs.round}\n")
                time.sleep(UPDATE_S)
                return super().update(inputs)

        return WitnessedLearner(self, WitnessedConfig.model_validate(config), context, critic="own")


ALGORITHM = Witnessed()
