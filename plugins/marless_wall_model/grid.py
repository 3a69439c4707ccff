"""The grid of a channel: uniform cells, staggered velocities, periodic along the stream and across it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import SpecError, shown

Numbers = NDArray[np.floating[Any]]
"""Arrays of float32 or float64."""
LEAST_CELLS, MOST_CELLS = 4, 1024
"""Cells in one direction."""
MOST_CELLS_IN_ALL = 1 << 24
HALF, FULL = 1, 2


@dataclass(frozen=True)
class Grid:
    """The cells of a channel; lengths are in units of δ, the half height of a channel.

    x runs along the stream, y away from the lower wall, z across. Arrays are [y, x, z]. u, v and w stand in the middle
    of the faces of a cell that x, y and z cross; index 0 is the face on the lower side. Raises SpecError for a grid
    that cannot be computed on.
    """

    nx: int
    ny: int
    nz: int
    length: tuple[float, float]
    """Length and width of the periodic box."""
    walls: int = HALF
    """1: half a channel, whose upper boundary at y = 1 has neither stress nor flow through it; 2: a channel of height 2
    with a wall at either end."""

    def __post_init__(self) -> None:
        for name, cells in (("nx", self.nx), ("ny", self.ny), ("nz", self.nz)):
            whole = isinstance(cells, int) and not isinstance(cells, bool)
            if not whole or not LEAST_CELLS <= cells <= MOST_CELLS:
                raise SpecError(f"grid: {name} is {shown(cells)}; give {LEAST_CELLS} to {MOST_CELLS} cells")
        if self.cells > MOST_CELLS_IN_ALL:
            raise SpecError(f"grid: has {self.cells} cells; give at most {MOST_CELLS_IN_ALL}")
        if self.walls not in (HALF, FULL):
            raise SpecError(f"grid: walls is {shown(self.walls)}; give 1 for half a channel, or 2 for a whole one")
        if self.walls == FULL and self.ny % 2:
            raise SpecError(f"grid: ny is {self.ny}; a channel with two walls needs an even number, half for each wall")
        for name, length in zip(("length", "width"), self.length, strict=True):
            if not (math.isfinite(length) and length > 0):
                raise SpecError(f"grid: its {name} is {shown(length)}; give a positive number, in units of δ")

    @property
    def cells(self) -> int:
        """The number of all cells."""
        return self.nx * self.ny * self.nz

    @property
    def height(self) -> float:
        """The distance from the lower boundary to the upper one."""
        return float(self.walls)

    @property
    def dx(self) -> float:
        """The size of a cell along the stream."""
        return self.length[0] / self.nx

    @property
    def dy(self) -> float:
        """The size of a cell away from the wall."""
        return self.height / self.ny

    @property
    def dz(self) -> float:
        """The size of a cell across the stream."""
        return self.length[1] / self.nz

    @property
    def cells_of_wall(self) -> int:
        """The cells in y that lie nearer to one wall than to another."""
        return self.ny // self.walls

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an array with a number for each cell, [ny, nx, nz]; those of u and w are the same."""
        return self.ny, self.nx, self.nz

    @property
    def faces(self) -> tuple[int, int, int]:
        """The shape of v, [ny + 1, nx, nz]."""
        return self.ny + 1, self.nx, self.nz

    @property
    def wall_shape(self) -> tuple[int, int, int]:
        """The shape of an array with a number for each cell at a wall, [walls, nx, nz]; the lower wall is first."""
        return self.walls, self.nx, self.nz

    def heights(self) -> NDArray[np.float64]:
        """The distance of each layer of cells from the lower boundary, float64 [ny]."""
        return np.array((np.arange(self.ny) + 0.5) * self.dy, np.float64)

    def distances(self) -> NDArray[np.float64]:
        """The distance of each layer of cells from the nearest wall, float64 [ny]."""
        heights = self.heights()
        return heights if self.walls == HALF else np.array(np.minimum(heights, self.height - heights), np.float64)
