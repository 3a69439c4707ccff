"""Measures the channel solver of wall models: steps per second, and the turbulence of flows with the equilibrium model.

    python -m bench.wall_model rates --json wall_model_rates.json
    python -m bench.wall_model validation --json wall_model_validation.json --picture docs/images/wall_model.png

`rates`: steps per second of CPU time, in one process, the equilibrium model included. The gates ask for 350 on
32·24·32 cells and 25 on 128·40·64.

`validation` runs flows with the equilibrium wall model and compares them with the true friction velocity and the
logarithmic law (gate G2), and the kernel with NumPy (G1). One flow reads the velocity in the first layer of cells: a
validation that finds nothing wrong with it, as is known (Larsson et al. 2016), would find nothing. `--paper` adds the
grid of Bae and Koumoutsakos 2022, which takes long. `bench.wall_model_learning` has the gates of learned models.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import harness
from bench.harness import ROOT, Row, spread
from bench.workers import on_one_thread
from marless.learning.envs.base import EnvSpaces, Picture
from marless.learning.policies import drawing
from marless_wall_model.channel import Channel
from marless_wall_model.equilibrium import KAPPA, B, bulk_velocity, equilibrium_stress, matching_layer
from marless_wall_model.grid import FULL, Grid, Numbers
from marless_wall_model.kernel import library
from marless_wall_model.picturing import drawn
from marless_wall_model.start import perturbed

BOX, LONG_BOX = (math.pi, math.pi / 2), (2 * math.pi, math.pi)
PAPER = Grid(128, 40, 64, LONG_BOX, FULL)
MEASURED = (Grid(16, 16, 16, BOX), Grid(32, 24, 32, BOX), PAPER)
LEAST_RATES = {(24, 32, 32): 350.0, PAPER.shape: 25.0}
"""Steps per second of the kernel, by the shape of the grid."""
BAND = (0.1, 0.3)
"""Heights in δ at which the logarithmic law is looked for."""
MOST_FRICTION, MOST_VELOCITY, MOST_MISMATCH, LEAST_OF_FIRST_CELL = 3.0, 3.5, 0.3, 0.8
"""Gate G2: errors of u_τ and of the mean velocity in %, and the mismatch in wall units, which reading the first cell
must exceed."""
MOST_DIVERGENCE, MOST_DIFFERENCE = 1e-12, 1e-12
"""Gate G1, in float64."""
FRAMES = 60


@dataclass(frozen=True)
class Case:
    """A flow to be validated."""

    grid: Grid
    re_tau: float
    layer: int | None = None
    """Where the equilibrium model reads; None: its usual layer."""

    def row(self) -> Row:
        """What identifies it, as the first cells of a row."""
        sizes = f"{self.grid.nx}·{self.grid.ny}·{self.grid.nz}{', two walls' if self.grid.walls == FULL else ''}"
        return {
            "grid": sizes,
            "Re_τ": round(self.re_tau),
            "read at": "usual layer" if self.layer is None else "first cell",
        }


CASES = (
    *(Case(Grid(16, 16, 16, BOX), re_tau) for re_tau in (2000.0, 5200.0)),
    *(Case(Grid(32, 20, 32, BOX), re_tau) for re_tau in (2000.0, 5200.0)),
    Case(Grid(32, 24, 32, BOX), 5200.0),
    Case(Grid(32, 24, 32, BOX), 5200.0, layer=0),
)


@dataclass(frozen=True)
class Flow:
    """The statistics of a flow, averaged over time and along the walls; units of the true u_τ."""

    case: Case
    stress: float
    """Mean wall stress; the true one is 1."""
    correlation: float
    """The correlation of wall stress and of the velocity that the model reads, along the stream."""
    heights: NDArray[np.float64]
    velocity: NDArray[np.float64]
    """The mean velocity along the stream at these heights."""
    steps: int
    cpu_s: float

    @property
    def friction_error(self) -> float:
        """The error of u_τ, in %."""
        return 100 * (math.sqrt(self.stress) - 1)

    def velocity_errors(self) -> NDArray[np.float64]:
        """The errors of the mean velocity in the band, in % of the logarithmic law with the true u_τ."""
        band = self._band()
        return np.array(100 * (self.velocity[band] / log_law(self.heights[band] * self.case.re_tau) - 1))

    def mismatch(self) -> float:
        """The log-layer mismatch: how far the mean velocity lies above the law in the band, in its own wall units."""
        band, u_tau = self._band(), math.sqrt(self.stress)
        plus = self.heights[band] * self.case.re_tau * u_tau
        return float((self.velocity[band] / u_tau - log_law(plus)).mean())

    def _band(self) -> NDArray[np.bool_]:
        return (self.heights > BAND[0]) & (self.heights < BAND[1])

    def row(self) -> Row:
        """A row of the table, with the gate if it has one."""
        errors = np.abs(self.velocity_errors())
        row = self.case.row() | {
            "u_τ error, %": round(self.friction_error, 2),
            "U error, %": round(float(errors.mean()), 2),
            "largest": round(float(errors.max()), 2),
            "log-layer mismatch": round(self.mismatch(), 3),
            "correlation": round(self.correlation, 3),
            "steps": self.steps,
            "CPU s": round(self.cpu_s, 1),
        }
        return row | {"G2": "holds" if self.holds() else "fails"}

    def holds(self) -> bool:
        """True if the gate holds: for the first cell, that its error is seen."""
        if self.case.layer == 0:
            return self.mismatch() >= LEAST_OF_FIRST_CELL
        close = abs(self.friction_error) <= MOST_FRICTION and np.abs(self.velocity_errors()).max() <= MOST_VELOCITY
        return bool(close and abs(self.mismatch()) <= MOST_MISMATCH)


def log_law(plus: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logarithmic law at these wall distances in wall units."""
    return np.array(np.log(plus) / KAPPA + B)


