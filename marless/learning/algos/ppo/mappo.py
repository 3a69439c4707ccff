"""Multi-agent PPO (Yu et al. 2022): critics read the global state, which is used in training only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from marless.core.errors import SpecError
from marless.core.group import FunctionNode, Group
from marless.learning.algos.algorithm import AlgorithmConfig, Setting
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.algos.ppo.config import PPOConfig, ppo_functions

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces
    from marless.learning.nets.model import ModelSpec


class MAPPOConfig(PPOConfig):
    """Settings of MAPPO."""

    name: Literal["mappo"] = Field("mappo", description="this algorithm")
    critic: Literal["central", "per_agent"] = Field(
        "central", description="central: one critic per agent class with an output per agent; per_agent: one per policy"
    )


class MAPPO:
    """Multi-agent PPO, as an `Algorithm`."""

    config_type: type[AlgorithmConfig] = MAPPOConfig

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """True: critics see the global state."""
        return True

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raise SpecError for an environment without a global state, and for more minibatches than samples or, with
        recurrent nets, segments.
        """
        MAPPOConfig.model_validate(config).check_setting(setting)
        if setting.spaces.state_size == 0:
            raise SpecError(
                "algorithm.name mappo needs a global state, and env.name gives none "
                f"({setting.spaces.no_state or 'state_size is 0'}); use ippo instead"
            )

    def joint(self, config: AlgorithmConfig) -> bool:
        return False

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """Post-processing, then critics and policies in parallel."""
        central = MAPPOConfig.model_validate(config).critic == "central"
        critics = [f"critic.{scope.name}"] if central else [group.policy for group in groups]
        return ppo_functions(scope, groups, critics)

    def net_bytes(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces, model: ModelSpec
    ) -> Mapping[str, int]:
        from marless.learning.algos import state_sizes

        central = MAPPOConfig.model_validate(config).critic == "central"
        return state_sizes.ppo(scope, groups, spaces, model, critic="joint" if central else "state")

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        from marless.learning.algos.ppo.learner import PPOLearner

        config = MAPPOConfig.model_validate(config)
        critic: Literal["joint", "state"] = "joint" if config.critic == "central" else "state"
        return PPOLearner(self, config, context, critic=critic)


ALGORITHM = MAPPO()
