"""Hessians of small nets, by products by hand, against torch's dense ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.learning.curvature import lanczos
from marless.learning.curvature.hessian import (
    CategoricalScore,
    GaussianScore,
    HessianProduct,
    OutputObjective,
    matrices,
)
from marless.learning.nets.layout import Layout, generator
from tests.unit.learning.curvature.squared_error import SquaredError

STACK, SAMPLES = 3, 40
Kind = Literal["discrete", "masked", "continuous", "td"]
Activation = Literal["tanh", "relu"]
KINDS = pytest.mark.parametrize("kind", ["discrete", "masked", "continuous", "td"])
ACTIVATIONS = pytest.mark.parametrize("activation", ["tanh", "relu"])


@dataclass(frozen=True)
class Problem:
    """A stack of small nets in double precision, and their objective said twice."""

    layout: Layout
    activation: Activation
    flat: Tensor
    inputs: Tensor
    closed: Callable[[Tensor, slice], OutputObjective]
    """As the library has it, of some policies."""
    value: Callable[[Tensor, Tensor, int], Tensor]
    """As a formula of one policy's outputs [K, M] and free parameters."""

    def product(self, rows: slice = slice(None)) -> HessianProduct:
        return HessianProduct(
            self.layout,
            self.flat[rows],
            self.activation,
            self.inputs[rows],
            lambda output: self.closed(output, rows),
        )

    def objective(self, flat_D: Tensor, policy: int) -> Tensor:
        x = self.inputs[policy]
        *hidden, last = (m[0] for m in matrices(self.layout, flat_D.unsqueeze(0)))
        for matrix in hidden:
            x = torch.tanh(matrix @ x) if self.activation == "tanh" else torch.relu(matrix @ x)
            x = torch.cat([x, torch.ones_like(x[:1])])
        return self.value(last @ x, flat_D[self.layout.size - self.layout.free :], policy)

    def total(self, flat: Tensor) -> Tensor:
        """Its Hessian holds that of every policy, and nothing between them."""
        return torch.stack([self.objective(flat[i], i) for i in range(STACK)]).sum()


def by_autograd(objective: Callable[[Tensor], Tensor], at: Tensor) -> lanczos.Product:
    """Products with the Hessian of an objective of all policies, each with its own vector."""
    leaf = at.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(leaf), leaf, create_graph=True)
    return lambda vector: torch.autograd.grad(gradient, leaf, vector, retain_graph=True)[0]


def dense(product: lanczos.Product, at: Tensor) -> np.ndarray:
    """Eigenvalues of each policy's Hessian, ascending."""
    columns = [product(unit.expand_as(at)) for unit in torch.eye(at.shape[1], dtype=at.dtype)]
    return torch.linalg.eigvalsh(torch.stack(columns, dim=2)).numpy()


def problem(kind: Kind, activation: Activation, hidden: tuple[int, ...] = (6, 5)) -> Problem:
    layout = Layout(3, hidden, 4, free=4 if kind == "continuous" else 0)
    rng = torch.Generator().manual_seed(1)
    flat = torch.from_numpy(np.stack([layout.initial(generator(i, "net"), 1.0) for i in range(STACK)])).double()
    flat += 0.3 * torch.randn(flat.shape, generator=rng, dtype=torch.float64)
    x = torch.randn(STACK, 4, SAMPLES, generator=rng, dtype=torch.float64)
    x[:, -1] = 1.0
    weight = torch.randn(STACK, SAMPLES, generator=rng, dtype=torch.float64) / SAMPLES
    action = torch.randint(4, (STACK, 1, SAMPLES), generator=rng)
    moved = torch.randn(STACK, 4, SAMPLES, generator=rng, dtype=torch.float64)
    legal = torch.rand(STACK, 4, SAMPLES, generator=rng) < 0.7
    legal.scatter_(1, action, True)

    if kind == "continuous":
        return Problem(
            layout,
            activation,
            flat,
            x,
            lambda output, rows: GaussianScore(output, moved[rows], flat[rows, -4:], weight[rows]),
            lambda output, free, i: (
                weight[i] * torch.distributions.Normal(output, free.exp()[:, None]).log_prob(moved[i]).sum(0)
            ).sum(),
        )
    if kind == "td":
        # one step of Q-learning: r + γ max Q' are constants; the loss ½(Q(s, a) − target)² is minimised, so negated
        picked = torch.zeros(STACK, 4, SAMPLES, dtype=torch.float64).scatter_(1, action, weight.abs().unsqueeze(1))
        return Problem(
            layout,
            activation,
            flat,
            x,
            lambda output, rows: SquaredError(output, moved[rows], picked[rows]),
            lambda output, free, i: -(weight[i].abs() * 0.5 * _chosen(output - moved[i], action[i]).square()).sum(),
        )
    masks = legal if kind == "masked" else torch.ones_like(legal)
    return Problem(
        layout,
        activation,
        flat,
        x,
        lambda output, rows: CategoricalScore(
            output, action[rows], legal[rows] if kind == "masked" else None, weight[rows]
        ),
        lambda output, free, i: (
            weight[i] * _chosen(torch.log_softmax(output.masked_fill(~masks[i], -1e9), 0), action[i])
        ).sum(),
    )


