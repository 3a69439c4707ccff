"""Independent DDPG (Lillicrap et al. 2016, once per policy): a critic sees what its own agents see and do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from marless.algos import ddpg
from marless.algos.base import AlgorithmConfig, FunctionNode, Group, Learner, LearnerContext, Scope, Setting
from marless.algos.ddpg import DDPGConfig

if TYPE_CHECKING:
    from marless.envs.base import EnvSpaces


class IDDPGConfig(DDPGConfig):
    """Settings of IDDPG."""

    name: Literal["iddpg"] = Field("iddpg", description="this algorithm")


class IDDPG:
    """The registry's entry."""

    config_type: type[AlgorithmConfig] = IDDPGConfig

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """Never: critics see observations."""
        return False

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raises SpecError for nets with memory, actions without bounds and more replay than memory."""
        ddpg.check(IDDPGConfig.model_validate(config), setting)

    def joint(self, config: AlgorithmConfig) -> bool:
        """Never: classes share nothing."""
        return False

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """A critic and a policy per group."""
        return ddpg.ddpg_functions(scope, groups, {agent: g.policy for g in groups for agent in g.agents})

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        """See `Algorithm`."""
        from marless.learners.ddpg.learner import DDPGLearner

        return DDPGLearner(IDDPGConfig.model_validate(config), context, critic="own")


ALGORITHM = IDDPG()
