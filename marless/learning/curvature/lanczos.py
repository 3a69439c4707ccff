"""Extreme eigenvalues of a stack of symmetric matrices, computed from matrix-vector products only (Lanczos algorithm).

Shapes: P matrices of size D × D, K Lanczos steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.learning.nets import kernels

Product = Callable[[Tensor], Tensor]
"""[P, D] → [P, D]: the product of each matrix with its vector. May return the same buffer every time."""

_NOTHING_LEFT = 1e-5
"""A remainder below this fraction of the matrix's estimated norm is rounding error: the Krylov space is complete."""


def extremes(product: Product, starts: Iterable[Tensor], steps: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(λ_max, λ_min) of each matrix, each float64 [P]; nan where a product was not finite.

    `starts` are random vectors [P, D], one per probe; the extremes over all probes count. Both estimates lie inside the
    spectrum, and are exact up to rounding after D steps at the latest.
    Source: Lanczos 1950 with full re-orthogonalisation; random starts as in PyHessian (Yao et al. 2020), which Wei et
    al. 2025, §4.2, use. Departs from Nitro's code, which takes the ends of a density grid, 0.01 further out, instead of
    the eigenvalues of the tridiagonal matrix.
    """
    ends = [_ends(*_tridiagonal(product, start_PD, steps)) for start_PD in starts]
    highest, lowest = (np.stack(each) for each in zip(*ends, strict=True))
    return highest.max(axis=0), lowest.min(axis=0)


def rademacher(rng: np.random.Generator, like_PD: Tensor) -> Tensor:
    """Random signs [P, D], the same for every matrix, so that an estimate does not depend on the other matrices."""
    signs_D = torch.from_numpy(2 * rng.integers(2, size=like_PD.shape[1]) - 1)
    return signs_D.to(like_PD).expand_as(like_PD)


def _tridiagonal(product: Product, start_PD: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Diagonal and off-diagonal, each [P, K]; the last off-diagonal element belongs to a step not taken.

    Once a Krylov space is complete, the rest of the diagonal repeats its first element, a Rayleigh quotient, which lies
    inside the spectrum.
    """
    stack, size = start_PD.shape
    basis_PKD = start_PD.new_zeros(stack, min(steps, size), size)
    diagonal: list[Tensor] = []
    off_diagonal: list[Tensor] = []
    going_P1 = torch.ones(stack, 1, dtype=torch.bool, device=start_PD.device)
    scale_P1 = start_PD.new_zeros(stack, 1)
    vector_PD = start_PD / torch.linalg.vector_norm(start_PD, dim=1, keepdim=True)
    for k in range(basis_PKD.shape[1]):
        basis_PKD[:, k] = vector_PD
        rest_PD, alpha_P1 = _orthogonal(product(vector_PD), basis_PKD[:, : k + 1])
        diagonal.append(torch.where(going_P1, alpha_P1, diagonal[0] if diagonal else alpha_P1))
        beta_P1 = torch.linalg.vector_norm(rest_PD, dim=1, keepdim=True)
        scale_P1 = torch.maximum(scale_P1, alpha_P1.abs() + beta_P1)
        going_P1 = going_P1 & ~(beta_P1 <= _NOTHING_LEFT * scale_P1)  # written so that nan is passed on
        off_diagonal.append(torch.where(going_P1, beta_P1, 0.0))
        # A complete matrix goes on with zeros, which add nothing: the others of the stack are not complete yet.
        vector_PD = rest_PD * torch.where(going_P1, 1 / beta_P1, 0.0)
    return torch.cat(diagonal, dim=1), torch.cat(off_diagonal, dim=1)


def _orthogonal(vector_PD: Tensor, basis_PKD: Tensor) -> tuple[Tensor, Tensor]:
    """The part of a product orthogonal to the basis, and its component along the newest basis vector, [P, 1].

    Orthogonalised twice, because one pass leaves rounding errors as large as the part removed (Giraud et al. 2005).
    """
    rest_PD, alpha_P1 = vector_PD.clone(), vector_PD.new_zeros(len(vector_PD), 1)
    share_PK1 = basis_PKD.new_empty(*basis_PKD.shape[:2], 1)
    inside_P1D = torch.empty_like(rest_PD).unsqueeze(1)
    for _ in range(2):
        kernels.matmul(basis_PKD, rest_PD.unsqueeze(2), out=share_PK1)
        kernels.matmul(share_PK1.transpose(1, 2), basis_PKD, out=inside_P1D)
        rest_PD -= inside_P1D.squeeze(1)
        alpha_P1 += share_PK1[:, -1]
    return rest_PD, alpha_P1


def _ends(diagonal_PK: Tensor, off_diagonal_PK: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    alpha_PK, beta_PK = (x.double().cpu().numpy() for x in (diagonal_PK, off_diagonal_PK))
    steps = alpha_PK.shape[1]
    matrix_PKK = alpha_PK[:, :, None] * np.eye(steps)
    below = np.arange(steps - 1)
    matrix_PKK[:, below + 1, below] = beta_PK[:, :-1]  # eigvalsh reads the lower triangle
    finite_P = np.isfinite(alpha_PK).all(axis=1) & np.isfinite(beta_PK).all(axis=1)
    # For one matrix that is not finite, eigvalsh would raise, and the others would have no result.
    matrix_PKK[~finite_P] = 0.0
    values_PK = np.linalg.eigvalsh(matrix_PKK).astype(np.float64, copy=False)
    values_PK[~finite_P] = np.nan
    return values_PK[:, -1], values_PK[:, 0]
