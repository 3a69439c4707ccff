"""Converts the observations, masks and actions of PettingZoo's agents, which may have any space of a fixed size.

| observation space | numbers, float32 |
|---|---|
| Box | its elements in C order; bytes from 0 to 255 are pixels and divided by 255, all others are unscaled |
| Discrete, MultiDiscrete | one-hot, each component |
| MultiBinary | 0 or 1 |
| Tuple, Dict | those of the parts one after another, a Dict's in the order of its space |

| action space | action |
|---|---|
| Discrete | its index, from 0 whatever the space's start |
| MultiDiscrete, MultiBinary | one of all combinations, the last component changing fastest |
| Box | its elements in C order; whole numbers are rounded; bounds beyond ±1e30 count as none |

A mask of legal actions, one number per action, is found in two places. In a Dict observation it is a space of zeros and
ones: the entry `action_mask`; or the one whose name says so (mask, legal, avail, valid); or the only entry beside
`observation`. It is no part of the observation then. Otherwise it is the entry of the agent's info whose name says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from marless.envs.base import BoolArray, Box, Discrete
from marless.errors import SpecError

# Any stands for PettingZoo's and Gymnasium's objects, because third-party ones need not subclass anything.
Space = Any
Encoder = Callable[[Any], NDArray[np.generic]]
MASK, INNER = "action_mask", "observation"
_MASK_NAME = re.compile(r"(?!.*(?:invalid|illegal)).*(?:mask|legal|avail|valid)", re.IGNORECASE)
_MOST_COMBINATIONS = 4096
"""Actions that a MultiDiscrete or MultiBinary space may have in all combinations."""
_BOUNDLESS = 1e30
"""Bounds as large as this stand for none: float32's largest number was once the way to write it."""
_BYTE = np.float32(1 / 255)


@dataclass(frozen=True)
class Codec:
    """Converts the observations and actions of one agent class."""

    observation: Space
    """The observation space without the mask."""
    action: Space
    mask_key: str | None = None
    """Where the mask is in observations, which are dictionaries then; None if they hold none."""
    inner_key: str | None = None
    """Where the observation itself is, if it is all that is beside the mask."""

    @property
    def obs_size(self) -> int:
        """Number of elements of a flat observation."""
        return int(spaces.flatdim(self.observation))

    @property
    def action_space(self) -> Discrete | Box:
        """The action space as policies see it; raises SpecError if they cannot."""
        if (sizes := _sizes(self.action)) is not None:
            return Discrete(_combinations(self.action, sizes))
        if not isinstance(self.action, spaces.Box):
            raise SpecError(
                f"action space {self.action} is not supported; known: Discrete, MultiDiscrete, MultiBinary, Box"
            )
        low, high = (np.asarray(bound, np.float64).ravel() for bound in (self.action.low, self.action.high))
        low, high = np.where(low <= -_BOUNDLESS, -np.inf, low), np.where(high >= _BOUNDLESS, np.inf, high)
        return Box(low=tuple(low.tolist()), high=tuple(high.tolist()))

    def encode(self, observation: Any) -> NDArray[np.generic]:
        """The flat observation."""
        return self._encode(observation if self.inner_key is None else observation[self.inner_key])

    @cached_property
    def _encode(self) -> Encoder:
        return _encoder(self.observation)

    def decode(self, action: Any) -> Any:
        """The environment's action for a policy's."""
        if isinstance(self.action, spaces.Discrete):
            return int(action) + int(self.action.start)
        if (sizes := _sizes(self.action)) is not None:
            parts = np.asarray(np.unravel_index(int(action), sizes)).reshape(self.action.shape)
            return (parts + getattr(self.action, "start", 0)).astype(self.action.dtype)
        whole = np.issubdtype(self.action.dtype, np.integer)
        return np.asarray(np.rint(action) if whole else action, self.action.dtype).reshape(self.action.shape)

    def mask(self, observation: Any, info: Mapping[str, Any]) -> BoolArray | None:
        """bool [A], the legal actions; None if neither the observation nor the info has them."""
        if self.mask_key is not None:
            return _as_mask(observation[self.mask_key])
        return info_mask(info, self.action)


