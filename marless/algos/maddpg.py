"""Multi-agent DDPG (Lowe et al. 2017): each agent has a critic that sees what all agents see and do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from marless.algos import ddpg
from marless.algos.base import AlgorithmConfig, FunctionNode, Group, Learner, LearnerContext, Scope, Setting
from marless.algos.ddpg import DDPGConfig

if TYPE_CHECKING:
    from marless.envs.base import EnvSpaces


class MADDPGConfig(DDPGConfig):
    """Settings of MADDPG."""

    name: Literal["maddpg"] = Field("maddpg", description="this algorithm")


class MADDPG:
    """The registry's entry."""

    config_type: type[AlgorithmConfig] = MADDPGConfig

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """Never: critics see all observations."""
        return False

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raises SpecError for nets with memory, actions without bounds and more replay than memory."""
        ddpg.check(MADDPGConfig.model_validate(config), setting)

    def joint(self, config: AlgorithmConfig) -> bool:
        """Always: a critic sees the agents of all classes."""
        return True

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """A critic per agent, which is never shared, beside a policy per group."""
        critics = {agent: f"critic.{agent}" for agent in ddpg.agents_of(scope, spaces)}
        return ddpg.ddpg_functions(scope, groups, critics)

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        """See `Algorithm`."""
        from marless.learners.ddpg.learner import DDPGLearner

        return DDPGLearner(MADDPGConfig.model_validate(config), context, critic="joint")


ALGORITHM = MADDPG()
