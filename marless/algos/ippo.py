"""Independent PPO (de Witt et al. 2020): every policy has a critic that sees what its own agents see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from marless.algos.base import AlgorithmConfig, Learner, ModelSpec
from marless.algos.ppo import PPOConfig

if TYPE_CHECKING:
    from marless.envs.base import AgentClass, EnvSpaces


class IPPOConfig(PPOConfig):
    """Settings of IPPO."""

    name: Literal["ippo"] = Field("ippo", description="this algorithm")


class IPPO:
    """The registry's entry."""

    config_type: type[AlgorithmConfig] = IPPOConfig

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """Never: critics see observations."""
        return False

    def check(self, config: AlgorithmConfig, spaces: EnvSpaces, samples: int) -> None:
        """Any spaces will do; raises SpecError for more minibatches than samples."""
        IPPOConfig.model_validate(config).check_samples(samples)

    def learner(
        self, config: AlgorithmConfig, model: ModelSpec, spaces: EnvSpaces, agent_class: AgentClass, device: str
    ) -> Learner:
        """See `Algorithm`."""
        from marless.algos.ppo_learner import PPOLearner

        config = IPPOConfig.model_validate(config)
        return PPOLearner(config, model, spaces, agent_class, critic="own", device=device)


ALGORITHM = IPPO()
