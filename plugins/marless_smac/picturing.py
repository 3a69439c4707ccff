"""Draws a battle as pixels: allies blue, enemies red, with bars of health (green) and shields (light blue).

The picture shows the walkable part of the map and a margin; darker cells are walls. A line leads from each unit that
has just attacked to its target.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import BoolArray
from marless_smac.kinds import FACTS, Kind
from marless_smac.units import Units, UnitTeam

CELL = 16
"""Pixels of a cell in both directions."""
_MARGIN = 1
_FLOOR, _WALL = (244, 241, 234), (201, 196, 186)
_ALLY, _ENEMY = (74, 118, 184), (200, 80, 75)
_HEALTH, _SHIELD, _EMPTY, _EDGE = (47, 158, 87), (120, 190, 235), (90, 90, 90), (255, 255, 255)
_SHADES = {Kind.STALKER: 0.8, Kind.MARAUDER: 0.8, Kind.BANELING: 0.75, Kind.MEDIVAC: 1.2, Kind.COLOSSUS: 0.65}
"""Factor of the team's colour, for maps with several kinds."""

Pixels = NDArray[np.uint8]
Line = tuple[float, float, float, float]
"""From x and y to x and y."""
Colour = tuple[float, float, float]


def drawn(units: Units, walkable: BoolArray, attacks: list[Line]) -> Pixels:
    """The first of the battles, uint8 [height, width, 3]; y grows upwards."""
    columns, rows = np.flatnonzero(walkable.any(axis=1)), np.flatnonzero(walkable.any(axis=0))
    left, low = max(columns[0] - _MARGIN, 0), max(rows[0] - _MARGIN, 0)
    shown = walkable[left : columns[-1] + 1 + _MARGIN, low : rows[-1] + 1 + _MARGIN]
    floor = np.where(shown.T[:, :, None], np.array(_FLOOR, np.uint8), np.array(_WALL, np.uint8))
    canvas = floor.repeat(CELL, axis=0).repeat(CELL, axis=1)
    for x, y, to_x, to_y in attacks:
        _line(canvas, (x - left, y - low, to_x - left, to_y - low))
    for team, colour in ((units.enemies, _ENEMY), (units.allies, _ALLY)):
        for unit in np.flatnonzero(team.alive[:, 0]):
            _unit(canvas, team, int(unit), colour, (float(left), float(low)))
    return canvas[::-1].copy()


def _unit(canvas: Pixels, team: UnitTeam, unit: int, colour: Colour, corner: tuple[float, float]) -> None:
    kind = Kind(int(team.kind[unit, 0]))
    x, y = float(team.x[unit, 0]) - corner[0], float(team.y[unit, 0]) - corner[1]
    radius = FACTS[kind].inner
    shade = tuple(min(part * _SHADES.get(kind, 1.0), 255.0) for part in colour)
    _disc(canvas, x, y, radius + 0.06, _EDGE)
    _disc(canvas, x, y, radius, (shade[0], shade[1], shade[2]))
    _bar(canvas, x, y + radius + 0.12, float(team.health[unit, 0] / team.health_max[unit, 0]), _HEALTH)
    if FACTS[kind].shield:
        _bar(canvas, x, y + radius + 0.30, float(team.shield[unit, 0]) / FACTS[kind].shield, _SHIELD)


def _disc(canvas: Pixels, x: float, y: float, radius: float, colour: Colour) -> None:
    up, across = np.ogrid[: canvas.shape[0], : canvas.shape[1]]
    inside = ((across + 0.5) / CELL - x) ** 2 + ((up + 0.5) / CELL - y) ** 2 <= radius**2
    canvas[inside] = colour


def _bar(canvas: Pixels, x: float, y: float, part: float, colour: Colour) -> None:
    """A bar of one cell, filled to `part` from the left."""
    left, right, full = (max(round(CELL * at), 0) for at in (x - 0.5, x + 0.5, x - 0.5 + part))
    low = max(round(CELL * y), 0)
    canvas[low : low + 2, left:right] = _EMPTY
    canvas[low : low + 2, left:full] = colour


def _line(canvas: Pixels, line: Line) -> None:
    x, y, to_x, to_y = line
    part = np.linspace(0, 1, max(int(2 * CELL * np.hypot(to_x - x, to_y - y)), 2))
    across = np.clip(((1 - part) * x + part * to_x) * CELL, 0, canvas.shape[1] - 1).astype(np.intp)
    up = np.clip(((1 - part) * y + part * to_y) * CELL, 0, canvas.shape[0] - 1).astype(np.intp)
    canvas[up, across] = (150, 140, 120)
