"""The protocols of algorithms and learners. Importing this module, or any algorithm's config, imports no torch.

An algorithm has a config (its settings), declares the functions of an update, and makes learners. A
*learner* lives in a learner worker, owns the stacked parameters of every policy of its scope (one agent class, or all),
and turns the trajectories of a round into updates of all of them in as few stacked passes as their shapes allow.
Weights and all other state of a learner are transferred as `PolicyState`: named arrays, published as one immutable
version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat

from marless.interruption import Stopped, never

if TYPE_CHECKING:  # so that a job file can be checked without loading NumPy: `marless submit` is to answer at once
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from marless.data.trajectory import Trajectory
    from marless.envs.base import AgentClass, EnvSpaces

Arrays: TypeAlias = "Mapping[str, NDArray[np.generic]]"
Width: TypeAlias = Annotated[int, Field(gt=0, le=8192)]
"""Units of a layer."""
REPLAY = "replay"
"""The "kind" of a state that is no policy: what a learner remembers of its job's rounds."""


class Strict(BaseModel):
    """Base of every section of a job: immutable, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class ModelSpec(Strict):
    """The nets of every policy and critic: perceptrons, or with memory."""

    hidden: tuple[Width, ...] = Field((64, 64), description="units of each hidden layer", min_length=1, max_length=16)
    activation: Literal["tanh", "relu"] = Field("tanh", description="non-linearity after each hidden layer")
    recurrent: Literal["none", "gru"] = Field(
        "none", description="gru: the last hidden layer consists of gated recurrent units, with a memory of the episode"
    )


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
    """A rate as it stands after `env_steps` env steps."""
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
    """Algorithms of one family have policies of one kind: a job may start from what another of its family trained. ""
    means that the algorithm is a family of its own."""
    name: str

    def samples(self, sampled: int, steps: int) -> int:
        """Samples of an agent that an update goes over if its round has `sampled`, in segments of `steps` steps."""
        return self.drawn(steps) or sampled

    def drawn(self, steps: int) -> int | None:
        """Samples of an agent that an update goes over however many its round has, in segments of `steps` time steps;
        None: they grow with those of its round.
        """
        return None

    def advice(self, setting: Setting) -> str:
        """What works but may not be meant, in one sentence; "" if there is nothing to say."""
        return ""

    def warm(self) -> Self:
        """These settings as they are once training is under way, for who measures what an update takes."""
        return self


@dataclass(frozen=True)
class Group:
    """Agents that share one policy and one learner in a round."""

    policy: str
    """Name of the policy these agents act with, and the name under which its next version is published."""
    agents: tuple[str, ...]
    """All of one agent class."""
    source: str = ""
    """Policy whose state the update starts from, if it is another one (a merge or a split); "" means `policy`."""

    @property
    def start(self) -> str:
        """The policy whose weights and optimizer moments the update starts from."""
        return self.source or self.policy


@dataclass(frozen=True)
class PolicyState:
    """One version of a policy: what acts, and what only its learner needs. Arrays only, so no pickle anywhere."""

    acting: Arrays
    """Weights an actor needs, e.g. "policy.0.weight" float32 [H, O]; empty for a joint critic."""
    learning: Arrays
    """Critic weights, optimizer moments, step counts, normaliser statistics."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """How to read `acting` (kind of net, activation, action space), kept beside the weights."""


@dataclass(frozen=True)
class Measure:
    """What an update measures beside its training, for the decisions on the next round."""

    curvature: CurvatureSpec | None = None
    """Per policy, after the update: metrics "lambda_max", "lambda_min" and "curvature", their ratio C."""
    noise: bool = False
    """Per policy: metric "noise_scale", the gradient noise scale in samples."""
    similarity: SimilarityConfig | None = None
    """Distances between all agents of the class, from the round's samples."""


@dataclass(frozen=True)
class RoundInput:
    """Everything an update depends on; equal inputs and equal states give bit-identical results."""

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
    """What a group trains on: all samples of its members; or as many as one agent has, drawn from all of them."""
    measure: Measure = field(default_factory=Measure)
    stopped: Stopped = field(default=never, compare=False)
    """True once nobody wants the update any more, because its job was closed. Learners ask between gradient steps."""


FunctionKind: TypeAlias = Literal["post_process", "critic", "mixer", "policy", "curvature", "similarity"]
"""What a function computes. The last two no algorithm declares: they serve the decisions on the next round."""


@dataclass(frozen=True)
class FunctionNode:
    """One function that an algorithm decomposes an update into (Wei et al. 2025, §4)."""

    function: FunctionKind
    name: str
    """The policy, critic or mixer that it serves; of post-processing, what its learner serves: `Scope.name`."""
    after: tuple[str, ...] = ()
    """Ids of the functions that it waits for in each pass; nodes that wait for nothing of one another run side by
    side, or stacked."""

    @property
    def id(self) -> str:
        """Unique within an update."""
        return f"{self.function}/{self.name}"


@dataclass(frozen=True)
class FunctionRun:
    """One function of the algorithm as it ran inside an update: what is billed."""

    function: FunctionKind
    name: str
    """The policy, critic or mixer it served; of post-processing, the scope; of similarity, the agent class."""
    start_s: float
    """Unix seconds: when the pass that it ran in began."""
    end_s: float
    vcpu_s: float
    """Its share of what that pass took: one thread's seconds over the number of functions in the stack."""


