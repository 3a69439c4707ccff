"""The batched-environment protocol: B copies of one multi-agent environment, stepped at once.

Agents with equal observation and action spaces form an *agent class*; arrays are kept per class,
agent-major, so that stacked policies act on them in one batched matmul. Shape suffixes: N agents of the
class, B environment copies, O observation size, A actions (discrete) or action components (continuous), S
state size.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError, shown
from marless.core.limits import MAX_ACTIONS, MAX_AGENTS, MAX_NAME, MAX_OBSERVATION, MAX_STATE

FloatArray = NDArray[np.float32]
RewardArray = NDArray[np.float32] | NDArray[np.float64]
BoolArray = NDArray[np.bool_]
ObsArray = NDArray[Any]
"""Observations: float32, or uint8 where they are images; see `AgentClass.obs_dtype`. `Any`, as who acts in one
environment knows which of them it is.
"""
ActionArray = NDArray[np.int32] | NDArray[np.float32]
Arrays = Mapping[str, NDArray[np.generic]]
BOUNDLESS = 1e30
"""Bounds of this size and beyond count as none."""


@dataclass(frozen=True)
class Discrete:
    """`n` actions, numbered from 0; arrays of actions are int32 [N, B]."""

    n: int


@dataclass(frozen=True)
class Box:
    """Continuous actions, component k within [low[k], high[k]]; arrays are float32 [N, B, A].

    Bounds may be infinite; only stochastic policies act without bounds, and their unit is 1 then. Bounds beyond ±1e30
    count as infinite: float32's largest number was once the way to write it.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        # No comparison with NaN is true, so bounds that are no numbers are refused, too.
        if len(self.low) != len(self.high) or not all(map(float.__lt__, self.low, self.high)):
            raise SpecError(f"a continuous action space needs low < high in each component, got {self}")

    @property
    def n(self) -> int:
        """Number of action components."""
        return len(self.low)

    @cached_property
    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper bounds, float64 [A]; infinite where there is none."""
        low, high = np.asarray(self.low, np.float64), np.asarray(self.high, np.float64)
        return np.where(low <= -BOUNDLESS, -np.inf, low), np.where(high >= BOUNDLESS, np.inf, high)

    def components(self, unit: ActionArray) -> ActionArray:
        """Components for numbers u [..., A] without bounds, in the units in which policies act; float32.

        | bounds | component, given u |
        |---|---|
        | both | scaled so that −1 and 1 are the bounds, and clipped |
        | only a lower one | low + ln(1 + eᵘ) |
        | only an upper one | high − ln(1 + e⁻ᵘ) |
        | none | u |

        All grow with u. Where there is one bound, u is about the distance from it, and every u is another action:
        clipped ones would all be the bound itself if it is far above 0.
        """
        low, high, least, half = self._scaling
        scaled: FloatArray = least + (unit + np.float32(1)) * half
        if self._bounded:
            return np.minimum(np.maximum(scaled, low), high)  # `np.clip` takes twice as long for a few numbers
        bounded = np.isfinite(low) & np.isfinite(high)
        above, below, zero = np.isfinite(low), np.isfinite(high), np.float32(0)
        # `where` computes all of its branches: bounds that are infinite are replaced, lest inf · 0 makes a warning and
        # a NaN.
        found = np.where(bounded, scaled, unit)
        # ln(1 + eᵘ) as `logaddexp`, in which a large u does not overflow.
        found = np.where(above & ~below, np.where(above, low, zero) + np.logaddexp(zero, unit), found)
        found = np.where(below & ~above, np.where(below, high, zero) - np.logaddexp(zero, -unit), found)
        within: FloatArray = np.clip(found, low, high).astype(np.float32)
        return within

    @cached_property
    def _bounded(self) -> bool:
        """True if each component has two bounds."""
        return all(bool(np.isfinite(each).all()) for each in self.bounds)

    @cached_property
    def _scaling(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Bounds, and the lower one and half the distance to the upper one, 0 without two bounds; float32 [A] each."""
        low, high = (each.astype(np.float32) for each in self.bounds)
        bounded, zero = np.isfinite(low) & np.isfinite(high), np.float32(0)
        least, most = np.where(bounded, low, zero), np.where(bounded, high, zero)
        return low, high, least, np.float32(0.5) * (most - least)


