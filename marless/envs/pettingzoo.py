"""Adapts PettingZoo environments to the batched protocol: `pettingzoo/<module>`, or `pettingzoo/<module>:<callable>`.

The module's `parallel_env` is preferred to its turn-based `env` (AEC), which is converted. The B copies are Python
objects that are stepped one after another, so the speed is that of the environment. Where PettingZoo does not define
the behaviour, these rules do:

- agents with equal spaces form one class; observations are flattened (numbers unscaled, discrete ones one-hot);
- an absent agent observes zeros and has reward 0; its only legal action is 0, as for an agent whose own mask allows no
  action (it is not its turn): such steps have no effect on a policy's gradient;
- the episode is truncated if it is over and some agent was truncated, not terminated; an agent that leaves earlier, for
  whatever reason, counts as terminated;
- every episode of every copy starts from a seed of its own, which follows from the seed of `reset`;
- a save holds the seeds and actions of the present episodes, and a load plays them again (`marless.envs.replayed`).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marless.envs import allowed
from marless.envs.base import (
    ActionArray,
    AgentClass,
    Arrays,
    BatchedEnv,
    BoolArray,
    Box,
    Discrete,
    EnvSpaces,
    FloatArray,
    Frame,
    Transition,
)
from marless.envs.replayed import EpisodeLog, replaying
from marless.errors import SpecError, shown, unknown_name

try:
    from gymnasium import error as gymnasium_error
    from gymnasium import spaces as gymnasium_spaces
    from pettingzoo import AECEnv
    from pettingzoo.utils import conversions
except ModuleNotFoundError as missing:
    raise SpecError(f"needs {missing.name}, which is not installed; pip install 'marless[pettingzoo]'") from None

# Any stands for PettingZoo's and Gymnasium's objects, because third-party ones need not subclass anything.
ParallelEnv = Any
Space = Any
MASK = "action_mask"
_INSTALLED_BY: Mapping[str, str] = MappingProxyType(
    {
        "pettingzoo.atari": "pettingzoo[atari]",
        "pettingzoo.butterfly": "pettingzoo[butterfly]",
        "pettingzoo.classic": "pettingzoo[classic]",
        "pettingzoo.sisl": "pettingzoo[sisl]",
        "mpe2": "marless[mpe]",
        "cogrid": "marless[overcooked]",
    }
)
"""pip requirement that installs each module; messages recommend nothing else."""


def adapt(place: allowed.Place, options: Mapping[str, Any], batch: int) -> BatchedEnv:
    """Make `batch` copies of the environment at `place`; raises SpecError if it cannot be found, built or used."""
    place.check_options(list(options))
    module = _imported(place.module)
    construct = _constructor(place, module)
    _check_options(options, _known_options(module, construct))
    return PettingZooEnv([_build(construct, options) for _ in range(batch)])


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SpecError(_not_found(name, error.name or name)) from None
    except ImportError as error:
        raise SpecError(f"{name} cannot be imported: {error}") from None


def _constructor(place: allowed.Place, module: ModuleType) -> Callable[..., ParallelEnv]:
    for name in place.attributes:
        if hasattr(module, name):
            constructor: Callable[..., ParallelEnv] = getattr(module, name)
            place.check_constructor(name, constructor)
            return constructor
    if place.attributes == allowed.USUAL:
        raise SpecError(
            f"{place.module} has neither 'parallel_env' nor 'env'; name what builds it: <module>:<callable>"
        )
    raise SpecError(f"{place.module} has no {place.attributes[0]!r}; name what builds it: <module>:<callable>")


def _not_found(module: str, missing: str) -> str:
    """The message for a module that cannot be imported because `missing` is not installed.

    Its commands come from `_INSTALLED_BY` alone, because `module` may be untrusted input.
    """
    known = next((extra for name, extra in _INSTALLED_BY.items() if f"{module}.".startswith(f"{name}.")), "")
    hint = f": pip install '{known}'" if known else ""
    if not f"{module}.".startswith(f"{missing}."):
        return f"{module} needs {missing!r}, which is not installed{hint}"
    parent = missing.rpartition(".")[0]
    if not parent:
        return f"there is no module {missing!r} on this machine{hint}"
    siblings = pkgutil.iter_modules(getattr(importlib.import_module(parent), "__path__", ()), f"{parent}.")
    return unknown_name("module", missing, [module.name for module in siblings])


def _check_options(options: Mapping[str, Any], known: Sequence[str]) -> None:
    for option in options:
        if known and option not in known:
            raise SpecError(unknown_name("option", option, known))


def _build(construct: Callable[..., Any], options: Mapping[str, Any]) -> ParallelEnv:
    try:
        env = construct(**options)
    except (TypeError, ValueError, AssertionError, ImportError, gymnasium_error.Error) as error:
        raise SpecError(f"cannot be built with options {shown(dict(options))}: {error}") from error
    if not isinstance(env, AECEnv):
        return env
    simultaneous = env.metadata.get("is_parallelizable", False)
    return conversions.aec_to_parallel(env) if simultaneous else conversions.turn_based_aec_to_parallel(env)


def _known_options(module: ModuleType, construct: Callable[..., Any]) -> list[str]:
    """Names of the options, from the signature behind PettingZoo's usual `**kwargs` wrappers; [] if it is unknown."""
    for candidate in (construct, getattr(module, "raw_env", construct)):
        try:
            parameters = inspect.signature(candidate).parameters.values()
        except (TypeError, ValueError):  # as of a class written in C
            return []
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            return [p.name for p in parameters]
    return []


