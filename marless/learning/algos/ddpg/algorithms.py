"""Actor-critics that learn from a replay: settings, checks and function graph of DDPG, TD3 and SAC. Imports no torch.

IDDPG and MADDPG learn at a pace that is usual in teams of cheap environments: one gradient step for 20 env steps, of
larger batches. DDPG, TD3, MATD3, SAC and MASAC learn at that of their papers: random actions first, then one gradient
step for each env step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from marless.core.errors import SpecError
from marless.core.group import FunctionNode, Group
from marless.core.settings import Field, constraint
from marless.learning.algos.algorithm import AlgorithmConfig, Setting
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.algos.off_policy.config import OffPolicyConfig, ReplaySpec, check_replay
from marless.learning.algos.settings import Ramp, Rate, RewardConfig, check_probability
from marless.learning.envs.base import BOUNDLESS
from marless.learning.nets.model import ModelSpec, Width

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces

Critic = Literal["own", "joint"]
"""own: one critic per policy, of its agents' observations and actions; joint: one per agent, of those of all agents."""


class ReplayActorCriticConfig(RewardConfig, OffPolicyConfig):
    """Settings common to all of them. Policies and critics are separate nets with separate optimizers."""

    critic_lr: Rate = Field(1e-3, description="learning rate of critics")
    critic_hidden: tuple[Width, ...] | None = Field(
        None, min_length=1, max_length=16, description="units of each hidden layer of critics; null: those of policies"
    )
    random_steps: int = Field(
        0, ge=0, le=10**9, description="env steps that actors first sample by uniformly random actions"
    )
    epsilon: Rate = Field(
        0.0,
        description="discrete actions: probability of a random legal action when exploring, beside the policy's own "
        "sampling",
    )
    temperature: float = Field(1.0, gt=0, description="discrete actions: temperature of the Gumbel-softmax")
    straight_through: bool = Field(
        True, description="discrete actions: in the policies' loss, critics get the sampled action, not the relaxed one"
    )
    policy_every: int = Field(1, ge=1, le=10**6, description="gradient steps of critics per gradient step of policies")
    delayed_targets: bool = Field(
        False, description="target critics move only in gradient steps in which policies learn, as in TD3"
    )
    twin: bool = Field(False, description="two critics, targets with the lower of their values; in DDPG, smoothing too")

    def critic_model(self, model: ModelSpec) -> ModelSpec:
        """The nets of critics, given those of policies."""
        return model.model_copy(update={"hidden": self.critic_hidden or model.hidden})

    def random_share(self, env_steps: int) -> float:
        """The probability of a uniformly random action once so many env steps are sampled."""
        return 1.0 if env_steps < self.random_steps else 0.0

    def target_moves(self, steps: int) -> bool:
        """Whether a target critic follows its net in the net's gradient step of this number, counted from 1."""
        return not self.delayed_targets or steps % self.policy_every == 0

    @constraint
    def _epsilon_is_a_probability(self) -> None:
        check_probability("epsilon", self.epsilon)

    @constraint
    def _env_steps_are_drawn(self) -> None:
        if self.replay.unit == "episodes":
            raise ValueError(
                f"replay.unit is episodes, but {self.name} learns from single env steps; set replay.unit: transitions"
            )


class DeterministicConfig(ReplayActorCriticConfig):
    """Settings of deterministic policies."""

    family: ClassVar[str] = "ddpg"
    noise: Rate = Field(
        Ramp(start=0.5, end=0.1, env_steps=100_000),
        description="continuous actions: standard deviation of exploration noise, in units where the box is [−1, 1]",
    )
    regularisation: float = Field(1e-3, ge=0, description="weight of the policies' mean squared outputs in their loss")
    inverted_gradients: bool = Field(
        False,
        description="continuous actions: gradients shrink towards a bound only; without, a policy may get stuck at one",
    )
    smoothing: float = Field(
        0.2,
        ge=0,
        description="with twin, continuous actions: standard deviation of the noise on target policies' actions",
    )
    smoothing_clip: float = Field(0.5, ge=0, description="with twin: limit of that noise")


class PublishedPaceConfig(ReplayActorCriticConfig):
    """The pace of Fujimoto et al. 2018 (and their later code) and Haarnoja et al. 2018."""

    often: ClassVar[int] = 512
    lr: Rate = Field(3e-4, description="learning rate of policies")
    critic_lr: Rate = Field(3e-4, description="learning rate of critics")
    batch: int | None = Field(256, ge=1, le=10**6, description="env steps per gradient step; null: 512")
    replay_ratio: float = Field(1.0, gt=0, le=100, description="gradient steps per env step")
    target_tau: float = Field(0.005, gt=0, le=1, description="fraction by which each gradient step moves a target net")
    random_steps: int = Field(
        1000, ge=0, le=10**9, description="env steps that actors first sample by uniformly random actions"
    )
    replay: ReplaySpec = ReplaySpec(capacity=1_000_000)


