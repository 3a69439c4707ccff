"""Independent PPO (de Witt et al. 2020): every policy has a critic of its own agents' observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from marless.core.group import FunctionNode, Group
from marless.learning.algos.algorithm import AlgorithmConfig, Setting
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.algos.ppo.config import PPOConfig, ppo_functions

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces
    from marless.learning.nets.model import ModelSpec


class IPPOConfig(PPOConfig):
    """Settings of IPPO."""

    name: Literal["ippo"] = Field("ippo", description="this algorithm")


class IPPO:
    """Independent PPO, as an `Algorithm`."""

    config_type: type[AlgorithmConfig] = IPPOConfig

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """False: critics see observations."""
        return False

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raise SpecError for more minibatches than samples or, with recurrent nets, segments; all spaces will do."""
        IPPOConfig.model_validate(config).check_setting(setting)

    def joint(self, config: AlgorithmConfig) -> bool:
        return False

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """Post-processing, then critics and policies in parallel."""
        return ppo_functions(scope, groups, critics=[group.policy for group in groups])

    def net_bytes(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces, model: ModelSpec
    ) -> Mapping[str, int]:
        from marless.learning.algos import state_sizes

        return state_sizes.ppo(scope, groups, spaces, model, critic="own")

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        from marless.learning.algos.ppo.learner import PPOLearner

        config = IPPOConfig.model_validate(config)
        return PPOLearner(self, config, context, critic="own")


ALGORITHM = IPPO()
