"""The array operations that dominate the time of an update, each with the fastest implementation per device.

On a CPU these are the kernels of `marless.learning.nets.compiled`, for arrays of the shapes, dtypes and layouts that
pay; else NumPy, whose OpenBLAS and SIMD loops beat torch's CPU kernels here: on an AMD Zen 5 core a stacked product
runs at 200 instead of 100 GFLOP/s, tanh takes 0.2 instead of 2 ns per element, a gather half the time. All write into
`out`, so that nothing is allocated in a training step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from marless.core.errors import SpecError, shown
from marless.learning.nets.compiled import Library, library

_LEAST = 16
"""Rows and columns from which compiled products are faster than NumPy's, which pads less."""


class Then(IntEnum):
    """What follows a product, as kernels.c has it: nothing, y = φ(x), or a factor φ′ as a function of y = φ(x)."""

    NOTHING = 0
    TANH = 1
    RELU = 2
    TANH_SLOPE = 3
    RELU_SLOPE = 4


def _on_host(x: Tensor) -> bool:
    return x.is_cpu


def matmul(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Batched product: [P, M, K] × [P, K, N] → [P, M, N]."""
    if not _on_host(out):
        torch.matmul(a, b, out=out)
    elif fused_matmul(a, b, out):
        return
    elif a.shape[2] == 1:  # an outer product: NumPy has no fast path for it
        torch.mul(a, b, out=out)
    else:
        np.matmul(a.numpy(), b.numpy(), out=out.numpy())


def fused_matmul(a: Tensor, b: Tensor, out: Tensor, then: Then = Then.NOTHING, y: Tensor | None = None) -> bool:
    """`matmul` and what follows it, in one pass, if there is a compiled kernel for such arrays; returns whether.

    `y` [P, M, N] is what a slope depends on.
    """
    given = out if y is None else y
    kernels = _compiled(a, b, out, given)
    if kernels is None:
        return False
    if b.stride(2) != 1 and b.stride(1) == 1 and then == Then.NOTHING:
        a, b, out = b.transpose(1, 2), a.transpose(1, 2), out.transpose(1, 2)
    nets, rows, columns = out.shape
    # One operand for all nets has no stride between them.
    left, right = ((0, *x.stride()[1:]) if x.shape[0] == 1 else x.stride() for x in (a, b))
    if rows < _LEAST or columns < _LEAST or (right[2] != 1 and right[1] != 1):
        return False
    # kernels.c applies what follows a product in vectors, so only to rows without gaps.
    if then and (out.stride(2) != 1 or given.stride(2) != 1):
        return False
    y_net, y_row, _ = given.stride()
    kernels.product(
        nets,
        rows,
        b.shape[1],
        columns,
        a.data_ptr(),
        *left,
        b.data_ptr(),
        *right,
        given.data_ptr(),
        y_net,
        y_row,
        out.data_ptr(),
        *out.stride(),
        then,
    )
    return True


def _compiled(*tensors: Tensor) -> Library | None:
    """The compiled kernels, if these tensors are float32 on the CPU and need no gradients."""
    recorded = torch.is_grad_enabled()
    for x in tensors:  # a loop, as a generator would take as long as a small product
        # Autograd does not see what is written through an address, so tensors that need gradients take torch's
        # operations.
        if x.dtype is not torch.float32 or not _on_host(x) or (recorded and x.requires_grad):
            return None
    return library()


def suits(x: Tensor) -> bool:
    """True if compiled kernels can compute with such an array."""
    return x.dtype is torch.float32 and _on_host(x)


def tanh_(x: Tensor) -> None:
    """x ← tanh x."""
    if _on_host(x):
        np.tanh(x.numpy(), out=x.numpy())
    else:
        x.tanh_()


def sigmoid_(x: Tensor) -> None:
    """x ← σ(x) = 1 / (1 + exp −x)."""
    if _on_host(x):  # by way of the tanh, which is NumPy's quickest of this kind: σ(x) = (1 + tanh(x/2)) / 2
        array = x.numpy()
        array *= 0.5
        np.tanh(array, out=array)
        array += 1
        array *= 0.5
    else:
        x.sigmoid_()


def take_columns(x: Tensor, index_S: Tensor, out: Tensor) -> None:
    """out[..., s] = x[..., index[s]]; x [P, R, S]. All indices must be within bounds."""
    kernels = _compiled(x, out)
    if kernels and x.is_contiguous() and out.is_contiguous() and index_S.is_contiguous():
        nets, rows, columns = x.shape
        taken = index_S.shape[0]
        kernels.take(nets * rows, taken, x.data_ptr(), columns, index_S.data_ptr(), out.data_ptr(), taken)
    elif _on_host(x):
        # "clip" only spares NumPy a buffered copy: a permutation is within bounds
        np.take(x.numpy(), index_S.numpy(), axis=2, out=out.numpy(), mode="clip")
    else:
        torch.index_select(x, 2, index_S, out=out)


def clip_(gradient_PD: Tensor, limit: float) -> Tensor | None:
    """Clip as `marless.learning.nets.adam.clip_norm_` does, by a compiled kernel; None if there is none for such a
    gradient.
    """
    kernels = _compiled(gradient_PD)
    if kernels is None or gradient_PD.stride(1) != 1:
        return None
    nets, size = gradient_PD.shape
    norm_P = torch.empty(nets)
    kernels.clip(nets, size, gradient_PD.data_ptr(), gradient_PD.stride(0), limit, norm_P.data_ptr())
    return norm_P


def adam_(
    flat: Tensor,
    first: Tensor,
    second: Tensor,
    gradient: Tensor,
    a: Tensor,
    b: Tensor,
    keep: tuple[float, float],
    lr: float,
) -> bool:
    """A step of `marless.learning.nets.adam.Adam` by a compiled kernel, if there is one for such arrays; returns
    whether.

    a and b are [P, 1], the others [P, D]; `keep` has the weights of the old moments.
    """
    kernels = _compiled(flat, first, second, gradient, a, b)
    if kernels is None or not (a.is_contiguous() and b.is_contiguous()):
        return False
    strided: list[int] = []
    for x in (flat, first, second, gradient):
        net, parameter = x.stride()
        if parameter != 1:
            return False
        strided += x.data_ptr(), net
    kernels.adam(*flat.shape, *strided, a.data_ptr(), b.data_ptr(), *keep, lr)
    return True


def categorical(
    logit: Tensor, action: Tensor, legal: Tensor | None, illegal: float
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Log-probabilities and probabilities [P, A, M], log-probabilities of the actions and entropies [P, M].

    By a compiled kernel; None if there is none for such arrays. `illegal` replaces the logits of illegal actions.
    """
    kernels = _compiled(logit)
    if kernels is None or logit.stride(2) != 1 or action.dtype is not torch.int64 or not action.is_contiguous():
        return None
    nets, actions, samples = logit.shape
    mask = None if legal is None else legal.to(torch.float32).contiguous()
    at_mask = (None, 0, 0) if mask is None else (mask.data_ptr(), *mask.stride()[:2])
    log, probability = torch.empty(2, nets, actions, samples).unbind(0)
    taken, entropy = torch.empty(2, nets, samples).unbind(0)
    out = log.data_ptr(), probability.data_ptr(), taken.data_ptr(), entropy.data_ptr()
    shape = nets, actions, samples
    kernels.categorical(*shape, logit.data_ptr(), *logit.stride()[:2], *at_mask, illegal, action.data_ptr(), *out)
    return log, probability, taken, entropy


def categorical_gradient(
    log: Tensor, probability: Tensor, entropy: Tensor, action: Tensor, d_taken: Tensor, d_entropy: Tensor
) -> Tensor | None:
    """The gradient at the logits, [P, A, M], given the results of `categorical` and the gradients at the last two.

    By a compiled kernel; None if there is none for such arrays.
    """
    floats = log, probability, entropy, d_taken, d_entropy
    kernels = _compiled(*floats)
    if kernels is None or not all(x.is_contiguous() for x in (*floats, action)):
        return None
    out = torch.empty_like(log)
    given = (log, probability, entropy, action, d_taken, d_entropy, out)
    kernels.categorical_gradient(*log.shape, *(x.data_ptr() for x in given))
    return out


def choose_device(asked: str) -> tuple[str, str]:
    """The torch device to use, and why, for the log; raises SpecError for a GPU that does not exist."""
    if asked == "auto":
        if torch.cuda.is_available():
            return "cuda:0", torch.cuda.get_device_name(0)
        return "cpu", f"auto: torch sees no GPU; threads: {torch.get_num_interop_threads()}"
    gpus = torch.cuda.device_count()
    if asked.startswith("cuda") and int(asked.partition(":")[2] or 0) >= gpus:
        raise SpecError(f"learner.device: {asked} asked for, but torch sees {gpus} GPUs; use auto or cpu")
    return asked, "as configured"


def compute_side_by_side() -> None:
    """Let functions of an update run in parallel: torch's threads serve one function each, not parts of operations."""
    with suppress(RuntimeError):  # torch takes this number once in a process: a notebook may train a second time
        torch.set_num_interop_threads(torch.get_num_threads())
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Activation:
    """φ, and its derivatives in terms of its outputs y, which a net stores. All tensors have the shape of the layer.

    A new one is a line in `ACTIVATIONS`, its NumPy twin in `acting_nets.ACTIVATE`, and its name in
    `ModelSpec.activation`; test_activations.py compares the columns with each other and with autograd.
    """

    apply_: Callable[[Tensor], object]
    """x ← φ(x)."""
    differentiable: Callable[[Tensor], Tensor]
    """φ(x), as an operation that autograd can follow."""
    through_: Callable[[Tensor, Tensor], object]
    """gradient ← gradient · φ′, given the gradient and y."""
    slope: Callable[[Tensor], Tensor]
    """φ′, given y."""
    bend: Callable[[Tensor], Tensor] | None
    """φ″/φ′, given y; None if φ″ is 0 everywhere."""
    fused: tuple[Then, Then] | None = None
    """φ and φ′ in compiled kernels; None if these do not have them."""

    def layer(self, matrix_PHI: Tensor, x_PIM: Tensor, out: Tensor) -> None:
        """out ← φ(matrix x), [P, H, M]."""
        if self.fused is None or not fused_matmul(matrix_PHI, x_PIM, out, self.fused[0]):
            matmul(matrix_PHI, x_PIM, out=out)
            self.apply_(out)

    def below(self, matrix_PIH: Tensor, gradient_PHM: Tensor, y: Tensor, out: Tensor) -> None:
        """out ← (matrix gradient) · φ′, [P, I, M], given y of that shape."""
        if self.fused is None or not fused_matmul(matrix_PIH, gradient_PHM, out, self.fused[1], y):
            matmul(matrix_PIH, gradient_PHM, out=out)
            self.through_(out, y)


def _tanh_through_(gradient: Tensor, y: Tensor) -> None:
    # The operation that autograd itself uses: one pass, in place, where the formula would
    # allocate arrays for its parts.
    torch.ops.aten.tanh_backward.grad_input(gradient, y, grad_input=gradient)


ACTIVATIONS = {
    "tanh": Activation(
        apply_=tanh_,
        differentiable=torch.tanh,
        through_=_tanh_through_,
        slope=lambda y: 1 - y.square(),
        bend=lambda y: -2 * y,
        fused=(Then.TANH, Then.TANH_SLOPE),
    ),
    "relu": Activation(
        apply_=torch.relu_,
        differentiable=torch.relu,
        through_=lambda gradient, y: torch.ops.aten.threshold_backward.grad_input(gradient, y, 0, grad_input=gradient),
        slope=lambda y: (y > 0).to(y.dtype),
        bend=None,
        fused=(Then.RELU, Then.RELU_SLOPE),
    ),
}


def activation(name: str) -> Activation:
    """The activation of this name; raises SpecError for an unknown one."""
    if name not in ACTIVATIONS:
        raise SpecError(f"model.activation: {shown(name)} is unknown; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
