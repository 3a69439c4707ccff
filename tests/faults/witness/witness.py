"""IPPO and VDN by other names, which note every update that they really compute: a line "round" in the file $TRAININGS.
The note whose number stands in the file "hold" beside it, and those after it, wait there until that file goes.

They are installed by putting this directory on PYTHONPATH, as any third party's algorithms would be.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from marless.core.settings import Field
from marless.learning.algos.algorithm import AlgorithmConfig
from marless.learning.algos.learner import Learner, LearnerContext
from marless.learning.algos.ppo.algorithms import IPPO, IPPOConfig
from marless.learning.algos.q.algorithms import VDN, VDNConfig

UPDATE_S = 0.02
"""An update takes at least so long, that there is time to kill it in."""


def note(round_: int) -> None:
    """This round's update begins."""
    notes = Path(os.environ["TRAININGS"])
    with notes.open("a") as file:
        file.write(f"{round_}\n")
    time.sleep(UPDATE_S)
    while _held(notes):
        time.sleep(UPDATE_S / 4)


def _held(notes: Path) -> bool:
    with suppress(FileNotFoundError):
        return len(notes.read_text().split()) >= int(notes.with_name("hold").read_text())
    return False


class WitnessedConfig(IPPOConfig):
    """Settings of IPPO."""

    name: Literal["witnessed"] = Field("witnessed")  # type: ignore[assignment]


class Witnessed(IPPO):
    """An entry of the registry."""

    config_type: type[AlgorithmConfig] = WitnessedConfig

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        from marless.learning.algos.ppo.learner import PPOLearner

        class WitnessedLearner(PPOLearner):
            def update(self, inputs):
                note(inputs.round)
                return super().update(inputs)

        return WitnessedLearner(self, WitnessedConfig.model_validate(config), context, critic="own")


class RememberingConfig(VDNConfig):
    """Settings of VDN."""

    name: Literal["remembering"] = Field("remembering")  # type: ignore[assignment]


class Remembering(VDN):
    """An entry of the registry."""

    config_type: type[AlgorithmConfig] = RememberingConfig

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        from marless.learning.algos.q.learner import QLearner

        class RememberingLearner(QLearner):
            def update(self, inputs):
                note(inputs.round)
                return super().update(inputs)

        return RememberingLearner(RememberingConfig.model_validate(config), context, mixer="sum")


ALGORITHM = Witnessed()
REMEMBERING = Remembering()
