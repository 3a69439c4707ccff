"""The Q-learning family: settings, checks and function graph of IQL, VDN and QMIX. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from marless.core.errors import SpecError
from marless.core.group import FunctionNode, Group
from marless.core.settings import Field, constraint
from marless.learning.algos.algorithm import AlgorithmConfig, Setting
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.algos.off_policy.config import OffPolicyConfig, check_replay
from marless.learning.algos.settings import (
    Ramp,
    Rate,
    RewardConfig,
    TeamRewardConfig,
    check_discrete,
    check_probability,
)
from marless.learning.nets.model import ModelSpec

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces

Mixing = Literal["none", "sum", "monotone"]
"""none: each policy has TD targets of its own; sum, monotone: the sum, or a monotone function, of all agents' values
has the team's TD target."""


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

    @constraint
    def _targets_are_of_one_kind(self) -> None:
        if self.td_lambda is None:
            return
        if self.replay.unit != "episodes":
            raise ValueError(
                "td_lambda needs whole episodes, and replay.unit is transitions; set replay.unit: episodes, or leave "
                "td_lambda out and set n_step"
            )
        if self.n_step > 1:
            raise ValueError(f"td_lambda and n_step {self.n_step} exclude one another; leave one of them out")

    @constraint
    def _epsilon_is_a_probability(self) -> None:
        check_probability("epsilon", self.epsilon)


class QAlgorithm:
    """Base of the family's algorithms, which differ in their config and in their mixer."""

    config_type: type[AlgorithmConfig]
    mixer: ClassVar[Mixing]
    """How the team's value is computed from the agents' values."""

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """True if the mixer's weights depend on the global state."""
        return self.mixer == "monotone"

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raise SpecError for continuous actions and an impossible replay buffer; with a mixer also for competitive
        rewards, and for a missing global state if the mixer needs it.
        """
        spaces = setting.spaces
        check_discrete(config.name, spaces)
        check_replay(OffPolicyConfig.model_validate(self.config_type.model_validate(config)), setting)
        if isinstance(config, RewardConfig):
            config.check_reward(setting)
        if isinstance(config, TeamRewardConfig):
            config.check_team(spaces)
        if self.needs_state(config) and spaces.state_size == 0:
            raise SpecError(
                f"algorithm.name {config.name} needs a global state, and env.name gives none "
                f"({spaces.no_state or 'state_size is 0'}); use vdn instead"
            )

    def joint(self, config: AlgorithmConfig) -> bool:
        """True with a mixer, which serves the agents of all classes."""
        return self.mixer != "none"

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """Post-processing, which draws batches; then a trainable mixer, if there is one; then policies in parallel."""
        first = FunctionNode("post_process", scope.name)
        joint = (FunctionNode("mixer", "mixer", after=(first.id,)),) if self.mixer == "monotone" else ()
        before = tuple(node.id for node in (joint or (first,)))
        return (first, *joint, *(FunctionNode("policy", group.policy, after=before) for group in groups))

    def net_bytes(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces, model: ModelSpec
    ) -> Mapping[str, int]:
        from marless.learning.algos import state_sizes

        own = QConfig.model_validate(self.config_type.model_validate(config))
        return state_sizes.q(own, scope, groups, spaces, model)

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        from marless.learning.algos.q.learner import QLearner

        return QLearner(QConfig.model_validate(self.config_type.model_validate(config)), context, mixer=self.mixer)


class IQLConfig(RewardConfig, QConfig):
    """Settings of IQL."""

    name: Literal["iql"] = Field("iql", description="this algorithm")


class IQL(QAlgorithm):
    """Independent Q-learning (Tan 1993; with deep nets, Tampuu et al. 2017): each policy trains on its own rewards."""

    config_type = IQLConfig
    mixer = "none"


class VDNConfig(TeamRewardConfig, QConfig):
    """Settings of VDN."""

    alone: ClassVar[str] = "iql"
    name: Literal["vdn"] = Field("vdn", description="this algorithm")


class VDN(QAlgorithm):
    """Value decomposition networks (Sunehag et al. 2018): the team's value is the sum of its agents' Q values."""

    config_type = VDNConfig
    mixer = "sum"


class QMIXConfig(TeamRewardConfig, QConfig):
    """Settings of QMIX."""

    alone: ClassVar[str] = "iql"
    name: Literal["qmix"] = Field("qmix", description="this algorithm")
    target_every: int | None = Field(200, ge=1, le=10**9, description="gradient steps between copies to target nets")
    embed: int = Field(32, ge=1, le=8192, description="units of the mixer's hidden layer")
    hypernet: int = Field(64, ge=1, le=8192, description="hidden units of the nets that compute the mixer's weights")


class QMIX(QAlgorithm):
    """QMIX (Rashid et al. 2018): the team's value is a monotone function of its agents' Q values."""

    config_type = QMIXConfig
    mixer = "monotone"


iql, vdn, qmix = IQL(), VDN(), QMIX()
