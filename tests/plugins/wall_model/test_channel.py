"""The channel's physics by exact solutions and invariants, for NumPy and the kernel; state, faults and bad input."""

import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from marless.core.errors import CorruptError, SpecError
from marless_wall_model.channel import Channel
from marless_wall_model.equilibrium import equilibrium_stress
from marless_wall_model.grid import Grid
from marless_wall_model.kernel import library
from marless_wall_model.pressure import Projection, divergence
from marless_wall_model.start import perturbed, reichardt
from marless_wall_model.tendency import on_faces, tendency

needs_kernel = pytest.mark.skipif(library() is None, reason="no C compiler")
BOTH = pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=needs_kernel)], ids=["numpy", "kernel"])


def turbulent(grid: Grid, seed: int = 0, **options) -> Channel:
    options = {"viscosity": 1 / 5200, "bulk_velocity": 24.1, "dtype": np.float64} | options
    channel = Channel(grid, **options)
    perturbed(channel, np.random.default_rng(seed))
    return channel


SMALL = Grid(12, 8, 10, (3.0, 2.0))


# ---- Exact solutions ----


def vortex_error(plane: str, n: int, kernels: bool) -> float:
    """The largest error of a decaying Taylor-Green vortex at a time when a third of it is left."""
    viscosity, wave = 0.05, math.pi
    grid = Grid(n, n, 4, (2.0, 1.0)) if plane == "xy" else Grid(2 * n, 4, 2 * n, (2.0, 2.0))
    channel = Channel(grid, viscosity, 0.0, "none", dtype=np.float64, kernels=kernels)
    faces, centres = np.arange(grid.nx) * grid.dx, (np.arange(grid.nx) + 0.5) * grid.dx
    if plane == "xy":
        channel.u[...] = (np.sin(wave * faces) * np.cos(wave * grid.heights())[:, None])[..., None]
        heights = np.arange(grid.ny + 1) * grid.dy
        channel.v[...] = -(np.cos(wave * centres) * np.sin(wave * heights)[:, None])[..., None]
    else:
        across, across_faces = (np.arange(grid.nz) + 0.5) * grid.dz, np.arange(grid.nz) * grid.dz
        channel.u[...] = np.sin(wave * faces)[:, None] * np.cos(wave * across)
        channel.w[...] = -np.cos(wave * centres)[:, None] * np.sin(wave * across_faces)
    exact = math.exp(-1.0) * channel.u
    until = 1 / (2 * viscosity * wave**2)
    while channel.time < until:
        channel.step(np.zeros(grid.wall_shape), until)
    return float(np.abs(channel.u - exact).max())


@BOTH
@pytest.mark.parametrize("plane", ["xy", "xz"])
def test_a_vortex_decays_at_second_order(plane, kernels):
    sizes = [12, 16, 24, 32]
    errors = [vortex_error(plane, n, kernels) for n in sizes]
    order = -np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert 1.9 < order < 2.1
    assert errors[-1] < 3e-3


@BOTH
def test_a_step_leaves_no_divergence_and_keeps_the_bulk_flow(kernels):
    for grid in (SMALL, Grid(16, 16, 16, (math.pi, math.pi / 2)), Grid(9, 10, 7, (3.0, 2.0), walls=2)):
        channel = turbulent(grid, kernels=kernels)
        for _ in range(3):
            channel.step(equilibrium_stress(channel))
            assert channel.divergence() <= 1e-12
            assert channel.bulk() == pytest.approx(24.1, abs=1e-12)
        assert not channel.v[0].any()
        assert not channel.v[-1].any()


# ---- Invariants ----