@dataclass(frozen=True)
class Entities:
    """Numbers of an observation that describe `count` others of one sort, such as agents, units or marks.

    They stand one behind the other, in blocks of `size` numbers from `start` on. One that is not seen is all zeros.
    """

    start: int
    count: int
    size: int

    @property
    def end(self) -> int:
        """The index after their last number."""
        return self.start + self.count * self.size


@dataclass(frozen=True)
class AgentClass:
    """Agents with equal spaces; only they may share a policy."""

    name: str
    agents: tuple[str, ...]
    obs_size: int
    action: Discrete | Box
    image: tuple[int, int, int] | None = None
    """(channels, height, width) where an observation is an image: its O bytes in this order, in arrays of uint8.

    None where it is a vector, in arrays of float32.
    """
    entities: tuple[Entities, ...] = ()
    """Where an observation describes others, in ascending order; nets of kind `entities` read them in any order."""

    @property
    def obs_dtype(self) -> Literal["uint8", "float32"]:
        """The dtype of arrays of observations."""
        return "float32" if self.image is None else "uint8"


@dataclass(frozen=True)
class EnvSpaces:
    """The agents of an environment with their observation and action spaces, and its global state.

    Actors and learners must agree on it: it is derived from the environment, and every upload is checked against it.
    """

    classes: tuple[AgentClass, ...]
    state_size: int
    """Length of the global state; 0 if the environment has none."""
    max_steps: int | None
    """Steps after which every episode is truncated; None if unknown."""
    masks: bool = False
    """True if some action may be illegal: frames then carry masks."""
    deaths: bool = False
    """True if an agent may leave in mid-episode: frames then carry alive flags that are not all true."""
    turns: bool = False
    """True if an agent may wait, in the episode, while others act: frames then carry `waits`, and alive flags."""
    rewards: Literal["cooperative", "competitive", "unknown"] = "unknown"
    """"competitive" if one agent's gain may be another's loss; then the sum of rewards is not a common objective."""
    no_state: str = field(default="", compare=False)
    """Why there is no global state where one was expected, for error messages."""
    fresh_only: str = field(default="", compare=False)
    """Why episodes cannot go on in another round; "" if they can."""
    masked_by: str = field(default="", compare=False)
    """Where masks come from, for display; "" if the environment does not say."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What a user should know of how the environment is read, a sentence each."""
    wins: bool = False
    """True if episodes are won or lost; transitions then have `won`."""
    team_reward: bool = False
    """True if the team has a reward of its own; transitions then have `team_reward`."""

    @property
    def agents(self) -> tuple[str, ...]:
        """All agents, class by class."""
        return tuple(agent for c in self.classes for agent in c.agents)

    def class_of(self, agent: str) -> AgentClass:
        """The class of an agent; raises KeyError for an unknown name."""
        for agent_class in self.classes:
            if agent in agent_class.agents:
                return agent_class
        raise KeyError(agent)


def agents_checksum(spaces: EnvSpaces) -> int:
    """CRC-32 of the agents' names in their order, by which processes know that they mean the same agents by a row."""
    return zlib.crc32("\0".join(spaces.agents).encode())


def checksum(arrays: Iterable[NDArray[np.generic]]) -> int:
    """CRC-32 of the bytes of arrays, one after another."""
    found = 0
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, found)
    return found


