"""Subgrid models, the equilibrium model and the kernel against hand-computed numbers, bisection and NumPy."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from structlog.testing import capture_logs

from marless_wall_model import kernel
from marless_wall_model.channel import Channel
from marless_wall_model.equilibrium import (
    bulk_velocity,
    equilibrium_stress,
    friction_velocity,
    matching_layer,
    unmodelled_stress,
)
from marless_wall_model.grid import Grid
from marless_wall_model.start import perturbed
from marless_wall_model.subgrid import amd, gradients_of, mixing_length_squared, smagorinsky, viscosity_of, vreman

needs_kernel = pytest.mark.skipif(kernel.library() is None, reason="no C compiler")
MODELS = ("amd", "vreman", "smagorinsky", "none")


def in_one_cell(matrix) -> tuple[tuple[np.ndarray, ...], ...]:
    """Gradients of one cell, from `matrix[i][j]`."""
    return tuple(tuple(np.full((1, 1, 1), float(each)) for each in row) for row in matrix)


# ---- Subgrid models ----

SHEAR = in_one_cell([[0, 3, 0], [0, 0, 0], [0, 0, 0]])
STRAIN = in_one_cell([[2, 0, 0], [0, -1, 0], [0, 0, -1]])
SIZES = (1.0, 2.0, 3.0)


def test_in_pure_shear_only_smagorinsky_has_eddies():
    assert amd(SHEAR, SIZES).item() == 0
    assert vreman(SHEAR, SIZES).item() == 0
    assert smagorinsky(SHEAR, np.array([0.01])).item() == pytest.approx(0.01 * 3)


def test_in_a_stretched_cell():
    # AMD: −Σ Δ² g² g = −(1·8 − 4·1 − 9·1) = 5, by Σ g² = 6. Vreman: β = diag(4, 4, 9), so 16 + 36 + 36 = 88.
    assert amd(STRAIN, SIZES).item() == pytest.approx(0.3 * 5 / 6)
    assert vreman(STRAIN, SIZES).item() == pytest.approx(0.025 * math.sqrt(88 / 6))
    assert smagorinsky(STRAIN, np.array([0.01])).item() == pytest.approx(0.01 * math.sqrt(12))


def test_a_cell_that_is_pressed_has_no_negative_viscosity():
    pressed = in_one_cell([[-2, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert amd(pressed, (1.0, 1.0, 1.0)).item() == pytest.approx(0.3 * 6 / 6)
    assert amd(pressed, (1.0, 2.0, 3.0)).item() == 0


def test_any_gradients_against_the_papers_sums():
    """Of a matrix G of gradients and sizes D: AMD's −tr(G D² Gᵀ S), and Vreman's second invariant of β = G D² Gᵀ."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        g, sizes = rng.normal(size=(3, 3)), rng.uniform(0.1, 1, 3)
        beta = g @ np.diag(sizes**2) @ g.T
        strain, squares = (g + g.T) / 2, (g**2).sum()
        invariant = (np.trace(beta) ** 2 - np.trace(beta @ beta)) / 2
        assert amd(in_one_cell(g), tuple(sizes)).item() == pytest.approx(
            0.3 * max(-np.trace(beta @ strain), 0) / squares, abs=1e-14
        )
        assert vreman(in_one_cell(g), tuple(sizes)).item() == pytest.approx(0.025 * math.sqrt(invariant / squares))
        assert smagorinsky(in_one_cell(g), np.array([2.0])).item() == pytest.approx(
            2 * math.sqrt(2 * (strain**2).sum())
        )


def test_masons_mixing_length():
    grid = Grid(10, 10, 10, (1.0, 1.0))  # cells of 0.1, and Cs Δ = 0.012
    assert mixing_length_squared(grid)[2] == pytest.approx(1 / (1 / 0.012**2 + 1 / (0.41 * 0.25) ** 2))
    both = mixing_length_squared(Grid(10, 20, 10, (1.0, 1.0), walls=2))
    np.testing.assert_allclose(both, both[::-1])


