"""Independent Q-learning (Tan 1993; with deep nets, Tampuu et al. 2017): every policy learns its own rewards' worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from marless.algos import q
from marless.algos.base import AlgorithmConfig, FunctionNode, Group, Learner, LearnerContext, Scope, Setting
from marless.algos.q import QConfig

if TYPE_CHECKING:
    from marless.envs.base import EnvSpaces


class IQLConfig(QConfig):
    """Settings of IQL."""

    name: Literal["iql"] = Field("iql", description="this algorithm")


class IQL:
    """The registry's entry."""

    config_type: type[AlgorithmConfig] = IQLConfig

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """Never: nets see what their agents see."""
        return False

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raises SpecError for continuous actions, and for what no replay can do."""
        q.check(IQLConfig.model_validate(config), setting)

    def joint(self, config: AlgorithmConfig) -> bool:
        """Never: a class learns by itself."""
        return False

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """Post-processing, then policies."""
        return q.q_functions(scope, groups, mixer=False)

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        """See `Algorithm`."""
        from marless.learners.q.learner import QLearner

        return QLearner(IQLConfig.model_validate(config), context, mixer="none")


ALGORITHM = IQL()
