"""NumPy inference: actions of all agents of a class in all environment copies, with one batched product per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError, shown
from marless.core.limits import MAX_LAYERS, MAX_WIDTH
from marless.learning.envs.base import ActionArray, AgentClass, BoolArray, FloatArray, ObsArray
from marless.learning.nets import acting_heads, acting_nets, normalising, observed_forms
from marless.learning.nets.acting_heads import ActingHead
from marless.learning.nets.acting_nets import ActingNet
from marless.learning.nets.frame_stack import FrameStack
from marless.learning.nets.inputs import FRAMES, Inputs, write_action, write_observation
from marless.learning.nets.kinds import MLP, SIZED_BY_WEIGHTS, kind_of
from marless.learning.nets.module_kind import is_module
from marless.learning.nets.normalising import Normaliser

if TYPE_CHECKING:  # at run time it would import pydantic into actors
    from marless.learning.nets.model import ModelSpec

Arrays = Mapping[str, NDArray[np.generic]]
_WAY = (
    *("kind", "hidden", "activation", "action", "acts", acting_heads.VALUES, "inputs", "ids", FRAMES),
    *(normalising.METADATA, *observed_forms.METADATA),
)
"""Metadata keys that must be equal for all policies of a class."""
_NOT_BEGUN = -1


class Acting(Protocol):
    """The part of a PolicyState that an actor needs."""

    @property
    def acting(self) -> Arrays:
        """Weights by name."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """How to interpret the weights."""


@dataclass(frozen=True)
class ActingState:
    """The part of a policy state that an actor fetches: weights, and the metadata to interpret them."""

    acting: Arrays
    metadata: Mapping[str, str]


class ActingPolicies:
    """The policies of one agent class, one per agent, evaluated together.

    Shapes: N agents of the class, B environment copies, O observation size, A actions or action components.
    Policies may have memory: then each call of `sample`, `greedy` or `outputs` is one step, and the caller marks where
    agents begin anew (`begin`, `reset_memory`). Not thread-safe: buffers are reused between calls; returned arrays are
    the caller's own.
    """

    def __init__(
        self,
        agent_class: AgentClass,
        net: ActingNet,
        head: ActingHead,
        inputs: Inputs,
        normaliser: Normaliser | None = None,
        *,
        values: int = 0,
    ) -> None:
        """Make them of a net whose last `values` outputs are not the head's."""
        self.agent_class = agent_class
        self.remembers = net.remembers or inputs.last_action or inputs.frames > 1
        """True if actions depend on earlier steps of the episode."""
        self._net, self._head, self._inputs, self._normaliser = net, head, inputs, normaliser
        self._of_head = slice(None, -values or None)
        self._batch = _NOT_BEGUN
        nothing = np.empty((0, 0, 0), np.float32)
        self._obs_NOB, self._last_NAB = nothing, nothing
        self._stack: FrameStack | None = None

    @classmethod
    def from_states(cls, agent_class: AgentClass, states: Sequence[Acting]) -> ActingPolicies:
        """Stack the weights of `states`, one per agent in class order; raises CorruptError if one does not fit.

        If all agents have the same state object, its weights are kept only once.
        """
        if len(states) != len(agent_class.agents):
            raise CorruptError(f"class {agent_class.name}: {len(states)} policies for {len(agent_class.agents)} agents")
        metadata, action = _agreed(agent_class, states), agent_class.action
        try:
            inputs = Inputs.parse(metadata)
            # Called for its check alone: a policy that does not know an agent's id is refused
            # here, not in the first episode.
            inputs.ids(agent_class.agents if inputs.known else ())
            acts = metadata.get("acts", acting_heads.STOCHASTIC)
            owners = [s.acting for s in (states[:1] if all(s is states[0] for s in states) else states)]
            net, free_NF = acting_nets.stacked(
                owners,
                kind=metadata.get("kind", MLP),
                hidden=_widths(metadata.get("hidden", "")),
                activation=metadata["activation"],
                inputs=inputs.shape(agent_class),
                outputs=acting_heads.outputs_of(action, acts) + acting_heads.values_of(metadata),
                free=acting_heads.free_parameters(action, acts),
            )
            normaliser = Normaliser.of(owners, metadata, agent_class.obs_size)
            if normaliser is not None and agent_class.image is not None:
                raise CorruptError("its policies normalise observations, which are images")
            head = acting_heads.head(acts, action, free_NF, owners)
            return cls(agent_class, net, head, inputs, normaliser, values=acting_heads.values_of(metadata))
        except CorruptError as error:
            raise CorruptError(f"class {agent_class.name}: {error}") from None

    def begin(self, batch: int) -> None:
        """Start an episode in each of `batch` copies: reset all memory."""
        agents, seen = len(self.agent_class.agents), self._inputs.stacked(self.agent_class).obs_size
        input_NIB = self._net.allocate(agents, batch)
        self._batch = batch
        # Views of the net's input: what an agent did last is written where the next step
        # reads it, without another copy.
        self._obs_NOB = input_NIB[:, :seen]
        if self._inputs.frames > 1:
            self._stack = FrameStack(self._obs_NOB, self._inputs.frames)
        if self._inputs.last_action:
            self._last_NAB = input_NIB[:, seen : seen + self.agent_class.action.n]
            self._last_NAB[:] = 0
        if known := len(self._inputs.known):
            input_NIB[:, -1 - known : -1] = self._inputs.ids(self.agent_class.agents)[:, :, None]

    def reset_memory(self, anew_NB: BoolArray) -> None:
        """Reset the memory of agents in the copies in which they begin anew."""
        if self.remembers:
            self._net.reset_memory(anew_NB)
            if self._stack is not None:
                self._stack.reset(anew_NB)
            if self._inputs.last_action:
                self._last_NAB.swapaxes(1, 2)[anew_NB] = 0

    def memory(self) -> Arrays:
        """Copies of what `recall` needs to go on in other policies of the same class; {} if there is no memory.

        "hidden", float32 [N, H, B], is the memory of recurrent nets; "last_action", float32 [N, A, B], that input;
        "frames" and "begins" as in `FrameStack`.
        """
        hidden_NHB = self._net.memory()
        found: dict[str, NDArray[np.generic]] = {} if hidden_NHB is None else {"hidden": hidden_NHB}
        if self._stack is not None:
            found |= self._stack.memory()
        return found | ({"last_action": self._last_NAB.copy()} if self._inputs.last_action else {})

    def recall(self, memory: Arrays) -> None:
        """Go on, after `begin`, with a memory of as many copies; raises CorruptError if it does not fit."""
        expected = {name: (array.dtype.name, array.shape) for name, array in self.memory().items()}
        found = {name: (array.dtype.name, array.shape) for name, array in memory.items()}
        if found != expected:
            raise CorruptError(f"class {self.agent_class.name}: a memory of {found}, its policies have {expected}")
        if self._net.remembers:
            # The dtype is checked above; this only tells the type checker, and copies nothing.
            self._net.recall(memory["hidden"].astype(np.float32, copy=False))
        if self._inputs.last_action:
            self._last_NAB[:] = memory["last_action"]
        if self._stack is not None:
            self._stack.recall(memory["frames"], memory["begins"])

    def sample(
        self, obs_NBO: ObsArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        """Exploring actions, int32 [N, B] or (normalised) float32 [N, B, A], and their log-probabilities [N, B].

        Stochastic policies sample from their distribution, unclipped. Other policies act greedily, except with
        probability ε or with added noise of standard deviation σ; their log-probabilities are 0.
        """
        action, log_prob_NB = self._head.sample(self._output(obs_NBO), mask_NBA, rng)
        if self._inputs.last_action:
            write_action(self._last_NAB, action)
        return action, log_prob_NB

    def greedy(self, obs_NBO: ObsArray, mask_NBA: BoolArray | None) -> ActionArray:
        """The most probable or best actions, int32 [N, B] or (normalised) float32 [N, B, A]."""
        action = self._head.greedy(self._output(obs_NBO), mask_NBA)
        if self._inputs.last_action:
            write_action(self._last_NAB, action)
        return action

    def outputs(
        self, obs_NBO: ObsArray, mask_NBA: BoolArray | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Logits or Q values [N, B, A]; or means of actions as `sample` returns them, with log standard deviations, [N
        or 1, A] or [N, B, A], if the policy is stochastic. No action is chosen: the last action stays unchanged.
        """
        return self._head.outputs(self._output(obs_NBO), mask_NBA)

    def to_env(self, action: ActionArray) -> ActionArray:
        """Convert actions of `sample` or `greedy` to those of the environment."""
        return acting_heads.to_env(self.agent_class.action, self._head.unit(action))

    def _output(self, obs_NBO: ObsArray) -> FloatArray:
        batch = obs_NBO.shape[1]
        if batch != self._batch:
            if self.remembers and self._batch != _NOT_BEGUN:
                raise SpecError(
                    f"{self.agent_class.name} remembers {self._batch} episodes and got observations of {batch}; "
                    "begin new ones to act in as many"
                )
            # Without memory nothing is lost by new buffers, so the number of copies may change at any time.
            self.begin(batch)
        if self._stack is None:
            write_observation(self._obs_NOB, obs_NBO)
        else:
            self._stack.push(obs_NBO)
        if self._normaliser is not None:
            self._normaliser.write(self._obs_NOB, self._obs_NOB)
        # BLAS computes on what lies beside small matrices, too, and raises the CPU's flag for it, although its results
        # are right (https://github.com/numpy/numpy/issues/24067). Policies that are not finite are refused when loaded.
        with np.errstate(invalid="ignore"):
            return self._net.output()[:, self._of_head]


def description(
    agent_class: AgentClass,
    model: ModelSpec,
    *,
    acts: str = acting_heads.STOCHASTIC,
    inputs: Inputs | None = None,
    values: int = 0,
) -> dict[str, str]:
    """The metadata of a policy state that `ActingPolicies.from_states` needs.

    `acts` is one of the values in `acting_heads`; states of all but STOCHASTIC, SQUASHED_NORMAL and BETA have an acting
    array "exploration". `values`: see `acting_heads.values_of`.
    """
    found = {
        "kind": model.kind,
        "activation": model.activation,
        "action": acting_heads.describe_action(agent_class.action),
    }
    if model.kind not in SIZED_BY_WEIGHTS:
        found["hidden"] = ",".join(map(str, model.hidden))
    if model.kind not in SIZED_BY_WEIGHTS or agent_class.image is not None:
        found |= observed_forms.metadata_of(agent_class)
    way = {} if acts == acting_heads.STOCHASTIC else {"acts": acts}
    way |= {acting_heads.VALUES: str(values)} if values else {}
    normalises = normalising.metadata(normalises=model.normalise_observations, clip=model.observation_clip)
    return found | way | normalises | (inputs or Inputs()).metadata()


def _agreed(agent_class: AgentClass, states: Sequence[Acting]) -> Mapping[str, str]:
    """The common metadata of the states; raises CorruptError unless they agree and fit the class."""
    # One stacked product evaluates all agents of a class, so all their nets must have one form.
    ways = {tuple(s.metadata.get(key) for key in _WAY) for s in states}
    metadata, expected = states[0].metadata, acting_heads.describe_action(agent_class.action)
    observed_forms.check(metadata, agent_class)
    known = metadata.get("activation") in acting_nets.ACTIVATE
    if len(ways) != 1 or not known or metadata.get("action") != expected:
        raise CorruptError(f"class {agent_class.name}: policies do not act in one way, with actions {expected}")
    kind = metadata.get("kind", MLP)
    try:
        if not is_module(kind):  # actors run modules without the package that brings them
            kind_of(kind)
    except SpecError as error:
        raise CorruptError(f"class {agent_class.name}: {error}") from None
    return metadata


def _widths(text: str) -> tuple[int, ...]:
    """The units of hidden layers from a state's metadata; raises CorruptError."""
    if not text:
        return ()
    # `int` also takes signs, spaces, underscores and digits of other scripts, so what it
    # reads is compared with the text.
    found = tuple(int(each) for each in text.split(",")[:MAX_LAYERS] if each.isascii() and each.isdecimal())
    if ",".join(map(str, found)) != text or not all(0 < each <= MAX_WIDTH for each in found):
        raise CorruptError(f"policy state: hidden is {shown(text)}, expected the units of each layer")
    return found
