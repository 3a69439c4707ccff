"""The array operations that dominate the time of an update, each with the fastest implementation per device.

On a CPU these are the kernels of `marless.learning.nets.compiled`, for arrays of the shapes, dtypes and layouts that
pay; else NumPy, whose OpenBLAS and SIMD loops beat torch's CPU kernels here: on an AMD Zen 5 core a stacked product
runs at 200 instead of 100 GFLOP/s, tanh takes 0.2 instead of 2 ns per element, a gather half the time. All write into
`out`, so that nothing is allocated in a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        nets = out.shape[0]  # an operand that all nets share has 1 there
        torch.bmm(a.expand(nets, -1, -1), b.expand(nets, -1, -1), out=out)
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


def copy_rows(x: Tensor, which_P: Tensor, out: Tensor) -> None:
    """out[p] = x[p] where `which` is true; x [P, D]. A GPU is not asked whether there are any, or it would wait."""
    if not _on_host(out):
        out.copy_(torch.where(which_P.unsqueeze(1), x, out))
    elif which_P.any():
        out[which_P] = x[which_P]


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


class AdamSteps:
    """Steps of `marless.learning.nets.adam.Adam` by a compiled kernel. What stays the same is looked up once: of a step
    of a small net, looking up takes longer than computing.
    """

    def __init__(
        self, kernels: Library, nets: Sequence[Tensor], a_SP: Tensor, b_SP: Tensor, keep: tuple[float, float], lr: float
    ) -> None:
        """`nets` has parameters and both moments, each [P, D]; `keep` has the weights of the old moments."""
        self._kernels, self._rest = kernels, (*keep, lr)
        self._kept = *nets, a_SP, b_SP  # or others would write where these addresses point to
        self._shape = nets[0].shape
        self._nets = tuple(each for x in nets for each in (x.data_ptr(), x.stride(0)))
        self._constants = a_SP.data_ptr(), b_SP.data_ptr()
        self._row = a_SP.stride(0) * a_SP.element_size()

    def take(self, gradient_PD: Tensor, number: int) -> bool:
        """Take the step of this number along a gradient, if it is one that the kernel can read; returns whether."""
        if not suits(gradient_PD) or gradient_PD.shape != self._shape or gradient_PD.stride(1) != 1:
            return False
        gradient = gradient_PD.data_ptr(), gradient_PD.stride(0)
        a, b = self._constants
        here = number * self._row
        self._kernels.adam(*self._shape, *self._nets, *gradient, a + here, b + here, *self._rest)
        return True


def adam_steps(
    nets: Sequence[Tensor], a_SP: Tensor, b_SP: Tensor, keep: tuple[float, float], lr: float
) -> AdamSteps | None:
    """The steps over these arrays, or None if there is no compiled kernel for them; arguments as in `AdamSteps`."""
    kernels = _compiled(*nets, a_SP, b_SP)
    if kernels is None or any(x.stride(1) != 1 for x in nets) or not (a_SP.is_contiguous() and b_SP.is_contiguous()):
        return None
    return AdamSteps(kernels, nets, a_SP, b_SP, keep, lr)


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


def gaussian(mean: Tensor, action: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """z = (action − mean) / deviation, [P, A, M], log-probabilities of the actions and entropies, [P, M], given
    log-deviations [P, A].

    By a compiled kernel; None if there is none for such arrays.
    """
    kernels = _compiled(mean, action, log_std)
    if kernels is None or any(x.stride(-1) != 1 for x in (mean, action, log_std)):
        return None
    nets, actions, samples = mean.shape
    z, log_prob, entropy = torch.empty(nets, actions, samples), torch.empty(nets, samples), torch.empty(nets, samples)
    rows = mean.data_ptr(), *mean.stride()[:2], action.data_ptr(), *action.stride()[:2]
    out = z.data_ptr(), log_prob.data_ptr(), entropy.data_ptr()
    kernels.gaussian(nets, actions, samples, *rows, log_std.data_ptr(), log_std.stride(0), *out)
    return z, log_prob, entropy


def gaussian_gradient(
    z: Tensor, log_std: Tensor, d_log_prob: Tensor, d_entropy: Tensor, d_log_std: Tensor
) -> Tensor | None:
    """The gradient at the means, [P, A, M], given z of `gaussian`; writes that at the log-deviations to `d_log_std`.

    By a compiled kernel; None, and nothing is written, if there is none for such arrays.
    """
    kernels = _compiled(z, log_std, d_log_prob, d_entropy, d_log_std)
    dense = all(x.is_contiguous() for x in (z, d_log_prob, d_entropy))
    if kernels is None or not dense or log_std.stride(1) != 1 or d_log_std.stride(1) != 1:
        return None
    out = torch.empty_like(z)
    given = z.data_ptr(), log_std.data_ptr(), log_std.stride(0), d_log_prob.data_ptr(), d_entropy.data_ptr()
    kernels.gaussian_gradient(*z.shape, *given, out.data_ptr(), d_log_std.data_ptr(), d_log_std.stride(0))
    return out


def surrogate_gradient(log_prob: Tensor, old: Tensor, advantage: Tensor, weight: Tensor, clip: float) -> Tensor | None:
    """The gradient of PPO's clipped surrogate at log-probabilities, [P, M]; see `marless.learning.algos.ppo.losses`.

    By a compiled kernel; None if there is none for such arrays.
    """
    every = log_prob, old, advantage, weight
    kernels = _compiled(*every)
    if kernels is None or any(x.stride(1) != 1 for x in every):
        return None
    out, strided = torch.empty(log_prob.shape), [each for x in every for each in (x.data_ptr(), x.stride(0))]
    kernels.surrogate_gradient(*log_prob.shape, *strided, clip, out.data_ptr())
    return out


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