def codec(space: Space, action: Space) -> Codec:
    """The codec of an agent with these spaces; raises SpecError for observations without a fixed size."""
    mask_key = inner_key = None
    if isinstance(space, spaces.Dict) and (mask_key := _mask_key(space, action)) is not None:
        rest = {key: part for key, part in space.spaces.items() if key != mask_key}
        inner_key = next(iter(rest)) if len(rest) == 1 else None
        space = spaces.Dict(rest) if inner_key is None else rest[inner_key]
    if not space.is_np_flattenable:
        raise SpecError(f"observation space {space} has no fixed size and is not supported")
    return Codec(space, action, mask_key, inner_key)


def info_mask(info: Mapping[str, Any], action: Space) -> BoolArray | None:
    """The mask in an agent's info, if it has one."""
    if not info or (sizes := _sizes(action)) is None:
        return None
    count = math.prod(sizes)
    for key in sorted(info, key=lambda name: name != MASK):
        if isinstance(key, str) and _MASK_NAME.match(key) and _is_mask(key, info[key], count):
            return _as_mask(info[key])
    return None


def state_encoder(space: Space | None) -> Encoder:
    """Flattens global states, whose space may be unknown."""
    return _encoder(space) if isinstance(space, spaces.Box) else _numbers


def _is_mask(key: str, value: Any, count: int) -> bool:
    """Whether a value is a mask, and not, say, a list of `count` legal actions."""
    bits = isinstance(value, np.ndarray) and (value.dtype == np.bool_ or value.dtype.itemsize == 1)
    return ("mask" in key.lower() or bits) and np.size(value) == count


def _as_mask(value: Any) -> BoolArray:
    return np.asarray(value).astype(np.bool_).ravel()


def _mask_key(space: spaces.Dict, action: Space) -> str | None:
    sizes = _sizes(action)
    if sizes is None or len(space.spaces) < 2:
        return None
    fitting = [key for key, part in space.spaces.items() if _bits(part) == math.prod(sizes) and key != INNER]
    named = [key for key in sorted(fitting, key=lambda key: key != MASK) if _MASK_NAME.match(key)]
    if named:
        return str(named[0])
    alone = len(space.spaces) == 2 and INNER in space.spaces and fitting
    return str(fitting[0]) if alone else None


def _bits(space: Space) -> int:
    """Number of elements of a space of zeros and ones; 0 for all other spaces."""
    if isinstance(space, spaces.MultiBinary):
        return math.prod(space.shape)
    whole = isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind in "bui"
    if whole and (space.low == 0).all() and (space.high == 1).all():
        return math.prod(space.shape)
    return 0


def _sizes(space: Space) -> tuple[int, ...] | None:
    """Choices per component of a discrete space; None for all other spaces."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(n) for n in np.ravel(space.nvec))
    if isinstance(space, spaces.MultiBinary):
        return (2,) * math.prod(space.shape)
    return None


def _combinations(space: Space, sizes: Sequence[int]) -> int:
    count = math.prod(sizes)
    if len(sizes) > 1 and count > _MOST_COMBINATIONS:
        raise SpecError(
            f"action space {space} has {count:,} combinations, each of which is an action; at most "
            f"{_MOST_COMBINATIONS:,} are supported"
        )
    return count


def _encoder(space: Space) -> Encoder:
    if isinstance(space, spaces.Box):
        return _pixels if _is_pixels(space) else _numbers
    if isinstance(space, spaces.Tuple):
        parts = [_encoder(part) for part in space.spaces]
        return lambda value: np.concatenate([part(each) for part, each in zip(parts, value, strict=True)])
    if isinstance(space, spaces.Dict):
        named = {key: _encoder(part) for key, part in space.spaces.items()}
        return lambda value: np.concatenate([part(value[key]) for key, part in named.items()])
    return lambda value: np.asarray(spaces.flatten(space, value))


def _numbers(value: Any) -> NDArray[np.generic]:
    return np.asarray(value).ravel()


def _pixels(value: Any) -> NDArray[np.generic]:
    scaled: NDArray[np.float32] = np.multiply(value, _BYTE, dtype=np.float32)
    return scaled.ravel()


def _is_pixels(space: spaces.Box) -> bool:
    return space.dtype == np.uint8 and bool((space.low == 0).all() and (space.high == 255).all())