def turbulent(grid: Grid, re_tau: float, *, seed: int = 0, kernels: bool = True, double: bool = False) -> Channel:
    """A channel at the start of its turbulence."""
    dtype: type[np.float32 | np.float64] = np.float64 if double else np.float32
    channel = Channel(grid, 1 / re_tau, bulk_velocity(re_tau), dtype=dtype, kernels=kernels)
    perturbed(channel, np.random.default_rng(seed))
    return channel


class _Averages:
    """Sums over time of a flow's statistics."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._layer = matching_layer(case.grid) if case.layer is None else case.layer
        self._duration = 0.0
        self._profile_Y = np.zeros(case.grid.ny)
        self._moments = np.zeros(5)

    def add(self, channel: Channel, stress: Numbers, dt: float) -> None:
        pull = stress.astype(np.float64)
        read = channel.wall_velocity(self._layer)[0].astype(np.float64)
        means = [each.mean() for each in (pull, read, pull**2, read**2, pull * read)]
        self._moments += dt * np.array(means)
        self._profile_Y += dt * channel.u.mean(axis=(1, 2), dtype=np.float64)
        self._duration += dt

    def flow(self, steps: int, cpu_s: float) -> Flow:
        pull, read, pull2, read2, product = self._moments / self._duration
        grid, profile_Y = self._case.grid, self._profile_Y / self._duration
        half = grid.cells_of_wall
        return Flow(
            case=self._case,
            stress=float(pull),
            correlation=float((product - pull * read) / math.sqrt((pull2 - pull**2) * (read2 - read**2))),
            heights=grid.heights()[:half],
            velocity=(profile_Y[:half] + profile_Y[::-1][:half]) / 2 if grid.walls == FULL else profile_Y,
            steps=steps,
            cpu_s=cpu_s,
        )


def run(case: Case, duration: float, left_out: float, seed: int, film: Path | None = None) -> Flow:
    """Run a flow, and average it after `left_out`; raises BenchError if it blows up."""
    channel = turbulent(case.grid, case.re_tau, seed=seed)
    averages, steps, begun = _Averages(case), 0, time.process_time()
    pictures, captions = list[Picture](), list[str]()
    while channel.time < duration:
        stress, moment = equilibrium_stress(channel, case.layer), channel.time
        if film and moment >= left_out + len(pictures) * (duration - left_out) / FRAMES:
            pictures.append(drawn(channel))
            captions.append(f"Re {case.re_tau:g}    t = {moment:.1f}")  # the font has no Greek
        dt = channel.step(stress, duration)
        steps += 1
        if moment >= left_out:
            averages.add(channel, stress, dt)
        if channel.blown_up:
            raise harness.BenchError(f"{case.row()} blew up after {moment:.2f} δ/u_τ")
    if film:
        drawing.save(drawing.draw(pictures, captions, EnvSpaces((), 0, 1)), film)
    return averages.flow(steps, time.process_time() - begun)


def kernel_gate() -> Row:
    """Gate G1: the divergence after steps in float64, and how far the kernel is from NumPy after one."""
    grid = Grid(32, 24, 32, BOX)
    channels = [turbulent(grid, 5200.0, kernels=kernels, double=True) for kernels in (True, False)]
    stress = equilibrium_stress(channels[0])
    for channel in channels:
        channel.step(stress)
    pairs = [(getattr(channels[0], name), getattr(channels[1], name)) for name in ("u", "v", "w")]
    differs = max(float(np.abs(a - b).max()) for a, b in pairs)
    for _ in range(20):
        channels[0].step(equilibrium_stress(channels[0]))
    diverges = max(channel.divergence() for channel in channels)
    holds = library() is not None and differs <= MOST_DIFFERENCE and diverges <= MOST_DIVERGENCE
    return {"divergence": diverges, "kernel and numpy differ by": differs, "holds": holds}


def rate(channel: Channel, cpu_s: float) -> float:
    """Steps per second of CPU time, with the equilibrium model's."""
    channel.step(equilibrium_stress(channel))
    begun, steps, taken = time.process_time(), 0, 0.0
    while taken < cpu_s:
        channel.step(equilibrium_stress(channel))
        steps, taken = steps + 1, time.process_time() - begun
    return steps / taken


