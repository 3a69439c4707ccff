"""The protocol of algorithms. Importing this module, or any algorithm's config, imports no torch.

An algorithm has a config (its settings), declares the functions of an update, and makes learners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from marless.core.group import FunctionNode, Group
from marless.core.settings import Section
from marless.core.state import NetStep
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.nets.model import ModelSpec

if TYPE_CHECKING:  # so that `marless submit` can check a job file without the time to import NumPy
    from marless.learning.envs.base import EnvSpaces


class AlgorithmConfig(Section):
    """Base of every algorithm's config; `name` selects the algorithm in the registry."""

    family: ClassVar[str] = ""
    """Algorithms of one family can start from each other's policies; "": the algorithm is a family of its own."""
    learns_from_earlier: ClassVar[bool] = False
    """True if it learns from trajectories of earlier versions of its policies: because it corrects for the policies
    that acted, as recorded, or because it learns from whatever is in its replay. Needed by schedule `pipelined`."""
    normalises: ClassVar[bool] = False
    """True if its learners keep statistics of observations, and so can follow `model.normalise_observations`."""
    lowers_precision: ClassVar[bool] = False
    """True if its learners compute gradients in the precision of their context, and so can follow
    `learner.precision`. Others would compute in float32, and records would say otherwise."""
    captures_steps: ClassVar[bool] = False
    """True if a GPU repeats its gradient steps as captured graphs, see `learner.graphs`."""
    stacks_frames: ClassVar[bool] = False
    """True if its nets can read several images at once (`model.frames`)."""
    name: str

    @property
    def needs_rounds(self) -> str:
        """Why asynchronous learners cannot compute its gradients, in words that end a sentence; "": they can."""
        return ""

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

    def net_steps(self, env_steps: int) -> Mapping[str, NetStep]:
        """The optimizer step of the nets of each prefix once `env_steps` are sampled; {}: only its learner takes steps.

        With it, gradients are aggregated and applied without a learner (`marless.learning.aggregation.applying`).
        """
        return {}

    def takes_steps(self, name: str) -> bool:
        """False for a published state that gradients do not change, such as the batches that an algorithm keeps."""
        return True

    def warm(self) -> Self:
        """The settings without a warm-up phase; used by the calibration of prices and by contract tests."""
        return self


def remembered(config: AlgorithmConfig, model: ModelSpec, spaces: EnvSpaces, *, carried: bool) -> tuple[int, ...]:
    """`TrajectorySchema.memory` of a job: how many numbers policies remember, per class; () if nothing is recorded."""
    numbers = tuple(config.memory(model, agents.action.n) for agents in spaces.classes)
    return numbers if carried and any(numbers) else ()


def stacked_frames(model: ModelSpec, spaces: EnvSpaces, *, carried: bool) -> tuple[int, ...]:
    """`TrajectorySchema.frames` of a job; () if nets read one image, or nothing before a rollout matters to it."""
    frames = tuple(1 if agents.image is None else model.frames for agents in spaces.classes)
    return frames if carried and max(frames) > 1 else ()


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
    least_steps: int | None = None
    """The fewest env steps of a round; None if unknown."""
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

    def net_bytes(
        self, config: AlgorithmConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces, model: ModelSpec
    ) -> Mapping[str, int]:
        """Bytes of the nets in each state that a scope's learner publishes every round for these groups, by name.

        They include the states of optimizers, and targets; counters and samples are left out. A job whose nets are too
        large to publish is refused by these numbers, before it starts. `state_sizes` has them for marless's families.
        """
        ...

    def learner(self, config: AlgorithmConfig, context: LearnerContext) -> Learner:
        """Make the learner of one scope (imports torch)."""
        ...


def scopes(algorithm: Algorithm, config: AlgorithmConfig, spaces: EnvSpaces) -> tuple[Scope, ...]:
    """The scope of each learner of a job."""
    if not algorithm.joint(config) or len(spaces.classes) == 1:
        return tuple(Scope(index, (index,), each.name) for index, each in enumerate(spaces.classes))
    return (Scope(0, tuple(range(len(spaces.classes))), "team"),)
