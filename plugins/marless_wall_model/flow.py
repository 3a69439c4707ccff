"""One turbulent channel with agents on its walls: what they sense, how their stresses change, how the flow runs on.

Shape suffixes: N agents.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from marless_wall_model.channel import Channel
from marless_wall_model.options import STRESS, WallModelOptions
from marless_wall_model.placing import AgentGrid, Reals
from marless_wall_model.sensing import WallUnits
from marless_wall_model.snapshots import Snapshot


class AgentFlow:
    """A channel, and each agent's height and wall stress."""

    def __init__(self, channel: Channel, placing: AgentGrid, height_N: Reals, stress_N: Reals) -> None:
        self.channel, self.placing = channel, placing
        self.height_N, self.stress_N = height_N, stress_N
        # The cells between agents are sampled, too, at some height, and not looked at.
        self._heights = np.full(placing.grid.wall_shape, height_N[0])
        self._heights[placing.cells] = height_N

    def multiply(self, factor_N: Reals) -> None:
        """Multiply each agent's stress, within its bounds."""
        self.stress_N = np.clip(self.stress_N * factor_N, *STRESS)

    def run(self, duration: float) -> None:
        """Let the flow run under the present stresses; one that blows up stays as it is from then on."""
        stress = self.placing.spread(self.stress_N.reshape(self.placing.shape))
        until = self.channel.time + duration
        while self.channel.time < until and not self.channel.blown_up:
            self.channel.step(stress, until)

    def sense(self) -> WallUnits:
        """The flow at each agent's height, in the agent's own wall units."""
        sample, cells = self.channel.wall_sample(self._heights), self.placing.cells
        speed_N, slope_N = sample.speed[cells].astype(np.float64), sample.gradient[cells].astype(np.float64)
        return WallUnits.of(speed_N, slope_N, self.height_N, self.stress_N, self.channel.viscosity)


def begun(
    options: WallModelOptions,
    placing: AgentGrid,
    channel: Channel,
    snapshots: Sequence[Snapshot],
    rng: np.random.Generator,
) -> AgentFlow:
    """A flow at the start of an episode: a snapshot, shifted along the walls, with heights and a stress of its own."""
    grid, agents = placing.grid, len(placing.names)
    chosen = snapshots[int(rng.integers(len(snapshots)))]
    shift = (int(rng.integers(grid.nx)), int(rng.integers(grid.nz)))
    channel.load({name: _shifted(array, shift) for name, array in chosen.items()})
    height_N = rng.uniform(options.heights[0], options.heights[1], agents)
    return AgentFlow(channel, placing, height_N, np.full(agents, start_stress(options, rng.random())))


def _shifted(array: NDArray[np.generic], shift: tuple[int, int]) -> NDArray[np.generic]:
    """A field [y, x, z], shifted along x and z; other arrays, such as the time, as they are."""
    return np.roll(array, shift, axis=(1, 2)) if array.ndim == 3 else array


def start_stress(options: WallModelOptions, drawn: float) -> float:
    """The stress at the start of an episode, for a number from 0 to 1 that was drawn.

    Uniform over the range of `start_stress`, without what is within `start_outside` of the true stress.
    """
    (low, high), outside = options.start_stress, options.start_outside
    if not outside:
        return low + drawn * (high - low)
    below, above = max(min(high, 1 - outside) - low, 0.0), max(high - max(low, 1 + outside), 0.0)
    at = drawn * (below + above)
    return low + at if at < below else high - above + (at - below)