def check_spaces(spaces: EnvSpaces) -> None:
    """Raise SpecError unless agents and classes have distinct names, and all sizes are positive and within limits."""
    for kind, names in (("agents", spaces.agents), ("agent classes", tuple(each.name for each in spaces.classes))):
        _check_count(kind, len(names), MAX_AGENTS)
        if len(set(names)) < len(names):
            raise SpecError(f"two {kind} of the environment have one name; each needs its own")
        for name in names:
            if not 0 < len(name) <= MAX_NAME:
                raise SpecError(
                    f"{shown(name)} cannot be among the names of {kind}: they have 1 to {MAX_NAME} characters"
                )
    for each in spaces.classes:
        _check_count(f"agents of class {each.name}", len(each.agents), MAX_AGENTS)
        check_observations(each)
        _check_count(f"actions of class {each.name}", each.action.n, MAX_ACTIONS)
    _check_count("numbers of the global state", spaces.state_size, MAX_STATE, least=0)
    if spaces.max_steps is not None:
        _check_count("steps of an episode", spaces.max_steps, 2**31)


def check_observations(agent_class: AgentClass) -> None:
    """Raise SpecError unless an agent class's image and entities are within its observations, of a possible size."""
    name, size = agent_class.name, agent_class.obs_size
    _check_count(f"numbers that each of class {name} observes", size, MAX_OBSERVATION)
    if agent_class.image is not None and (min(agent_class.image) < 1 or prod(agent_class.image) != size):
        shape = " · ".join(map(str, agent_class.image))
        raise SpecError(f"class {name} observes {size:,} bytes, which are no image of {shape}")
    end = 0
    for each in agent_class.entities:
        if each.start < end or each.count < 1 or each.size < 1:
            raise SpecError(f"class {name}: {each} overlaps the entities before it, or describes nothing")
        end = each.end
    if end > size:
        raise SpecError(f"class {name} observes {size:,} numbers, and its entities end after {end:,}")


def _check_count(what: str, count: int, most: int, *, least: int = 1) -> None:
    if not least <= count <= most:
        raise SpecError(f"the environment has {count:,} {what}; {least} to {most:,} are possible")


@dataclass(frozen=True)
class Frame:
    """The observations of all agents in all copies before they act. Tuples are over the agent classes.

    Arrays are valid until the next `reset` or `step` of the environment that made them.
    """

    obs: tuple[ObsArray, ...]
    """float32 [N, B, O], or uint8 for images, per class; zeros for an agent that is not alive, or waits.

    Except that an agent which was truncated while others go on shows its final observation for one frame, in which it
    is not alive: the value of that observation is what comes after its last step.
    """
    state: FloatArray | None = None
    """float32 [B, S], or None if state_size is 0."""
    masks: tuple[BoolArray, ...] | None = None
    """bool [N, B, A] per class, True = legal; None if every action always is."""
    alive: tuple[BoolArray, ...] | None = None
    """bool [N, B] per class, the agents that act in the next step; None if all always do."""
    waits: tuple[BoolArray, ...] | None = None
    """bool [N, B] per class, the agents that are in the episode and not alive, because it is not their turn; None if
    agents never wait. What an agent does in a turn has its consequences until its next turn: rewards while it waits
    are its own, and what it observes next, if its episode goes on, is the next observation that it gets.

    After a truncation: an agent that was truncated and got no final observation.
    """

    def arrays(self) -> list[ObsArray | BoolArray]:
        """All arrays of the frame, the global state last."""
        state = () if self.state is None else (self.state,)
        return [*self.obs, *(self.masks or ()), *(self.alive or ()), *(self.waits or ()), *state]

    def there(self, k: int) -> BoolArray | None:
        """bool [N, B] of class k: the agents in the episode, whether they act or wait; None if all always are."""
        if self.alive is None or self.waits is None:
            return None if self.alive is None else self.alive[k]
        return self.alive[k] | self.waits[k]


