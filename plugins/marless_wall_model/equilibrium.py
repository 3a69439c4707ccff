"""Wall stress without learning: the equilibrium wall model, which assumes the log law, and no model at all."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from marless_wall_model.channel import Channel
from marless_wall_model.grid import Grid, Numbers

KAPPA, B = 0.41, 5.2
"""The log law: u⁺ = ln(y⁺) / κ + B."""
MATCHING_HEIGHT = 0.15
"""Where the equilibrium model reads the flow, in δ: the log layer, where the grid resolves it."""
LEAST_PLUS = 12.0
"""The least y⁺ for which the logarithm is taken: where the log law and the viscous layer meet."""
_ITERATIONS = 4
_MEASURED: Final = ((1000.0, 19.99), (2000.0, 21.80), (5200.0, 24.10))
"""Re_τ and bulk velocity of the direct simulations of Lee and Moser 2015."""


def friction_velocity(speed: Numbers, height: float | Numbers, viscosity: float) -> NDArray[np.float64]:
    """The u_τ for which the log law gives this speed at this height, by Newton's method; float64.

    Newton's method begins at 1/22 of the speed. As the function is convex and nearly straight, four iterations reach
    rounding at every Re_τ from 100 to 10⁷, and no state of former steps is needed.
    """
    speed = np.abs(speed.astype(np.float64))
    found = speed / 22
    for _ in range(_ITERATIONS):
        plus = height * found / viscosity
        law = np.log(np.maximum(plus, LEAST_PLUS)) / KAPPA + B
        found = found - (found * law - speed) / (law + np.where(plus > LEAST_PLUS, 1 / KAPPA, 0))
    return found


def matching_layer(grid: Grid, height: float = MATCHING_HEIGHT) -> int:
    """The layer of cells, counted from the wall, that is nearest to this height, within the lowest quarter."""
    return max(0, min(round(height / grid.dy - 0.5), grid.cells_of_wall // 4 - 1))


def equilibrium_stress(channel: Channel, layer: int | None = None) -> Numbers:
    """The wall stress of the equilibrium model, [walls, nx, nz]: the log law holds in each cell at each moment.

    `layer` is where it reads the flow, by default that of `matching_layer`.
    """
    layer = matching_layer(channel.grid) if layer is None else layer
    speed = np.hypot(*channel.wall_velocity(layer))
    found = friction_velocity(speed, (layer + 0.5) * channel.grid.dy, channel.viscosity)
    return (found**2).astype(channel.dtype)


def unmodelled_stress(channel: Channel) -> Numbers:
    """The wall stress without a wall model, [walls, nx, nz]: that of a straight line from the first cell to 0."""
    return channel.viscosity * np.hypot(*channel.wall_velocity(0)) / (0.5 * channel.grid.dy)


def bulk_velocity(re_tau: float) -> float:
    """The bulk velocity of a channel flow in units of its friction velocity, at this Re_τ.

    At 1000, 2000 and 5200 it is that of Lee and Moser's direct simulations. Elsewhere it is the integral of the log
    law with a wake, (ln Re − 1) / κ + B + 0.25, which lies about 1 % below theirs, raised by that difference: it is
    interpolated over ln Re, and beyond them stays as it is there. So neighbours of 5200 have no jump.
    """
    differences = [known - _log_law_bulk(reynolds) for reynolds, known in _MEASURED]
    logarithms = [math.log(reynolds) for reynolds, _ in _MEASURED]
    return _log_law_bulk(re_tau) + float(np.interp(math.log(re_tau), logarithms, differences))


def _log_law_bulk(re_tau: float) -> float:
    return (math.log(re_tau) - 1) / KAPPA + B + 0.25
