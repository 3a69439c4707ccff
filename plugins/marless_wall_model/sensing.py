"""What an agent on the wall observes: the flow at its height, in units of its own wall stress.

Bae and Koumoutsakos 2022: both states are functions of u*, the wall-parallel speed, its slope du*/dy*, and the height
y*, where * means divided by the modelled friction velocity √τ and by ν/√τ. VWM observes the three numbers. LLWM
observes the two of the logarithmic law through that point, 1/κ_m = (du*/dy*) y* and B_m = u* − (1/κ_m) ln y*, in which
no Reynolds number appears.

Shape suffixes: N agents, O observed numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from marless.learning.envs.base import FloatArray
from marless_wall_model.equilibrium import KAPPA, B
from marless_wall_model.placing import Reals

State = Literal["llwm", "vwm"]
STATE_SIZES: Mapping[State, int] = MappingProxyType({"llwm": 2, "vwm": 3})


@dataclass(frozen=True)
class WallUnits:
    """The flow at each agent's height in the agent's own wall units; float64 [N] each."""

    speed_N: Reals  # noqa: N815  # a shape suffix
    """u*"""
    slope_N: Reals  # noqa: N815  # a shape suffix
    """du*/dy*"""
    height_N: Reals  # noqa: N815  # a shape suffix
    """y*"""

    @classmethod
    def of(cls, speed_N: Reals, slope_N: Reals, height_N: Reals, stress_N: Reals, viscosity: float) -> WallUnits:
        """Divide what is in units of δ and of the true u_τ by the agents' own."""
        friction_N = np.sqrt(stress_N)
        return cls(speed_N / friction_N, slope_N * viscosity / stress_N, height_N * friction_N / viscosity)

    def observed(self, state: State) -> FloatArray:
        """The numbers of a state, float32 [N, O]."""
        if state == "vwm":
            return np.stack((self.speed_N, self.slope_N, self.height_N), axis=-1).astype(np.float32)
        rise_N = self.slope_N * self.height_N
        return np.stack((rise_N, self.speed_N - rise_N * np.log(self.height_N)), axis=-1).astype(np.float32)

    def excess(self) -> Reals:
        """How far u* lies above the logarithmic law ln(y*)/κ + B, float64 [N]: above 0, the stress is too low."""
        return self.speed_N - (np.log(self.height_N) / KAPPA + B)