@pytest.mark.parametrize("walls", [1, 2])
def test_gradients_of_linear_shear(walls):
    """u = 3 y: where it does not vanish at a boundary, the difference is half, or with the sign turned, as it must."""
    grid = Grid(6, 8, 5, (1.0, 1.0), walls)
    u = np.broadcast_to(3 * grid.heights()[:, None, None], grid.shape).copy()
    g = gradients_of(u, np.zeros(grid.faces), np.zeros(grid.shape), grid)
    np.testing.assert_allclose(g[0][1][:-1], 3.0)
    u0, u1 = u[-1, 0, 0], u[-2, 0, 0]
    np.testing.assert_allclose(g[0][1][-1], ((u0 if walls == 1 else -u0) - u1) / (2 * grid.dy))
    assert not any(np.abs(g[i][j]).max() > 1e-14 for i in range(3) for j in range(3) if (i, j) != (0, 1))


def test_gradients_of_waves_are_of_second_order():
    """All nine, of a flow that vanishes at the wall and is even at the top, against derivatives."""

    def error(n: int) -> float:
        grid = Grid(n, n, n, (2 * math.pi, 2 * math.pi))
        faces, centres, heights = np.arange(n) * grid.dx, (np.arange(n) + 0.5) * grid.dx, grid.heights()

        def field(y, x, z, a: float) -> np.ndarray:
            return np.sin(math.pi / 2 * y)[:, None, None] * np.sin(x + a)[:, None] * np.sin(z + 2 * a)

        u, w = field(heights, faces, centres, 0.1), field(heights, centres, faces, 0.3)
        v = field(np.arange(n + 1) / n, centres, centres, 0.2)
        g, worst = gradients_of(u, v, w, grid), 0.0
        for i, a in enumerate((0.1, 0.2, 0.3)):
            rise, along, across = math.pi / 2 * heights[:, None, None], (centres + a)[:, None], centres + 2 * a
            exact = (
                np.sin(rise) * np.cos(along) * np.sin(across),
                math.pi / 2 * np.cos(rise) * np.sin(along) * np.sin(across),
                np.sin(rise) * np.sin(along) * np.cos(across),
            )
            worst = max(worst, *(np.abs(g[i][j] - exact[j])[:-1].max() for j in range(3)))
        return worst

    assert 1.9 < math.log2(error(16) / error(32)) < 2.1


# ---- Wall stress ----


def by_bisection(speed: float, height: float, viscosity: float) -> float:
    low, high = 0.0, 10.0 * max(speed, 1.0)
    for _ in range(200):
        middle = (low + high) / 2
        plus = max(height * middle / viscosity, 12.0)
        low, high = (middle, high) if middle * (math.log(plus) / 0.41 + 5.2) < speed else (low, middle)
    return low


@pytest.mark.parametrize("viscosity", [1e-2, 1e-3, 1 / 5200, 1e-5, 1e-7])
def test_friction_velocity_against_bisection(viscosity):
    for height in (0.02, 0.15):
        speeds = np.array([0.0, 1e-3, 0.1, 1.0, 15.0, 20.0, 35.0])
        found = friction_velocity(speeds, height, viscosity)
        wanted = [by_bisection(float(speed), height, viscosity) for speed in speeds]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-15)


def test_the_log_law_gives_the_true_stress():
    grid = Grid(4, 20, 4, (1.0, 1.0), walls=2)
    channel = Channel(grid, 1 / 5200, 20.0, dtype=np.float64)
    assert matching_layer(grid) == 1
    channel.u[...] = (np.log(grid.distances() * 5200) / 0.41 + 5.2)[:, None, None]
    np.testing.assert_allclose(equilibrium_stress(channel), np.ones((2, 4, 4)), rtol=1e-10)
    np.testing.assert_allclose(equilibrium_stress(channel, 0), np.ones((2, 4, 4)), rtol=1e-10)


def test_without_a_model_stress_is_that_of_a_straight_line():
    channel = Channel(Grid(4, 10, 4, (1.0, 1.0)), 0.01, 5.0, dtype=np.float64)
    channel.w[...] = 12.0
    np.testing.assert_allclose(unmodelled_stress(channel), 0.01 * 13 / 0.05)


