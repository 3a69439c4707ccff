"""The statistics and gates of the validation of wall models, on profiles that are known."""

import dataclasses

import numpy as np
import pytest

from bench.wall_model import BOX, Case, Flow, log_law, run
from marless_wall_model.grid import Grid

GRID = Grid(16, 20, 16, BOX)


def flow(*, layer: int | None = None, u_tau: float = 1.0, above: float = 0.0) -> Flow:
    """A flow that follows the logarithmic law in its own wall units, `above` it everywhere."""
    heights = GRID.heights()
    velocity = u_tau * (log_law(heights * 5200 * u_tau) + above)
    case = Case(GRID, 5200.0, layer)
    return Flow(case, u_tau**2, 0.9, heights, velocity, steps=1, cpu_s=1.0)


def test_the_law_itself_passes():
    found = flow()
    assert (found.friction_error, found.mismatch()) == pytest.approx((0, 0), abs=1e-12)
    assert found.velocity_errors() == pytest.approx([0] * 4, abs=1e-12)  # layers at 0.125, 0.175, 0.225 and 0.275
    assert found.holds()
    assert found.row()["G2"] == "holds"


@pytest.mark.parametrize(
    ("change", "mismatch", "holds"),
    [
        ({"above": 0.29}, 0.29, True),
        ({"above": 0.31}, 0.31, False),
        ({"u_tau": 1.029}, 0.0, True),
        ({"u_tau": 1.031}, 0.0, False),
        ({"u_tau": 0.969}, 0.0, False),
        ({"layer": 0, "above": 0.79}, 0.79, False),
        ({"layer": 0, "above": 0.81}, 0.81, True),
    ],
)
def test_what_fails(change, mismatch, holds):
    found = flow(**change)
    assert found.mismatch() == pytest.approx(mismatch)
    assert found.holds() is holds


def test_friction_is_the_root_of_stress():
    assert dataclasses.replace(flow(), stress=1.0404).friction_error == pytest.approx(2.0)


@pytest.mark.parametrize("walls", [1, 2])
def test_a_short_run(walls, tmp_path):
    """The momentum of a flow is that of its mean velocity, and what its model reads is what pulls at it."""
    grid = Grid(12, 12 * walls, 12, BOX, walls)
    found = run(Case(grid, 5200.0), duration=0.1, left_out=0.05, seed=0, film=tmp_path / "film.gif")
    assert found.velocity.mean() == pytest.approx(24.10, abs=1e-3)
    assert len(found.heights) == len(found.velocity) == 12
    assert found.correlation > 0.95
    assert np.isfinite(found.mismatch())
    assert (tmp_path / "film.gif").read_bytes().startswith(b"GIF")
