"""Converts the observations, masks and actions of Gymnasium's spaces, which may be any of a fixed size.

| observation space | numbers, float32 |
|---|---|
| Box | an image of bytes as `images` says; else its elements in C order, bytes from 0 to 255 divided by 255 |
| Discrete, MultiDiscrete | one-hot, each component |
| MultiBinary | 0 or 1 |
| Tuple, Dict | those of the parts one after another, a Dict's in the order of its space |

| action space | action |
|---|---|
| Discrete | its index, from 0 whatever the space's start |
| MultiDiscrete, MultiBinary | one of all combinations, the last component changing fastest |
| Box | its elements in C order; whole numbers are rounded; bounds beyond ±1e30 count as none |

`masks` finds masks of legal actions; a mask is no part of the observation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from marless.core.errors import SpecError, shown, told
from marless.learning.envs.base import BOUNDLESS, BoolArray, Box, Discrete
from marless.learning.envs.gymnasium.images import WHOLE, ImageCodec, ImageLook, reader
from marless.learning.envs.gymnasium.masks import AUTO, MaskChoice, MaskSource, in_info, in_observation, sizes_of

# Any stands for spaces and values of environments, because third-party ones need not subclass anything.
Space = Any
Encoder = Callable[[Any], NDArray[np.generic]]
_MOST_COMBINATIONS = 4096
"""Actions that a MultiDiscrete or MultiBinary space may have in all combinations."""
_BYTE = np.float32(1 / 255)


@dataclass(frozen=True)
class SpaceCodec:
    """Converts the observations and actions of one agent class."""

    observation: Space
    """The observation space without the mask."""
    action: Space
    mask_source: MaskSource | None = None
    """Where the mask is; None if there is none."""
    inner_key: str | None = None
    """Where the observation itself is, if it is all that is beside the mask."""
    look: ImageLook = WHOLE
    """How images are seen."""

    @cached_property
    def image(self) -> tuple[int, int, int] | None:
        """(channels, height, width) of an observation that is an image."""
        return self._image.shape if self._image else None

    @cached_property
    def _image(self) -> ImageCodec | None:
        """Raises SpecError if images cannot be seen so."""
        return reader(self.observation, self.look)

    @cached_property
    def obs_size(self) -> int:
        """Number of elements of a flat observation."""
        return math.prod(self.image) if self.image else int(spaces.flatdim(self.observation))

    @property
    def action_space(self) -> Discrete | Box:
        """The action space as policies see it; raises SpecError if they cannot."""
        if (sizes := sizes_of(self.action)) is not None:
            count = math.prod(sizes)
            if len(sizes) > 1 and count > _MOST_COMBINATIONS:
                raise SpecError(
                    f"action space {self.action} has {count:,} combinations, each of which is an action; at most "
                    f"{_MOST_COMBINATIONS:,} are supported"
                )
            return Discrete(count)
        if not isinstance(self.action, spaces.Box):
            raise SpecError(
                f"action space {self.action} is not supported; known: Discrete, MultiDiscrete, MultiBinary, Box"
            )
        low, high = (np.asarray(bound, np.float64).ravel() for bound in (self.action.low, self.action.high))
        low, high = np.where(low <= -BOUNDLESS, -np.inf, low), np.where(high >= BOUNDLESS, np.inf, high)
        return Box(low=tuple(low.tolist()), high=tuple(high.tolist()))

    def encode(self, observation: Any) -> NDArray[np.generic]:
        """The flat observation; raises SpecError for what is not in the space, but for numbers beyond its bounds."""
        try:
            found = self._encode(observation if self.inner_key is None else observation[self.inner_key])
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            why = f"; {told(error)}" if isinstance(error, KeyError | AttributeError) else ""
            raise SpecError(
                f"observes {_what(observation)}, its space is {shown(str(self.observation))[1:-1]}{why}"
            ) from None
        return found

    @cached_property
    def _encode(self) -> Encoder:
        return self._image or _encoder(self.observation)

    def decode(self, action: Any) -> Any:
        """The environment's action for a policy's."""
        if isinstance(self.action, spaces.Discrete):
            return int(action) + int(self.action.start)
        if (sizes := sizes_of(self.action)) is not None:
            parts = np.asarray(np.unravel_index(int(action), sizes)).reshape(self.action.shape)
            return (parts + getattr(self.action, "start", 0)).astype(self.action.dtype)
        return self._within_bounds(action)

    def _within_bounds(self, action: Any) -> NDArray[np.generic]:
        """The continuous action in the dtype of its space, in which float32 bounds may lie outside of the box."""
        space, numbers = self.action, np.asarray(action, np.float64).reshape(self.action.shape)
        if not np.issubdtype(space.dtype, np.integer):
            return np.asarray(np.clip(numbers.astype(space.dtype), space.low, space.high))
        # The ends of 64-bit integers are no float64 numbers: what rounds to them or beyond is taken from the bounds.
        rounded = np.rint(numbers)
        above, below = rounded >= space.high.astype(np.float64), rounded <= space.low.astype(np.float64)
        inside = np.where(above | below, 0.0, rounded).astype(space.dtype)
        return np.asarray(np.where(above, space.high, np.where(below, space.low, inside)), space.dtype)

    def mask(self, observation: Any, info: Mapping[str, Any]) -> BoolArray | None:
        """bool [A], the legal actions; None if the agent was told none. Raises SpecError for what is no mask."""
        source = self.mask_source
        if source is None:
            return None
        if source.place == "observation":
            return source.read(observation[source.key])
        return source.read(info[source.key]) if source.key in info else None


def codec(space: Space, action: Space, choice: MaskChoice = AUTO) -> tuple[SpaceCodec, list[str]]:
    """The codec of an agent with these spaces, and what a user should know of how masks were found.

    Raises SpecError for observations without a fixed size, and for a mask that fits no actions.
    """
    source, notes = in_observation(space, action, choice)
    inner_key = None
    if source is not None:
        rest = {key: part for key, part in space.spaces.items() if key != source.key}
        inner_key = next(iter(rest)) if len(rest) == 1 else None
        space = spaces.Dict(rest) if inner_key is None else rest[inner_key]
    # A Text is flattenable, to numbers of letters, which are no quantities.
    if not space.is_np_flattenable or isinstance(space, spaces.Text):
        raise SpecError(f"observation space {space} has no fixed size and is not supported")
    return SpaceCodec(space, action, source, inner_key), notes


def with_mask_of_infos(
    known: SpaceCodec, infos: Iterable[Mapping[Any, Any]], choice: MaskChoice
) -> tuple[SpaceCodec, list[str]]:
    """The codec with the mask of the first of these infos, after a reset, that has one, if observations have none.

    Returns also what a user should know of how it was found. Raises SpecError for one that fits no actions.
    """
    if known.mask_source is not None:
        return known, []
    for info in infos:
        source, notes = in_info(info, known.action, choice)
        if source is not None:
            return replace(known, mask_source=source), notes
    return known, []


def check_found(codecs: Iterable[SpaceCodec], choice: MaskChoice) -> None:
    """Raise SpecError if a job names a mask that nobody has."""
    if not choice.auto and choice.key is not None and not any(each.mask_source for each in codecs):
        raise SpecError(
            f"env.mask: {choice.key!r} is an entry of no agent's observations, nor of its info after a reset"
        )


def _what(value: Any) -> str:
    """A value in a message: its shape and dtype if it is an array, else itself."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array {value.dtype.name}{list(value.shape)}"
    return shown(value)