@pytest.mark.parametrize(
    ("ny", "walls", "layer"), [(16, 1, 2), (20, 1, 2), (24, 1, 3), (40, 2, 2), (8, 1, 1), (4, 1, 0), (64, 1, 9)]
)
def test_where_the_equilibrium_model_reads(ny, walls, layer):
    assert matching_layer(Grid(4, ny, 4, (1.0, 1.0), walls)) == layer


def test_bulk_velocities():
    assert [bulk_velocity(re) for re in (1000, 2000, 5200)] == pytest.approx([19.99, 21.80, 24.10])
    # (ln 20000 − 1) / 0.41 + 5.45 = 27.166, raised by what 5200 has above it: 24.10 − 23.880.
    assert bulk_velocity(20000) == pytest.approx(27.386, abs=2e-3)
    assert abs(bulk_velocity(5186) - 24.10) < 0.01
    rising = [bulk_velocity(re) for re in np.geomspace(500, 1e6, 50)]
    assert (np.diff(rising) > 0).all()


# ---- The kernel ----


@needs_kernel
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "grid",
    [
        Grid(32, 24, 32, (math.pi, math.pi / 2)),
        Grid(12, 10, 20, (3.0, 2.0), walls=2),
        Grid(7, 5, 9, (3.0, 2.0)),
        Grid(17, 8, 10, (3.0, 2.0), walls=2),
        Grid(30, 4, 22, (3.0, 2.0)),
    ],
    ids=lambda grid: "·".join(map(str, grid.shape)),
)
@pytest.mark.parametrize(("dtype", "most"), [(np.float64, 1e-12), (np.float32, 2e-4)])
def test_the_kernel_equals_numpy(grid, model, dtype, most):
    numpy, compiled = (Channel(grid, 1 / 5200, 24.1, model, dtype=dtype, kernels=each) for each in (False, True))
    perturbed(numpy, np.random.default_rng(0))
    compiled.load(numpy.arrays())
    np.testing.assert_allclose(compiled.eddy_viscosity(), numpy.eddy_viscosity(), atol=most / 100, rtol=most)
    stress = equilibrium_stress(numpy)
    assert compiled.step(stress) == pytest.approx(numpy.step(stress), rel=most)
    for name in ("u", "v", "w"):
        np.testing.assert_allclose(getattr(compiled, name), getattr(numpy, name), atol=most, rtol=0)
    np.testing.assert_allclose(compiled.pressure, numpy.pressure, atol=500 * most, rtol=0)


@needs_kernel
def test_threads_that_step_channels_at_once_do_not_disturb_one_another():
    grid = Grid(16, 12, 16, (3.0, 2.0))

    def run(seed: int) -> bytes:
        channel = Channel(grid, 1 / 5200, 24.1)
        perturbed(channel, np.random.default_rng(seed))
        for _ in range(30):
            channel.step(equilibrium_stress(channel))
        return channel.u.tobytes() + channel.w.tobytes()

    alone = [run(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == alone


def test_without_a_compiler_numpy_computes_and_the_log_says_so_once(monkeypatch):
    monkeypatch.setattr(kernel.compiling, "library", lambda source: (None, "numpy: no C compiler"))
    kernel.library.cache_clear()
    try:
        with capture_logs() as lines:
            channels = [Channel(Grid(8, 6, 8, (2.0, 1.0)), 1e-3, 20.0) for _ in range(2)]
            assert kernel.library() is None
        assert lines == [
            {"event": "wall_model.without_kernel", "kernel": "numpy: no C compiler", "log_level": "warning"}
        ]
        assert channels[0].step(np.ones((1, 8, 8))) > 0
    finally:
        kernel.library.cache_clear()


def test_viscosity_by_the_name_of_a_model():
    grid = Grid(4, 4, 4, (1.0, 1.0))
    rng = np.random.default_rng(0)
    g = gradients_of(rng.normal(size=grid.shape), rng.normal(size=grid.faces), rng.normal(size=grid.shape), grid)
    sizes = (grid.dx, grid.dy, grid.dz)
    for name, expected in (("amd", amd(g, sizes)), ("vreman", vreman(g, sizes)), ("none", np.zeros(grid.shape))):
        np.testing.assert_array_equal(viscosity_of(name, g, grid), expected)
    np.testing.assert_array_equal(viscosity_of("smagorinsky", g, grid), smagorinsky(g, mixing_length_squared(grid)))