@dataclass(frozen=True)
class _Codec:
    """Converts the observations and actions of one agent class."""

    observation: Space
    """The observation space without the action mask."""
    action: Space
    nested: bool
    """True if observations are dictionaries of the observation and an action mask."""

    @property
    def obs_size(self) -> int:
        return int(gymnasium_spaces.flatdim(self.observation))

    @property
    def action_space(self) -> Discrete | Box:
        if isinstance(self.action, gymnasium_spaces.Discrete):
            return Discrete(int(self.action.n))
        if isinstance(self.action, gymnasium_spaces.Box) and self.action.is_bounded():
            low, high = (bound.ravel().astype(float).tolist() for bound in (self.action.low, self.action.high))
            return Box(low=tuple(low), high=tuple(high))
        raise SpecError(f"action space {self.action} is not supported; known: Discrete, bounded Box")

    def encode(self, observation: Any) -> NDArray[np.generic]:
        inner = observation["observation"] if self.nested else observation
        if isinstance(self.observation, gymnasium_spaces.Box):
            return np.asarray(inner).ravel()
        return np.asarray(gymnasium_spaces.flatten(self.observation, inner))

    def decode(self, action: Any) -> Any:
        if isinstance(self.action, gymnasium_spaces.Discrete):
            return int(action) + int(self.action.start)
        whole = np.issubdtype(self.action.dtype, np.integer)
        return np.asarray(np.rint(action) if whole else action, self.action.dtype).reshape(self.action.shape)

    def mask(self, observation: Any, info: Mapping[str, Any]) -> Any:
        mask = observation.get(MASK) if self.nested else info.get(MASK)
        return True if mask is None else mask


class _Seats:
    """Maps each agent to its class and its row there, and each class to its codec."""

    def __init__(self, env: ParallelEnv, observations: Mapping[Any, Any]) -> None:
        if not hasattr(env, "possible_agents"):
            raise SpecError("does not declare possible_agents, so its agents cannot be known in advance")
        self.codecs: list[_Codec] = []
        self._members: list[list[Any]] = []
        for agent in env.possible_agents:
            codec = _codec(env, agent, observations)
            if codec not in self.codecs:
                self.codecs.append(codec)
                self._members.append([])
            self._members[self.codecs.index(codec)].append(agent)
        self._seat = {a: (k, i) for k, agents in enumerate(self._members) for i, a in enumerate(agents)}

    def __getitem__(self, agent: Any) -> tuple[int, int]:
        return self._seat[agent]

    def classes(self) -> tuple[AgentClass, ...]:
        """The agent classes, named after their first agent without its number."""
        classes: list[AgentClass] = []
        for codec, members in zip(self.codecs, self._members, strict=True):
            agents = tuple(_name(agent) for agent in members)
            name = re.sub(r"_?\d+$", "", agents[0]) or "agent"
            if name in [c.name for c in classes]:
                name = f"{name}_{len(classes)}"
            classes.append(AgentClass(name, agents, codec.obs_size, codec.action_space))
        return tuple(classes)


def _name(agent: Any) -> str:
    return agent if isinstance(agent, str) else f"agent_{agent}"


