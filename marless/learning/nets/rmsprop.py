"""RMSProp over the stacked flat parameters of several nets."""

from __future__ import annotations

from torch import Tensor

DECAY = 0.99


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
