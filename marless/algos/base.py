"""The protocols of algorithms and learners. Importing this module, or any algorithm's config, imports no torch.

An algorithm has a config (its settings), declares the functions of an update, and makes learners. A *learner* runs in a
learner worker, holds the stacked parameters of every policy of its scope (one agent class, or all), and updates all of
them from the trajectories of a round, in as few stacked passes as their shapes allow.
Weights and all other state of a learner are transferred as `PolicyState`: named arrays, published as one immutable
version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticKnownError

from marless.errors import SpecError
from marless.interruption import Stopped, never
from marless.limits import MAX_LAYERS, MAX_NAME, MAX_WIDTH
from marless.nets.kinds import GRU, MLP, kind_of

if TYPE_CHECKING:  # so that `marless submit` can check a job file without the time to import NumPy
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from marless.data.trajectory import Trajectory
    from marless.envs.base import AgentClass, EnvSpaces

Arrays: TypeAlias = "Mapping[str, NDArray[np.generic]]"
Width: TypeAlias = Annotated[int, Field(gt=0, le=MAX_WIDTH)]
"""Units of a layer."""
REPLAY = "replay"
"""The metadata "kind" of a state that holds a replay buffer instead of a policy."""


class Strict(BaseModel):
    """Base of every section of a job: immutable, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `true` where a number is due; pydantic takes it as 1."""
        if isinstance(value, bool) and info.field_name:
            kinds = _leaves(cls.model_fields[info.field_name].annotation)
            if bool not in kinds and kinds & {int, float}:
                raise PydanticKnownError("float_type" if float in kinds else "int_type")
        return value


def _leaves(annotation: Any) -> set[Any]:
    """The types that an annotation allows: {int, NoneType} for `int | None`."""
    if get_origin(annotation) is Annotated:
        return _leaves(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return set().union(*map(_leaves, get_args(annotation)))
    return {annotation}


class ModelSpec(Strict):
    """The nets of every policy and critic: perceptrons, or recurrent nets."""

    net: str = Field("mlp", max_length=MAX_NAME, description="kind of net: mlp, or one of another package")
    hidden: tuple[Width, ...] = Field(
        (64, 64), description="units of each hidden layer", min_length=1, max_length=MAX_LAYERS
    )
    activation: Literal["tanh", "relu"] = Field("tanh", description="non-linearity after each hidden layer")
    recurrent: Literal["none", "gru"] = Field(
        "none", description="gru: the last hidden layer consists of gated recurrent units, with a memory of the episode"
    )
    agent_id: bool | None = Field(
        None,
        description="the agent's id within its class is an additional input; null: where sharing.groups lets agents "
        "share a policy",
    )

    @field_validator("net")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            kind_of(name)
        except SpecError as error:
            raise ValueError(f"{error}") from None
        return name

    @model_validator(mode="after")
    def _one_memory(self) -> Self:
        if self.recurrent == GRU and self.net not in (MLP, GRU):
            raise ValueError(f"recurrent: gru is for net: mlp; {self.net} brings a memory of its own, or none")
        return self

    @property
    def kind(self) -> str:
        """The kind of the nets, see `marless.nets.kinds`."""
        return GRU if self.recurrent == GRU else self.net

    @property
    def memory(self) -> int:
        """H, numbers that a net remembers of each episode; 0 if it has no memory."""
        return kind_of(self.kind).memory(tuple(self.hidden))

    @property
    def remembers(self) -> bool:
        """True if nets have a memory of the episode."""
        return self.memory > 0


class Schedule(Strict):
    """A value that moves linearly from `start` to `end` over the first `env_steps` env steps, then stays."""

    start: NonNegativeFloat
    end: NonNegativeFloat
    env_steps: int = Field(gt=0, le=10**15)

    def at(self, env_steps: int) -> float:
        """The value once `env_steps` env steps (all agents act once) have been sampled."""
        done = min(env_steps / self.env_steps, 1.0)
        return self.start + (self.end - self.start) * done


Rate: TypeAlias = NonNegativeFloat | Schedule
"""A setting that may follow a schedule."""


def value_at(rate: Rate, env_steps: int) -> float:
    """The value of a rate after `env_steps` env steps."""
    return rate.at(env_steps) if isinstance(rate, Schedule) else rate


class CurvatureSpec(Strict):
    """Settings of curvature measurement, which runs if a scaling or sharing policy needs it."""

    samples: int = Field(
        128, ge=1, le=65_536, description="samples of the round used per policy, drawn anew each round"
    )
    steps: int = Field(8, ge=2, le=1000, description="Lanczos steps, a Hessian-vector product each")
    probes: int = Field(1, ge=1, le=100, description="random starts; the extreme eigenvalues over all starts count")


class SimilarityConfig(Strict):
    """Base of every similarity's config; `name` selects it in the registry of `marless.sharing.similarity`."""

    name: str
    samples: int = Field(256, ge=8, le=500, description="samples of the round used per agent, drawn anew each time")


