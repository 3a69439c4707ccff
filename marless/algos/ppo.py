"""Settings of the PPO family (IPPO, MAPPO). Does not import torch, because the coordinator reads configs, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from marless.algos.base import AlgorithmConfig, FunctionNode, Group, Rate, Scope, Setting
from marless.errors import SpecError


class PPOConfig(AlgorithmConfig):
    """Settings common to IPPO and MAPPO. Policies and critics are separate nets with separate optimizers."""

    family: ClassVar[str] = "ppo"
    lr: Rate = Field(2e-3, description="Adam's learning rate of policies and critics")
    gamma: float = Field(0.95, ge=0, le=1, description="discount per env step")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="λ of generalised advantage estimation")
    clip: Rate = Field(0.2, description="ε of the clipped surrogate")
    epochs: int = Field(4, ge=1, le=1000, description="passes over a round's samples")
    minibatches: int = Field(4, ge=1, le=65_536, description="gradient steps per pass")
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
    adam_eps: float = Field(1e-5, gt=0, description="Adam's ε")

    def check_minibatches(self, count: int, remembers: bool) -> None:
        """Raise SpecError for more minibatches than a policy has samples or, with memory, segments in a round."""
        if count >= self.minibatches:
            return
        if remembers:
            raise SpecError(
                f"algorithm.minibatches is {self.minibatches}, but a policy with memory gets only {count} segments a "
                "round (actors.count · actors.envs · agents of the group), which are not cut in time: set at most "
                f"{count}, or raise actors.envs"
            )
        raise SpecError(
            f"algorithm.minibatches is {self.minibatches}, but a policy gets only {count} samples a round "
            "(actors.count · actors.envs · actors.steps · agents of the group)"
        )

    def check_setting(self, setting: Setting) -> None:
        """Raise SpecError if a job's rounds cannot be divided into `minibatches` minibatches."""
        remembers = setting.model.recurrent != "none"
        self.check_minibatches(setting.samples // setting.steps if remembers else setting.samples, remembers)


def ppo_functions(scope: Scope, groups: Sequence[Group], critics: Sequence[str]) -> tuple[FunctionNode, ...]:
    """The function graph of PPO: post-processing, then critics and policies, independent of each other."""
    first = FunctionNode("post_process", scope.name)
    return (
        first,
        *(FunctionNode("critic", name, after=(first.id,)) for name in critics),
        *(FunctionNode("policy", group.policy, after=(first.id,)) for group in groups),
    )