def _codec(env: ParallelEnv, agent: Any, observations: Mapping[Any, Any]) -> _Codec:
    try:
        with warnings.catch_warnings():  # without spaces, PettingZoo warns before it raises
            warnings.simplefilter("ignore")
            space, action = env.observation_space(agent), env.action_space(agent)
    except AttributeError:
        if agent not in observations or not hasattr(env, "action_spaces"):
            raise SpecError(f"does not declare the spaces of agent {agent!r}") from None
        shape = np.shape(observations[agent])
        space, action = gymnasium_spaces.Box(-np.inf, np.inf, shape), env.action_space(agent)
    nested = isinstance(space, gymnasium_spaces.Dict) and {"observation", MASK} <= space.spaces.keys()
    observation = space["observation"] if nested else space
    if not observation.is_np_flattenable:
        raise SpecError(f"observation space {observation} of agent {agent!r} has no fixed size and is not supported")
    return _Codec(observation, action, nested)


class _View:
    """The arrays of one frame."""

    def __init__(self, spaces: EnvSpaces, batch: int, seats: _Seats) -> None:
        self._seats = seats
        shapes = [(len(c.agents), batch) for c in spaces.classes]
        sized = list(zip(shapes, spaces.classes, strict=True))
        self.obs = tuple(np.zeros((*shape, c.obs_size), np.float32) for shape, c in sized)
        self.alive = tuple(np.zeros(shape, np.bool_) for shape in shapes)
        self.masks = tuple(np.ones((*s, c.action.n), np.bool_) for s, c in sized) if spaces.masks else None
        self.state = np.zeros((batch, spaces.state_size), np.float32) if spaces.state_size else None
        self.frame = Frame(obs=self.obs, state=self.state, masks=self.masks, alive=self.alive)

    def write(
        self, b: int, env: ParallelEnv, present: Sequence[Any], seen: tuple[Mapping[Any, Any], Mapping[Any, Any]]
    ) -> None:
        """Write the arrays of copy b for the agents that are present; `seen` holds observations and infos."""
        observations, infos = seen
        for k in range(len(self.obs)):
            self.obs[k][:, b] = 0.0
            self.alive[k][:, b] = False
            self._forbid(k, slice(None), b)
        for agent in present:
            k, i = self._seats[agent]
            codec = self._seats.codecs[k]
            self.obs[k][i, b] = codec.encode(observations[agent])
            self.alive[k][i, b] = True
            if self.masks is not None and isinstance(codec.action_space, Discrete):
                self.masks[k][i, b] = codec.mask(observations[agent], infos.get(agent, {}))
                if not self.masks[k][i, b].any():
                    self._forbid(k, i, b)
        if self.state is not None:
            self.state[b] = np.ravel(env.state())

    def copy_from(self, other: _View) -> None:
        """Copy all arrays from another view of the same environment."""
        for mine, theirs in zip(self._arrays(), other._arrays(), strict=True):
            np.copyto(mine, theirs)

    def _forbid(self, k: int, i: int | slice, b: int) -> None:
        if self.masks is not None and isinstance(self._seats.codecs[k].action_space, Discrete):
            self.masks[k][i, b] = False
            self.masks[k][i, b, 0] = True

    def _arrays(self) -> list[FloatArray | BoolArray]:
        state = () if self.state is None else (self.state,)
        return [*self.obs, *self.alive, *(self.masks or ()), *state]


