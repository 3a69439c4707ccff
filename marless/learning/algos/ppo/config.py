"""Settings of the PPO family: IPPO, MAPPO, and algorithms with another loss of policies.

Does not import torch, because the coordinator reads configs, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from marless.core.errors import SpecError
from marless.core.group import FunctionNode, Group
from marless.core.state import NetStep, ReturnScale
from marless.learning.algos.algorithm import Setting
from marless.learning.algos.learner import Scope
from marless.learning.algos.rates import Rate, value_at
from marless.learning.algos.team import RewardConfig


class ActorCriticConfig(RewardConfig):
    """Settings of the whole family, whatever the loss of policies.

    Policies and critics are separate nets with separate optimizers.
    """

    family: ClassVar[str] = "ppo"
    lr: Rate = Field(5e-4, description="Adam's learning rate of policies, and of critics without critic_lr")
    critic_lr: Rate | None = Field(None, description="Adam's learning rate of critics; null: lr")
    gamma: float = Field(0.99, ge=0, le=1, description="discount per env step")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="λ of generalised advantage estimation")
    advantage: Literal["gae", "vtrace"] = Field(
        "gae", description="vtrace: corrects values and advantages for actions of an earlier version of the policy"
    )
    vtrace_rho: float = Field(1.0, gt=0, description="ρ̄ of V-trace: limit of the ratio that weighs an error of values")
    vtrace_c: float = Field(1.0, gt=0, description="c̄ of V-trace: limit of the ratio that passes later errors on")
    epochs: int = Field(4, ge=1, le=1000, description="passes over a round's samples")
    critic_epochs: int | None = Field(None, ge=1, le=1000, description="those of critics; null: epochs")
    minibatches: int = Field(4, ge=1, le=65_536, description="gradient steps per pass")
    critic_minibatches: int | None = Field(None, ge=1, le=65_536, description="those of critics; null: minibatches")
    entropy: Rate = Field(0.01, description="weight of the entropy bonus")
    max_grad_norm: float = Field(0.5, gt=0, description="limit of each net's gradient norm, per policy")
    value_clip: float | None = Field(
        None, gt=0, description="limit of the change of values per round (normalised units); null: none"
    )
    huber: float | None = Field(
        None, gt=0, description="value errors above this are penalised linearly (normalised units); null: squared"
    )
    advantage_normalisation: bool = Field(
        True, description="advantages scaled to mean 0, standard deviation 1, per policy and round"
    )
    value_normalisation: bool = Field(
        True, description="critics are trained on returns scaled by running mean and standard deviation"
    )
    popart: bool = Field(
        False,
        description="true: values stay as they are when mean and deviation of the returns change, because the critic's "
        "last layer is rescaled; false: they move with the returns",
    )
    value_decay: float = Field(
        0.0, ge=0, lt=1, description="weight of earlier rounds in mean and deviation of the returns; 0: of this round"
    )
    adam_eps: float = Field(1e-5, gt=0, description="Adam's ε")

    @model_validator(mode="after")
    def _limits_belong_to_vtrace(self) -> Self:
        if self.advantage == "gae" and (self.vtrace_rho, self.vtrace_c) != (1.0, 1.0):
            raise ValueError("vtrace_rho and vtrace_c belong to advantage: vtrace; set it, or leave them out")
        return self

    def of_critics(self) -> Self:
        """The same settings with rate, epochs and minibatches of critics in the place of those of policies."""
        given = {"lr": self.critic_lr, "epochs": self.critic_epochs, "minibatches": self.critic_minibatches}
        return self.model_copy(update={name: value for name, value in given.items() if value is not None})

    def net_steps(self, env_steps: int) -> Mapping[str, NetStep]:
        """See `AlgorithmConfig`: policies and critics, each as `PPOLearner.apply` steps them."""
        returns = ReturnScale(decay=self.value_decay, popart=self.popart) if self.value_normalisation else None
        parts = {"policy": (self, None), "critic": (self.of_critics(), returns)}
        return {
            prefix: NetStep(
                lr=value_at(config.lr, env_steps),
                eps=config.adam_eps,
                max_grad_norm=config.max_grad_norm,
                returns=units,
            )
            for prefix, (config, units) in parts.items()
        }

    def check_minibatches(self, count: int, remembers: bool) -> None:
        """Raise SpecError for more minibatches than a net has samples or, with memory, segments in a round."""
        if count >= self.minibatches:
            return
        field = "critic_minibatches" if self.minibatches == self.critic_minibatches else "minibatches"
        if remembers:
            raise SpecError(
                f"algorithm.{field} is {self.minibatches}, but a policy with memory gets only {count} segments a "
                "round (actors.count · actors.envs · agents of the group), which are not cut in time: set at most "
                f"{count}, or raise actors.envs"
            )
        raise SpecError(
            f"algorithm.{field} is {self.minibatches}, but a policy gets only {count} samples a round "
            "(actors.count · actors.envs · actors.steps · agents of the group)"
        )

    def check_setting(self, setting: Setting) -> None:
        """Raise SpecError for rounds that cannot be divided into so many minibatches, and for a team of competitors."""
        self.check_reward(setting)
        remembers = setting.model.remembers
        for each in (self, self.of_critics()):
            each.check_minibatches(setting.samples // setting.steps if remembers else setting.samples, remembers)


class PPOConfig(ActorCriticConfig):
    """Settings of the clipped surrogate, beside those of the family."""

    learns_from_earlier: ClassVar[bool] = True
    """Its ratios are to the log-probabilities that the actors recorded."""
    clip: Rate = Field(0.2, description="ε of the clipped surrogate")
    truncation: Literal["none", "least", "floor"] = Field(
        "none",
        description="limit of ratios over the learners whose gradients are aggregated (Yu et al. 2024): least: the "
        "least ratio of all of them, and ρ; floor: their least ratio, but not below ρ",
    )
    truncation_rho: float = Field(1.0, gt=0, description="ρ of truncation")

    @model_validator(mode="after")
    def _rho_belongs_to_truncation(self) -> Self:
        if self.truncation == "none" and self.truncation_rho != 1.0:
            raise ValueError("truncation_rho belongs to truncation: least or floor; set one, or leave it out")
        return self


def ppo_functions(scope: Scope, groups: Sequence[Group], critics: Sequence[str]) -> tuple[FunctionNode, ...]:
    """The function graph of PPO: post-processing, then critics and policies, independent of each other."""
    first = FunctionNode("post_process", scope.name)
    return (
        first,
        *(FunctionNode("critic", name, after=(first.id,)) for name in critics),
        *(FunctionNode("policy", group.policy, after=(first.id,)) for group in groups),
    )
