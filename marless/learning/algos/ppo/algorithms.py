"""The PPO family: settings, checks and function graph of IPPO, MAPPO and IMPACT. Imports no torch.

The coordinator reads these settings, too. `marless.learning.algos.ppo.learner` has the learner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from marless.core.errors import SpecError
from marless.core.group import FunctionNode, Group
from marless.core.settings import Field, constraint
from marless.core.state import NetStep, ReturnScale
from marless.learning.algos.algorithm import AlgorithmConfig, Setting
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.algos.settings import Rate, RewardConfig, value_at

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces
    from marless.learning.nets.model import ModelSpec

Critic = Literal["own", "state", "joint"]
"""own: one critic per policy, of its agents' observations; state: one per policy, of the global state; joint: one
critic of the global state for the whole class, with one output per agent."""
Normalised = Literal["round", "minibatch", "none"]
BATCHES = "batches."
"""What the name of the state that holds an agent class's batches of IMPACT begins with."""


class ActorCriticConfig(RewardConfig):
    """Settings of the whole family, whatever the loss of policies.

    Policies and critics are separate nets with separate optimizers.
    """

    family: ClassVar[str] = "ppo"
    normalises: ClassVar[bool] = True
    lowers_precision: ClassVar[bool] = True
    captures_steps: ClassVar[bool] = True
    stacks_frames: ClassVar[bool] = True
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
    advantage_normalisation: Normalised = Field(
        "round",
        description="what advantages are scaled over to mean 0, deviation 1, per policy: the round, or each minibatch",
    )
    value_normalisation: bool = Field(
        True, description="critics are trained on returns scaled by running mean and standard deviation"
    )
    popart: bool = Field(
        False,
        description="true: values stay when mean and deviation of the returns change: the last layer is rescaled",
    )
    value_decay: float = Field(
        0.0, ge=0, lt=1, description="weight of earlier rounds in mean and deviation of the returns; 0: of this round"
    )
    adam_eps: float = Field(1e-5, gt=0, description="Adam's ε")
    output_gain: float = Field(
        0.01, gt=0, le=100, description="gain of a policy's initial output layer: how far it is from uniform at first"
    )
    distribution: Literal["normal", "squashed_normal", "beta"] = Field(
        "normal",
        description="of continuous actions: normal, clipped to the box; squashed_normal, its tanh; beta, in the box",
    )
    initial_std: float = Field(
        1.0,
        ge=1e-3,
        le=100,
        description="initial deviation of a normal distribution, in units where the box is [−1, 1]",
    )

    @constraint
    def _limits_belong_to_vtrace(self) -> None:
        if self.advantage == "gae" and (self.vtrace_rho, self.vtrace_c) != (1.0, 1.0):
            raise ValueError("vtrace_rho and vtrace_c belong to advantage: vtrace; set it, or leave them out")

    @constraint
    def _deviations_are_of_normals(self) -> None:
        if self.distribution == "beta" and self.initial_std != 1.0:
            raise ValueError("initial_std belongs to distribution: normal or squashed_normal; leave it out")

    @property
    def shares_torso(self) -> bool:
        """True if one net is policy and critic at once."""
        return False

    def of_critics(self) -> Self:
        """The same settings with rate, epochs and minibatches of critics in the place of those of policies."""
        given = {"lr": self.critic_lr, "epochs": self.critic_epochs, "minibatches": self.critic_minibatches}
        return self.model_copy(update={name: value for name, value in given.items() if value is not None})

    def net_steps(self, env_steps: int) -> Mapping[str, NetStep]:
        """See `AlgorithmConfig`: policies and critics, each as `PPOLearner.apply` steps them."""
        returns = ReturnScale(decay=self.value_decay, popart=self.popart) if self.value_normalisation else None
        parts: dict[str, tuple[ActorCriticConfig, ReturnScale | None]]
        parts = {"policy": (self, None), "critic": (self.of_critics(), returns)}
        if self.shares_torso:
            parts = {"policy": (self, returns)}
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
        self._check_actions(setting.spaces)
        remembers = setting.model.remembers
        for each in (self, self.of_critics()):
            each.check_minibatches(setting.samples // setting.steps if remembers else setting.samples, remembers)

    def _check_actions(self, spaces: EnvSpaces) -> None:
        """Raise SpecError for settings of continuous actions where there are none, and for boxes without bounds."""
        from marless.learning.envs.base import BOUNDLESS, Box  # imported here, because it imports NumPy

        boxes = [each.action for each in spaces.classes if isinstance(each.action, Box)]
        given = ["initial_std"] * (self.initial_std != 1.0) + ["distribution"] * (self.distribution != "normal")
        if given and not boxes:
            raise SpecError(f"algorithm.{given[0]}: all actions of env.name are discrete; leave it out")
        bounds = [bound for box in boxes for bound in (*box.low, *box.high)]
        if self.distribution != "normal" and any(abs(bound) >= BOUNDLESS for bound in bounds):
            raise SpecError(
                f"algorithm.distribution: {self.distribution} needs two bounds of each component, and actions of "
                "env.name have components without; use normal"
            )


class PPOConfig(ActorCriticConfig):
    """Settings of the clipped surrogate, beside those of the family."""

    learns_from_earlier: ClassVar[bool] = True
    """Its ratios are to the log-probabilities that the actors recorded."""
    clip: Rate = Field(0.2, description="ε of the clipped surrogate")
    correct_lag: bool = Field(
        True,
        description="under schedule pipelined, ratios are to the policies that the update starts from; false: to those "
        "that acted, a version before",
    )
    target_kl: float | None = Field(
        None,
        gt=0,
        description="a policy's steps of a round end once a minibatch's KL divergence exceeds 1.5 times this; null: "
        "all are taken",
    )
    truncation: Literal["none", "least", "floor"] = Field(
        "none",
        description="limit of ratios over the learners whose gradients are aggregated (Yu et al. 2024): least: the "
        "least of all, and ρ; floor: their least, but not below ρ",
    )
    truncation_rho: float = Field(1.0, gt=0, description="ρ of truncation")

    @constraint
    def _rho_belongs_to_truncation(self) -> None:
        if self.truncation == "none" and self.truncation_rho != 1.0:
            raise ValueError("truncation_rho belongs to truncation: least or floor; set one, or leave it out")

    @property
    def needs_rounds(self) -> str:
        if self.target_kl is None:
            return ""
        return "algorithm.target_kl ends the gradient steps of a round early, and there each batch gives one gradient"

    def of_critics(self) -> Self:
        """See `ActorCriticConfig`; critics take all their steps."""
        return super().of_critics().model_copy(update={"target_kl": None})


def ppo_functions(scope: Scope, groups: Sequence[Group], critics: Sequence[str]) -> tuple[FunctionNode, ...]:
    """The function graph of PPO: post-processing, then critics and policies, independent of each other."""
    first = FunctionNode("post_process", scope.name)
    return (
        first,
        *(FunctionNode("critic", name, after=(first.id,)) for name in critics),
        *(FunctionNode("policy", group.policy, after=(first.id,)) for group in groups),
    )


class _PPO:
    """Base of the family's algorithms, which differ in their config and in their critics."""

    config_type: type[AlgorithmConfig]

    def critic(self, config: AlgorithmConfig) -> Critic:
        """What critics read, and whom each serves."""
        return "own"

    def needs_state(self, config: AlgorithmConfig) -> bool:
        return self.critic(config) != "own"

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raise SpecError for more minibatches than samples or, with recurrent nets, segments; and for a missing global
        state, if critics read it. All spaces will do.
        """
        self._own(config).check_setting(setting)
        if self.needs_state(config) and setting.spaces.state_size == 0:
            raise SpecError(
                f"algorithm.name {config.name} needs a global state, and env.name gives none "
                f"({setting.spaces.no_state or 'state_size is 0'}); use ippo instead"
            )

    def joint(self, config: AlgorithmConfig) -> bool:
        return False

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """Post-processing, then critics and policies in parallel."""
        critics = [f"critic.{scope.name}"] if self.critic(config) == "joint" else [group.policy for group in groups]
        return ppo_functions(scope, groups, [] if self._own(config).shares_torso else critics)

    def net_bytes(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces, model: ModelSpec
    ) -> Mapping[str, int]:
        from marless.learning.algos import state_sizes

        own = self._own(config)
        critic = "shared" if own.shares_torso else self.critic(config)
        return state_sizes.ppo(scope, groups, spaces, model, critic=critic, distribution=own.distribution)

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        from marless.learning.algos.ppo.learner import PPOLearner

        return PPOLearner(self, self._own(config), context, critic=self.critic(config))

    def _own(self, config: AlgorithmConfig) -> ActorCriticConfig:
        return config if isinstance(config, ActorCriticConfig) else ActorCriticConfig.model_validate(config)


class IPPOConfig(PPOConfig):
    """Settings of IPPO."""

    name: Literal["ippo"] = Field("ippo", description="this algorithm")
    torso: Literal["separate", "shared"] = Field("separate", description="shared: one net is policy and critic")
    value_weight: float = Field(0.5, gt=0, le=1000, description="weight of the critic's loss with a shared torso")

    @constraint
    def _one_net_has_one_optimizer(self) -> None:
        given = [
            name for name in ("critic_lr", "critic_epochs", "critic_minibatches") if getattr(self, name) is not None
        ]
        if self.shares_torso and given:
            raise ValueError(f"{given[0]} is of critics that are nets of their own, and torso is shared; leave one out")
        if not self.shares_torso and self.value_weight != 0.5:
            raise ValueError("value_weight belongs to torso: shared; set it, or leave it out")

    @property
    def shares_torso(self) -> bool:
        return self.torso == "shared"

    def check_setting(self, setting: Setting) -> None:
        super().check_setting(setting)
        if self.shares_torso and setting.model.remembers:
            raise SpecError(
                "algorithm.torso: shared needs a net without memory: policies go on from the memory with which they "
                "acted, and critics begin with an empty one; use torso: separate"
            )


class IPPO(_PPO):
    """Independent PPO (de Witt et al. 2020): every policy has a critic of its own agents' observations."""

    config_type: type[AlgorithmConfig] = IPPOConfig


class MAPPOConfig(PPOConfig):
    """Settings of MAPPO."""

    name: Literal["mappo"] = Field("mappo", description="this algorithm")
    critic: Literal["central", "per_agent"] = Field(
        "central", description="central: one critic per agent class with an output per agent; per_agent: one per policy"
    )


class MAPPO(_PPO):
    """Multi-agent PPO (Yu et al. 2022): critics read the global state, which is used in training only."""

    config_type: type[AlgorithmConfig] = MAPPOConfig

    def critic(self, config: AlgorithmConfig) -> Critic:
        return "joint" if MAPPOConfig.model_validate(config).critic == "central" else "state"


class ImpactConfig(ActorCriticConfig):
    """Settings of IMPACT, beside those of the family."""

    learns_from_earlier: ClassVar[bool] = True
    """Advantages are corrected for the policies that acted, and ratios are to a target network."""
    name: Literal["impact"] = Field("impact", description="this algorithm")
    clip: Rate = Field(0.4, description="ε of the clipped surrogate")
    advantage: Literal["gae", "vtrace"] = Field(
        "vtrace", description="V-trace of the target network, which is how it learns from batches of earlier rounds"
    )
    epochs: int = Field(
        2, ge=1, le=1000, description="K: how often each batch is used, over the rounds that it is kept"
    )
    batches: int = Field(4, ge=1, le=64, description="N: rounds for which a batch, the samples of a round, is kept")
    rho: float = Field(2.0, gt=0, description="ρ: limit of the importance μ/π_target of what the actors did")
    target_frequency: float = Field(
        2.0, gt=0, le=1000, description="the target network is updated after this many times N · K uses of batches"
    )

    @constraint
    def _fits_together(self) -> None:
        if self.advantage != "vtrace":
            raise ValueError("advantage: gae does not correct for the policies that acted, as impact must; use vtrace")
        if self.critic_epochs is not None:
            raise ValueError("critic_epochs has no meaning here: critics learn at each use of a batch; leave it out")

    def target_steps(self) -> int:
        """Optimizer steps of a policy between two updates of its target network."""
        return max(1, round(self.target_frequency * self.batches * self.epochs)) * self.minibatches

    def net_steps(self, env_steps: int) -> Mapping[str, NetStep]:
        steps = super().net_steps(env_steps)
        return {**steps, "policy": replace(steps["policy"], target_steps=self.target_steps())}

    def takes_steps(self, name: str) -> bool:
        return not name.startswith(BATCHES)


class Impact(IPPO):
    """IMPACT (Luo et al. 2020): PPO whose ratios are to a target network, on batches of several rounds.

    The functions and critics are those of IPPO, executed once for each batch that is used.
    """

    config_type: type[AlgorithmConfig] = ImpactConfig

    def net_bytes(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces, model: ModelSpec
    ) -> Mapping[str, int]:
        from marless.learning.algos import state_sizes

        distribution = ImpactConfig.model_validate(config).distribution
        return state_sizes.ppo(scope, groups, spaces, model, critic="own", target=True, distribution=distribution)

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        from marless.learning.algos.ppo.impact_learner import ImpactLearner

        return ImpactLearner(self, ImpactConfig.model_validate(config), context)


ippo, mappo, impact = IPPO(), MAPPO(), Impact()
