"""Draws a model as pixels, without a graphics library: capsules, spheres and cylinders over a floor of tiles.

Gymnasium's tasks have no other shapes. The view is parallel, from the side and somewhat from above, or straight from
above, and follows the first body, so that tiles show how fast it moves.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Reals = NDArray[np.float64]
WIDTH, HEIGHT = 320, 240
"""Of a picture, in pixels."""
_PLANE, _SPHERE = 0, 2  # mujoco.mjtGeom
_TILE_M = 1.0
_SKY, _TILES = (235, 240, 245), np.array(((205, 210, 214), (190, 196, 201)), np.uint8)
_ELEVATION: Final = {True: np.pi / 2, False: np.radians(15)}


def drawn(model: Any, data: Any, *, above: bool, height_m: float) -> Pixels:  # MuJoCo has no types
    """A picture, uint8 [HEIGHT, WIDTH, 3], of `data` after `mj_kinematics`; it shows `height_m` metres from top to
    bottom.

    Shapes that are nearer to the viewer cover those behind; tiles are only drawn for models with a floor.
    """
    up, away = _axes(_ELEVATION[above])
    pixel = height_m / HEIGHT
    centre = data.xpos[1] if model.nbody > 1 else np.zeros(3)
    right_W: Reals = (np.arange(WIDTH, dtype=np.float64) - (WIDTH - 1) / 2) * pixel
    up_H: Reals = ((HEIGHT - 1) / 2 - np.arange(HEIGHT, dtype=np.float64)) * pixel
    solid = np.flatnonzero((model.geom_type != _PLANE) & (model.geom_rgba[:, 3] > 0))
    canvas = np.full((HEIGHT, WIDTH, 3), _SKY, np.uint8)
    for floor in np.flatnonzero(model.geom_type == _PLANE)[:1]:
        _draw_floor(canvas, centre + np.outer(up_H, up), centre[0] + right_W, away, float(data.geom_xpos[floor, 2]))
    for geom in sorted(solid, key=lambda each: -float(data.geom_xpos[each] @ away)):
        radius = float(model.geom_size[geom, 0])
        half = 0.0 if model.geom_type[geom] == _SPHERE else float(model.geom_size[geom, 1])
        along = data.geom_xmat[geom].reshape(3, 3)[:, 2] * half
        ends = np.stack([data.geom_xpos[geom] - along, data.geom_xpos[geom] + along]) - centre
        shape_22 = np.stack([ends[:, 0], ends @ up], axis=1)
        _draw_capsule(canvas, shape_22, radius, (right_W, up_H), model.geom_rgba[geom, :3])
    return canvas


def _axes(elevation: float) -> tuple[Reals, Reals]:
    """What is up in the picture, and what leads away from the viewer; to the right is x."""
    sine, cosine = np.sin(elevation), np.cos(elevation)
    return np.array([0.0, sine, cosine]), np.array([0.0, cosine, -sine])


def _draw_floor(canvas: Pixels, line_H3: Reals, x_W: Reals, away: Reals, floor_z: float) -> None:
    """Colour each pixel whose line of sight meets the floor by the tile that it meets there."""
    far_H = (floor_z - line_H3[:, 2]) / away[2]  # along the line of sight
    y_H = line_H3[:, 1] + far_H * away[1]
    odd_HW = (np.floor(y_H / _TILE_M)[:, None] + np.floor(x_W / _TILE_M)).astype(np.int64) % 2
    canvas[:] = _TILES[odd_HW]


def _draw_capsule(
    canvas: Pixels, ends_22: Reals, radius: float, pixels: tuple[Reals, Reals], colour: NDArray[np.float32]
) -> None:
    """Draw what lies within `radius` of the line between both ends, lighter in the middle, as if it were round."""
    right_W, up_H = pixels
    (x, y), (dx, dy) = ends_22[0], ends_22[1] - ends_22[0]
    px, py = right_W[None, :] - x, up_H[:, None] - y
    share = np.clip((px * dx + py * dy) / max(dx * dx + dy * dy, 1e-12), 0, 1)
    distance = np.hypot(px - share * dx, py - share * dy)
    inside = distance <= max(radius, right_W[1] - right_W[0])  # a pixel wide, at least
    depth = np.sqrt(np.clip(1 - (distance[inside] / max(radius, 1e-9)) ** 2, 0, 1))
    canvas[inside] = (255 * colour * (0.55 + 0.45 * depth[:, None])).astype(np.uint8)
