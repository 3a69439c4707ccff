"""The pressure that keeps a flow free of divergence: Fourier modes in x and z, eigenvectors in y."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray

from marless_wall_model.grid import Grid, Numbers


def wave_numbers_squared(cells: int, size: float, *, half: bool = False) -> NDArray[np.float64]:
    """The factors 2 (1 − cos θ) / Δ² of the second difference of each Fourier mode; `half`: those of a real FFT."""
    modes = np.arange(cells // 2 + 1 if half else cells)
    return 2 * (1 - np.cos(2 * np.pi * modes / cells)) / size**2


def divergence(u: Numbers, v: Numbers, w: Numbers, grid: Grid) -> Numbers:
    """What flows out of each cell, by its volume, [ny, nx, nz]."""
    along, across = (np.roll(u, -1, 1) - u) / grid.dx, (np.roll(w, -1, 2) - w) / grid.dz
    return along + (v[1:] - v[:-1]) / grid.dy + across


class Projection:
    """Removes the divergence of a velocity field, exactly for the differences of the grid.

    The Laplacian is the product of the grid's own divergence and gradient, with no gradient through both boundaries
    in y, so that nothing but rounding remains. float32 and float64 fields are computed in their own precision.
    """

    def __init__(self, grid: Grid, dtype: DTypeLike) -> None:
        self.grid = grid
        second = np.diag(np.full(grid.ny, -2.0)) + np.diag(np.ones(grid.ny - 1), 1) + np.diag(np.ones(grid.ny - 1), -1)
        second[0, 0] = second[-1, -1] = -1
        values_Y, vectors_YY = np.linalg.eigh(second / grid.dy**2)
        waves_X = wave_numbers_squared(grid.nx, grid.dx)
        waves_Z = wave_numbers_squared(grid.nz, grid.dz, half=True)
        factors_YXZ = values_Y[:, None, None] - waves_X[None, :, None] - waves_Z[None, None]
        # The mean pressure, whose mode has the eigenvalue 0, means nothing: it stays 0.
        factors_YXZ[-1, 0, 0] = -np.inf
        self._inverse_YXZ = (1 / factors_YXZ).astype(dtype)
        self._vectors_YY = vectors_YY.astype(dtype)

    def potential(self, divergence_YXZ: Numbers) -> Numbers:
        """The field whose Laplacian is this divergence, [ny, nx, nz]; its mean is 0."""
        shape, (_, nx, nz) = (self.grid.ny, -1), self.grid.shape
        modes = np.fft.rfft2(divergence_YXZ, axes=(1, 2))
        modes = (self._vectors_YY.T @ modes.reshape(shape)).reshape(modes.shape) * self._inverse_YXZ
        modes = (self._vectors_YY @ modes.reshape(shape)).reshape(modes.shape)
        return np.fft.irfft2(modes, (nx, nz), axes=(1, 2)).astype(divergence_YXZ.dtype, copy=False)

    def apply(self, u: Numbers, v: Numbers, w: Numbers) -> Numbers:
        """Take the divergence out of u, v and w in place; returns the potential, whose gradient was taken away."""
        grid = self.grid
        potential = self.potential(divergence(u, v, w, grid))
        u -= (potential - np.roll(potential, 1, 1)) / grid.dx
        v[1:-1] -= (potential[1:] - potential[:-1]) / grid.dy
        w -= (potential - np.roll(potential, 1, 2)) / grid.dz
        return potential
