"""Adam, RAdam and RMSProp over the stacked flat parameters of several nets, each net with a step count of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from marless.learning.nets import kernels

BETA1, BETA2 = 0.9, 0.999
DECAY = 0.99
LEAST_LENGTH = 5.0
"""ρ of RAdam must be greater: 4 in the paper, 5 in its authors' code, torch and optax."""


def clip_norm_(gradient_PD: Tensor, limit: float) -> Tensor:
    """Scale each net's gradient [P, D] in place to an L2 norm of at most `limit`; returns the norms before, [P]."""
    norm_P: Tensor | None = kernels.clip_(gradient_PD, limit)
    if norm_P is not None:
        return norm_P
    norm_P1: Tensor = torch.linalg.vector_norm(gradient_PD, dim=1, keepdim=True)
    gradient_PD.mul_((limit / norm_P1.clamp_min(1e-6)).clamp_(max=1.0))
    return norm_P1.squeeze(1)


class Adam:
    """`steps` steps at one learning rate; updates the caller's parameters and moments in place.

    With the bias corrections c₁, c₂ of a net's own count, the step −lr · (m / c₁) / (√(v / c₂) + ε) is
    −lr · m / (a·√v + b) with a = c₁ / √c₂ and b = c₁·ε, which are computed for all steps in advance.
    Source: Kingma & Ba 2015, algorithm 1.

    With `rectified`, the step of Liu et al. 2020 (RAdam), algorithm 2: a and b are divided by its factor r, and in the
    first steps, whose v is of too few gradients (ρ ≤ 5), the step is −lr · m / c₁: a = 0 and b = c₁.
    """

    def __init__(
        self,
        flat_PD: Tensor,
        first_PD: Tensor,
        second_PD: Tensor,
        count_P: Tensor,
        *,
        steps: int,
        lr: float,
        eps: float,
        rectified: bool = False,
    ) -> None:
        self._flat_PD, self._first_PD, self._second_PD, self._count_P = flat_PD, first_PD, second_PD, count_P
        counts_SP1 = count_P.unsqueeze(1) + torch.arange(1, steps + 1, device=count_P.device).view(-1, 1, 1)
        self._lr = lr
        # In float64, as counts are: in float32 1 − 0.999 is wrong in its fifth digit, and so would be the first steps.
        correction1 = 1 - BETA1**counts_SP1
        a, b = correction1 / (1 - BETA2**counts_SP1).sqrt(), correction1 * eps
        if rectified:
            rate = _rectification(counts_SP1)
            a, b = torch.where(rate > 0, a / rate, 0.0), torch.where(rate > 0, b / rate, correction1)
        self._a_SP, self._b_SP = a.squeeze(2).to(flat_PD.dtype), b.squeeze(2).to(flat_PD.dtype)
        nets = flat_PD, first_PD, second_PD
        self._compiled = kernels.adam_steps(nets, self._a_SP, self._b_SP, (BETA1, BETA2), lr)
        self._taken, self._steps = 0, steps

    def step(self, gradient_PD: Tensor) -> None:
        """Take one step along a gradient [P, D]; raises IndexError after `steps` steps."""
        number = self._taken
        if number == self._steps:
            raise IndexError(f"all {self._steps} steps are taken")
        self._taken += 1
        self._count_P += 1
        if self._compiled is not None and self._compiled.take(gradient_PD, number):
            return
        a_P1, b_P1 = self._a_SP[number].unsqueeze(1), self._b_SP[number].unsqueeze(1)
        self._first_PD.lerp_(gradient_PD, 1 - BETA1)
        self._second_PD.mul_(BETA2).addcmul_(gradient_PD, gradient_PD, value=1 - BETA2)
        denominator_PD = torch.addcmul(b_P1, self._second_PD.sqrt(), a_P1)
        self._flat_PD.addcdiv_(self._first_PD, denominator_PD, value=-self._lr)


def _rectification(count: Tensor) -> Tensor:
    """r of the steps of these numbers; 0 where v is not used. Source: Liu et al. 2020, §4 and algorithm 2."""
    longest = 2 / (1 - BETA2) - 1
    decayed = BETA2**count
    length = longest - 2 * count * decayed / (1 - decayed)
    share = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return torch.where(length > LEAST_LENGTH, share.clamp_min(0.0).sqrt(), 0.0)


class RMSProp:
    """Steps at one learning rate; updates the caller's parameters and moments in place.

    The step is −lr · g / (√v + ε), v being the running mean of g² (Tieleman & Hinton 2012, lecture 6e; ε outside the
    root, as in torch and EPyMARL).
    """

    def __init__(self, flat_PD: Tensor, second_PD: Tensor, count_P: Tensor, *, lr: float, eps: float) -> None:
        self._flat_PD, self._second_PD, self._count_P = flat_PD, second_PD, count_P
        self._lr, self._eps = lr, eps

    def step(self, gradient_PD: Tensor) -> None:
        """Take one step along a gradient [P, D]."""
        self._count_P += 1
        self._second_PD.mul_(DECAY).addcmul_(gradient_PD, gradient_PD, value=1 - DECAY)
        self._flat_PD.addcdiv_(gradient_PD, self._second_PD.sqrt().add_(self._eps), value=-self._lr)
