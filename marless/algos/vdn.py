"""Value decomposition networks (Sunehag et al. 2018): the team's value is the sum of its agents' Q values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from marless.algos import q
from marless.algos.base import AlgorithmConfig, FunctionNode, Group, Learner, LearnerContext, Scope, Setting
from marless.algos.q import QConfig

if TYPE_CHECKING:
    from marless.envs.base import EnvSpaces


class VDNConfig(QConfig):
    """Settings of VDN."""

    name: Literal["vdn"] = Field("vdn", description="this algorithm")

    def advice(self, setting: Setting) -> str:
        """See `AlgorithmConfig`."""
        return ". ".join(filter(None, (super().advice(setting), q.team_advice(self, setting))))


class VDN:
    """The registry's entry."""

    config_type: type[AlgorithmConfig] = VDNConfig

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """Never: a sum needs none."""
        return False

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raises SpecError for continuous actions, for rewards that compete, and for what no replay can do."""
        settings = VDNConfig.model_validate(config)
        q.check(settings, setting)
        q.check_team(settings, setting)

    def joint(self, config: AlgorithmConfig) -> bool:
        """Always: the sum is over agents of all classes."""
        return True

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """Post-processing, which sums, then policies."""
        return q.q_functions(scope, groups, mixer=False)

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        """See `Algorithm`."""
        from marless.learners.q.learner import QLearner

        return QLearner(VDNConfig.model_validate(config), context, mixer="sum")


ALGORITHM = VDN()
