"""Parallel Q-learning: settings, checks and function graph of PQN and PQN-VDN. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from marless.core.errors import SpecError
from marless.core.group import FunctionNode, Group
from marless.core.settings import Field, constraint
from marless.learning.algos.algorithm import AlgorithmConfig, Setting
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.algos.settings import (
    Ramp,
    Rate,
    RewardConfig,
    RewardRule,
    TeamRewardConfig,
    check_discrete,
    check_probability,
)
from marless.learning.nets.kinds import MLP

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces
    from marless.learning.nets.model import ModelSpec


class PQNConfig(AlgorithmConfig):
    """Settings common to PQN and PQN-VDN."""

    family: ClassVar[str] = "pqn"
    learns_from_earlier: ClassVar[bool] = True
    """Its targets are maxima of the present net; λ-returns also have rewards of what earlier versions did."""
    normalises: ClassVar[bool] = True
    lowers_precision: ClassVar[bool] = True
    stacks_frames: ClassVar[bool] = True
    lr: Rate = Field(1e-3, description="learning rate of policies")
    optimizer: Literal["radam", "adam"] = Field("radam", description="optimizer of all nets")
    optimizer_eps: float = Field(1e-8, gt=0, description="ε in the optimizer's denominator")
    gamma: float = Field(0.99, ge=0, le=1, description="discount per env step")
    td_lambda: float = Field(0.65, ge=0, le=1, description="λ of the returns; 0: targets of one step")
    epochs: int = Field(4, ge=1, le=1000, description="passes over a round's samples")
    minibatches: int = Field(32, ge=1, le=65_536, description="gradient steps per pass")
    huber: float | None = Field(None, gt=0, description="TD errors above this are penalised linearly; null: squared")
    epsilon: Rate = Field(
        Ramp(start=1.0, end=0.05, env_steps=50_000), description="probability that an agent acts at random"
    )
    max_grad_norm: float = Field(10.0, gt=0, description="limit of each net's gradient norm")
    reward_normalisation: bool = Field(
        True, description="values are shifted and scaled, so that rewards in targets have mean 0, deviation 1"
    )

    @property
    def reward_rule(self) -> RewardRule:
        """The rewards that policies are trained on."""
        return RewardRule()

    def advice(self, setting: Setting) -> str:
        """See `AlgorithmConfig`; also warns of perceptrons that are not normalised."""
        plain = (
            f"algorithm.name {self.name} has no target net: without normalised layers its values may diverge; set "
            "model.layer_norm: true"
        )
        return ". ".join(filter(None, (super().advice(setting), plain if setting.model.kind == MLP else "")))

    def check_minibatches(self, units: int, *, remembers: bool) -> None:
        """Raise SpecError for more minibatches than a round has env steps or, for nets with memory, segments."""
        if units >= self.minibatches:
            return
        what = "segments (actors.count · actors.envs)" if remembers else "env steps"
        more = "actors.envs" if remembers else "actors.envs or actors.steps"
        raise SpecError(
            f"algorithm.minibatches is {self.minibatches}, but a pass over a round has only {units} {what}: set at "
            f"most {units}, or raise {more}"
        )

    @constraint
    def _epsilon_is_a_probability(self) -> None:
        check_probability("epsilon", self.epsilon)


class ParallelQ:
    """Base of the family's algorithms, which differ in their config and in whose value has the target."""

    config_type: type[AlgorithmConfig]
    team: ClassVar[bool]
    """True if the sum of all agents' values has the team's target, False if each policy has targets of its own."""

    def needs_state(self, config: AlgorithmConfig) -> bool:
        return False

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raise SpecError for continuous actions, for more minibatches than samples, and for a team of competitors."""
        own = PQNConfig.model_validate(self.config_type.model_validate(config))
        check_discrete(config.name, setting.spaces)
        if isinstance(config, RewardConfig):
            config.check_reward(setting)
        if isinstance(config, TeamRewardConfig):
            config.check_team(setting.spaces)
        remembers, env_steps = setting.model.remembers, setting.least_steps or setting.samples
        own.check_minibatches(env_steps // setting.steps if remembers else env_steps, remembers=remembers)

    def joint(self, config: AlgorithmConfig) -> bool:
        return self.team

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """Post-processing, which computes the targets, then policies in parallel."""
        first = FunctionNode("post_process", scope.name)
        return (first, *(FunctionNode("policy", group.policy, after=(first.id,)) for group in groups))

    def net_bytes(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces, model: ModelSpec
    ) -> Mapping[str, int]:
        from marless.learning.algos import state_sizes

        return state_sizes.pqn(groups, spaces, model)

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        from marless.learning.algos.pqn.learner import PQNLearner

        own = PQNConfig.model_validate(self.config_type.model_validate(config))
        return PQNLearner(own, context, team=self.team)


class IndependentPQNConfig(RewardConfig, PQNConfig):
    """Settings of PQN."""

    name: Literal["pqn"] = Field("pqn", description="this algorithm")


class PQN(ParallelQ):
    """Parallelised Q-network (Gallici et al. 2024): each policy trains on λ-returns of its own rewards."""

    config_type = IndependentPQNConfig
    team = False


class PQNVDNConfig(TeamRewardConfig, PQNConfig):
    """Settings of PQN-VDN."""

    alone: ClassVar[str] = "pqn"
    name: Literal["pqn_vdn"] = Field("pqn_vdn", description="this algorithm")


class PQNVDN(ParallelQ):
    """PQN with the sum of its agents' Q values as the team's value, as in VDN (Gallici et al. 2024)."""

    config_type = PQNVDNConfig
    team = True


pqn, pqn_vdn = PQN(), PQNVDN()
