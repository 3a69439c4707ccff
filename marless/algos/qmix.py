"""QMIX (Rashid et al. 2018): the team's value is a monotone function of its agents' Q values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from marless.algos import q
from marless.algos.base import AlgorithmConfig, FunctionNode, Group, Learner, LearnerContext, Rate, Scope, Setting
from marless.algos.q import QConfig
from marless.errors import SpecError

if TYPE_CHECKING:
    from marless.envs.base import EnvSpaces


class QMIXConfig(QConfig):
    """Settings of QMIX."""

    name: Literal["qmix"] = Field("qmix", description="this algorithm")
    lr: Rate = Field(5e-4, description="learning rate of policies and of the mixer")
    target_every: int | None = Field(400, ge=1, description="gradient steps between copies to target nets")
    embed: int = Field(32, ge=1, description="units of the mixer's hidden layer")
    hypernet: int = Field(64, ge=1, description="hidden units of the nets that give the mixer's weights")

    def advice(self, setting: Setting) -> str:
        """See `AlgorithmConfig`."""
        return ". ".join(filter(None, (super().advice(setting), q.team_advice(self, setting))))


class QMIX:
    """The registry's entry."""

    config_type: type[AlgorithmConfig] = QMIXConfig

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """Always: it chooses the mixer's weights."""
        return True

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raises SpecError as VDN does, and for an environment without a global state."""
        settings = QMIXConfig.model_validate(config)
        q.check(settings, setting)
        q.check_team(settings, setting)
        if setting.spaces.state_size == 0:
            raise SpecError(
                "algorithm.name qmix needs a global state, and env.name gives none (state_size is 0); use vdn instead"
            )

    def joint(self, config: AlgorithmConfig) -> bool:
        """Always: the mixer sees agents of all classes."""
        return True

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """Post-processing, then the mixer, then policies."""
        return q.q_functions(scope, groups, mixer=True)

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        """See `Algorithm`."""
        from marless.learners.q.learner import QLearner

        return QLearner(QMIXConfig.model_validate(config), context, mixer="monotone")


ALGORITHM = QMIX()
