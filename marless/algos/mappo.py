"""Multi-agent PPO (Yu et al. 2022): critics see the global state, which only training needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from marless.algos.base import AlgorithmConfig, Learner, ModelSpec
from marless.algos.ppo import PPOConfig
from marless.errors import SpecError

if TYPE_CHECKING:
    from marless.envs.base import AgentClass, EnvSpaces


class MAPPOConfig(PPOConfig):
    """Settings of MAPPO."""

    name: Literal["mappo"] = Field("mappo", description="this algorithm")
    critic: Literal["central", "per_agent"] = Field(
        "central", description="central: one critic per agent class, an output per agent; per_agent: one per policy"
    )


class MAPPO:
    """The registry's entry."""

    config_type: type[AlgorithmConfig] = MAPPOConfig

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """Always: critics see the global state."""
        return True

    def check(self, config: AlgorithmConfig, spaces: EnvSpaces, samples: int) -> None:
        """Raises SpecError for an environment without a global state, and for more minibatches than samples."""
        MAPPOConfig.model_validate(config).check_samples(samples)
        if spaces.state_size == 0:
            raise SpecError(
                "algorithm.name mappo needs a global state, and env.name gives none (state_size is 0); use ippo instead"
            )

    def learner(
        self, config: AlgorithmConfig, model: ModelSpec, spaces: EnvSpaces, agent_class: AgentClass, device: str
    ) -> Learner:
        """See `Algorithm`."""
        from marless.algos.ppo_learner import PPOLearner

        config = MAPPOConfig.model_validate(config)
        critic: Literal["joint", "state"] = "joint" if config.critic == "central" else "state"
        return PPOLearner(config, model, spaces, agent_class, critic=critic, device=device)


ALGORITHM = MAPPO()
