"""The flow in a channel with walls whose stress is given: large eddies on a coarse grid, the wall's by a wall model.

Units: δ, the half height of a channel, and u_τ, the true friction velocity, are 1; so is the true stress at the wall,
and the viscosity is 1 / Re_τ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import SpecError, shown
from marless.learning.envs.base import Arrays, saved
from marless_wall_model.grid import Grid, Numbers
from marless_wall_model.kernel import ChannelKernel, library
from marless_wall_model.pressure import Projection, divergence
from marless_wall_model.subgrid import AMD, MODELS, NONE, gradients_of, viscosity_of
from marless_wall_model.tendency import on_faces, tendency

STAGES: Final = ((8 / 15, 0.0), (5 / 12, -17 / 60), (3 / 4, -5 / 12))
"""Of each stage of the Runge–Kutta scheme of third order (Wray 1990): the weights of its own tendency and of the
tendency of the stage before."""
ABSURD = 10.0
"""A velocity beyond so many times the bulk velocity is that of a flow that has blown up."""
_VISCOUS = 0.5
"""The largest stable step of viscosity alone, in units of 1 / (ν Σ 1/Δ²); the scheme's limit is 0.63."""


@dataclass(frozen=True)
class WallSample:
    """What a wall model sees of the flow at some height above each cell of the walls, [walls, nx, nz] each."""

    speed: Numbers
    """The velocity parallel to the wall."""
    gradient: Numbers
    """Its derivative with respect to the distance from the wall."""
    height: Numbers
    """The distance from the wall."""