@dataclass(frozen=True)
class Transition:
    """The result of one env step (all agents act once in each of the B copies); valid as long as a frame."""

    frame: Frame
    """The next observations; in a copy whose episode has just ended, the first of the new episode."""
    final: Frame
    """The next observations before a reset; equal to `frame` in copies whose episode continues."""
    rewards: tuple[RewardArray, ...]
    """[N, B] per class; 0 for an agent that was neither alive nor waiting."""
    terminated: tuple[BoolArray, ...]
    """bool [N, B] per class: the agent reached a terminal state (death or goal), whose value is zero."""
    truncated: BoolArray
    """bool [B]: the episode was cut by its time limit; values bootstrap from `final`."""
    ended: BoolArray
    """bool [B]: the copy was reset in this step: truncated, or every agent had terminated."""
    won: BoolArray | None = None
    """bool [B]: the episode that ended in this step was won; None if the environment has no wins."""
    team_reward: RewardArray | None = None
    """[B], the reward of all agents together, beside their own; None if the environment has none."""
    broken: BoolArray | None = None
    """bool [B]: a fault of the environment ended the episode, which is truncated and does not count; None: none can."""
    unfinished: BoolArray | None = None
    """bool [B]: the episode that ended in this step is a part of a whole, as a life is of a game, and the next episode
    goes on with it: returns are counted when the whole has ended. None: every episode is whole."""

    @property
    def whole(self) -> BoolArray:
        """bool [B]: an episode ended in this step, and with it the whole that it is a part of."""
        return self.ended if self.unfinished is None else self.ended & ~self.unfinished


class BatchedEnv(Protocol):
    """B copies of an environment. Same seed and same actions give the same arrays, bit for bit."""

    spaces: EnvSpaces
    batch: int

    def reset(self, seed: int) -> Frame:
        """Start a new episode in every copy; all randomness until the next reset comes from `seed`."""

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """Let all agents act once in every copy; `actions` holds one array per agent class."""

    def close(self) -> None:
        """Release the environment's resources; calling it twice is safe."""


@runtime_checkable
class StateOnDemand(Protocol):
    """An optional method of batched environments whose global state costs time, or may fail."""

    def without_state(self) -> None:
        """Leave the state out of all frames from the next reset on; `spaces.state_size` is 0 from now on."""


@runtime_checkable
class Helping(Protocol):
    """An optional attribute of batched environments that make the first action legal where a mask allows none."""

    without_choice: Set[str]
    """Agents that were alive once, and whose mask allowed no action."""


@runtime_checkable
class Truncating(Protocol):
    """An optional method of batched environments, by which copies in step fall out of step
    (`marless.learning.data.carry`).
    """

    def truncate(self, chosen_B: BoolArray) -> None:
        """Let the next step be the last of the present episodes of these copies, as if their time limit ended them.

        Where a game is over in that step, it terminates all the same. A reset or a load cancels it.
        """


class Truncatable:
    """Base of environments that keep which copies to truncate in `_cut_B`; by default, they hold no resources."""

    _cut_B: BoolArray  # noqa: N815  # a shape suffix

    def truncate(self, chosen_B: BoolArray) -> None:
        self._cut_B[...] = chosen_B

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


@runtime_checkable
class Saved(Protocol):
    """Optional methods of batched environments, by which episodes go on in another environment of the same kind."""

    def save(self) -> Arrays:
        """Copies of all that later steps depend on, between two steps: state, random generators, steps so far.

        Equal situations give equal arrays, bit for bit.
        """

    def load(self, arrays: Arrays) -> Frame:
        """Continue from a save of an environment with the same options and batch; returns the frame of that time.

        From then on, equal actions give the arrays that the saved environment gives. Raises CorruptError for arrays
        that no such save holds.
        """


