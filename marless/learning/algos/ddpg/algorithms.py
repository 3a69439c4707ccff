"""The family of deterministic policy gradients: settings, checks and function graph of MADDPG and IDDPG. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from marless.core.errors import SpecError
from marless.core.group import FunctionNode, Group
from marless.core.settings import Field, constraint
from marless.learning.algos.algorithm import AlgorithmConfig, Setting
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.algos.off_policy.config import OffPolicyConfig, check_replay
from marless.learning.algos.settings import Ramp, Rate, RewardConfig, check_probability
from marless.learning.envs.base import BOUNDLESS
from marless.learning.nets.model import ModelSpec, Width

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces

Critic = Literal["own", "joint"]
"""own: one critic per policy, of its agents' observations and actions; joint: one per agent, of those of all agents."""


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

    @constraint
    def _epsilon_is_a_probability(self) -> None:
        check_probability("epsilon", self.epsilon)

    @constraint
    def _env_steps_are_drawn(self) -> None:
        if self.replay.unit == "episodes":
            raise ValueError(
                f"replay.unit is episodes, but {self.name} learns from single env steps; set replay.unit: transitions"
            )


class DDPGAlgorithm:
    """Base of the family's algorithms, which differ in their config and in the inputs of critics."""

    config_type: type[AlgorithmConfig]
    critic: ClassVar[Critic]

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """False: critics see observations."""
        return False

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raise SpecError for nets with memory, unbounded actions, policies that would not learn in every round, and a
        replay buffer that is larger than the learner's memory.
        """
        own = DDPGConfig.model_validate(self.config_type.model_validate(config))
        if setting.model.remembers:
            raise SpecError(
                f"{own.name} trains no nets with memory, as a critic's would depend on all past actions, and model "
                f"asks for {setting.model.kind} nets; choose others, or another algorithm (ippo, mappo, iql, vdn, qmix)"
            )
        for each in setting.spaces.classes:
            bounds = [*getattr(each.action, "low", ()), *getattr(each.action, "high", ())]
            if any(abs(bound) >= BOUNDLESS for bound in bounds):
                raise SpecError(
                    f"algorithm.name {own.name} needs actions within bounds, and those of class {each.name} "
                    "have none on one side or both; bound them in the environment, or use ippo or mappo"
                )
        steps = own.updates or (setting.round_steps and own.gradient_steps(setting.round_steps))
        if steps and own.policy_every > steps:
            raise SpecError(
                f"algorithm.policy_every {own.policy_every} is more than the {steps} gradient steps of a round: "
                "policies would not learn in every round; lower algorithm.policy_every, or raise algorithm.updates"
            )
        own.check_reward(setting)
        check_replay(own, setting)

    def joint(self, config: AlgorithmConfig) -> bool:
        """True if critics see the agents of all classes."""
        return self.critic == "joint"

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """Post-processing, then critics and policies in parallel, as neither gradient needs the other's new version.

        There is one critic per agent, never shared (joint), or one per group (own).
        """
        agents = [agent for each in scope.agent_classes(spaces) for agent in each.agents]
        joint = self.critic == "joint"
        critics = [f"critic.{agent}" for agent in agents] if joint else [group.policy for group in groups]
        first = FunctionNode("post_process", scope.name)
        return (
            first,
            *(FunctionNode("critic", name, after=(first.id,)) for name in critics),
            *(FunctionNode("policy", group.policy, after=(first.id,)) for group in groups),
        )

    def net_bytes(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces, model: ModelSpec
    ) -> Mapping[str, int]:
        from marless.learning.algos import state_sizes

        own = DDPGConfig.model_validate(self.config_type.model_validate(config))
        return state_sizes.ddpg(own, scope, groups, spaces, model, critic=self.critic)

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        from marless.learning.algos.ddpg.learner import DDPGLearner

        own = DDPGConfig.model_validate(self.config_type.model_validate(config))
        return DDPGLearner(own, context, critic=self.critic)


class IDDPGConfig(DDPGConfig):
    """Settings of IDDPG."""

    name: Literal["iddpg"] = Field("iddpg", description="this algorithm")


class IDDPG(DDPGAlgorithm):
    """Independent DDPG (Lillicrap et al. 2016, once per policy): a critic reads one agent's observation and action."""

    config_type = IDDPGConfig
    critic = "own"


class MADDPGConfig(DDPGConfig):
    """Settings of MADDPG."""

    name: Literal["maddpg"] = Field("maddpg", description="this algorithm")


class MADDPG(DDPGAlgorithm):
    """Multi-agent DDPG (Lowe et al. 2017): each agent has a critic of all agents' observations and actions."""

    config_type = MADDPGConfig
    critic = "joint"


iddpg, maddpg = IDDPG(), MADDPG()
