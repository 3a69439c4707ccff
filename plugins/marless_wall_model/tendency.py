"""The momentum balance of a cell: what convection, viscosity and the wall change in a velocity field, with NumPy.

Harlow and Welch 1965: second-order central differences on a staggered grid, in divergence form. Each flux is computed
once and enters the balances on both of its sides, so that momentum is conserved; where the divergence is 0, convection
conserves kinetic energy, too.
"""

from __future__ import annotations

import numpy as np

from marless_wall_model.grid import FULL, Grid, Numbers

X, Z = 1, 2


def tendency(
    u: Numbers,
    v: Numbers,
    w: Numbers,
    viscosity: Numbers,
    stress: tuple[Numbers, Numbers],
    grid: Grid,
) -> tuple[Numbers, Numbers, Numbers]:
    """The rates of change of u, v and w, without the pressure's; that of v is 0 at both boundaries.

    `viscosity` [ny, nx, nz] is that of the fluid and its eddies in the middle of cells. `stress` is what `on_faces`
    returns.
    """
    dx, dy, dz = grid.dx, grid.dy, grid.dz
    xx = (0.5 * (u + _next(u, X))) ** 2 - 2 * viscosity * (_next(u, X) - u) / dx
    yy = (0.5 * (v[:-1] + v[1:])) ** 2 - 2 * viscosity * (v[1:] - v[:-1]) / dy
    zz = (0.5 * (w + _next(w, Z))) ** 2 - 2 * viscosity * (_next(w, Z) - w) / dz
    xz = 0.25 * (u + _last(u, Z)) * (w + _last(w, X))
    wide = viscosity + _last(viscosity, X)
    xz -= 0.25 * (wide + _last(wide, Z)) * ((u - _last(u, Z)) / dz + (w - _last(w, X)) / dx)
    xy = _through_faces(u, v, viscosity, X, stress[0], grid)
    yz = _through_faces(w, v, viscosity, Z, stress[1], grid)
    du = (_last(xx, X) - xx) / dx + (xy[:-1] - xy[1:]) / dy + (xz - _next(xz, Z)) / dz
    dw = (xz - _next(xz, X)) / dx + (yz[:-1] - yz[1:]) / dy + (_last(zz, Z) - zz) / dz
    dv = np.zeros_like(v)
    inner = slice(1, -1)
    dv[inner] = (xy - _next(xy, X))[inner] / dx + (yy[:-1] - yy[1:]) / dy + (yz - _next(yz, Z))[inner] / dz
    return du, dv, dw


def on_faces(stress: Numbers, u: Numbers, w: Numbers, grid: Grid) -> tuple[Numbers, Numbers]:
    """The wall's pull on the fluid at the places of u and of w, [walls, nx, nz] each, in units of u_τ².

    `stress` [walls, nx, nz] is its size in each cell at a wall; it points against the velocity in that cell.
    """
    layers = [0, -1][: grid.walls]
    along, across = 0.5 * (u[layers] + _next(u[layers], X)), 0.5 * (w[layers] + _next(w[layers], Z))
    speed = np.sqrt(along**2 + across**2)
    pull = stress / np.where(speed > 0, speed, 1)
    along, across = along * pull, across * pull
    return 0.5 * (along + _last(along, X)), 0.5 * (across + _last(across, Z))


def _through_faces(along: Numbers, v: Numbers, viscosity: Numbers, axis: int, stress: Numbers, grid: Grid) -> Numbers:
    """The flux in y of u (axis X) or w (axis Z) through the edges in faces, [ny + 1, nx, nz]."""
    size = grid.dx if axis == X else grid.dz
    flux, inner, wide = np.zeros_like(v), v[1:-1], viscosity + _last(viscosity, axis)
    shear = (along[1:] - along[:-1]) / grid.dy + (inner - _last(inner, axis)) / size
    flux[1:-1] = 0.25 * (along[:-1] + along[1:]) * (inner + _last(inner, axis)) - 0.25 * (wide[:-1] + wide[1:]) * shear
    flux[0] = -stress[0]
    if grid.walls == FULL:
        flux[-1] = stress[1]
    return flux


def _next(field: Numbers, axis: int) -> Numbers:
    return np.roll(field, -1, axis)


def _last(field: Numbers, axis: int) -> Numbers:
    return np.roll(field, 1, axis)
