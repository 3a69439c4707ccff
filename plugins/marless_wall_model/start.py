"""The start of a turbulent flow: a mean profile with noise and streaks, and some time to forget them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from marless_wall_model.channel import Channel
from marless_wall_model.equilibrium import KAPPA, B, equilibrium_stress

NOISE = 2.0
"""Standard deviation of the noise of each velocity component, in u_τ."""
STREAKS, STREAK = 3, 1.5
"""How many streaky modes there are, and the amplitude of each, in u_τ."""
SPIN_UP = 6.0
"""How long a flow is driven before it counts as turbulent, in δ / u_τ."""


def reichardt(plus: NDArray[np.float64]) -> NDArray[np.float64]:
    """Reichardt's 1951 mean velocity in wall units at these wall distances in wall units, for the log law's κ and B."""
    wake = B - math.log(KAPPA) / KAPPA
    return np.log1p(KAPPA * plus) / KAPPA + wake * (1 - np.exp(-plus / 11) - plus / 11 * np.exp(-plus / 3))


def perturbed(channel: Channel, rng: np.random.Generator) -> None:
    """Write Reichardt's profile with noise and streaks into a channel, free of divergence; its time becomes 0.

    The noise breaks all symmetries, and streaks, slow and fast stripes along the stream, grow into turbulence quickly.
    """
    grid = channel.grid
    for field in (channel.u, channel.v, channel.w):
        field[...] = NOISE * rng.standard_normal(field.shape)
    distances = grid.distances()
    channel.u[...] += reichardt(distances / channel.viscosity).astype(channel.dtype)[:, None, None]
    x, z = (np.arange(cells) * 2 * np.pi / cells for cells in (grid.nx, grid.nz))
    for mode in range(1, STREAKS + 1):
        phase = rng.uniform(0, 2 * np.pi, 2)
        # They meander, as a stripe that is straight along the whole box would stay one for long.
        across = np.cos(mode * z[None] + phase[0] + 0.5 * np.sin(x + phase[1])[:, None])
        shape = np.sin(np.pi * np.minimum(distances, 1.0)) if mode % 2 else np.cos(np.pi / 2 * distances)
        channel.u[...] += (STREAK * shape[:, None, None] * across[None]).astype(channel.dtype)
    channel.time = 0.0
    channel.project()


def spin_up(channel: Channel, duration: float = SPIN_UP) -> None:
    """Drive a flow for some time, in δ / u_τ, with the equilibrium wall model; it ends early if it blows up."""
    until = channel.time + duration
    while channel.time < until and not channel.blown_up:
        channel.step(equilibrium_stress(channel), until)