class AlgorithmConfig(Strict):
    """Base of every algorithm's config; `name` selects the algorithm in the registry."""

    family: ClassVar[str] = ""
    """Algorithms of one family can start from each other's policies; "": the algorithm is a family of its own."""
    learns_from_earlier: ClassVar[bool] = False
    """True if it learns from trajectories of earlier versions of its policies: because it corrects for the policies
    that acted, as recorded, or because it learns from whatever is in its replay. Needed by schedule `pipelined`."""
    name: str

    def samples(self, sampled: int, steps: int) -> int:
        """Samples per agent that an update processes if its round has `sampled`, in segments of `steps` time steps."""
        return self.drawn(steps) or sampled

    def drawn(self, steps: int) -> int | None:
        """Samples per agent that an update processes, if that does not depend on the round's samples; None: it does.

        `steps` is the number of time steps of a segment.
        """
        return None

    def memory(self, model: ModelSpec, actions: int) -> int:
        """How many numbers an acting policy takes from one step to the next; `actions` is its number of actions, or of
        their components.
        """
        return model.memory

    def advice(self, setting: Setting) -> str:
        """A warning in one sentence about settings that work but are probably a mistake; "" if there is none."""
        return ""

    def warm(self) -> Self:
        """These settings without a warm-up phase; used by the calibration of prices and by contract tests."""
        return self


@dataclass(frozen=True)
class Group:
    """Agents that share one policy and one learner in a round."""

    policy: str
    """Name of the policy that these agents act with, under which its next version is published."""
    agents: tuple[str, ...]
    """The agents, all of one agent class."""
    source: str = ""
    """The policy whose state the update starts from, if it is another one (a merge or a split); "" means `policy`."""

    @property
    def start(self) -> str:
        """The policy whose weights and optimizer moments the update starts from."""
        return self.source or self.policy


@dataclass(frozen=True)
class PolicyState:
    """One version of a policy as named arrays: the part that actors need, and the part that only its learner needs."""

    acting: Arrays
    """Weights that an actor needs, e.g. "policy.0.weight" float32 [H, O]; empty for a joint critic."""
    learning: Arrays
    """Critic weights, optimizer moments, step counts, normaliser statistics."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """How to interpret `acting`: kind of net, activation, action space."""


@dataclass(frozen=True)
class Measure:
    """Measurements to make during an update, for the decisions on the next round."""

    curvature: CurvatureSpec | None = None
    """If set: per policy, after the update, metrics "lambda_max", "lambda_min" and "curvature", their ratio C."""
    noise: bool = False
    """If true: per policy, metric "noise_scale", the gradient noise scale in samples."""
    similarity: SimilarityConfig | None = None
    """If set: distances between all agents of each class, from the round's samples."""


