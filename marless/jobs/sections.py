"""Sections of a job whose fields do not depend on the algorithm or policies that it names; see `marless.jobs.spec`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from marless.core.errors import SpecError
from marless.core.limits import MAX_ACTORS, MAX_ENVS, MAX_EPISODES, MAX_NAME, MAX_STEPS, MAX_TIMEOUT_S
from marless.core.validation import Strict
from marless.jobs import prices as price_tables
from marless.learning.envs.allowed import FILM_OPTION, MASK_OPTION
from marless.learning.nets.kinds import Precision

MOST_ROUNDS = 10**9
MOST_ENV_STEPS = 10**15


class MaskSpec(Strict):
    """Which entry of observations or infos is the mask of legal actions, and how it is read."""

    key: str = Field(min_length=1, max_length=MAX_NAME, description="name of the entry")
    inverted: bool = Field(False, description="ones stand for actions that are illegal")
    of: Literal["actions", "components"] | None = Field(
        None,
        description="a number per action (of MultiDiscrete: per combination), or per choice of each component; null: "
        "what their number says",
    )


class EnvSpec(Strict):
    """The environment and its options."""

    name: str = Field(
        max_length=MAX_NAME, description="mpe/<game>, game/<game>, pettingzoo/<module>, gymnasium/<id>, …"
    )
    options: dict[str, JsonValue] = Field(default_factory=dict, description="passed to the environment")
    mask: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | MaskSpec = Field(
        "auto",
        description="of pettingzoo/… and gymnasium/…: auto, none, or the entry of observations or infos that is the "
        "mask",
    )

    @field_validator("options")
    @classmethod
    def _masks_have_a_field(cls, options: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if FILM_OPTION in options:
            raise ValueError(f"{FILM_OPTION} is set by films only; leave it out")
        if MASK_OPTION in options:
            raise ValueError(f"{MASK_OPTION} is a field beside options, not one of them")
        return options

    @property
    def arguments(self) -> dict[str, JsonValue]:
        """The options with which the environment is made everywhere, the choice of its mask among them."""
        if self.mask == "auto":
            return self.options
        mask = self.mask if isinstance(self.mask, str) else self.mask.model_dump(exclude_defaults=True)
        return {**self.options, MASK_OPTION: mask}


class ActorsSpec(Strict):
    """How many env steps each round samples: count · envs · steps."""

    count: int = Field(2, ge=1, le=MAX_ACTORS, description="actors per round, unless a scaling policy decides")
    envs: int = Field(80, ge=1, le=MAX_ENVS, description="environment copies per actor")
    steps: int = Field(25, ge=1, le=MAX_STEPS, description="time steps per copy")
    episodes: Literal["carried", "fresh"] = Field(
        "carried",
        description="carried: unfinished episodes go on in the next round; fresh: every round starts new ones",
    )
    timeout_s: float = Field(
        300.0, gt=0, le=MAX_TIMEOUT_S, description="an actor that takes longer is given to another worker"
    )


class BillSpec(Strict):
    """Which accounting gives the job's cost, and at what prices."""

    accounting: price_tables.Accounting = Field(
        "billed",
        description="billed: all that a provider charges; paper: work alone; serverful: a machine for the whole run; "
        "machines: those that workers ran on",
    )
    time: price_tables.BilledTime = Field(
        "duration",
        description="charged seconds of functions: durations, as by providers, or CPU seconds, which other programs "
        "hardly change",
    )
    starts: price_tables.BilledStart = Field(
        "function",
        description="a start is charged for each function, as in a container of its own (printed), or each process",
    )
    prices: dict[str, JsonValue] | None = Field(
        None, description="prices in place of marless's; in a job file also the path of a file"
    )

    @field_validator("prices")
    @classmethod
    def _are_prices(cls, given: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
        try:
            if given is not None:
                price_tables.merged(given, "prices")
        except SpecError as error:
            raise ValueError("; ".join(str(error).splitlines())) from None
        return given


class EvaluationSpec(Strict):
    """Periodic greedy evaluation, and the random baseline, evaluated once per job, concurrently with training."""

    every: int = Field(
        10,
        ge=0,
        le=MOST_ROUNDS,
        description="rounds between evaluations; 0: only at the end; default: 10, at most a tenth of the rounds",
    )
    episodes: int = Field(100, ge=1, le=MAX_EPISODES, description="episodes of one evaluation, at most")
    random_episodes: int = Field(1000, ge=1, le=MAX_EPISODES, description="episodes of the random baseline, at most")
    limit_s: float | None = Field(
        10.0,
        gt=0,
        le=MAX_TIMEOUT_S,
        description="seconds of play after which evaluations and the random baseline start no episodes; null: none",
    )
    relative_error: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="a standard error of this fraction of |mean return| suffices, once each actor has played 30 "
        "episodes; 0: play all episodes",
    )


class LearnerSpec(Strict):
    """The device for updates, and their time limit."""

    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$",
        description="auto: a GPU where its gradient steps are measured to be quicker than the CPU's",
    )
    deterministic: bool = Field(
        True,
        description="a GPU computes the same bits again; false: also by kernels that may not, which can be quicker",
    )
    precision: Precision = Field(
        "float32",
        description="bfloat16: of the gradients of nets that torch differentiates, which it computes faster on GPUs",
    )
    graphs: bool = Field(
        True,
        description="a GPU repeats gradient steps of ippo, mappo and impact as captured graphs, not kernel by kernel",
    )
    timeout_s: float = Field(
        600.0,
        gt=0,
        le=MAX_TIMEOUT_S,
        description="an update that takes longer is given to another worker, once; then the job fails",
    )


class CheckpointSpec(Strict):
    """How often checkpoints are written to the run folder, and how many are kept."""

    every: int = Field(50, ge=0, le=MOST_ROUNDS, description="rounds between checkpoints; 0: only at the end")
    keep: int = Field(3, ge=1, le=MOST_ROUNDS, description="newest checkpoints kept")
    best: bool = Field(
        False,
        description="also write one of each round that is evaluated, and keep that with the highest greedy return",
    )


class StartSpec(Strict):
    """The initial weights of the policies: new, or from a checkpoint."""

    checkpoint: str | None = Field(
        None,
        min_length=1,
        description="id of a job; in a job file also a run folder or checkpoint; else new weights",
    )


class StopSpec(Strict):
    """Stop rules: the job succeeds as soon as one of them is reached; at least one must be set."""

    rounds: int | None = Field(None, ge=1, le=MOST_ROUNDS)
    env_steps: int | None = Field(None, ge=1, le=MOST_ENV_STEPS, description="env steps sampled for training")
    greedy_return: float | None = Field(
        None, alias="return", description="mean greedy evaluation return per agent reached"
    )
    wall_s: float | None = Field(
        None,
        gt=0,
        le=MOST_ROUNDS,
        description="seconds of training, without interruptions",
    )
    cost_usd: float | None = Field(
        None, gt=0, le=MOST_ROUNDS, description="US dollars by `bill.accounting`; no round starts beyond"
    )

    @model_validator(mode="after")
    def _some_rule(self) -> StopSpec:
        if self.model_dump(exclude_none=True) == {}:
            raise ValueError(
                "set at least one of rounds, env_steps, return, wall_s, cost_usd: a job must be able to end"
            )
        return self
