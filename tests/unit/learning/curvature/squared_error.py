"""An objective whose derivatives are simple: for tests of the passes through the nets."""

from __future__ import annotations

from torch import Tensor


class SquaredError:
    """−Σ w·(output − target)²/2, the objective of a critic or a Q net: the negative of its loss.

    Targets are constants, as in Q-learning (a semi-gradient). `weight`, here [P, K, M], is 0 for outputs that do not
    count, such as those of actions not taken.
    """

    def __init__(self, output_PKM: Tensor, target_PKM: Tensor, weight_PKM: Tensor) -> None:
        self._error_PKM = output_PKM - target_PKM
        self._weight_PKM = weight_PKM

    def gradient(self) -> tuple[Tensor, None]:
        """−w·(output − target)."""
        return -self._weight_PKM * self._error_PKM, None

    def product(self, flow_PKM: Tensor, free_flow_PF: Tensor | None) -> tuple[Tensor, None]:
        """−w times the flow."""
        return -self._weight_PKM * flow_PKM, None
