"""Hessians of small nets with memory against torch's products, of torch's own GRU cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

from marless.learning.curvature.hessian import (
    CategoricalScore,
    GaussianScore,
    HessianProduct,
    MemoryProduct,
    OutputObjective,
    hessian_product,
    outputs,
)
from marless.learning.nets.layout import GRULayout, Layout
from marless.learning.nets.stacked import net
from tests.unit.learning.curvature.squared_error import SquaredError

STACK, STEPS, COPIES, DIRECTIONS = 2, 4, 3, 3
Kind = Literal["discrete", "continuous", "td"]


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _inputs(samples: int = STEPS * COPIES) -> Tensor:
    x = _draw(STACK, 4, samples, seed=1)
    x[:, -1] = 1.0
    return x


def _resets(stacked: bool) -> Tensor:
    resets = torch.rand(STACK, STEPS, COPIES, generator=torch.Generator().manual_seed(2)) < 0.4
    assert resets[:, 1:].any(dim=(1, 2)).all()
    assert (resets[0] != resets[1]).any()
    return resets if stacked else resets[0]


def _closed(kind: Kind, flat: Tensor, layout: GRULayout) -> Callable[[Tensor], OutputObjective]:
    weight = _draw(STACK, STEPS * COPIES, seed=3)
    action = torch.randint(3, (STACK, 1, STEPS * COPIES), generator=torch.Generator().manual_seed(4))
    target = _draw(STACK, 3, STEPS * COPIES, seed=5)
    if kind == "discrete":
        return lambda output: CategoricalScore(output, action, None, weight)
    if kind == "continuous":
        return lambda output: GaussianScore(output, target, flat[:, -layout.free :], weight)
    return lambda output: SquaredError(output, target, weight.square().unsqueeze(1).expand_as(target))


def _value(kind: Kind, output_KM: Tensor, free: Tensor, policy: int) -> Tensor:
    """The same objective of one policy, as a formula."""
    weight = _draw(STACK, STEPS * COPIES, seed=3)[policy]
    action = torch.randint(3, (STACK, 1, STEPS * COPIES), generator=torch.Generator().manual_seed(4))[policy, 0]
    target = _draw(STACK, 3, STEPS * COPIES, seed=5)[policy]
    if kind == "discrete":
        return (torch.distributions.Categorical(logits=output_KM.T).log_prob(action) * weight).sum()
    if kind == "continuous":
        law = torch.distributions.Normal(output_KM.T, free.exp())
        return (law.log_prob(target.T).sum(1) * weight).sum()
    return -(weight.square() * (output_KM - target).square()).sum() / 2


def _cells(
    layout: GRULayout, flat_D: Tensor, x_IM: Tensor, resets_TB: Tensor, activation: str, memory_HB: Tensor
) -> Tensor:
    """Outputs [K, M] by torch.gru_cell."""
    *body, gates, memory, output = (flat_D[span].view(s) for span, s in zip(layout.spans, layout.shapes, strict=True))
    x = x_IM[:-1].T
    for matrix in body:
        x = torch.nn.functional.linear(x, matrix[:, :-1], matrix[:, -1])
        x = torch.tanh(x) if activation == "tanh" else torch.relu(x)
    hidden, seen = memory_HB.T, []
    for t, (x_BI, resets_B) in enumerate(zip(x.view(STEPS, COPIES, -1), resets_TB, strict=True)):
        hidden = hidden.masked_fill(resets_B[:, None], 0.0) if t else hidden
        hidden = torch.gru_cell(x_BI, hidden, gates[:, :-1], memory[:, :-1], gates[:, -1], memory[:, -1])
        seen.append(hidden)
    return torch.nn.functional.linear(torch.cat(seen), output[:, :-1], output[:, -1]).T


@pytest.mark.parametrize("kind", ["discrete", "continuous", "td"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("stacked", [False, True], ids=["one-way", "each-its-own"])
def test_products_are_those_of_autograd(kind: Kind, activation: Literal["tanh", "relu"], stacked: bool) -> None:
    layout = GRULayout(3, (3, 2), 3, free=3 if kind == "continuous" else 0)
    flat, resets = 0.7 * _draw(STACK, layout.size), _resets(stacked)
    memory = (
        _draw(STACK, layout.units, COPIES, seed=6) if stacked else torch.zeros(STACK, layout.units, COPIES).double()
    )
    batch = {"features": _inputs(), "resets": resets} | ({"memory": memory} if stacked else {})
    product = hessian_product(net(layout, flat, activation), flat, batch, _closed(kind, flat, layout))
    assert isinstance(product, MemoryProduct)
    directions = _draw(DIRECTIONS, *flat.shape, seed=7)  # in general position: each sees every column
    products = [product(each) for each in directions]
    for i in range(STACK):

        def objective(flat_D: Tensor, i: int = i) -> Tensor:
            output_KM = _cells(layout, flat_D, _inputs()[i], resets[i] if stacked else resets, activation, memory[i])
            return _value(kind, output_KM, flat_D[layout.size - layout.free :], i)

        for direction, found in zip(directions, products, strict=True):
            _, expected = torch.autograd.functional.vhp(objective, flat[i], direction[i])
            torch.testing.assert_close(found[i], expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("hidden", [(2,), (3, 2)])
def test_the_twin_computes_what_the_net_does(hidden: tuple[int, ...]) -> None:
    layout = GRULayout(3, hidden, 3)
    flat = _draw(STACK, layout.size)
    for resets in (_resets(True), _resets(False)):
        for memory in (None, _draw(STACK, layout.units, COPIES, seed=6)):
            expected = net(layout, flat, "tanh").forward(_inputs(), resets, memory)
            torch.testing.assert_close(outputs(layout, flat, "tanh", _inputs(), resets, memory), expected)


def test_perceptrons_have_their_own() -> None:
    layout = Layout(3, (4,), 3)
    flat = _draw(STACK, layout.size)
    objective = _closed("discrete", flat, GRULayout(3, (4,), 3))
    batch = {"features": _inputs()}
    assert isinstance(hessian_product(net(layout, flat, "tanh"), flat, batch, objective), HessianProduct)
    layout_with = GRULayout(3, (4,), 3)
    flat = _draw(STACK, layout_with.size)
    with pytest.raises(ValueError, match="resets are missing"):
        hessian_product(net(layout_with, flat, "tanh"), flat, batch, objective)