def _chosen(x_KM: Tensor, action_1M: Tensor) -> Tensor:
    return x_KM.gather(0, action_1M).squeeze(0)


@ACTIVATIONS
@KINDS
@pytest.mark.parametrize("hidden", [(6, 5), (7,), (4, 3, 5)])
def test_products_are_those_of_the_dense_hessian(kind: Kind, activation: Activation, hidden: tuple[int, ...]) -> None:
    small = problem(kind, activation, hidden)
    product = small.product()
    for seed in range(2):  # a second direction finds nothing of the first
        direction = torch.randn(small.flat.shape, generator=torch.Generator().manual_seed(seed)).double()
        expected = by_autograd(small.total, small.flat)(direction)
        torch.testing.assert_close(product(direction), expected, rtol=1e-9, atol=1e-11)


@ACTIVATIONS
@KINDS
def test_extremes_are_those_of_the_dense_hessian(kind: Kind, activation: Activation) -> None:
    small = problem(kind, activation)
    expected = dense(by_autograd(small.total, small.flat), small.flat)
    starts = [lanczos.rademacher(np.random.default_rng(0), small.flat)]
    highest, lowest = lanczos.extremes(small.product(), starts, 60)
    np.testing.assert_allclose(highest, expected[:, -1], rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(lowest, expected[:, 0], rtol=1e-3, atol=1e-9)


@KINDS
def test_a_stack_is_its_members_one_by_one(kind: Kind) -> None:
    small = problem(kind, "tanh")
    direction = torch.randn(small.flat.shape, generator=torch.Generator().manual_seed(0)).double()
    together = small.product()(direction).clone()
    for i in range(STACK):
        rows = slice(i, i + 1)
        torch.testing.assert_close(small.product(rows)(direction[rows]), together[rows], rtol=1e-12, atol=1e-14)


@KINDS
def test_gradients_at_the_outputs_are_autograds(kind: Kind) -> None:
    small = problem(kind, "tanh")
    output = torch.randn(STACK, 4, SAMPLES, generator=torch.Generator().manual_seed(5)).double()
    at_output, at_free = small.closed(output, slice(None)).gradient()
    for i in range(STACK):
        leaf, free = output[i].clone().requires_grad_(), small.flat[i, -4:].clone().requires_grad_()
        value = small.value(leaf, free, i)
        gradient, at_leaf = torch.autograd.grad(value, (leaf, free), allow_unused=True)
        torch.testing.assert_close(at_output[i], gradient)
        assert (at_leaf is None) == (at_free is None)
        if at_free is not None:
            torch.testing.assert_close(at_free[i], at_leaf)


def test_a_minimised_loss_is_negated_before_its_ratio_is_taken() -> None:
    """The Gauss-Newton part of −½(Q − target)² is concave: nothing of it curves upwards."""
    small = problem("td", "relu", (5,))
    starts = [lanczos.rademacher(np.random.default_rng(0), small.flat)]
    highest, lowest = lanczos.extremes(small.product(), starts, 60)
    assert (-lowest > highest).all()


def test_any_differentiable_objective_will_do() -> None:
    """A mixing objective that is not a sum over samples, through autograd: Lanczos asks only for a product."""
    small = problem("td", "tanh")

    def mixed(flat: Tensor) -> Tensor:
        each = torch.stack([small.objective(flat[i], i) for i in range(STACK)])
        return (each - each.square()).sum()

    product = by_autograd(mixed, small.flat)
    starts = [lanczos.rademacher(np.random.default_rng(0), small.flat)]
    highest, lowest = lanczos.extremes(product, starts, 60)
    expected = dense(product, small.flat)
    np.testing.assert_allclose(highest, expected[:, -1], rtol=1e-3)
    np.testing.assert_allclose(lowest, expected[:, 0], rtol=1e-3)