def test_convection_and_pressure_conserve_energy():
    """Without viscosity the rate of change of energy is 0, up to rounding, for a flow without divergence."""
    for grid in (SMALL, Grid(8, 6, 9, (3.0, 2.0), walls=2)):
        channel = turbulent(grid)
        flow = (channel.u, channel.v, channel.w)
        still = np.zeros(grid.wall_shape)
        rates = tendency(*flow, np.zeros(grid.shape), (still, still), grid)
        powers = [field * rate for field, rate in zip(flow, rates, strict=True)]
        moved = sum(np.abs(power).sum() for power in powers)
        assert abs(sum(power.sum() for power in powers)) < 1e-13 * moved
        # What a projection removes has no part in a flow without divergence.
        removed = [rate.copy() for rate in rates]
        Projection(grid, np.float64).apply(*removed)
        gradient = [rate - left for rate, left in zip(rates, removed, strict=True)]
        assert abs(sum((a * b).sum() for a, b in zip(flow, gradient, strict=True))) < 1e-12 * moved


@BOTH
def test_energy_drifts_by_the_third_power_of_the_step_alone(kernels):
    def drift(steps: int) -> float:
        channel = turbulent(SMALL, subgrid="none", bulk_velocity=5.0, kernels=kernels)
        channel.viscosity = 0.0
        before = channel.energy()
        for number in range(steps):
            assert channel.step(np.zeros(SMALL.wall_shape), 0.04 * (number + 1) / steps) == pytest.approx(0.04 / steps)
        return abs(channel.energy() - before)

    ratio = drift(8) / drift(16)
    assert 6.5 < ratio < 9.5


def test_the_wall_takes_as_much_momentum_as_its_stress_says():
    """A uniform flow changes in the cells at the wall alone, by the stress over their height, against its direction."""
    for walls in (1, 2):
        grid = Grid(6, 8, 4, (1.0, 1.0), walls)
        u, v, w = np.full(grid.shape, 3.0), np.zeros(grid.faces), np.full(grid.shape, -4.0)
        stress = np.full(grid.wall_shape, 0.5)
        du, dv, dw = tendency(u, v, w, np.zeros(grid.shape), on_faces(stress, u, w, grid), grid)
        expected = np.zeros(8)
        expected[[0, -1][:walls]] = -0.5 / grid.dy
        np.testing.assert_allclose(du, np.broadcast_to(0.6 * expected[:, None, None], grid.shape), atol=1e-13)
        np.testing.assert_allclose(dw, np.broadcast_to(-0.8 * expected[:, None, None], grid.shape), atol=1e-13)
        assert not dv.any()


def test_viscosity_between_layers():
    """u = y² between two walls: its second derivative is 2, and the flux through the walls is the given one."""
    grid = Grid(4, 8, 4, (1.0, 1.0), walls=2)
    u = np.broadcast_to((grid.heights() ** 2)[:, None, None], grid.shape).copy()
    zeros = np.zeros(grid.shape)
    still = np.zeros(grid.wall_shape)
    du, _, _ = tendency(u, np.zeros(grid.faces), zeros, np.full(grid.shape, 0.1), (still, still), grid)
    np.testing.assert_allclose(du[1:-1], 0.2, rtol=1e-12)
    np.testing.assert_allclose(du[0], 0.1 * 2 * grid.dy / grid.dy, rtol=1e-12)


def test_the_potential_solves_the_grids_own_equation():
    grid = Grid(7, 5, 6, (2.0, 1.0))
    wanted = np.random.default_rng(0).normal(size=grid.shape)
    wanted -= wanted.mean()
    u, v, w = (np.zeros(shape) for shape in (grid.shape, grid.faces, grid.shape))
    u += (wanted - np.roll(wanted, 1, 1)) / grid.dx
    v[1:-1] += (wanted[1:] - wanted[:-1]) / grid.dy
    w += (wanted - np.roll(wanted, 1, 2)) / grid.dz
    found = Projection(grid, np.float64).potential(divergence(u, v, w, grid))
    np.testing.assert_allclose(found, wanted, atol=1e-12)


# ---- What wall models see ----


