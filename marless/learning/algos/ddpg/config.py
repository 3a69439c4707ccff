"""Settings of the deterministic policy gradient family (MADDPG, IDDPG). Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from marless.learning.algos.off_policy.config import OffPolicyConfig
from marless.learning.algos.rates import Ramp, Rate, check_probability
from marless.learning.algos.team import RewardConfig
from marless.learning.nets.model import ModelSpec, Width

if TYPE_CHECKING:
    pass


class DDPGConfig(RewardConfig, OffPolicyConfig):
    """Settings common to MADDPG and IDDPG. Policies and critics are separate nets with separate optimizers."""

    family: ClassVar[str] = "ddpg"
    critic_lr: Rate = Field(1e-3, description="learning rate of critics")
    critic_hidden: tuple[Width, ...] | None = Field(
        None, min_length=1, max_length=16, description="units of each hidden layer of critics; null: those of policies"
    )
    noise: Rate = Field(
        Ramp(start=0.5, end=0.1, env_steps=100_000),
        description="continuous actions: standard deviation of exploration noise, in units where the box is [−1, 1]",
    )
    epsilon: Rate = Field(
        0.0,
        description="discrete actions: probability that an exploring actor takes a random legal action, beside the "
        "policy's own sampling, which ends when the policy is sure of an action",
    )
    temperature: float = Field(1.0, gt=0, description="discrete actions: temperature of the Gumbel-softmax")
    straight_through: bool = Field(
        True, description="discrete actions: in the policies' loss, critics get the sampled action, not the relaxed one"
    )
    regularisation: float = Field(1e-3, ge=0, description="weight of the policies' mean squared outputs in their loss")
    policy_every: int = Field(1, ge=1, le=10**6, description="gradient steps of critics per gradient step of policies")
    twin: bool = Field(False, description="TD3: two critics, targets with the lower of their values, and smoothing")
    smoothing: float = Field(
        0.2,
        ge=0,
        description="with twin, continuous actions: standard deviation of the noise on target policies' actions",
    )
    smoothing_clip: float = Field(0.5, ge=0, description="with twin: limit of that noise")

    def critic_model(self, model: ModelSpec) -> ModelSpec:
        """The nets of critics, given those of policies."""
        return model.model_copy(update={"hidden": self.critic_hidden or model.hidden})

    @model_validator(mode="after")
    def _epsilon_is_a_probability(self) -> DDPGConfig:
        check_probability("epsilon", self.epsilon)
        return self

    @model_validator(mode="after")
    def _env_steps_are_drawn(self) -> DDPGConfig:
        if self.replay.unit == "episodes":
            raise ValueError(
                f"replay.unit is episodes, but {self.name} learns from single env steps; set replay.unit: transitions"
            )
        return self