class PettingZooEnv:
    """B copies of a parallel PettingZoo environment behind the batched protocol."""

    spaces: EnvSpaces
    batch: int

    def __init__(self, envs: Sequence[ParallelEnv]) -> None:
        self._envs = list(envs)
        self.batch = len(envs)
        # A reset first: some environments define their spaces only then, and only then masks and state can be seen.
        observations, infos = envs[0].reset(seed=0)
        self._seats = _Seats(envs[0], observations)
        self.spaces = EnvSpaces(
            classes=self._seats.classes(),
            state_size=_state_size(envs[0]),
            max_steps=None,
            masks=any(codec.nested for codec in self._seats.codecs) or any(MASK in i for i in infos.values()),
            deaths=True,
        )
        self._now, self._next = (_View(self.spaces, self.batch, self._seats) for _ in range(2))
        self._present: list[list[Any]] = [[] for _ in envs]
        self._log = EpisodeLog(self.spaces.classes, self.batch)
        self._filmed = getattr(envs[0], "render_mode", None) == "rgb_array"
        self._last_picture: NDArray[np.uint8] | None = None

    def reset(self, seed: int) -> Frame:
        """Start an episode in every copy, each with a seed of its own."""
        self._log.begin(seed)
        for b in range(self.batch):
            self._start(b, self._now)
        return self._now.frame

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """Let all agents alive act in every copy, one copy after another; copies whose episode ends are reset."""
        shapes = [(len(c.agents), self.batch) for c in self.spaces.classes]
        rewards = tuple(np.zeros(shape) for shape in shapes)
        terminated = tuple(np.zeros(shape, np.bool_) for shape in shapes)
        truncated, ended = np.zeros(self.batch, np.bool_), np.zeros(self.batch, np.bool_)
        for b in range(self.batch):
            outcome = self._advance(b, actions)
            for agent in self._present[b]:
                k, i = self._seats[agent]
                rewards[k][i, b] = outcome.rewards.get(agent, 0.0)
                terminated[k][i, b] = agent in outcome.terminated
            self._show(b, self._now, outcome.present, outcome.seen)
            truncated[b], ended[b] = outcome.truncated, outcome.over
        self._log.add(actions, ended)
        if ended[0] and self._filmed:
            self._last_picture = self.picture()
        return Transition(
            frame=self._restart(ended) if ended.any() else self._now.frame,
            final=self._now.frame,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            ended=ended,
        )

    def save(self) -> Arrays:
        """See `marless.envs.base.Saved`."""
        return self._log.save()

    def load(self, arrays: Arrays) -> Frame:
        """See `marless.envs.base.Saved`; raises SpecError if a copy does not play its episode as it did before."""
        self._log.load(arrays)
        for b in range(self.batch):
            with replaying(b):
                self._replay(b)
        return self._now.frame

    def picture(self, *, ended: bool = False) -> NDArray[np.uint8]:
        """See `marless.envs.base.Pictured`; the environment must have been made with `render_mode: rgb_array`."""
        if ended and self._last_picture is not None:
            return self._last_picture
        pixels = self._envs[0].render()
        if not isinstance(pixels, np.ndarray) or pixels.ndim != 3:
            raise SpecError("does not draw itself: its render() answers no pixels")
        return pixels.astype(np.uint8)

    def close(self) -> None:
        """Close every copy."""
        while self._envs:
            self._envs.pop().close()

    def _advance(self, b: int, actions: tuple[ActionArray, ...]) -> _Outcome:
        env = self._envs[b]
        return _Outcome(env, self._present[b], env.step({a: self._decode(a, b, actions) for a in env.agents}))

    def _replay(self, b: int) -> None:
        """Play the present episode of copy b again; only its last frame is shown."""
        self._start(b, self._now)
        for t in range(int(self._log.steps[b])):
            outcome = self._advance(b, self._log.actions(t))
            self._present[b] = outcome.present
            if outcome.over:
                raise SpecError(f"it ended after {t + 1} steps")
        if self._log.steps[b]:
            self._show(b, self._now, outcome.present, outcome.seen)

    def _decode(self, agent: Any, b: int, actions: tuple[ActionArray, ...]) -> Any:
        k, i = self._seats[agent]
        return self._seats.codecs[k].decode(actions[k][i, b])

    def _start(self, b: int, view: _View) -> None:
        env = self._envs[b]
        seen = env.reset(seed=self._log.seed(b))
        self._show(b, view, list(env.agents), seen)

    def _show(self, b: int, view: _View, present: list[Any], seen: tuple[Any, Any]) -> None:
        self._present[b] = present
        view.write(b, self._envs[b], present, seen)

    def _restart(self, ended_B: BoolArray) -> Frame:
        self._next.copy_from(self._now)
        for b in np.flatnonzero(ended_B):
            self._start(int(b), self._next)
        return self._next.frame


class _Outcome:
    """The meaning of a parallel step for the episode, by the rules in the module's docstring."""

    def __init__(self, env: ParallelEnv, acted: Sequence[Any], result: tuple[Any, ...]) -> None:
        observations, self.rewards, terminations, truncations, infos = result
        self.seen = (observations, infos)
        own_end = {a for a in acted if terminations.get(a, False)}
        cut_off = {a for a in acted if truncations.get(a, False)} - own_end
        going_on = [a for a in env.agents if not terminations.get(a, False) and not truncations.get(a, False)]
        self.over = not going_on
        self.truncated = self.over and bool(cut_off)
        staying = [a for a in acted if a in cut_off] if self.over else going_on
        self.terminated = set(acted) - set(staying)
        self.present = [a for a in staying if a in observations]


def _state_size(env: ParallelEnv) -> int:
    try:
        return int(np.size(env.state()))
    except NotImplementedError:
        return 0
    except AttributeError as error:
        if error.name == "state":  # it, or the environment that it wraps, has none
            return 0
        raise SpecError(f"its state() is broken: {error}") from error
