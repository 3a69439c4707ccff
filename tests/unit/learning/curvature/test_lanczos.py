"""Lanczos against dense eigenvalues, alone and in stacks, and where a Krylov space ends early."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.learning.curvature import lanczos


def _product(matrices_PDD: Tensor) -> lanczos.Product:
    return lambda vector_PD: torch.bmm(matrices_PDD, vector_PD.unsqueeze(2)).squeeze(2)


def _symmetric(seed: int, *shape: int) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x + x.transpose(-1, -2)


def _starts(seed: int, matrices_PDD: Tensor, probes: int = 1) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    return [lanczos.rademacher(rng, matrices_PDD[:, 0]) for _ in range(probes)]


def _extremes(matrices_PDD: Tensor, steps: int, probes: int = 1) -> np.ndarray:
    return np.stack(lanczos.extremes(_product(matrices_PDD), _starts(3, matrices_PDD, probes), steps))


def test_diagonal_by_hand() -> None:
    """From (1, 1)/√2 the two steps on diag(1, 3) give T = [[2, 1], [1, 2]], whose eigenvalues are 1 and 3."""
    highest, lowest = lanczos.extremes(lambda v: v * torch.tensor([[1.0, 3.0]]), [torch.ones(1, 2)], 2)
    assert highest == pytest.approx([3.0])
    assert lowest == pytest.approx([1.0])
    middle = lanczos.extremes(lambda v: v * torch.tensor([[1.0, 3.0]]), [torch.ones(1, 2)], 1)
    assert np.ravel(middle) == pytest.approx([2.0, 2.0])  # one step: the Rayleigh quotient


@pytest.mark.parametrize("steps", [40, 100])
def test_all_steps_give_dense_extremes(steps: int) -> None:
    matrices = _symmetric(0, 5, 40, 40)
    dense = np.linalg.eigvalsh(matrices.double().numpy())
    np.testing.assert_allclose(_extremes(matrices, steps), [dense[:, -1], dense[:, 0]], rtol=1e-5)


def test_few_steps_approach_from_inside_and_probes_can_only_widen() -> None:
    matrices = _symmetric(1, 4, 60, 60)
    dense = np.linalg.eigvalsh(matrices.double().numpy())
    inside = [_extremes(matrices, 8), _extremes(matrices, 16), _extremes(matrices, 16, probes=3), dense[:, [-1, 0]].T]
    for narrow, wide in pairwise(inside):
        assert (wide[0] >= narrow[0] - 1e-5).all()
        assert (wide[1] <= narrow[1] + 1e-5).all()
    assert (inside[2] != inside[1]).any()


def test_a_stack_is_its_members_one_by_one() -> None:
    matrices = _symmetric(2, 6, 30, 30)
    together = _extremes(matrices, 10)
    for i in range(6):
        np.testing.assert_allclose(_extremes(matrices[i : i + 1], 10)[:, 0], together[:, i], rtol=1e-5)


def test_equal_seeds_give_equal_bits() -> None:
    matrices = _symmetric(2, 3, 30, 30)
    assert _extremes(matrices, 10, 2).tobytes() == _extremes(matrices, 10, 2).tobytes()


def test_a_krylov_space_that_ends_early_adds_nothing() -> None:
    """Multiples of the identity end after one step, a matrix of rank 1 after two, others of the stack go on."""
    ones = torch.ones(8, 8)
    matrices = torch.stack([2 * torch.eye(8), -3 * torch.eye(8), ones, torch.zeros(8, 8), _symmetric(5, 8, 8)])
    dense = np.linalg.eigvalsh(matrices.double().numpy())
    highest, lowest = _extremes(matrices, 8)
    np.testing.assert_allclose(highest, [2.0, -3.0, 8.0, 0.0, dense[4, -1]], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lowest, [2.0, -3.0, 0.0, 0.0, dense[4, 0]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_spoils_only_its_own_policy(bad: float) -> None:
    matrices = _symmetric(4, 3, 12, 12)
    whole = _extremes(matrices, 6)
    matrices[1, 0, 0] = bad
    spoilt = _extremes(matrices, 6)
    assert np.isnan(spoilt[:, 1]).all()
    np.testing.assert_allclose(spoilt[:, [0, 2]], whole[:, [0, 2]], rtol=1e-6)


def test_rademacher_is_signs_alike_for_all() -> None:
    start = lanczos.rademacher(np.random.default_rng(0), torch.empty(3, 1000))
    assert start.shape == (3, 1000)
    assert set(start.unique().tolist()) == {-1.0, 1.0}
    assert torch.equal(start[0], start[2])
    assert abs(float(start[0].mean())) < 0.15