@dataclass(frozen=True)
class UpdateOutput:
    """What an update reports; the new states are read with `Learner.state`."""

    metrics: Mapping[str, Mapping[str, float]]
    """Per policy or joint critic: losses, approx_kl, entropy, explained_variance, grad_norm, clip_fraction …"""
    runs: tuple[FunctionRun, ...]
    distances: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """By agent class [N, N], symmetric, in the order of the class's agents, where they were asked for."""


@dataclass(frozen=True)
class GradientOutput:
    """Gradients of a version instead of an update of it, for asynchronous learning."""

    gradients: Mapping[str, Arrays]
    """Per published name that trains, by the prefix of its nets ("policy", "critic", "mixer"): float32 [D], of the loss
    to be minimised, before any limit of its norm. `prefix.<what>` is what else the step depends on, e.g.
    "critic.returns", the sums of the batch's returns that normalise values. Gradients of several batches may be
    averaged array by array."""
    metrics: Mapping[str, Mapping[str, float]]
    """As of `UpdateOutput`."""
    runs: tuple[FunctionRun, ...]


@dataclass(frozen=True)
class Scope:
    """What one learner serves: an agent class, or, for algorithms that learn jointly, several."""

    index: int
    """Among the job's scopes."""
    classes: tuple[int, ...]
    """Indices of its agent classes, ascending."""
    name: str
    """Of its only class; "team" if it serves all of several."""

    def agent_classes(self, spaces: EnvSpaces) -> tuple[AgentClass, ...]:
        """Its agent classes."""
        return tuple(spaces.classes[index] for index in self.classes)


@dataclass(frozen=True)
class LearnerContext:
    """All that a learner is made from, beside its algorithm's config."""

    model: ModelSpec
    spaces: EnvSpaces
    scope: Scope
    device: str
    """"cpu" or "cuda[:i]"."""
    replay: Path | None = None
    """File that holds what off-policy algorithms remember of past rounds; it outlives the process. None: memory."""


class Learner(Protocol):
    """The torch side of an algorithm for one scope of one job."""

    def names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        """Names of all states this learner publishes: one per group, plus joint critics (which no actor needs)."""
        ...

    def initial(self, name: str, seed: int) -> PolicyState:
        """A fresh state; depends on the name and the seed alone. Not yet held by the learner."""
        ...

    def load(self, name: str, state: PolicyState) -> None:
        """Hold `state` under `name`, replacing what was held; raises CorruptError if it does not fit."""
        ...

    def update(self, inputs: RoundInput) -> UpdateOutput:
        """Train every group on the round's trajectories; the states of `names(groups)` are then the new ones.

        Starts from the held state of each group's `start`. May raise StoppedError, see `marless.interruption`, once
        `inputs.stopped` answers True: the states of `names(groups)` are then loaded again before they are used.
        """
        ...

    def gradients(self, inputs: RoundInput) -> GradientOutput:
        """The loss's gradients over one batch: a round's samples or, of algorithms with a replay, one draw from it.

        At the held state of each group's `start`, under the names of `names(groups)`. Held weights stay as they are.
        """
        ...

    def apply(self, name: str, gradients: Arrays, env_steps: int) -> None:
        """Take one optimizer step from the state held under `name`; schedules are read at `env_steps`.

        `gradients` is what `gradients` gave under the name, or an average of such. An update of one gradient step
        equals `gradients`, then `apply` for every name, bit for bit. Raises CorruptError for arrays that do not fit.
        """
        ...

    def state(self, name: str) -> PolicyState:
        """The held state as arrays of its own (a copy, safe to keep)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What of a job an algorithm's settings must fit."""

    spaces: EnvSpaces
    model: ModelSpec
    samples: int
    """The least that a policy of the job's first groups gets in a round: env steps times members."""
    steps: int
    """`actors.steps`: time steps of a segment, which begins with a fresh episode."""
    memory_bytes: int
    """`functions.learner.memory_mb`: what one learner function may hold."""
    scopes: tuple[Scope, ...] = ()
    """What each learner of the job serves."""
    with_state: bool = False
    """Trajectories carry the global state."""
    round_steps: int | None = None
    """Env steps of a round with as many actors as there may be."""
    total_steps: int | None = None
    """Env steps of the whole job, if its stop rules bound them."""


class Algorithm(Protocol):
    """One entry of the registry."""

    config_type: type[AlgorithmConfig]

    def needs_state(self, config: AlgorithmConfig) -> bool:
        """True if trajectories must carry the global state."""
        ...

    def check(self, config: AlgorithmConfig, setting: Setting) -> None:
        """Refuse settings that cannot work in this job; raises SpecError before anything starts."""
        ...

    def joint(self, config: AlgorithmConfig) -> bool:
        """True if one learner serves all agent classes together; False if each class has one."""
        ...

    def functions(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces
    ) -> tuple[FunctionNode, ...]:
        """The functions that an update of a scope with these groups consists of, each after those it waits for."""
        ...

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        """Make the learner of one scope (imports torch)."""
        ...


def scopes(algorithm: Algorithm, config: AlgorithmConfig, spaces: EnvSpaces) -> tuple[Scope, ...]:
    """What each learner of a job serves."""
    if not algorithm.joint(config) or len(spaces.classes) == 1:
        return tuple(Scope(index, (index,), each.name) for index, each in enumerate(spaces.classes))
    return (Scope(0, tuple(range(len(spaces.classes))), "team"),)
