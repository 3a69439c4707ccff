"""Options of the environments `wall_model/llwm` and `wall_model/vwm`, each with its default.

Units: δ, the half height of the channel, and the true friction velocity u_τ are 1, so the true mean wall stress is 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

from marless.core.errors import SpecError, shown, unknown_name
from marless_wall_model.grid import HALF, Grid

SUBGRID = ("amd", "vreman", "smagorinsky", "none")
_HALF = (math.pi, math.pi / 2)
GRIDS: Mapping[str, tuple[Grid, int]] = MappingProxyType(
    {
        "S": (Grid(16, 20, 16, length=_HALF, walls=1), 2),
        "M": (Grid(32, 24, 32, length=_HALF, walls=1), 2),
        "L": (Grid(128, 40, 64, length=(2 * math.pi, math.pi), walls=2), 4),
    }
)
"""Name → grid, and the stride of its agents: 64, 256 and 1,024 of them. L is the grid of the paper."""


@dataclass(frozen=True, kw_only=True)
class WallModelOptions:
    """What is simulated, who acts, what it earns, and how an episode begins."""

    grid: str | Mapping[str, object] = "S"
    """S, M or L, or numbers: {nx: 16, ny: 20, nz: 16, length: [3.14, 1.57], walls: 1}. `length` is that along x and z,
    in δ (default π and π/2); `walls` 1 is a half channel, whose top is a plane without friction, 2 a full one."""
    stride: int | None = None
    """An agent stands on every stride-th cell of a wall along x and z; null: 4 on grid L, else 2."""
    subgrid: str = "amd"
    """The subgrid model: amd (the paper's), vreman, smagorinsky, or none."""
    re_tau: Sequence[float] = (2003.0, 4178.0, 8000.0)
    """Friction Reynolds numbers u_τ δ / ν; each episode draws one of them. The default are the paper's for training."""
    decisions: int = 95
    """Decisions in an episode."""
    interval: float = 0.021
    """Time from one decision to the next, in δ / u_τ."""
    change: float = 0.1
    """A decision multiplies the agent's wall stress by a factor from 1 − change to 1 + change."""
    bonus: float = 0.1
    """Reward of each decision after which the agent's stress is within `bonus_within` of the true mean. Its size in the
    paper is unknown; this one is inferred."""
    bonus_within: float = 0.01
    start_stress: Sequence[float] = (0.5, 1.5)
    """Range of the wall stress at the start of an episode, equal for all agents, drawn uniformly."""
    start_outside: float = 0.1
    """Starts within this of the true stress are drawn again: where an episode begins within `bonus_within`, doing
    nothing would earn the bonus every time. 0: none are."""
    heights: Sequence[float] = (0.075, 0.15)
    """Range of the height, in δ, at which an agent observes the flow; drawn uniformly for each agent and episode."""
    snapshots: int = 3
    """Flows for each Reynolds number from which episodes start, shifted at random along x and z."""
    snapshot_seed: int = 0
    spin_up: float = 6.0
    """Time that a flow needs to become turbulent before its first snapshot, in δ / u_τ."""
    apart: float = 0.85
    """Time from one snapshot to the next."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name in _NUMBERS:
                _check_number(each.name, getattr(self, each.name))
            elif each.name in _WHOLE and not (each.name == "stride" and self.stride is None):
                _check_whole(each.name, getattr(self, each.name))
        if self.subgrid not in SUBGRID:
            raise SpecError(unknown_name("subgrid model", str(self.subgrid), SUBGRID))
        _numbers("re_tau", self.re_tau, _RE)
        plus = min(self.re_tau) * min(self.heights)
        _check_range("start_stress", self.start_stress, STRESS)
        _check_range("heights", self.heights, (1e-3, 1.0))
        if plus < LEAST_PLUS:
            raise SpecError(
                f"at Re_τ {min(self.re_tau):g} the height {min(self.heights):g} is {plus:.0f} wall units, "
                f"and no logarithmic law holds below {LEAST_PLUS:g}; choose a larger Re_τ or height"
            )
        low, high = self.start_stress
        if self.start_outside and max(1 - low, high - 1) <= self.start_outside:
            raise SpecError(
                f"start_stress {shown(list(self.start_stress))} lies within start_outside {self.start_outside} of the "
                "true stress, 1, so that no start is left; widen the one or lower the other"
            )
        self.check_placing()

    @property
    def geometry(self) -> Grid:
        """The grid by its numbers; raises SpecError."""
        if isinstance(self.grid, str):
            if self.grid not in GRIDS:
                raise SpecError(unknown_name("grid", self.grid, GRIDS))
            return GRIDS[self.grid][0]
        return _grid(self.grid)

    @property
    def spacing(self) -> int:
        """Cells from one agent to the next."""
        return self.stride or (GRIDS[self.grid][1] if isinstance(self.grid, str) else 2)

    def check_placing(self) -> None:
        """Raise SpecError unless agents fit on the wall, and their heights lie between the centres of cells."""
        grid, stride = self.geometry, self.spacing
        if grid.nx % stride or grid.nz % stride:
            raise SpecError(f"stride {stride} must divide the cells of the wall, {grid.nx} · {grid.nz}")
        lowest, highest = self.heights
        rows = grid.ny // grid.walls
        if lowest < grid.dy / 2 or highest > (rows - 0.5) * grid.dy:
            raise SpecError(
                f"heights {lowest:g} to {highest:g} must lie between the centres of cells, which are at "
                f"{grid.dy / 2:g} to {(rows - 0.5) * grid.dy:g}; a larger ny puts cells nearer to the wall"
            )


STRESS = (0.02, 10.0)
"""Bounds of each agent's wall stress."""
LEAST_PLUS = 30.0
"""Wall units: where the logarithmic layer begins."""
_RE = (100.0, 1e8)
_NUMBERS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "interval": (1e-4, 1.0),
        "change": (1e-3, 0.9),
        "bonus": (0.0, 100.0),
        "bonus_within": (0.0, 1.0),
        "start_outside": (0.0, 1.0),
        "spin_up": (0.0, 1000.0),
        "apart": (0.0, 1000.0),
    }
)
_WHOLE: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"stride": (1, 1024), "decisions": (1, 10**6), "snapshots": (1, 100), "snapshot_seed": (0, 2**32 - 1)}
)


