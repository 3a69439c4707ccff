"""Where agents stand on the walls, and how the stress between them follows from theirs.

Shape suffixes: W walls, X and Z agents along x and z, N = W · X · Z agents in this order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from marless_wall_model.grid import Grid

Reals = NDArray[np.float64]
_WALLS = ("bottom", "top")


@dataclass(frozen=True)
class AgentGrid:
    """Agents on every `stride`-th cell of each wall; the stride divides the numbers of cells."""

    grid: Grid
    stride: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Walls, and agents along x and along z."""
        return self.grid.walls, self.grid.nx // self.stride, self.grid.nz // self.stride

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the agents, e.g. `bottom_0_4`: the wall, and the agent's cell along x and z."""
        walls, along_x, along_z = self.shape
        return tuple(
            f"{wall}_{i * self.stride}_{k * self.stride}"
            for wall in _WALLS[:walls]
            for i in range(along_x)
            for k in range(along_z)
        )

    @cached_property
    def cells(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """The wall of each agent, and its cell along x and along z; [N] each."""
        walls, along_x, along_z = np.indices(self.shape).reshape(3, -1)
        return walls, along_x * self.stride, along_z * self.stride

    def spread(self, stress_WXZ: Reals) -> Reals:
        """The stress of every wall cell, float64 [walls, nx, nz]: bilinear between the agents, and periodic."""
        return self._between(self._between(stress_WXZ, axis=1), axis=2)

    def _between(self, values: Reals, axis: int) -> Reals:
        following = np.roll(values, -1, axis=axis)
        parts = [values + (following - values) * (step / self.stride) for step in range(self.stride)]
        stacked = np.stack(parts, axis=axis + 1)
        shape = list(values.shape)
        shape[axis] *= self.stride
        return stacked.reshape(shape)
