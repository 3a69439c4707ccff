"""Settings common to off-policy algorithms, which train on a replay buffer of past rounds. Does not import torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from marless.core.errors import SpecError
from marless.core.settings import Field, Section, constraint
from marless.learning.algos.algorithm import AlgorithmConfig, Setting, remembered, stacked_frames
from marless.learning.algos.settings import Rate, RewardRule

ENV_STEPS, EPISODES = 512, 32
"""Default sizes of a batch, in env steps or episodes, by the replay's unit."""


class ReplaySpec(Section):
    """The replay buffer and draws from it. Samples are kept per agent, so that groups may change."""

    capacity: int = Field(
        100_000,
        ge=1,
        le=10**9,
        description="frames kept: env steps, and one more per episode; the oldest rounds are dropped first",
    )
    unit: Literal["transitions", "episodes"] = Field(
        "transitions", description="unit of draws: single env steps, or whole episodes, which nets with memory need"
    )
    draw: Literal["uniform", "prioritised"] = Field(
        "uniform", description="prioritised: samples with a large TD error more often (Schaul et al. 2016)"
    )
    alpha: float = Field(0.6, ge=0, le=1, description="exponent of priorities in prioritised draws; 0: uniform")
    beta: Rate = Field(0.4, description="prioritised draws: how far importance weights correct the bias")
    priorities_every: int = Field(
        1,
        ge=1,
        le=10**6,
        description="prioritised draws: gradient steps that are drawn for with the same priorities, for which a GPU is "
        "waited for once",
    )
    burn_in: int = Field(
        5,
        ge=0,
        le=10_000,
        description="nets with memory, carried episodes: first steps of a part of an episode that only update the "
        "memory; at most half of them",
    )


class OffPolicyConfig(AlgorithmConfig):
    """Settings common to the Q-learning and the deterministic policy gradient families."""

    learns_from_earlier: ClassVar[bool] = True
    normalises: ClassVar[bool] = True
    lowers_precision: ClassVar[bool] = True
    stacks_frames: ClassVar[bool] = True
    often: ClassVar[int] = 64
    """Mean number of draws per sample above which a job gets a warning; 1 to 8 are common in teams."""
    lr: Rate = Field(5e-4, description="learning rate of policies, and of a mixer")
    optimizer: Literal["adam", "rmsprop"] = Field("adam", description="optimizer of all nets")
    optimizer_eps: float = Field(1e-5, gt=0, description="ε in the optimizer's denominator")
    gamma: float = Field(0.99, ge=0, le=1, description="discount per env step")
    batch: int | None = Field(
        None,
        ge=1,
        le=10**6,
        description=f"env steps or episodes per gradient step; null: {ENV_STEPS} env steps, or {EPISODES} episodes",
    )
    updates: int | None = Field(
        None,
        ge=1,
        le=10**6,
        description="gradient steps per round; null: by the replay ratio",
    )
    replay_ratio: float = Field(0.05, gt=0, le=100, description="gradient steps per env step")
    warmup: int = Field(1000, ge=0, le=10**9, description="env steps in the replay before the first gradient step")
    n_step: int = Field(1, ge=1, le=1000, description="rewards summed before the target net's value is added")
    target_every: int | None = Field(None, ge=1, le=10**9, description="gradient steps between copies to target nets")
    target_tau: float = Field(0.01, gt=0, le=1, description="fraction by which each gradient step moves a target net")
    max_grad_norm: float = Field(10.0, gt=0, description="limit of each net's gradient norm")
    reward_normalisation: bool = Field(
        True, description="values are shifted and scaled, so that rewards in targets have mean 0, deviation 1"
    )
    replay: ReplaySpec = ReplaySpec()

    @property
    def reward_rule(self) -> RewardRule:
        """The rewards that policies are trained on."""
        return RewardRule()

    @property
    def batch_size(self) -> int:
        """Env steps or episodes per batch."""
        return self.batch or (EPISODES if self.replay.unit == "episodes" else ENV_STEPS)

    def gradient_steps(self, sampled: int) -> int:
        """Number of gradient steps of a round with `sampled` env steps."""
        return self.updates or max(int(sampled * self.replay_ratio), 1)

    def samples(self, sampled: int, steps: int) -> int:
        """See `AlgorithmConfig`: a batch for each gradient step."""
        return self.gradient_steps(sampled) * self.batch_size * (steps if self.replay.unit == "episodes" else 1)

    def drawn(self, steps: int) -> int | None:
        return None if self.updates is None else self.samples(0, steps)

    def advice(self, setting: Setting) -> str:
        """Warns of a job that ends before its first gradient step, or draws each sample more than `often` times; and of
        rewards that do not reach the dead.
        """
        return ". ".join(filter(None, (self._advice_on_steps(setting), self._advice_on_deaths(setting))))

    @property
    def credit_steps(self) -> int | None:
        """Steps over which the rewards of a target are summed; None: those of the whole episode."""
        return self.n_step

    def _advice_on_deaths(self, setting: Setting) -> str:
        """The dead observe zeros, whatever they did: their value is one number, which tells no action from another. So
        only rewards within the sum of a target reach the actions before a death.
        """
        if not (self.reward_rule.after_death and setting.spaces.deaths) or self.credit_steps is None:
            return ""
        if setting.spaces.max_steps is not None and self.credit_steps >= setting.spaces.max_steps:
            return ""
        return (
            f"algorithm.credit_after_death reaches an agent's actions over algorithm.n_step: {self.credit_steps}: what "
            "its team earns more steps after its death does not, because dead agents observe nothing; raise "
            "algorithm.n_step until it spans the steps from a death to the reward"
        )

    def _advice_on_steps(self, setting: Setting) -> str:
        if setting.total_steps is not None and setting.total_steps < self.warmup:
            return (
                f"algorithm.warmup is {self.warmup} env steps, and the job samples at most {setting.total_steps}: it "
                "would end before its first gradient step"
            )
        sampled = setting.round_steps
        if sampled is not None and (drawn := self.samples(sampled, setting.steps)) > self.often * sampled:
            field = "replay_ratio" if self.updates is None else "updates"
            return (
                f"algorithm.{field}: {self.gradient_steps(sampled)} batches a round draw {drawn:,} samples, "
                f"{sampled:,} are new, so each is learned from {drawn / sampled:.0f} times; lower algorithm.{field}, "
                "or raise actors.envs"
            )
        return ""

    def warm(self) -> Self:
        """See `AlgorithmConfig`: without a warm-up."""
        return self.model_copy(update={"warmup": 0})

    @constraint
    def _capacity_covers_warmup(self) -> None:
        if self.replay.capacity < max(self.warmup, self.batch_size if self.replay.unit == "transitions" else 1):
            raise ValueError(
                f"replay.capacity {self.replay.capacity} is less than warmup {self.warmup} or batch {self.batch_size}: "
                "nothing would ever be learned; raise replay.capacity"
            )


