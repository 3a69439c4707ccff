"""Where units can stand, and which way they go round walls.

Cells are blocked in blocks of 2 × 2, so routes lead from block to block. Shape suffixes: U units, B battles, K blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import BoolArray, FloatArray
from marless_smac.maps import MAPS, SIZE
from marless_smac.tables import Tables

_BLOCK = 2
_ROW = SIZE // _BLOCK
# Less than a cell, so that a unit at the edge of the last cell is not counted to the next one.
_INSIDE = 1 - 1e-3
_EDGE = np.float32(SIZE - 1 + _INSIDE)
_GROUND, _CLIMBERS, _AIR = range(3)


class Ground:
    """The walls of one map. Colossi walk over what lies between walkable cells, flyers over everything."""

    def __init__(self, name: str, tables: Tables) -> None:
        walkable = MAPS[name].walkable()
        self.walkable = walkable
        self._layer_U1 = np.where(tables.flies, _AIR, np.where(tables.climbs, _CLIMBERS, _GROUND))[:, None]
        columns, rows = np.flatnonzero(walkable.any(axis=1)), np.flatnonzero(walkable.any(axis=0))
        box = np.zeros_like(walkable)
        box[columns[0] : columns[-1] + 1, rows[0] : rows[-1] + 1] = True
        everywhere = np.ones_like(walkable)
        self._layers_LXY = np.stack([walkable, box, everywhere])
        self._routes = None if (walkable == box).all() else routes(name)
        low, high = np.zeros((2, *self._layer_U1.shape), np.float32), np.full((2, *self._layer_U1.shape), _EDGE)
        low[:, self._layer_U1[:, 0] != _AIR] = [[[columns[0]]], [[rows[0]]]]
        high[:, self._layer_U1[:, 0] != _AIR] = [[[columns[-1] + _INSIDE]], [[rows[-1] + _INSIDE]]]
        self._box = low, high

    def settle(self, x: FloatArray, y: FloatArray, old_x: FloatArray, old_y: FloatArray, alive: BoolArray) -> None:
        """Take back, in place, what of the moves of living units would lead into walls."""
        (low_x, low_y), (high_x, high_y) = self._box
        np.clip(x, low_x, high_x, out=x, where=alive)
        np.clip(y, low_y, high_y, out=y, where=alive)
        if self._routes is None:
            return
        free = self._free(x, y) | ~alive
        if free.all():
            return
        slides_x = ~free & self._free(x, old_y)
        slides_y = ~free & ~slides_x & self._free(old_x, y)
        np.copyto(x, old_x, where=~(free | slides_x))
        np.copyto(y, old_y, where=~(free | slides_y))

    def directed(self, x: FloatArray, y: FloatArray, dx: FloatArray, dy: FloatArray) -> tuple[FloatArray, ...] | None:
        """The way (dx, dy) to the next point of the route for a way that walls may block; None on maps without."""
        if self._routes is None:
            return None
        here, there = self._routes.places(x, y), self._routes.places(x + dx, y + dy)
        straight = self._routes.straight[here, there] | (self._layer_U1 != _GROUND)
        step = self._routes.next[here, there]
        to_x, to_y = self._routes.centre[0, step], self._routes.centre[1, step]
        return np.where(straight, dx, to_x - x), np.where(straight, dy, to_y - y)

    def _free(self, x: FloatArray, y: FloatArray) -> BoolArray:
        column, row = (np.clip(each, 0, _EDGE).astype(np.intp) for each in (x, y))
        free: BoolArray = self._layers_LXY[self._layer_U1, column, row]
        return free


@dataclass(frozen=True)
class Routes:
    """The way from each walkable block to each other one; all blocked ones share the last place."""

    place: NDArray[np.intp]
    """[C, C]: the place of each block, by column and row."""
    centre: FloatArray
    """[2, K]."""
    straight: BoolArray
    """[K, K]: nothing lies between; also if there is no way at all."""
    next: NDArray[np.intp]
    """[K, K]: the next block of the shortest way."""

    def places(self, x: FloatArray, y: FloatArray) -> NDArray[np.intp]:
        """The blocks of these points."""
        column, row = (np.clip(each, 0, _EDGE).astype(np.intp) // _BLOCK for each in (x, y))
        found: NDArray[np.intp] = self.place[column, row]
        return found


@lru_cache(maxsize=len(MAPS))
def routes(name: str) -> Routes:
    """The routes of a map, by Floyd's algorithm."""
    walkable = MAPS[name].walkable()
    free = np.argwhere(walkable[::_BLOCK, ::_BLOCK])
    blocked = len(free)
    place_CC = np.full((_ROW, _ROW), blocked)
    place_CC[tuple(free.T)] = np.arange(blocked)
    cost_KK, next_KK = _neighbours(place_CC, free)
    for middle in range(blocked):
        through = cost_KK[:, middle, None] + cost_KK[middle]
        # Rounding must not decide which of two equally long ways is taken.
        better = through < cost_KK - 1e-9
        np.copyto(cost_KK, through, where=better)
        np.copyto(next_KK, next_KK[:, middle, None], where=better)
    centre = np.concatenate([free * _BLOCK + _BLOCK / 2, [[0, 0]]])
    straight_KK = np.ones(cost_KK.shape, np.bool_)
    straight_KK[:-1, :-1] = _visible(walkable, centre[:-1])
    return Routes(place_CC, centre.T.astype(np.float32), straight_KK | ~np.isfinite(cost_KK), next_KK)


def _neighbours(place_CC: NDArray[np.intp], free: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Costs of steps between adjacent blocks, infinite where there is none; and where steps lead."""
    blocked = len(free)
    cost_KK = np.full((blocked + 1, blocked + 1), np.inf)
    next_KK = np.broadcast_to(np.arange(blocked + 1), cost_KK.shape).copy()
    np.fill_diagonal(cost_KK, 0.0)
    padded = np.pad(place_CC, 1, constant_values=blocked)
    for k, (i, j) in enumerate(free + 1):
        for di, dj in ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)):
            there, sides = padded[i + di, j + dj], (padded[i + di, j], padded[i, j + dj])
            # Between two walls a step across the corner is possible, because diagonal walls are finer than blocks.
            if there < blocked and (max(sides) < blocked or min(sides) == blocked):
                cost_KK[k, there] = np.hypot(di, dj)
    return cost_KK, next_KK


def _visible(walkable: BoolArray, centres: NDArray[np.float64]) -> BoolArray:
    """bool [K, K]: the straight line between two points leads through walkable cells only."""
    x, y = centres.T - 1e-3  # not on the edge of a cell
    clear = np.ones((len(x), len(x)), np.bool_)
    for part in np.linspace(0, 1, 3 * SIZE):
        across, up = (np.add.outer(each * (1 - part), each * part).astype(np.intp) for each in (x, y))
        clear &= walkable[across, up]
    return clear
