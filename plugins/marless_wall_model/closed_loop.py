"""Long runs of a wall model at one Reynolds number: how well it finds the wall stress, and how it fluctuates.

Its two figures are those of Bae and Koumoutsakos 2022: modelled u_τ / true u_τ, and
the correlation of the fluctuations of wall stress and velocity. The equilibrium model's stress follows the velocity at
one height, so that they correlate by nearly 1; in a real channel they do by about 0.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from marless.core.errors import SpecError
from marless_wall_model.channel import Channel
from marless_wall_model.controllers import Controller
from marless_wall_model.env import WallModel
from marless_wall_model.equilibrium import equilibrium_stress, unmodelled_stress
from marless_wall_model.flow import AgentFlow
from marless_wall_model.grid import Numbers
from marless_wall_model.options import WallModelOptions
from marless_wall_model.placing import Reals
from marless_wall_model.sensing import State

StressLaw = Callable[[Channel], Numbers]
"""Computes the wall stress of every cell from the present flow, [walls, nx, nz]."""
STRESS_LAWS: dict[str, StressLaw] = {"equilibrium": equilibrium_stress, "none": unmodelled_stress}
_HIGHEST = 0.5
"""Correlations are taken up to this height."""


@dataclass(frozen=True)
class LoopResult:
    """What a long run has shown, after its first part was left out."""

    friction_ratio: float
    """Modelled u_τ / true u_τ: the root of the mean wall stress."""
    correlation: float
    """The largest correlation, over heights up to 0.5 δ, of the fluctuations of wall stress and wall-parallel speed."""
    times: tuple[float, ...]
    """The end of each interval, from the start of the run, in δ / u_τ; those left out of the figures are here, too."""
    stresses: tuple[float, ...]
    """The mean wall stress in each."""


class Moments:
    """Sums over places and times, for means and correlations of the stress with the speed in each layer."""

    def __init__(self, layers: int) -> None:
        self._sums_K5 = np.zeros((layers, 5))
        self._count = 0

    def add(self, stress_N: Reals, speed_KN: Reals) -> None:
        """Add one moment: the stress at N places, and the speed above each in K layers."""
        products = (speed_KN, speed_KN**2, speed_KN * stress_N)
        alike = (np.broadcast_to(each, speed_KN.shape) for each in (stress_N, stress_N**2))
        self._sums_K5 += np.stack([each.sum(axis=1) for each in (*alike, *products)], axis=1)
        self._count += len(stress_N)

    def mean_stress(self) -> float:
        """The mean over places and times."""
        return float(self._sums_K5[0, 0] / self._count)

    def largest_correlation(self) -> float:
        """The largest one over the layers; 0 where the stress does not fluctuate."""
        stress_K, stress2_K, speed_K, speed2_K, product_K = (self._sums_K5 / self._count).T
        spread_K = np.sqrt(np.maximum((stress2_K - stress_K**2) * (speed2_K - speed_K**2), 0))
        together_K = product_K - stress_K * speed_K
        return float(np.max(np.where(spread_K > 1e-12, together_K / np.maximum(spread_K, 1e-12), 0.0)))


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A long run to be made."""

    options: WallModelOptions
    """Of the environment; its Reynolds numbers, starts and episode lengths are replaced."""
    re_tau: float
    duration: float = 20.0
    """Length of the run in δ / u_τ."""
    left_out: float = 3.0
    """Length of its first part, which does not count."""
    start_stress: float = 0.75
    """The agents' stress at the start: not the true one, at which an agent that does nothing would stay."""
    seed: int = 0

    def controlled(self, state: State, controller: Controller) -> LoopResult:
        """Run with agents whose actions a controller chooses; raises SpecError if the flow blows up."""
        env, rng = self._env(state), np.random.default_rng(self.seed)
        frame = env.reset(self.seed)

        def advance(flow: AgentFlow) -> None:
            nonlocal frame
            frame = env.step((controller(env, frame, rng),)).frame

        return self._run(env, advance, lambda flow: flow.stress_N)

    def by_law(self, law: StressLaw) -> LoopResult:
        """Run with a stress that follows from the flow in each step of the solver; raises SpecError if it blows up."""
        env = self._env("llwm")
        env.reset(self.seed)

        def advance(flow: AgentFlow) -> None:
            until = flow.channel.time + self.options.interval
            while flow.channel.time < until and not flow.channel.blown_up:
                flow.channel.step(law(flow.channel), until)

        return self._run(env, advance, lambda flow: law(flow.channel)[env.placing.cells].astype(np.float64))

    def _env(self, state: State) -> WallModel:
        steps = round(self.duration / self.options.interval)
        # One decision more, lest the episode ends and another flow takes its place.
        begun = replace(self.options, start_stress=(self.start_stress, self.start_stress), start_outside=0.0)
        return WallModel(state, replace(begun, re_tau=(self.re_tau,), decisions=steps + 1), 1)

    def _run(
        self, env: WallModel, advance: Callable[[AgentFlow], None], stress_of: Callable[[AgentFlow], Reals]
    ) -> LoopResult:
        grid, flow = env.placing.grid, env.flows[0]
        layers = max(1, int(_HIGHEST / grid.dy))
        moments, times, stresses = Moments(layers), list[float](), list[float]()
        for step in range(env.options.decisions - 1):
            advance(flow)
            if flow.channel.blown_up:
                raise SpecError(
                    f"the flow at Re_τ {self.re_tau:g} blew up after {step * self.options.interval:.1f} δ/u_τ"
                )
            stress_N = stress_of(flow)
            times.append((step + 1) * self.options.interval)
            stresses.append(float(stress_N.mean()))
            if times[-1] > self.left_out:
                moments.add(stress_N, _speeds(flow, layers))
        return LoopResult(
            friction_ratio=float(np.sqrt(moments.mean_stress())),
            correlation=moments.largest_correlation(),
            times=tuple(times),
            stresses=tuple(stresses),
        )


def _speeds(flow: AgentFlow, layers: int) -> Reals:
    """The wall-parallel speed above each agent, float64 [layers, N]."""
    speeds = (np.hypot(*flow.channel.wall_velocity(layer))[flow.placing.cells] for layer in range(layers))
    return np.stack(list(speeds)).astype(np.float64)
