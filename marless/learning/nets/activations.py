"""The non-linearities after dense hidden layers: one table, for actors, learners and curvature.

A new one is a line in `ACTIVATIONS`, its NumPy twin in `acting_nets.ACTIVATE`, and its name in `ModelSpec.activation`;
tests/unit/learning/nets/test_activations.py compares the columns with each other and with autograd. What a net stores
of a layer is y = φ(x), so derivatives are functions of y.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from marless.core.errors import SpecError, shown
from marless.learning.nets import kernels
from marless.learning.nets.kernels import Then


@dataclass(frozen=True)
class Activation:
    """φ, and its derivatives in terms of its outputs y. All tensors have one shape, that of the layer."""

    apply_: Callable[[Tensor], None]
    """x ← φ(x)."""
    differentiable: Callable[[Tensor], Tensor]
    """φ(x), as an operation that autograd can follow."""
    through_: Callable[[Tensor, Tensor], None]
    """gradient ← gradient · φ′, given the gradient and y."""
    slope: Callable[[Tensor], Tensor]
    """φ′, given y."""
    bend: Callable[[Tensor], Tensor] | None
    """φ″/φ′, given y; None if φ″ is 0 everywhere."""
    fused: tuple[Then, Then] | None = None
    """φ and φ′ in compiled kernels; None if these do not have them."""

    def layer(self, matrix_PHI: Tensor, x_PIM: Tensor, out: Tensor) -> None:
        """out ← φ(matrix x), [P, H, M]."""
        if self.fused is None or not kernels.fused(matrix_PHI, x_PIM, out, self.fused[0]):
            kernels.matmul(matrix_PHI, x_PIM, out=out)
            self.apply_(out)

    def below(self, matrix_PIH: Tensor, gradient_PHM: Tensor, y: Tensor, out: Tensor) -> None:
        """out ← (matrix gradient) · φ′, [P, I, M], given y of that shape."""
        if self.fused is None or not kernels.fused(matrix_PIH, gradient_PHM, out, self.fused[1], y):
            kernels.matmul(matrix_PIH, gradient_PHM, out=out)
            self.through_(out, y)


def _tanh_through_(gradient: Tensor, y: Tensor) -> None:
    # The operation that autograd itself uses: one pass, in place, where the formula would
    # allocate arrays for its parts.
    torch.ops.aten.tanh_backward.grad_input(gradient, y, grad_input=gradient)


def _relu_through_(gradient: Tensor, y: Tensor) -> None:
    torch.ops.aten.threshold_backward.grad_input(gradient, y, 0, grad_input=gradient)


def _relu_(x: Tensor) -> None:
    x.relu_()


TANH, RELU = (Then.TANH, Then.TANH_SLOPE), (Then.RELU, Then.RELU_SLOPE)
ACTIVATIONS = {
    "tanh": Activation(kernels.tanh_, torch.tanh, _tanh_through_, lambda y: 1 - y.square(), lambda y: -2 * y, TANH),
    "relu": Activation(_relu_, torch.relu, _relu_through_, lambda y: (y > 0).to(y.dtype), None, RELU),
}


def activation(name: str) -> Activation:
    """The activation of this name; raises SpecError for an unknown one."""
    if name not in ACTIVATIONS:
        raise SpecError(f"model.activation: {shown(name)} is unknown; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
