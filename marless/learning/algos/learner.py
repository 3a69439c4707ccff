"""The protocol of learners, what goes into them, and what comes out. Imports no torch.

A *learner* runs in a learner worker, holds the stacked parameters of every policy of its scope (one agent class, or
all), and updates all of them from the trajectories of a round, in as few stacked passes as their shapes allow.
Weights and all other state of a learner are transferred as `PolicyState`: named arrays, published as one immutable
version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from marless.core.group import FunctionRun, Group
from marless.core.interruption import Stopped, never
from marless.core.settings import Measure
from marless.core.state import Arrays, PolicyState

if TYPE_CHECKING:  # so that `marless submit` can check a job file without the time to import NumPy
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from marless.learning.data.trajectory import Trajectory
    from marless.learning.envs.base import AgentClass, EnvSpaces
    from marless.learning.nets.kinds import Precision
    from marless.learning.nets.model import ModelSpec


UNITS_OFF = "units_off"
"""Metric of nets with relus: the share of units of the first layer that are off for every sample; that of critics has
the name "critic_units_off".
"""


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
        """The agent classes whose policies this learner updates."""
        return tuple(spaces.classes[index] for index in self.classes)


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
    peers: tuple[Mapping[str, Arrays], ...] = ()
    """The acting weights, by policy, of each other learner whose gradients are aggregated with this one's; a learner
    that truncates ratios over them reads them. Policies may be missing."""
    stopped: Stopped = field(default=never, compare=False)
    """Returns True once the update is not needed any more (job closed). Learners check it between gradient steps."""

    @property
    def sampled_steps(self) -> int:
        """Env steps of the round's trajectories."""
        return sum(each.env_steps for each in self.trajectories)


MINIBATCH_PARTS = "minibatch_parts"
"""The metric of a net whose minibatches did not fit into a GPU's memory, and were computed in so many parts."""


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
    """As in `UpdateOutput`; measurements that `RoundInput.measure` asks for are of the held state and this batch."""
    runs: tuple[FunctionRun, ...]
    distances: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """As in `UpdateOutput`."""


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
    precision: Precision = "float32"
    """Of the gradients of nets that torch differentiates; other nets are always computed in float32."""
    lags: bool = False
    """True if a round's trajectories are of an earlier version than the one that its update starts from."""
    graphs: bool = True
    """True if a GPU may repeat gradient steps as captured graphs, see `marless.learning.algos.training.captured`."""


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

        Starts from the held state of each group's `start`. May raise StoppedError (`marless.core.interruption`) once
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
