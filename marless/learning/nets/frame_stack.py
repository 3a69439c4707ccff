"""The last images of each agent, stacked in the input of its net while it acts. NumPy only.

They are kept where the net reads them, as numbers in [0, 1], from which the bytes are found again. Shapes: N agents of
a class, B copies, O pixels of an image, F images.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import BoolArray, FloatArray, ObsArray
from marless.learning.nets.inputs import WHITE, write_observation


class FrameStack:
    """The rows [N, F · O, B] of a net's input, the oldest image first."""

    def __init__(self, rows_NIB: FloatArray, frames: int) -> None:
        """Begin anew in all copies; `rows_NIB` is written from now on."""
        agents, _, batch = rows_NIB.shape
        self._images = np.split(rows_NIB, frames, axis=1)
        for each in self._images:
            each[:] = 0
        self._begins_NB = np.ones((agents, batch), np.bool_)

    def reset(self, anew_NB: BoolArray) -> None:
        """Let the next image of these agents be their first."""
        self._begins_NB |= anew_NB

    def push(self, obs_NBO: ObsArray) -> None:
        """Add the next image of each agent; a first one takes the place of all before it, too."""
        for older, newer in pairwise(self._images):
            older[:] = newer
        *before, last = self._images
        write_observation(last, obs_NBO)
        if self._begins_NB.any():
            for older in before:
                older.swapaxes(1, 2)[self._begins_NB] = last.swapaxes(1, 2)[self._begins_NB]
            self._begins_NB[:] = False

    def memory(self) -> dict[str, NDArray[np.generic]]:
        """What the next images are stacked on: "frames", uint8 [F − 1, N, B, O], and "begins", bool [N, B]: who begins
        anew with the next image, and has zeros for frames.
        """
        # Exact: v / 255 differs from its float32 by less than one part in 2^24.
        frames = np.stack([np.rint(each.swapaxes(1, 2) * WHITE).astype(np.uint8) for each in self._images[1:]])
        frames[:, self._begins_NB] = 0
        return {"frames": frames, "begins": self._begins_NB.copy()}

    def recall(self, frames: NDArray[np.generic], begins_NB: NDArray[np.generic]) -> None:
        """Go on with what `memory` returned."""
        for image, bytes_NBO in zip(self._images[1:], frames.astype(np.uint8, copy=False), strict=True):
            write_observation(image, bytes_NBO)
        self._begins_NB[:] = begins_NB