def _grid(given: object) -> Grid:
    if not isinstance(given, Mapping):
        raise SpecError(f"grid must be S, M, L, or a mapping with nx, ny and nz, got {shown(given)}")
    known = ("nx", "ny", "nz", "length", "walls")
    for name in given:
        if name not in known:
            raise SpecError(unknown_name("number of the grid", str(name), known))
    for name in ("nx", "ny", "nz"):
        if name not in given:
            raise SpecError(f"the grid has no {name}; give nx, ny and nz, the cells in each direction")
        _check_whole(name, given[name], (1, 4096))
    length = given.get("length", _HALF)
    along_x, along_z = _numbers("length", length, (1e-3, 1e3), count=2)
    return Grid(given["nx"], given["ny"], given["nz"], length=(along_x, along_z), walls=given.get("walls", HALF))


def _check_number(name: str, value: object) -> None:
    least, most = _NUMBERS[name]
    if not _is_number(value, least, most):
        raise SpecError(f"{name} must be a number from {least:g} to {most:,g}, got {shown(value)}")


def _check_whole(name: str, value: object, limits: tuple[int, int] | None = None) -> None:
    least, most = limits or _WHOLE[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SpecError(f"{name} must be a whole number from {least:,} to {most:,}, got {shown(value)}")


def _numbers(name: str, value: object, limits: tuple[float, float], count: int | None = None) -> list[float]:
    """The numbers of a list, `count` of them if given; raises SpecError."""
    least, most = limits
    found = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not found or not all(_is_number(each, least, most) for each in found) or count not in (None, len(found)):
        what = "a list of" if count is None else count
        raise SpecError(f"{name} must be {what} numbers from {least:g} to {most:,g}, got {shown(value)}")
    return [float(each) for each in found]


def _check_range(name: str, value: object, limits: tuple[float, float]) -> None:
    low, high = _numbers(name, value, limits, count=2)
    if low > high:
        raise SpecError(f"{name} must be two numbers, the lower one first, got {shown(value)}")


def _is_number(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
