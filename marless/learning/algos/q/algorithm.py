"""The algorithms of the Q-learning family, which differ in their config and in their mixer. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from marless.core.errors import SpecError
from marless.core.group import FunctionNode, Group
from marless.learning.algos.algorithm import AlgorithmConfig, Setting
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.algos.off_policy.config import OffPolicyConfig, check_replay
from marless.learning.algos.team import RewardConfig

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces
    from marless.learning.nets.model import ModelSpec

from marless.learning.algos.q.config import QConfig


class QAlgorithm:
    """Base of the family's algorithms, which differ in their config and in their mixer."""

    config_type: type[AlgorithmConfig]
    mixer: ClassVar[Literal["none", "sum", "monotone"]]
    """How the team's value is computed from the agents' values."""

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """True if the mixer's weights depend on the global state."""
        return self.mixer == "monotone"

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raise SpecError for continuous actions and an impossible replay buffer; with a mixer also for competitive
        rewards, and for a missing global state if the mixer needs it.
        """
        spaces = setting.spaces
        for each in spaces.classes:
            if hasattr(each.action, "low"):  # a Box; importing its module would load NumPy
                raise SpecError(
                    f"algorithm.name {config.name} needs discrete actions, and those of class {each.name} are "
                    "continuous; use maddpg, iddpg or ippo instead"
                )
        check_replay(OffPolicyConfig.model_validate(self.config_type.model_validate(config)), setting)
        if isinstance(config, RewardConfig):
            config.check_reward(setting)
        if self.mixer != "none" and spaces.rewards == "competitive":
            raise SpecError(
                f"algorithm.name {config.name} maximises the reward of all agents together, and those of env.name "
                "compete; use iql instead"
            )
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
