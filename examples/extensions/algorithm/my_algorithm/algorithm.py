"""The algorithm and its settings. Commands, coordinator and actors import this module, so it imports no torch."""

from __future__ import annotations

from typing import Literal

from marless.learning.algos.algorithm import AlgorithmConfig
from marless.learning.algos.learner import Learner, LearnerContext
from marless.learning.algos.ppo.algorithms import IPPO, PPOConfig


class MyAlgorithmConfig(PPOConfig):
    """Settings of the section `algorithm` of a job. Those of PPO are inherited: `clip` is ε."""

    name: Literal["my_algorithm"] = "my_algorithm"


class MyAlgorithm(IPPO):
    """Independent PPO with another loss; its functions, critics and checks are inherited."""

    config_type: type[AlgorithmConfig] = MyAlgorithmConfig

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        """Make the learner of one agent class."""
        from my_algorithm.learner import MyAlgorithmLearner  # here, because it imports torch

        return MyAlgorithmLearner(self, MyAlgorithmConfig.model_validate(config), context, critic="own")


ALGORITHM = MyAlgorithm()
