"""The algorithms of the deterministic policy gradient family, which differ in their critic. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from marless.core.errors import SpecError
from marless.core.group import FunctionNode, Group
from marless.learning.algos.algorithm import AlgorithmConfig, Setting
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.algos.off_policy.config import check_replay
from marless.learning.envs.base import BOUNDLESS

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces
    from marless.learning.nets.model import ModelSpec

from marless.learning.algos.ddpg.config import DDPGConfig


class DDPGAlgorithm:
    """Base of the family's algorithms, which differ in their config and in the inputs of critics."""

    config_type: type[AlgorithmConfig]
    critic: ClassVar[Literal["own", "joint"]]
    """own: a critic per policy, of its own observation and action; joint: one per agent, of those of all classes."""

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