def rates(runs: int, cpu_s: float) -> Iterator[Row]:
    """A row for each grid."""
    for grid in MEASURED:
        row = {"grid": Case(grid, 5200.0).row()["grid"]}
        for name, kernels, double in (
            ("kernel", True, False),
            ("kernel, float64", True, True),
            ("NumPy", False, False),
        ):
            if kernels and library() is None:
                continue
            harness.say(f"{row['grid']} {name}")
            channel = turbulent(grid, 5200.0, kernels=kernels, double=double)
            row[f"{name}, steps/s"] = spread([rate(channel, cpu_s) for _ in range(runs)]).cell(0)
        yield row


def draw(flows: list[Flow], target: Path) -> None:
    """Draw the mean velocities in the flows' own wall units beside the logarithmic law."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axes = figure.add_subplot(xscale="log", xlabel="y⁺", ylabel="u⁺")
    for flow in flows:
        u_tau, about = math.sqrt(flow.stress), flow.case.row()
        label = f"{about['grid']}, Re_τ {about['Re_τ']}" + (", first cell" if flow.case.layer == 0 else "")
        axes.plot(flow.heights * flow.case.re_tau * u_tau, flow.velocity / u_tau, marker="o", markersize=3, label=label)
    plus = np.geomspace(30, 5200, 50)
    axes.plot(plus, log_law(plus), color="black", linewidth=0.8, label=f"ln y⁺ / {KAPPA} + {B}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("part", choices=("rates", "validation"), help="what to measure")
    parser.add_argument("--cpu-s", type=float, default=3.0, help="CPU seconds of each measured rate")
    parser.add_argument("--duration", type=float, default=25.0, help="length of a validated flow, in δ / u_τ")
    parser.add_argument("--left-out", type=float, default=6.0, help="length of its first part, which does not count")
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise from which flows start")
    parser.add_argument(
        "--paper", action="store_true", help="validate the paper's grid, too, which takes some ten minutes of CPU time"
    )
    parser.add_argument("--picture", type=Path, help="draw the mean velocities (.png); needs matplotlib")
    parser.add_argument("--film", type=Path, help="write a film of a flow (.gif); needs Pillow")
    return parser.parse_args()


def validation(args: argparse.Namespace) -> tuple[list[Flow], Row]:
    """The flows, and the headline figures."""
    flows = []
    for case in CASES:
        harness.say(str(case.row()))
        # The largest flow whose model reads where it should is filmed.
        filmed = args.film if case == CASES[-2] else None
        flows.append(run(case, args.duration, args.left_out, args.seed, filmed))
    if args.paper:
        flows.append(run(Case(PAPER, 5200.0), args.duration, args.left_out, args.seed))
    more: Row = {"G1": kernel_gate(), "G2": all(flow.holds() for flow in flows)}
    if args.picture:
        draw(flows, args.picture)
        shows = "Mean velocities with the equilibrium model, in wall units, and the logarithmic law"
        more["pictures"] = {os.path.relpath(args.picture.resolve(), ROOT): shows}
    return flows, more


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args = arguments()
    on_one_thread()
    about = harness.machine()
    if args.part == "rates":
        rows = list(rates(args.runs, args.cpu_s))
        shapes = {row["grid"]: LEAST_RATES.get(grid.shape) for row, grid in zip(rows, MEASURED, strict=True)}
        reached = {
            row["grid"]: row["kernel, steps/s"]["median"] >= shapes[row["grid"]]
            for row in rows
            if shapes[row["grid"]] and "kernel, steps/s" in row
        }
        harness.report("wall_model_rates", about, rows, {"targets_reached": reached}, args.json)
        return
    flows, more = validation(args)
    harness.report("wall_model_validation", about, [flow.row() for flow in flows], more, args.json)


if __name__ == "__main__":
    main()