class PublishedDDPGConfig(PublishedPaceConfig, DeterministicConfig):
    """Deterministic policies at that pace: all of TD3 but twins and delays."""

    epsilon: Rate = Field(0.1, description="discrete actions: probability of a random legal action, when exploring")
    noise: Rate = Field(
        0.1,
        description="continuous actions: standard deviation of exploration noise, in units where the box is [−1, 1]",
    )
    regularisation: float = Field(0.0, ge=0, description="weight of the policies' mean squared outputs in their loss")
    inverted_gradients: bool = Field(
        True, description="continuous actions: gradients shrink towards a bound only, not on the way back"
    )


class PublishedTD3Config(PublishedDDPGConfig):
    """The same with twin critics, smoothed targets, and policies and targets that move in every second step."""

    twin: bool = Field(True, description="two critics, targets with the lower of their values, and smoothing")
    policy_every: int = Field(2, ge=1, le=10**6, description="gradient steps of critics per gradient step of policies")
    delayed_targets: bool = Field(
        True, description="target critics move only in gradient steps in which policies learn"
    )


class SoftConfig(PublishedPaceConfig):
    """Settings of soft actor-critics, whose rewards include the entropy of their policies (Haarnoja et al. 2018)."""

    family: ClassVar[str] = "sac"
    entropy: float | None = Field(
        None, gt=0, description="α, the weight of the entropy, called temperature, too; null: learned"
    )
    entropy_start: float = Field(1.0, gt=0, description="α at the start, if it is learned")
    entropy_lr: Rate = Field(3e-4, description="learning rate of α")
    target_entropy: float | None = Field(
        None,
        description="entropy that a learned α aims at, in units where the box is [−1, 1]; null: "
        "−1 per component; of discrete actions 0.98 of the largest",
    )
    twin: bool = Field(True, description="two critics; the lower of their values counts")

    @constraint
    def _a_fixed_weight_has_no_aim(self) -> None:
        if self.entropy is not None and self.target_entropy is not None:
            raise ValueError("target_entropy is for a learned weight, and entropy fixes it; leave one of them out")


class ActorCriticAlgorithm:
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
        own = self._own(config)
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

        own = self._own(config)
        return state_sizes.ddpg(own, scope, groups, spaces, model, critic=self.critic)

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        from marless.learning.algos.ddpg.learner import ActorCriticLearner

        return ActorCriticLearner(self._own(config), context, critic=self.critic)

    def _own(self, config: AlgorithmConfig) -> ReplayActorCriticConfig:
        return ReplayActorCriticConfig.model_validate(self.config_type.model_validate(config))


class IDDPGConfig(DeterministicConfig):
    """Settings of IDDPG."""

    name: Literal["iddpg"] = Field("iddpg", description="this algorithm")


class IDDPG(ActorCriticAlgorithm):
    """Independent DDPG (Lillicrap et al. 2016, once per policy): a critic reads one agent's observation and action."""

    config_type: type[AlgorithmConfig] = IDDPGConfig
    critic = "own"


class MADDPGConfig(DeterministicConfig):
    """Settings of MADDPG."""

    name: Literal["maddpg"] = Field("maddpg", description="this algorithm")


class MADDPG(ActorCriticAlgorithm):
    """Multi-agent DDPG (Lowe et al. 2017): each agent has a critic of all agents' observations and actions."""

    config_type: type[AlgorithmConfig] = MADDPGConfig
    critic = "joint"


class DDPGConfig(PublishedDDPGConfig):
    """Settings of DDPG."""

    name: Literal["ddpg"] = Field("ddpg", description="this algorithm")


class DDPG(IDDPG):
    """IDDPG at the pace of single agents."""

    config_type = DDPGConfig


class TD3Config(PublishedTD3Config):
    """Settings of TD3."""

    name: Literal["td3"] = Field("td3", description="this algorithm")


class TD3(IDDPG):
    """Twin delayed DDPG (Fujimoto et al. 2018), once per policy."""

    config_type = TD3Config


class MATD3Config(PublishedTD3Config):
    """Settings of MATD3."""

    name: Literal["matd3"] = Field("matd3", description="this algorithm")


class MATD3(MADDPG):
    """TD3 with critics of all agents (Ackermann et al. 2019)."""

    config_type = MATD3Config


class SACConfig(SoftConfig):
    """Settings of SAC."""

    name: Literal["sac"] = Field("sac", description="this algorithm")


class SAC(ActorCriticAlgorithm):
    """Soft actor-critic (Haarnoja et al. 2018), once per policy; in teams it is also called ISAC."""

    config_type = SACConfig
    critic = "own"


class MASACConfig(SoftConfig):
    """Settings of MASAC."""

    name: Literal["masac"] = Field("masac", description="this algorithm")


class MASAC(ActorCriticAlgorithm):
    """Soft actor-critic with critics of all agents; each agent has the entropy of its own policy in its values."""

    config_type = MASACConfig
    critic = "joint"


iddpg, maddpg, ddpg, td3, matd3 = IDDPG(), MADDPG(), DDPG(), TD3(), MATD3()
sac, masac = SAC(), MASAC()