@dataclass(frozen=True)
class RoundInput:
    """All inputs of an update; equal inputs and equal states give bit-identical results."""

    round: int
    env_steps: int
    """Env steps sampled before this round; schedules are read here."""
    seed: int
    """Seeds the minibatch order of this round."""
    groups: tuple[Group, ...]
    """The groups of this learner's scope."""
    trajectories: Sequence[Trajectory]
    """One per actor, ordered by actor index (never by arrival)."""
    pooling: Literal["pooled", "drawn"] = "pooled"
    """Samples of a group: all of its members ("pooled"), or as many as one agent has, drawn from all ("drawn")."""
    measure: Measure = field(default_factory=Measure)
    stopped: Stopped = field(default=never, compare=False)
    """Returns True once the update is not needed any more (job closed). Learners check it between gradient steps."""


FunctionKind: TypeAlias = Literal["post_process", "critic", "mixer", "policy", "curvature", "similarity"]
"""What a function computes. Algorithms do not declare the last two, which are measurements for decisions."""


@dataclass(frozen=True)
class FunctionNode:
    """One function that an algorithm decomposes an update into (Wei et al. 2025, §4)."""

    function: FunctionKind
    name: str
    """The policy, critic or mixer that it serves; for post-processing, `Scope.name`."""
    after: tuple[str, ...] = ()
    """Ids of its predecessors in each pass; independent nodes run in parallel, or stacked in one pass."""

    @property
    def id(self) -> str:
        """Unique within an update."""
        return f"{self.function}/{self.name}"


@dataclass(frozen=True)
class FunctionRun:
    """One execution of a function inside an update, as it is billed."""

    function: FunctionKind
    name: str
    """The policy, critic or mixer it served; for post-processing, the scope; for similarity, the agent class."""
    start_s: float
    """Start of the pass that it ran in, in Unix seconds, as `end_s`."""
    end_s: float
    vcpu_s: float
    """Its share of the pass: one thread's seconds divided by the number of functions in the stack."""


@dataclass(frozen=True)
class UpdateOutput:
    """The report of an update; the new states are read with `Learner.state`."""

    metrics: Mapping[str, Mapping[str, float]]
    """Per policy or joint critic: losses, approx_kl, entropy, explained_variance, grad_norm, clip_fraction …"""
    runs: tuple[FunctionRun, ...]
    distances: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """By agent class, [N, N], symmetric, in the order of the class's agents; {} unless they were asked for."""


@dataclass(frozen=True)
class GradientOutput:
    """Gradients of a version instead of an update of it, for asynchronous learning."""

    gradients: Mapping[str, Arrays]
    """Per published name, by the prefix of its nets ("policy", "critic", "mixer"): float32 [D], gradient of the loss to
    be minimised, before its norm is limited. Further arrays `prefix.<what>` hold other inputs of the step, e.g.
    "critic.returns", the sums of the batch's returns that normalise values. Gradients of several batches may be
    averaged array by array."""
    metrics: Mapping[str, Mapping[str, float]]
    """As in `UpdateOutput`."""
    runs: tuple[FunctionRun, ...]


@dataclass(frozen=True)
class Scope:
    """The agents that one learner serves: an agent class or, for algorithms that learn jointly, all classes."""

    index: int
    """Index among the job's scopes."""
    classes: tuple[int, ...]
    """Indices of its agent classes, ascending."""
    name: str
    """Name of its only class, or "team" if it serves several."""

    def agent_classes(self, spaces: EnvSpaces) -> tuple[AgentClass, ...]:
        """Its agent classes."""
        return tuple(spaces.classes[index] for index in self.classes)


@dataclass(frozen=True)
class LearnerContext:
    """What a learner is made from, in addition to its algorithm's config."""

    model: ModelSpec
    spaces: EnvSpaces
    scope: Scope
    device: str
    """"cpu" or "cuda[:i]"."""
    replay: Path | None = None
    """File of the replay buffer of off-policy algorithms, which outlives the process; None: in memory."""
    carried: bool = False
    """True if episodes continue over rounds."""


