"""Settings of the Q-learning family (IQL, VDN, QMIX). Does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from marless.learning.algos.algorithm import Setting
from marless.learning.algos.off_policy.config import OffPolicyConfig
from marless.learning.algos.rates import Ramp, Rate, check_probability
from marless.learning.algos.team import RewardRule, TeamReward, sum_advice, together
from marless.learning.nets.model import ModelSpec

if TYPE_CHECKING:
    pass


class QConfig(OffPolicyConfig):
    """Settings common to IQL, VDN and QMIX."""

    family: ClassVar[str] = "q"
    double: bool = Field(True, description="the trained net chooses the next action, its target net evaluates it")
    dueling: bool = Field(False, description="nets output a value of the state and an advantage of each action")
    td_lambda: float | None = Field(
        None, ge=0, le=1, description="λ-returns over whole episodes; null: targets of n_step steps"
    )
    huber: float | None = Field(None, gt=0, description="TD errors above this are penalised linearly; null: squared")
    epsilon: Rate = Field(
        Ramp(start=1.0, end=0.05, env_steps=50_000), description="probability that an agent acts at random"
    )
    last_action: bool = Field(False, description="the last action is an additional input")

    def memory(self, model: ModelSpec, actions: int) -> int:
        return super().memory(model, actions) + (actions if self.last_action else 0)

    @property
    def credit_steps(self) -> int | None:
        """See `OffPolicyConfig`; λ-returns have the rewards of the whole episode."""
        return None if self.td_lambda else self.n_step

    @model_validator(mode="after")
    def _targets_are_of_one_kind(self) -> QConfig:
        if self.td_lambda is None:
            return self
        if self.replay.unit != "episodes":
            raise ValueError(
                "td_lambda needs whole episodes, and replay.unit is transitions; set replay.unit: episodes, or leave "
                "td_lambda out and set n_step"
            )
        if self.n_step > 1:
            raise ValueError(f"td_lambda and n_step {self.n_step} exclude one another; leave one of them out")
        return self

    @model_validator(mode="after")
    def _epsilon_is_a_probability(self) -> QConfig:
        check_probability("epsilon", self.epsilon)
        return self


class TeamConfig(QConfig):
    """Base of the settings of algorithms that maximise the team's reward."""

    team_reward: TeamReward = Field(
        "auto",
        description="the team's reward: the environment's own or, without one, the sum (auto), the sum of all agents' "
        "rewards, or their mean over agents that are alive",
    )

    @property
    def reward_rule(self) -> RewardRule:
        return RewardRule(self.team_reward, joint=True)

    def advice(self, setting: Setting) -> str:
        """See `AlgorithmConfig`; also warns if the environment does not declare whether its agents cooperate, or what
        the team earns.
        """
        told = (
            f"algorithm.name {self.name} maximises the reward of all agents together, and env.name does not say "
            "whether they work together; if they compete, use iql"
        )
        unknown = told if setting.spaces.rewards == "unknown" else ""
        return together(super().advice(setting), unknown, sum_advice(self.team_reward, setting))


class QMIXConfig(TeamConfig):
    """Settings of QMIX."""

    name: Literal["qmix"] = Field("qmix", description="this algorithm")
    target_every: int | None = Field(200, ge=1, le=10**9, description="gradient steps between copies to target nets")
    embed: int = Field(32, ge=1, le=8192, description="units of the mixer's hidden layer")
    hypernet: int = Field(64, ge=1, le=8192, description="hidden units of the nets that compute the mixer's weights")