def test_a_logarithmic_flow_is_sampled_exactly():
    grid = Grid(6, 20, 5, (2.0, 1.0), walls=2)
    channel = Channel(grid, 1e-3, 0.0, dtype=np.float64)
    speed = 14 + np.log(grid.distances()) / 0.41
    channel.u[...], channel.w[...] = 0.6 * speed[:, None, None], 0.8 * speed[:, None, None]
    height = np.random.default_rng(0).uniform(0.03, 0.9, grid.wall_shape)
    sample = channel.wall_sample(height)
    np.testing.assert_allclose(sample.speed, 14 + np.log(height) / 0.41, rtol=1e-12)
    np.testing.assert_allclose(sample.gradient, 1 / (0.41 * height), rtol=1e-11)
    assert channel.wall_sample(0.1).speed.shape == (2, 6, 5)


def test_layers_are_counted_from_each_wall():
    grid = Grid(4, 6, 4, (1.0, 1.0), walls=2)
    channel = Channel(grid, 1e-3, 1.0)
    channel.u[...] = np.arange(6.0)[:, None, None]
    along, _ = channel.wall_velocity(1)
    assert (along[0] == 1).all()
    assert (along[1] == 4).all()


def test_the_start():
    assert reichardt(np.array([0.0, 1e5])) == pytest.approx([0.0, math.log(1e5) / 0.41 + 5.2], abs=2e-2)
    channel = turbulent(Grid(16, 12, 16, (math.pi, 1.5)), dtype=np.float64)
    assert channel.divergence() < 1e-12
    assert channel.bulk() == pytest.approx(24.1)
    assert 1 < channel.w.std() < 2.5


# ---- State ----


@BOTH
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_restored_state_goes_on_bit_for_bit(kernels, dtype):
    def advanced(channel: Channel) -> Channel:
        for _ in range(3):
            channel.step(equilibrium_stress(channel))
        return channel

    first = advanced(turbulent(SMALL, dtype=dtype, kernels=kernels))
    kept = first.arrays()
    advanced(first)
    other = Channel(SMALL, 1 / 5200, 24.1, dtype=dtype, kernels=kernels)
    other.load(kept)
    advanced(other)
    assert other.time == first.time
    for name, array in first.arrays().items():
        assert array.dtype == (np.float64 if name == "time" else dtype)
        assert array.tobytes() == other.arrays()[name].tobytes(), name


def test_a_state_of_another_channel_is_refused():
    kept = turbulent(SMALL).arrays()
    with pytest.raises(CorruptError, match=r"u is float64\[8, 12, 10\], must be float32\[8, 12, 10\]"):
        Channel(SMALL, 1e-3, 1.0).load(kept)
    channel = Channel(SMALL, 1e-3, 1.0, dtype=np.float64)
    before = channel.arrays()
    with pytest.raises(CorruptError, match="w is missing"):
        channel.load({name: array for name, array in kept.items() if name != "w"})
    assert all((before[name] == array).all() for name, array in channel.arrays().items())


SCRIPT = """
import hashlib, numpy as np
from marless_wall_model.channel import Channel
from marless_wall_model.equilibrium import equilibrium_stress
from marless_wall_model.grid import Grid
from marless_wall_model.start import perturbed
channel = Channel(Grid(16, 12, 8, (3.0, 1.5)), 1 / 5200, 24.1, kernels=KERNELS)
perturbed(channel, np.random.default_rng(7))
for _ in range(20):
    channel.step(equilibrium_stress(channel))
print(hashlib.sha256(b"".join(array.tobytes() for array in channel.arrays().values())).hexdigest())
"""


@BOTH
def test_a_seed_gives_the_same_bits_in_every_process(kernels):
    """One of them has two threads for what NumPy calls, which must not matter."""
    found = set()
    for threads in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.replace("KERNELS", str(kernels))],
            env=os.environ | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
        found.add(done.stdout)
    [digest] = found
    assert len(digest.strip()) == hashlib.sha256().digest_size * 2


# ---- Time ----


def test_steps_to_a_moment_are_of_equal_length():
    channel = turbulent(SMALL)
    until = 3.5 * channel.stable_dt()
    lengths = []
    while channel.time < until:
        lengths.append(channel.step(equilibrium_stress(channel), until))
    assert channel.time == until
    assert len(lengths) in (4, 5)
    assert min(lengths) > 0.6 * max(lengths)


