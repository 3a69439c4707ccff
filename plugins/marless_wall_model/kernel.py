"""The kernel of channel.c, which computes a channel's steps many times as fast as NumPy, equal to it up to rounding.

It is compiled when it is first needed and kept on disk, as `marless.core.compiling` says. Without a compiler, or with
MARLESS_KERNELS=numpy, NumPy computes. Either gives the same bits whenever it computes the same, whatever the number of
threads; trajectories of the two part after some time, as those of turbulence do.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from marless.core import compiling
from marless.core.log import structlog
from marless_wall_model.grid import Grid, Numbers
from marless_wall_model.pressure import wave_numbers_squared
from marless_wall_model.subgrid import AMD, NONE, SMAGORINSKY, VREMAN, mixing_length_squared

if TYPE_CHECKING:
    from marless_wall_model.channel import Channel

SOURCE = Path(__file__).with_name("channel.c")
_MODELS = (AMD, VREMAN, SMAGORINSKY)
"""In the order of `enum model` of channel.c."""
_WHOLE, _REAL, _ARRAY = ctypes.c_long, ctypes.c_double, ctypes.c_void_p


class CChannel(ctypes.Structure):
    """`struct channel` of channel.c."""

    _fields_: ClassVar = [
        *((name, _WHOLE) for name in ("nx", "ny", "nz", "walls")),
        *((name, _REAL) for name in ("dx", "dy", "dz", "viscosity")),
        *((name, _ARRAY) for name in ("roots_x", "roots_z", "pivots", "lengths")),
        *((name, _ARRAY) for name in ("u", "v", "w", "pressure", "stress", "work")),
    ]


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None where it is not used, which a log says once. Raises SpecError as
    `marless.core.compiling.library` does.
    """
    loaded, said = compiling.library(SOURCE)
    if loaded is None:
        structlog.get_logger("marless.wall_model").warning("wall_model.without_kernel", kernel=said)
    else:
        loaded.work_size.argtypes, loaded.work_size.restype = (_WHOLE, _WHOLE, _WHOLE), _WHOLE
        for real in ("float", "double"):
            for name, kind in (("eddy_viscosity", ctypes.c_int), ("advance", _REAL)):
                function = getattr(loaded, f"{name}_{real}")
                function.argtypes, function.restype = (ctypes.POINTER(CChannel), kind, _ARRAY), None
    return loaded


class ChannelKernel:
    """The kernel's tables and working memory for channels of one grid and dtype; one thread at a time."""

    def __init__(self, loaded: ctypes.CDLL, grid: Grid, dtype: np.dtype[np.floating[Any]]) -> None:
        real = "float" if dtype == np.float32 else "double"
        self._eddy_viscosity: Callable[..., None] = getattr(loaded, f"eddy_viscosity_{real}")
        self._advance: Callable[..., None] = getattr(loaded, f"advance_{real}")
        self._grid = grid
        tables = {
            "roots_x": _roots(grid.nx),
            "roots_z": _roots(grid.nz),
            "pivots": _inverse_pivots(grid),
            "lengths": mixing_length_squared(grid),
            "work": np.zeros(loaded.work_size(grid.nx, grid.ny, grid.nz)),
        }
        self._tables = {name: np.ascontiguousarray(table, dtype) for name, table in tables.items()}
        self._struct = CChannel(grid.nx, grid.ny, grid.nz, grid.walls, grid.dx, grid.dy, grid.dz)
        for name, table in self._tables.items():
            setattr(self._struct, name, table.ctypes.data)

    def eddy_viscosity(self, channel: Channel) -> Numbers:
        """What `Channel.eddy_viscosity` says."""
        found = np.zeros(self._grid.shape, channel.u.dtype)
        if channel.subgrid != NONE:
            self._point_to(channel)
            self._eddy_viscosity(ctypes.byref(self._struct), _MODELS.index(channel.subgrid), found.ctypes.data)
        return found

    def advance(self, channel: Channel, dt: float, eddies: Numbers, stress: Numbers) -> None:
        """Change a channel by one step, but for its bulk velocity; `stress` [walls, nx, nz] has its dtype."""
        self._point_to(channel)
        stress = np.ascontiguousarray(stress)
        self._struct.stress = stress.ctypes.data
        self._advance(ctypes.byref(self._struct), dt, eddies.ctypes.data)

    def _point_to(self, channel: Channel) -> None:
        self._struct.viscosity = channel.viscosity
        for name in ("u", "v", "w", "pressure"):
            setattr(self._struct, name, getattr(channel, name).ctypes.data)


def _roots(n: int) -> NDArray[np.float64]:
    """Cosine and sine of 2 π k / n, [n, 2]."""
    angles = [2 * math.pi * k / n for k in range(n)]
    return np.array([(math.cos(angle), math.sin(angle)) for angle in angles])


def _inverse_pivots(grid: Grid) -> NDArray[np.float64]:
    """The inverse pivots of the elimination in y of each mode, [ny, nz, nx]; 0 where the mean pressure has none."""
    waves_ZX = wave_numbers_squared(grid.nz, grid.dz)[:, None] + wave_numbers_squared(grid.nx, grid.dx)
    next_ = grid.dy**-2
    found = np.zeros((grid.ny, grid.nz, grid.nx))
    for j in range(grid.ny):
        neighbours = 1 if j in (0, grid.ny - 1) else 2
        pivot = -neighbours * next_ - waves_ZX - (next_**2 * found[j - 1] if j else 0)
        if j == grid.ny - 1:
            pivot[0, 0] = np.inf
        found[j] = 1 / pivot
    return found