class Channel:
    """A turbulent channel flow with given wall stress, whose bulk velocity is held constant.

    Each step evaluates the eddy viscosity and the direction of the wall stress once, and then takes three Runge–Kutta
    stages, with a projection in each. Bae and Koumoutsakos 2022 let a wall model act through the eddy viscosity of the
    wall, ν_t,w = τ_w / (du/dy) − ν, so that the viscous flux through the wall is τ_w; here that flux is given as it
    is. The momentum that the wall takes is the same.

    `viscosity` and `bulk_velocity` may be changed between steps, and u, v, w written to. A flow that blows up raises
    nothing: `blown_up` says so, and `step` then only lets time pass. Raises SpecError for arguments that no flow has.
    """

    def __init__(
        self,
        grid: Grid,
        viscosity: float,
        bulk_velocity: float,
        subgrid: str = AMD,
        cfl: float = 1.0,
        dtype: type[np.float32 | np.float64] = np.float32,
        kernels: bool = True,
    ) -> None:
        if dtype not in (np.float32, np.float64):
            raise SpecError(f"channel: dtype is {shown(dtype)}; give float32 or float64")
        if subgrid not in MODELS:
            raise SpecError(f"channel: subgrid model is {shown(subgrid)}; give one of {', '.join(MODELS)}")
        if not (math.isfinite(viscosity) and viscosity >= 0):
            raise SpecError(f"channel: viscosity is {shown(viscosity)}; give a number of at least 0, 1 / Re_τ")
        if not math.isfinite(bulk_velocity):
            raise SpecError(f"channel: bulk velocity is {shown(bulk_velocity)}; give a finite number")
        if not 0 < cfl <= 1.5:
            raise SpecError(f"channel: cfl is {shown(cfl)}; give a number above 0, up to 1.5, else flows blow up")
        self.dtype: np.dtype[np.floating[Any]] = np.dtype(dtype)
        self.grid = grid
        self.viscosity = viscosity
        self.bulk_velocity = bulk_velocity
        self.subgrid = subgrid
        self.cfl = cfl
        self.time = 0.0
        """The time of the flow in δ / u_τ."""
        self.u: Final[Numbers] = np.full(grid.shape, bulk_velocity, self.dtype)
        self.v: Final[Numbers] = np.zeros(grid.faces, self.dtype)
        self.w: Final[Numbers] = np.zeros(grid.shape, self.dtype)
        self.pressure: Final[Numbers] = np.zeros(grid.shape, self.dtype)
        """The pressure of the last stage by the density, [ny, nx, nz]; its mean is 0."""
        self._projection = Projection(grid, self.dtype)
        loaded = library() if kernels else None
        self._kernel = None if loaded is None else ChannelKernel(loaded, grid, self.dtype)

    def step(self, stress: Numbers, until: float | None = None) -> float:
        """Advance the flow by one step, not beyond `until`; returns the length of the step.

        `stress` [walls, nx, nz] is the size of the wall stress in each cell at a wall, in units of u_τ²; it points
        against the velocity in that cell. Steps to `until` are of about equal length.
        """
        if stress.shape != self.grid.wall_shape:
            raise SpecError(f"channel: stress is {list(stress.shape)}, must be {list(self.grid.wall_shape)}")
        with np.errstate(all="ignore"):  # a flow that blows up
            if self.blown_up:
                dt = 0.0 if until is None else until - self.time
            else:
                eddies = self.eddy_viscosity()
                dt = self._length(eddies, until)
                advance = self._advance if self._kernel is None else partial(self._kernel.advance, self)
                advance(dt, eddies, stress.astype(self.dtype, copy=False))
                self.u[...] += self.dtype.type(self.bulk_velocity - self.bulk())
        self.time = until if until is not None and self.time + dt >= until else self.time + dt
        return dt

    def _length(self, eddies: Numbers, until: float | None) -> float:
        longest = self._longest(eddies)
        if until is None:
            return longest
        left = max(until - self.time, 0.0)
        # A step may be longer by rounding alone, lest a tiny one follows.
        return left / max(1, math.ceil(left / longest - 1e-9))

    def _longest(self, eddies: Numbers) -> float:
        grid, (u, v, w) = self.grid, self._maxima()
        crossing = u / grid.dx + v / grid.dy + w / grid.dz
        diffusing = self.viscosity + float(eddies.max())
        diffusing *= grid.dx**-2 + grid.dy**-2 + grid.dz**-2
        return min(self.cfl / max(crossing, 1e-9), _VISCOUS / max(diffusing, 1e-9))

    def _maxima(self) -> tuple[float, float, float]:
        u, v, w = (float(max(each.max(), -each.min())) for each in (self.u, self.v, self.w))
        return u, v, w

    def _advance(self, dt: float, eddies: Numbers, stress: Numbers) -> None:
        pull = on_faces(stress, self.u, self.w, self.grid)
        viscosity = eddies + self.dtype.type(self.viscosity)
        before: tuple[Numbers, ...] = ()
        for own, last in STAGES:
            rates = tendency(self.u, self.v, self.w, viscosity, pull, self.grid)
            for number, field in enumerate((self.u, self.v, self.w)):
                change = own * dt * rates[number] + (last * dt * before[number] if before else 0)
                np.add(field, change, out=field)
            before = rates
            potential = self._projection.apply(self.u, self.v, self.w)
        np.divide(potential, (own + last) * dt, out=self.pressure)

    def project(self) -> None:
        """Take the divergence out of u, v and w, and set the bulk velocity: for velocities that were written."""
        self.v[0] = self.v[-1] = 0
        self._projection.apply(self.u, self.v, self.w)
        self.u[...] += self.dtype.type(self.bulk_velocity - self.bulk())

    def stable_dt(self) -> float:
        """The length of the next step: that in which the flow crosses `cfl` of a cell, or viscosity stays stable."""
        with np.errstate(all="ignore"):
            return self._longest(self.eddy_viscosity())

    def eddy_viscosity(self) -> Numbers:
        """What the subgrid model adds to the viscosity in the middle of cells, [ny, nx, nz]."""
        if self._kernel is not None:
            return self._kernel.eddy_viscosity(self)
        if self.subgrid == NONE:
            return np.zeros(self.grid.shape, self.dtype)
        gradients = gradients_of(self.u, self.v, self.w, self.grid)
        return viscosity_of(self.subgrid, gradients, self.grid)

    @property
    def blown_up(self) -> bool:
        """True if a velocity is not finite, or beyond `ABSURD` times the bulk velocity (or 1, if that is more)."""
        limit = ABSURD * max(abs(self.bulk_velocity), 1.0)
        return not all(most <= limit for most in self._maxima())

    def bulk(self) -> float:
        """The mean velocity along the stream."""
        return float(self.u.mean(dtype=np.float64))

    def divergence(self) -> float:
        """The largest divergence of a cell, without sign."""
        return float(np.abs(divergence(self.u, self.v, self.w, self.grid)).max())

    def energy(self) -> float:
        """The mean kinetic energy of the fluid by its mass."""
        squares = sum(float(np.square(each, dtype=np.float64).sum()) for each in (self.u, self.v, self.w))
        return 0.5 * squares / self.grid.cells

    def wall_velocity(self, layer: int) -> tuple[Numbers, Numbers]:
        """The velocities along and across the stream in the middle of the cells of this layer, [walls, nx, nz] each.

        Layer 0 is the one at the wall; layers are counted from each wall.
        """
        layers = [layer, -1 - layer][: self.grid.walls]
        u, w = self.u[layers], self.w[layers]
        return 0.5 * (u + np.roll(u, -1, 1)), 0.5 * (w + np.roll(w, -1, 2))

    def wall_sample(self, height: float | Numbers) -> WallSample:
        """The speed at this distance from the wall, a number or an array [walls, nx, nz].

        Between two layers of cells it is a linear function of the logarithm of the distance, and so is what goes on
        below the first layer. The gradient is that of this function.
        """
        grid = self.grid
        height_WXZ = np.broadcast_to(np.asarray(height, np.float64), grid.wall_shape)
        layer_WXZ = np.clip(np.floor(height_WXZ / grid.dy - 0.5), 0, grid.cells_of_wall - 2).astype(np.intp)
        speed_LWXZ = np.stack([np.hypot(*self.wall_velocity(each)) for each in range(int(layer_WXZ.max()) + 2)])
        lower, upper = (np.take_along_axis(speed_LWXZ, layer_WXZ[None] + up, 0)[0] for up in (0, 1))
        below = (layer_WXZ + 0.5) * grid.dy
        slope = (upper - lower) / np.log1p(grid.dy / below)
        speed = lower + slope * np.log(height_WXZ / below)
        return WallSample(*(each.astype(self.dtype) for each in (speed, slope / height_WXZ, height_WXZ)))

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """The state, for `load`: copies of u, v, w and the pressure in their dtype, and the time, float64 [1]."""
        fields = {name: getattr(self, name).copy() for name in ("u", "v", "w", "pressure")}
        return {**fields, "time": np.array([self.time])}

    def load(self, arrays: Arrays) -> None:
        """Restore the state of `arrays`, bit for bit; raises CorruptError if it is no state of such a channel."""
        name, shape, faces = self.dtype.name, self.grid.shape, self.grid.faces
        shapes = {"u": shape, "v": faces, "w": shape, "pressure": shape}
        found = {field: saved(arrays, field, name, shapes[field]) for field in shapes}
        self.time = float(saved(arrays, "time", "float64", (1,))[0])
        for field, values in found.items():
            getattr(self, field)[...] = values
