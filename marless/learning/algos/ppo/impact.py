"""IMPACT (Luo et al. 2020): PPO whose ratios are to a target network, on batches of several rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from marless.core.group import Group
from marless.core.state import NetStep
from marless.learning.algos.algorithm import AlgorithmConfig, Setting
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.algos.ppo.config import ActorCriticConfig
from marless.learning.algos.ppo.ippo import IPPO
from marless.learning.algos.rates import Rate

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces
    from marless.learning.nets.model import ModelSpec

BATCHES = "batches."
"""What the name of the state that holds an agent class's batches begins with."""


class ImpactConfig(ActorCriticConfig):
    """Settings of IMPACT, beside those of the family."""

    learns_from_earlier: ClassVar[bool] = True
    """Advantages are corrected for the policies that acted, and ratios are to a target network."""
    name: Literal["impact"] = Field("impact", description="this algorithm")
    clip: Rate = Field(0.4, description="ε of the clipped surrogate")
    advantage: Literal["gae", "vtrace"] = Field(
        "vtrace", description="V-trace of the target network, which is how it learns from batches of earlier rounds"
    )
    epochs: int = Field(
        2, ge=1, le=1000, description="K: how often each batch is used, over the rounds that it is kept"
    )
    batches: int = Field(4, ge=1, le=64, description="N: rounds for which a batch, the samples of a round, is kept")
    rho: float = Field(2.0, gt=0, description="ρ: limit of the importance μ/π_target of what the actors did")
    target_frequency: float = Field(
        2.0, gt=0, le=1000, description="the target network is updated after this many times N · K uses of batches"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.advantage != "vtrace":
            raise ValueError("advantage: gae does not correct for the policies that acted, as impact must; use vtrace")
        if self.critic_epochs is not None:
            raise ValueError("critic_epochs has no meaning here: critics learn at each use of a batch; leave it out")
        return self

    def target_steps(self) -> int:
        """Optimizer steps of a policy between two updates of its target network."""
        return max(1, round(self.target_frequency * self.batches * self.epochs)) * self.minibatches

    def net_steps(self, env_steps: int) -> Mapping[str, NetStep]:
        steps = super().net_steps(env_steps)
        return {**steps, "policy": replace(steps["policy"], target_steps=self.target_steps())}

    def takes_steps(self, name: str) -> bool:
        return not name.startswith(BATCHES)


class Impact(IPPO):
    """IMPACT, as an `Algorithm`: the functions and critics of IPPO, executed once for each batch that is used."""

    config_type: type[AlgorithmConfig] = ImpactConfig

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        ImpactConfig.model_validate(config).check_setting(setting)

    def net_bytes(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces, model: ModelSpec
    ) -> Mapping[str, int]:
        from marless.learning.algos import state_sizes

        return state_sizes.ppo(scope, groups, spaces, model, critic="own", target=True)

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        from marless.learning.algos.ppo.impact_learner import ImpactLearner

        return ImpactLearner(self, ImpactConfig.model_validate(config), context)


ALGORITHM = Impact()
