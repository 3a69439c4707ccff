"""Observations that are images: what they are recognised by, and how they are seen.

A Box of bytes from 0 to 255 with two axes (height, width), or with three, of which the last or else the first has 1, 3
or 4 channels, is an image if it has at least 8 × 8 pixels; smaller ones are grids, which are read as vectors. Agents
observe the bytes of an image, channel by channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from marless.core.errors import SpecError, shown
from marless.learning.envs.shrinking import Pixels, Shrinking

LOOKS = ("resize", "grayscale")
"""Options of all environments of PettingZoo, besides their own."""
_CHANNELS = (1, 3, 4)
_LEAST_SIDE = 8
_BRIGHTNESS = np.array([0.299, 0.587, 0.114], np.float32)
"""Shares of red, green and blue (ITU-R BT.601)."""


@dataclass(frozen=True)
class ImageLook:
    """How an agent sees images."""

    resize: tuple[int, int] | None = None
    """(height, width) to which they are made smaller; None: they are seen as they are."""
    grayscale: bool = False
    """True: only their brightness is seen."""

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> ImageLook:  # Any: YAML
        """Read the options of `LOOKS`; raises SpecError."""
        size, gray = options.get("resize"), options.get("grayscale", False)
        pair = size if isinstance(size, list | tuple) else ()
        if size is not None and (len(pair) != 2 or not all(type(each) is int and 0 < each <= 4096 for each in pair)):
            raise SpecError(f"resize must be two whole numbers, [height, width], got {shown(size)}")
        if not isinstance(gray, bool):
            raise SpecError(f"grayscale must be true or false, got {shown(gray)}")
        return cls((pair[0], pair[1]) if size is not None else None, gray)


WHOLE = ImageLook()


class ImageCodec:
    """Reads the images of one space as the bytes that an agent sees."""

    def __init__(self, space: spaces.Box, axes: tuple[int, int, int], look: ImageLook) -> None:
        """`axes` are channels, height and width; raises SpecError for a size larger than the image."""
        self._space_shape, self._axes = space.shape, axes
        channels, height, width = ((*space.shape, 1)[axis] for axis in axes)
        new = look.resize or (height, width)
        if new[0] > height or new[1] > width:
            raise SpecError(f"resize {list(new)} is larger than images of {height} × {width}; it can only be smaller")
        self._gray = look.grayscale and channels >= 3
        self._shrink = Shrinking((height, width), new) if new != (height, width) else None
        self.shape = (1 if self._gray else channels, *new)
        """(channels, height, width) of what is seen."""

    def __call__(self, value: Any) -> NDArray[np.generic]:
        """The flat image; raises ValueError for one of another shape or dtype."""
        found = np.asarray(value)
        if found.shape != self._space_shape or found.dtype != np.uint8:
            raise ValueError(value)
        seen: Pixels = (found[:, :, None] if found.ndim == 2 else found).transpose(self._axes)
        if self._gray:
            seen = _brightness(seen)
        return (self._shrink(seen) if self._shrink else seen).ravel()


def _brightness(colours_CHW: Pixels) -> Pixels:
    """The gray picture, uint8 [1, height, width], of one in red, green and blue; what follows is left out.

    One colour after another: tensordot would first copy what games draw, whose colours lie far apart or backwards.
    """
    gray_HW = colours_CHW[0] * _BRIGHTNESS[0]
    for colour_HW, share in zip(colours_CHW[1:3], _BRIGHTNESS[1:], strict=True):
        gray_HW += colour_HW * share
    gray: Pixels = np.rint(gray_HW, out=gray_HW).astype(np.uint8)[None]
    return gray


def reader(space: Any, look: ImageLook) -> ImageCodec | None:  # Any: third-party spaces
    """The reader of a space's images; None if it has none. Raises SpecError for a look at what is no image."""
    axes = _axes(space)
    if axes is not None:
        return ImageCodec(space, axes, look)
    if look != WHOLE:
        raise SpecError(
            f"resize and grayscale are for agents that observe images, and {shown(str(space))} is none; leave them out"
        )
    return None


def _axes(space: Any) -> tuple[int, int, int] | None:
    """The axes of channels, height and width of an image; None for what is none."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return None
    if (space.low != 0).any() or (space.high != 255).any():
        return None
    sides = sorted(space.shape)[-2:]
    if sides[0] < _LEAST_SIDE:
        return None
    if len(space.shape) == 2 or space.shape[2] in _CHANNELS:
        return (2, 0, 1)
    return (0, 1, 2) if space.shape[0] in _CHANNELS else None
