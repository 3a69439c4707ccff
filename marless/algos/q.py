"""What the algorithms of the Q-learning family let a user set. No torch in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field, model_validator

from marless.algos import off_policy
from marless.algos.base import FunctionNode, Group, Rate, Schedule, Scope, Setting
from marless.algos.off_policy import OffPolicyConfig
from marless.errors import SpecError


class QConfig(OffPolicyConfig):
    """Settings common to IQL, VDN and QMIX."""

    family: ClassVar[str] = "q"
    lr: Rate = Field(1e-3, description="learning rate of policies")
    target_tau: float = Field(0.02, gt=0, le=1, description="share of a target net that each gradient step replaces")
    double: bool = Field(True, description="the net in training chooses the next action, its target net values it")
    dueling: bool = Field(False, description="nets output a value of the state and an advantage of each action")
    td_lambda: float | None = Field(
        None, ge=0, le=1, description="λ-returns over whole episodes; null: targets of n_step steps"
    )
    huber: float | None = Field(None, gt=0, description="TD errors count linearly beyond this; null: squared")
    epsilon: Rate = Field(
        Schedule(start=1.0, end=0.05, env_steps=50_000), description="probability that an agent acts at random"
    )
    last_action: bool = Field(False, description="agents also see what they did last")
    agent_id: bool = Field(False, description="agents also see which of their class they are")

    @model_validator(mode="after")
    def _targets_are_of_one_kind(self) -> QConfig:
        if self.td_lambda is None:
            return self
        if self.replay.unit != "episodes":
            raise ValueError(
                "td_lambda needs whole episodes, and replay.unit is transitions; set replay.unit: episodes, or leave "
                "td_lambda out and set n_step"
            )
        if self.n_step > 1:
            raise ValueError(f"td_lambda and n_step {self.n_step} exclude one another; leave one of them out")
        return self

    @model_validator(mode="after")
    def _epsilon_is_a_probability(self) -> QConfig:
        ends = (self.epsilon.start, self.epsilon.end) if isinstance(self.epsilon, Schedule) else (self.epsilon,)
        if max(ends) > 1:
            raise ValueError(f"epsilon is a probability and cannot be {max(ends):g}; keep it between 0 and 1")
        return self


def check(config: QConfig, setting: Setting) -> None:
    """Refuse what no algorithm of the family can do; raises SpecError."""
    for each in setting.spaces.classes:
        if hasattr(each.action, "low"):  # a Box; importing its module would load NumPy
            raise SpecError(
                f"algorithm.name {config.name} needs discrete actions, and those of class {each.name} are continuous; "
                "use maddpg, iddpg or ippo instead"
            )
    off_policy.check(config, setting)


def check_team(config: QConfig, setting: Setting) -> None:
    """Refuse a game in which no sum of rewards is worth maximising; raises SpecError."""
    if setting.spaces.rewards == "competitive":
        raise SpecError(
            f"algorithm.name {config.name} maximises the sum of all agents' rewards, and those of env.name compete; "
            "use iql instead"
        )


def team_advice(config: QConfig, setting: Setting) -> str:
    """Whether a sum of rewards is worth maximising, where nobody says."""
    if setting.spaces.rewards != "unknown":
        return ""
    return (
        f"algorithm.name {config.name} maximises the sum of all agents' rewards, and env.name does not say whether "
        "they work together; if they compete, use iql"
    )


def q_functions(scope: Scope, groups: Sequence[Group], *, mixer: bool) -> tuple[FunctionNode, ...]:
    """Post-processing draws and assembles batches; a mixer's gradient is what policies then learn from."""
    first = FunctionNode("post_process", scope.name)
    joint = (FunctionNode("mixer", "mixer", after=(first.id,)),) if mixer else ()
    before = tuple(node.id for node in (joint or (first,)))
    return (first, *joint, *(FunctionNode("policy", group.policy, after=before) for group in groups))