def remembered(config: AlgorithmConfig, model: ModelSpec, spaces: EnvSpaces, *, carried: bool) -> tuple[int, ...]:
    """`TrajectorySchema.memory` of a job: how many numbers policies remember, per class; () if nothing is recorded."""
    numbers = tuple(config.memory(model, agents.action.n) for agents in spaces.classes)
    return numbers if carried and any(numbers) else ()


class Learner(Protocol):
    """Trains the policies of one scope of one job (implemented in torch)."""

    def names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        """Names of all states that this learner publishes: one per group, and joint critics (which no actor needs)."""
        ...

    def initial(self, name: str, seed: int) -> PolicyState:
        """Make an initial state, which depends on the name and the seed alone. The learner does not hold it yet."""
        ...

    def load(self, name: str, state: PolicyState) -> None:
        """Hold `state` under `name`, replacing the present one; raises CorruptError if it does not fit."""
        ...

    def update(self, inputs: RoundInput) -> UpdateOutput:
        """Train every group on the round's trajectories; afterwards, the states of `names(groups)` are the new ones.

        Starts from the held state of each group's `start`. May raise StoppedError, see `marless.interruption`, once
        `inputs.stopped` returns True; then the states of `names(groups)` are loaded again before they are used.
        """
        ...

    def gradients(self, inputs: RoundInput) -> GradientOutput:
        """The loss's gradients over one batch: a round's samples or, for off-policy algorithms, one draw from replay.

        At the held state of each group's `start`, under the names of `names(groups)`. Held weights do not change.
        """
        ...

    def apply(self, name: str, gradients: Arrays, env_steps: int) -> None:
        """Take one optimizer step from the state held under `name`; schedules are read at `env_steps`.

        `gradients` is a result of `gradients` under that name, or an average of several. An update of one gradient step
        equals `gradients`, then `apply` for every name, bit for bit. Raises CorruptError for arrays that do not fit.
        """
        ...

    def state(self, name: str) -> PolicyState:
        """A copy of the state held under `name`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The properties of a job that an algorithm's settings must fit."""

    spaces: EnvSpaces
    model: ModelSpec
    samples: int
    """The fewest samples of a policy of the first groups in a round: env steps times members."""
    steps: int
    """`actors.steps`: time steps of a segment, which starts with a new episode unless episodes are carried."""
    memory_bytes: int
    """`functions.learner.memory_mb` in bytes: memory of one learner function."""
    scopes: tuple[Scope, ...] = ()
    """The scope of each learner of the job."""
    with_state: bool = False
    """Trajectories include the global state."""
    carried: bool = False
    """Episodes continue over rounds."""
    round_steps: int | None = None
    """Env steps of a round with the maximum number of actors; None if unknown."""
    total_steps: int | None = None
    """Env steps of the whole job, if its stop rules bound them; else None."""


class Algorithm(Protocol):
    """A registered algorithm: its config type, its checks, its function graph, and how to make its learners."""

    config_type: type[AlgorithmConfig]

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """True if trajectories must include the global state."""
        ...

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Raise SpecError for settings that cannot work in this job; called before anything starts."""
        ...

    def joint(self, config: AlgorithmConfig) -> bool:
        """True if one learner serves all agent classes together; False if each class has one."""
        ...

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """The function graph of an update of a scope with these groups, in topological order."""
        ...

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        """Make the learner of one scope (imports torch)."""
        ...


def scopes(algorithm: Algorithm, config: AlgorithmConfig, spaces: EnvSpaces) -> tuple[Scope, ...]:
    """The scope of each learner of a job."""
    if not algorithm.joint(config) or len(spaces.classes) == 1:
        return tuple(Scope(index, (index,), each.name) for index, each in enumerate(spaces.classes))
    return (Scope(0, tuple(range(len(spaces.classes))), "team"),)