def check_replay(config: OffPolicyConfig, setting: Setting) -> None:
    """Raise SpecError for settings of the replay buffer that cannot work in this job."""
    if setting.model.remembers and config.replay.unit != "episodes":
        raise SpecError(
            f"a {setting.model.kind} net, which has a memory, learns from whole episodes, and algorithm.replay.unit is "
            f"{config.replay.unit}; set algorithm.replay.unit: episodes, or choose a net without"
        )
    _check_capacity(config, setting)


def _check_capacity(config: OffPolicyConfig, setting: Setting) -> None:
    """Raise SpecError for a replay buffer that is too small to train, or too large for a learner function."""
    from marless.learning.data.frames import ReplaySchema  # imported here, because it imports NumPy

    before = max(stacked_frames(setting.model, setting.spaces, carried=setting.carried), default=1) - 1
    capacity, segment = config.replay.capacity, setting.steps + 1 + before
    # Each segment of T env steps takes T + 1 frames, as the view after its last step is kept, too; and the images
    # before its first one, where nets read them and episodes are carried.
    kept = capacity // segment * setting.steps
    if kept < max(config.warmup, 1):
        raise SpecError(
            f"algorithm.replay.capacity {capacity} holds {kept} env steps of segments of actors.steps {setting.steps}, "
            f"each with its last view, and algorithm.warmup asks for {config.warmup}: nothing would ever be learned; "
            "raise replay.capacity"
        )
    for scope in setting.scopes:
        memory = remembered(config, setting.model, setting.spaces, carried=setting.carried)
        frames = stacked_frames(setting.model, setting.spaces, carried=setting.carried)
        schema = ReplaySchema(setting.spaces, scope.classes, setting.with_state, memory, frames)
        if (size := schema.file_bytes(capacity)) > setting.memory_bytes:
            fits = setting.memory_bytes // schema.frame_bytes
            raise SpecError(
                f"algorithm.replay.capacity {capacity:,} takes {size / 2**20:,.0f} MiB in the learner of {scope.name}, "
                f"and functions.learner.memory_mb gives it {setting.memory_bytes / 2**20:,.0f}; lower replay.capacity "
                f"to {fits:,} at most, or raise functions.learner.memory_mb"
            )
