"""Settings that several families have: rates that may move over a job, and what agents are rewarded for. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from marless.core.errors import SpecError
from marless.core.settings import Field, Section, constraint
from marless.learning.algos.algorithm import AlgorithmConfig, Setting

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces

_NotNegative: TypeAlias = Annotated[float, Field(ge=0)]


class Ramp(Section):
    """A value that moves linearly from `start` to `end` over the first `env_steps` env steps, then stays."""

    start: _NotNegative
    end: _NotNegative
    env_steps: int = Field(gt=0, le=10**15)


Rate: TypeAlias = _NotNegative | Ramp
"""A setting that may follow a ramp."""


def check_probability(name: str, rate: Rate) -> None:
    """Raise ValueError, naming the setting, for a rate that exceeds 1 at some time."""
    highest = max(rate.start, rate.end) if isinstance(rate, Ramp) else rate
    if highest > 1:
        raise ValueError(f"{name} is a probability and cannot be {highest:g}; keep it between 0 and 1")


def check_discrete(name: str, spaces: EnvSpaces) -> None:
    """Raise SpecError for an algorithm of this name if actions are continuous."""
    for each in spaces.classes:
        if hasattr(each.action, "low"):  # a Box; importing its module would load NumPy
            raise SpecError(
                f"algorithm.name {name} needs discrete actions, and those of class {each.name} are continuous; use "
                "maddpg, iddpg or ippo instead"
            )


def value_at(rate: Rate, env_steps: int) -> float:
    """The value of a rate once `env_steps` env steps (all agents act once) have been sampled."""
    if not isinstance(rate, Ramp):
        return rate
    return rate.start + (rate.end - rate.start) * min(env_steps / rate.env_steps, 1.0)


TeamReward = Literal["auto", "sum", "mean"]
"""auto: the environment's own team reward or, if it has none, the sum; sum, mean: of the rewards of all agents (mean:
of those alive before the step)."""


@dataclass(frozen=True)
class RewardRule:
    """The rewards that policies are trained on."""

    team: TeamReward | None = None
    """How the team's reward is computed; None: every agent has its own reward."""
    after_death: bool = False
    """True if agents that left the episode still earn the team's rewards."""
    joint: bool = False
    """True if the team has one value, which its reward belongs to, whoever is alive."""
    clip: float | None = None
    """Greatest size of a reward, that of the team if agents have its; None: rewards are as they are."""


def sum_advice(how: str, setting: Setting) -> str:
    """A warning if the team's reward is a sum because the environment does not say what the team earns; else ""."""
    spaces = setting.spaces
    if how != "auto" or spaces.team_reward or spaces.rewards != "unknown" or len(spaces.agents) == 1:
        return ""
    return (
        "env.name declares no reward of the team, so algorithm.team_reward: auto adds up those of all agents alive; if "
        "they all get the same reward, set algorithm.team_reward: mean, which is that reward, however many are alive; "
        "if each gets its own, set sum"
    )


class ClippedRewardConfig(AlgorithmConfig):
    """Base of the settings of all algorithms: what is the same whether agents or teams are rewarded."""

    reward_clip: float | None = Field(
        None,
        gt=0,
        description="limit of rewards in training, up and down; returns stay whole; null: none",
    )


class RewardConfig(ClippedRewardConfig):
    """Base of the settings of algorithms that train every agent on a reward of its own."""

    team_reward: Literal["none", "auto", "sum", "mean"] = Field(
        "none",
        description="none: each agent's own; else the team's: the environment's, or the sum (auto), the sum, or the "
        "mean over agents alive",
    )
    credit_after_death: bool = Field(
        False, description="agents that left the episode still earn the team's reward; needs team_reward"
    )

    @property
    def reward_rule(self) -> RewardRule:
        """The rewards that policies are trained on."""
        team = None if self.team_reward == "none" else self.team_reward
        return RewardRule(team, self.credit_after_death, clip=self.reward_clip)

    def advice(self, setting: Setting) -> str:
        """See `AlgorithmConfig`; also warns of a sum that may count one reward several times."""
        return ". ".join(filter(None, (super().advice(setting), sum_advice(self.team_reward, setting))))

    @constraint
    def _credit_is_the_teams(self) -> None:
        if self.credit_after_death and self.team_reward == "none":
            raise ValueError("credit_after_death gives agents that died the team's reward; set team_reward: auto too")

    def check_reward(self, setting: Setting) -> None:
        """Raise SpecError for a team's reward among competitors."""
        if self.team_reward != "none" and setting.spaces.rewards == "competitive":
            raise SpecError(
                f"algorithm.team_reward {self.team_reward} rewards all agents alike, and those of env.name compete; "
                "set algorithm.team_reward: none"
            )


class TeamRewardConfig(ClippedRewardConfig):
    """Base of the settings of algorithms that maximise the team's reward."""

    alone: ClassVar[str]
    """The algorithm that trains each agent on its own reward instead."""
    team_reward: TeamReward = Field(
        "auto",
        description="the team's reward: the environment's or, without one, the sum (auto), the sum, or the mean over "
        "agents alive",
    )

    @property
    def reward_rule(self) -> RewardRule:
        """The rewards that policies are trained on."""
        return RewardRule(self.team_reward, joint=True, clip=self.reward_clip)

    def advice(self, setting: Setting) -> str:
        """See `AlgorithmConfig`; also warns if the environment does not declare whether its agents cooperate, or what
        the team earns.
        """
        told = (
            f"algorithm.name {self.name} maximises the reward of all agents together, and env.name does not say "
            f"whether they work together; if they compete, use {self.alone}"
        )
        unknown = told if setting.spaces.rewards == "unknown" else ""
        advice = super().advice(setting), unknown, sum_advice(self.team_reward, setting)
        return ". ".join(filter(None, advice))

    def check_team(self, spaces: EnvSpaces) -> None:
        """Raise SpecError for agents that compete."""
        if spaces.rewards == "competitive":
            raise SpecError(
                f"algorithm.name {self.name} maximises the reward of all agents together, and those of env.name "
                f"compete; use {self.alone} instead"
            )