def state_encoder(space: Space | None) -> Encoder:
    """Flattens global states, whose space may be unknown."""
    return _encoder(space) if isinstance(space, spaces.Box) else lambda value: np.asarray(value).ravel()


def _encoder(space: Space) -> Encoder:
    """Flattens values of a space; raises ValueError, TypeError or KeyError for what is not of its size and kind."""
    if isinstance(space, spaces.Box):
        pixels = space.dtype == np.uint8 and bool((space.low == 0).all() and (space.high == 255).all())
        size = math.prod(space.shape)

        def flat_box(value: Any) -> NDArray[np.generic]:
            found = np.multiply(value, _BYTE, dtype=np.float32).ravel() if pixels else np.asarray(value).ravel()
            # NumPy would spread one number over all, and drop the imaginary part of a complex one.
            if found.size != size or found.dtype.kind not in "biuf":
                raise ValueError(value)
            return found

        return flat_box
    if isinstance(space, spaces.Tuple):
        parts = [_encoder(part) for part in space.spaces]
        return lambda value: np.concatenate([part(each) for part, each in zip(parts, value, strict=True)])
    if isinstance(space, spaces.Dict):
        named = {key: _encoder(part) for key, part in space.spaces.items()}
        return lambda value: np.concatenate([part(value[key]) for key, part in named.items()])
    return partial(_one_hot, space)


def _one_hot(space: Space, value: Any) -> NDArray[np.generic]:
    """The flat numbers of a Discrete, MultiDiscrete or MultiBinary; raises ValueError for what is not in it."""
    # The value counts, not its dtype, which `contains` also compares and few environments keep to.
    given = np.asarray(value)
    if given.dtype.kind not in "biuf" or not np.isfinite(given).all():
        raise ValueError(value)
    whole = given.astype(space.dtype).reshape(space.shape)
    if not np.array_equal(whole, given.reshape(space.shape)) or not space.contains(whole if space.shape else whole[()]):
        raise ValueError(value)
    return np.asarray(spaces.flatten(space, whole))
