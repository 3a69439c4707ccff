"""Subgrid models: the eddy viscosity of what is too small for the grid, computed with NumPy.

Suffix: G gradients. Each model takes the nine velocity gradients in the middle of cells.
"""

from __future__ import annotations

import numpy as np

from marless_wall_model.grid import HALF, Grid, Numbers

NONE, AMD, VREMAN, SMAGORINSKY = "none", "amd", "vreman", "smagorinsky"
MODELS = (AMD, VREMAN, SMAGORINSKY, NONE)
AMD_CONSTANT = 0.3
"""C of Rozema et al. 2015 for second-order central differences."""
VREMAN_CONSTANT = 2.5 * 0.1**2
"""2.5 Cs² with Cs = 0.1 (Vreman 2004)."""
SMAGORINSKY_CONSTANT = 0.12
"""Cs, without damping near the wall, which the mixing length below brings."""
VON_KARMAN = 0.41
_TINY = 1e-20
"""Added to denominators that vanish where the flow is uniform."""

Gradients = tuple[tuple[Numbers, Numbers, Numbers], ...]
"""`g[i][j]` is the gradient in direction j of velocity component i, in the order x, y, z; [ny, nx, nz] each."""


def viscosity_of(model: str, gradients: Gradients, grid: Grid) -> Numbers:
    """The eddy viscosity in the middle of cells, in the dtype of the gradients, [ny, nx, nz]; never negative."""
    if model == AMD:
        return amd(gradients, (grid.dx, grid.dy, grid.dz))
    if model == VREMAN:
        return vreman(gradients, (grid.dx, grid.dy, grid.dz))
    if model == SMAGORINSKY:
        return smagorinsky(gradients, mixing_length_squared(grid))
    return np.zeros_like(gradients[0][0])


def gradients_of(u: Numbers, v: Numbers, w: Numbers, grid: Grid) -> Gradients:
    """The velocity gradients in the middle of cells, by central differences.

    Below the lowest layer of cells and, at a wall, above the highest one, u and w are taken with opposite sign, as if
    they vanished at the wall; at a boundary without stress they go on as they are.
    """
    centred = 0.5 * (u + np.roll(u, -1, 1)), 0.5 * (v[:-1] + v[1:]), 0.5 * (w + np.roll(w, -1, 2))
    gradients = [[_along(each, 1, grid.dx), _upward(each, grid), _along(each, 2, grid.dz)] for each in centred]
    # Where the staggered velocity itself stands on both sides of a cell, its difference is the better one.
    gradients[0][0] = (np.roll(u, -1, 1) - u) / grid.dx
    gradients[1][1] = (v[1:] - v[:-1]) / grid.dy
    gradients[2][2] = (np.roll(w, -1, 2) - w) / grid.dz
    return tuple((row[0], row[1], row[2]) for row in gradients)


def amd(g: Gradients, sizes: tuple[float, float, float]) -> Numbers:
    """Anisotropic minimum dissipation: Rozema et al. 2015, eq. 22, with the size of a cell in each direction."""
    numerator, denominator = np.zeros_like(g[0][0]), np.zeros_like(g[0][0])
    for i in range(3):
        numerator -= g[i][i] * sum(size**2 * g[i][k] ** 2 for k, size in enumerate(sizes))
        for j in range(i):
            strain = g[i][j] + g[j][i]  # both times, as the matrix is symmetric
            numerator -= strain * sum(size**2 * g[i][k] * g[j][k] for k, size in enumerate(sizes))
        denominator += g[i][0] ** 2 + g[i][1] ** 2 + g[i][2] ** 2
    return AMD_CONSTANT * np.maximum(numerator, 0) / (denominator + _TINY)


def vreman(g: Gradients, sizes: tuple[float, float, float]) -> Numbers:
    """Vreman 2004, eqs. 5 to 8."""
    b = [[sum(size**2 * g[i][m] * g[j][m] for m, size in enumerate(sizes)) for j in range(3)] for i in range(3)]
    product = b[0][0] * b[1][1] - b[0][1] ** 2 + b[0][0] * b[2][2] - b[0][2] ** 2 + b[1][1] * b[2][2] - b[1][2] ** 2
    squares = sum(each**2 for row in g for each in row)
    found: Numbers = VREMAN_CONSTANT * np.sqrt(np.maximum(product, 0) / (squares + _TINY))
    return found


def smagorinsky(g: Gradients, length_squared: Numbers) -> Numbers:
    """Smagorinsky 1963: the squared mixing length times the rate of strain √(2 S·S)."""
    squares = sum((0.5 * (g[i][j] + g[j][i])) ** 2 for i in range(3) for j in range(3))
    found: Numbers = length_squared.astype(g[0][0].dtype)[:, None, None] * np.sqrt(2 * squares)
    return found


def mixing_length_squared(grid: Grid) -> Numbers:
    """Mason's mixing length, squared, for each layer of cells, float64 [ny]: 1/l² = 1/(Cs Δ)² + 1/(κ y)²."""
    size = (grid.dx * grid.dy * grid.dz) ** (1 / 3)
    found: Numbers = 1 / (1 / (SMAGORINSKY_CONSTANT * size) ** 2 + 1 / (VON_KARMAN * grid.distances()) ** 2)
    return found


def _along(centred: Numbers, axis: int, size: float) -> Numbers:
    found: Numbers = (np.roll(centred, -1, axis) - np.roll(centred, 1, axis)) / (2 * size)
    return found


def _upward(centred: Numbers, grid: Grid) -> Numbers:
    above = centred[-1:] if grid.walls == HALF else -centred[-1:]
    padded = np.concatenate([-centred[:1], centred, above])
    found: Numbers = (padded[2:] - padded[:-2]) / (2 * grid.dy)
    return found