def saved(arrays: Arrays, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:  # Any: of each dtype
    """An array of a save; raises CorruptError, naming it, unless it is there with this dtype and shape, and finite."""
    array = arrays.get(name)
    if array is None or array.dtype.name != dtype or array.shape != shape:
        found = "missing" if array is None else f"{array.dtype.name}{list(array.shape)}"
        raise CorruptError(f"saved environment: {name} is {found}, must be {dtype}{list(shape)}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CorruptError(f"saved environment: {name} holds NaN or infinite values")
    return array


def save_generator(rng: np.random.Generator) -> NDArray[np.uint64]:
    """The state of a generator of kind PCG64 as uint64 [6]; raises SpecError for another kind."""
    state = rng.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise SpecError(f"random generators of kind {state['bit_generator']} cannot be saved, only PCG64")
    # Both numbers of a PCG64 have 128 bits, and those of NumPy 64.
    halves = [half for key in ("state", "inc") for half in divmod(state["state"][key], 2**64)]
    return np.array([*halves, state["has_uint32"], state["uinteger"]], np.uint64)


def load_generator(state: NDArray[np.uint64]) -> np.random.Generator:
    """The generator of `save_generator`; raises CorruptError for numbers that are no state of one."""
    first, second, third, fourth, spare, number = (int(each) for each in state)
    # The increment of a PCG64 is odd, and what may be left of a draw is one number of 32 bits.
    if fourth % 2 == 0 or spare > 1 or number >= 2**32:
        raise CorruptError("saved environment: its random state is no state of a generator PCG64")
    rng = np.random.PCG64(0)
    rng.state = {
        "bit_generator": "PCG64",
        "state": {"state": first << 64 | second, "inc": third << 64 | fourth},
        "has_uint32": spare,
        "uinteger": number,
    }
    return np.random.Generator(rng)


@dataclass(frozen=True)
class Scene:
    """The positions of all entities in one copy of an environment in the plane."""

    agents: NDArray[np.float64]
    """[agents, 2], in the order of `EnvSpaces.agents`."""
    landmarks: NDArray[np.float64]
    """[landmarks, 2]."""
    goal: NDArray[np.float64] | None = None
    """[2], position of the goal landmark; None if there is none."""
    radii: NDArray[np.float64] | None = None
    """[agents + landmarks], in the units of the plane; None: as those of `simple_spread`."""


Picture = Scene | NDArray[np.uint8]
"""A frame of a recorded episode: a scene to be drawn, or pixels uint8 [height, width, 3]."""


@runtime_checkable
class Pictured(Protocol):
    """An optional method of batched environments, by which episodes can be rendered."""

    def picture(self, *, ended: bool = False) -> Picture:
        """Copy 0 as it is now or, if its episode `ended` with the last step, at the end of it; raises SpecError."""


def random_actions(spaces: EnvSpaces, frame: Frame, rng: np.random.Generator) -> tuple[ActionArray, ...]:
    """Uniformly random legal actions for every agent, one array per class."""
    masks = frame.masks or (None,) * len(spaces.classes)
    each = zip(spaces.classes, frame.obs, masks, strict=True)
    return tuple(chance_acts(agents, obs_NBO, mask_NBA, rng) for agents, obs_NBO, mask_NBA in each)


def chance_acts(
    agents: AgentClass, obs_NBO: ObsArray, mask_NBA: BoolArray | None, rng: np.random.Generator
) -> ActionArray:
    """Uniformly random legal actions for the agents of one class."""
    shape, space = obs_NBO.shape[:2], agents.action
    if isinstance(space, Box):
        low, high = space.bounds
        bounded = np.isfinite(low) & np.isfinite(high)
        uniform = rng.uniform(np.where(bounded, low, 0), np.where(bounded, high, 1), (*shape, space.n))
        if not bounded.all():
            # Where a bound is infinite, as standard normal policies act.
            normal = rng.standard_normal(uniform.shape).astype(np.float32)
            uniform = np.where(bounded, uniform, space.components(normal))
        return uniform.astype(np.float32)
    if mask_NBA is None:
        return rng.integers(space.n, size=shape, dtype=np.int32)
    lots_NBA = np.where(mask_NBA, rng.random((*shape, space.n)), -1.0)
    drawn_NB: NDArray[np.int32] = lots_NBA.argmax(axis=-1).astype(np.int32)
    return drawn_NB