def test_the_length_of_a_step():
    """dt = CFL / (max u / dx + max v / dy + max w / dz), or where viscosity is large, 0.5 / (ν Σ 1/Δ²)."""
    grid = Grid(10, 10, 10, (1.0, 2.0))
    channel = Channel(grid, 1e-6, 0.0, "none", cfl=0.9, dtype=np.float64)
    channel.u[0, 0, 0], channel.v[3, 1, 1], channel.w[2, 2, 2] = -2.0, 0.5, 1.0
    assert channel.stable_dt() == pytest.approx(0.9 / (2 / 0.1 + 0.5 / 0.1 + 1 / 0.2))
    channel.viscosity = 1.0
    assert channel.stable_dt() == pytest.approx(0.5 / (100 + 100 + 25))


# ---- Faults and bad input ----


@BOTH
@pytest.mark.parametrize("value", [math.nan, math.inf, -1e4])
def test_a_flow_that_has_blown_up_raises_nothing(kernels, value):
    channel = turbulent(SMALL, dtype=np.float32, kernels=kernels)
    assert not channel.blown_up
    channel.w[2, 3, 4] = value
    assert channel.blown_up
    assert channel.step(equilibrium_stress(channel), channel.time + 0.5) == 0.5
    assert channel.time == 0.5
    assert channel.step(equilibrium_stress(channel)) == 0.0
    assert channel.blown_up


@BOTH
@pytest.mark.parametrize("stress", [1e12, math.nan])
def test_a_flow_that_blows_up_says_so(kernels, stress):
    channel = turbulent(SMALL, dtype=np.float32, kernels=kernels)
    for _ in range(5):
        channel.step(np.full(SMALL.wall_shape, stress, np.float32), 1.0)
    assert channel.blown_up
    assert channel.time == 1.0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"nx": 3}, "grid: nx is 3; give 4 to 1024 cells"),
        ({"ny": 8.0}, "grid: ny is 8.0; give 4 to 1024 cells"),
        ({"nz": True}, "grid: nz is True; give 4 to 1024 cells"),
        ({"nx": 1024, "ny": 1024, "nz": 1024}, "grid: has 1073741824 cells; give at most 16777216"),
        ({"walls": 3}, "grid: walls is 3; give 1 for half a channel, or 2 for a whole one"),
        ({"ny": 9, "walls": 2}, "grid: ny is 9; a channel with two walls needs an even number, half for each wall"),
        ({"length": (math.nan, 1.0)}, "grid: its length is nan; give a positive number, in units of δ"),
        ({"length": (1.0, -1.0)}, "grid: its width is -1.0; give a positive number, in units of δ"),
    ],
)
def test_a_bad_grid_is_refused(change, sentence):
    with pytest.raises(SpecError) as refused:
        Grid(**{"nx": 8, "ny": 8, "nz": 8, "length": (1.0, 1.0), **change})
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"viscosity": -1.0}, "viscosity is -1.0; give a number of at least 0"),
        ({"bulk_velocity": math.inf}, "bulk velocity is inf; give a finite number"),
        ({"subgrid": "wale"}, "subgrid model is 'wale'; give one of amd, vreman, smagorinsky, none"),
        ({"cfl": 2.0}, "cfl is 2.0; give a number above 0, up to 1.5"),
        ({"dtype": np.float16}, "dtype is .*float16.*; give float32 or float64"),
    ],
)
def test_a_bad_channel_is_refused(change, sentence):
    with pytest.raises(SpecError, match=sentence):
        Channel(**{"grid": SMALL, "viscosity": 1e-3, "bulk_velocity": 20.0, **change})


def test_a_stress_of_another_shape_is_refused():
    with pytest.raises(SpecError, match=r"stress is \[12, 10\], must be \[1, 12, 10\]"):
        turbulent(SMALL).step(np.ones((12, 10)))
