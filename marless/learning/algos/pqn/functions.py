"""A stack of Q nets without target nets: its values, and their gradient.

Shapes: P nets of a stack, N rows, I inputs + 1, A actions, T time steps of a segment, C columns of a time step, M
samples (T · C for nets with memory), S samples of a row, H numbers in a memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.algos.q.functions import QNets, best
from marless.learning.algos.training.images import ImageReader, reading
from marless.learning.curvature.lanczos import Product
from marless.learning.nets.kinds import Precision
from marless.learning.nets.layout import NetLayout
from marless.learning.nets.learner_states import Row
from marless.learning.nets.stacked import net


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What nets see in the samples of a minibatch."""

    features: Tensor
    """float32 [P, I, M]."""
    action: Tensor
    """int64 [P, 1, M]."""
    turn: Tensor | None = None
    """int64 [P, 1, M], time step of the agent's last turn, whose value counts; None: each sample's own."""
    resets: Tensor | None = None
    """bool [P, T, C], memory is empty before the step; None for nets without memory."""
    memory: Tensor | None = None
    """float32 [P, H, C], memory before the first step; None: empty."""

    def turns(self) -> Tensor | None:
        """int64 [P, 1, M], the columns of the last turns."""
        if self.turn is None or self.resets is None:
            return None
        width, samples = self.resets.shape[2], self.features.shape[2]
        return self.turn * width + torch.arange(samples, device=self.turn.device) % width


class OnlineQ(QNets):
    """P Q nets that are their own target nets."""

    def __init__(
        self,
        tensors: Row,
        layout: NetLayout,
        activation: str,
        reader: ImageReader | None = None,
        precision: Precision = "float32",
    ) -> None:
        """Make the nets; features have positions of the images of `reader`, if there is one."""
        super().__init__(tensors, layout, activation, dueling=False, precision=precision)
        self._reader = reader
        self.net = reading(self.net, reader)

    def values(self, seen: Seen) -> Tensor:
        """Q of the actions taken, [P, M]; `backward` refers to the last call."""
        q_PAM = self.net.forward(seen.features, seen.resets, seen.memory)
        self._columns, self._chosen = q_PAM.shape[2], (seen.action, q_PAM.shape[1])
        self._turns_P1F = seen.turns()
        if self._turns_P1F is not None:
            q_PAM = q_PAM.gather(2, self._turns_P1F.expand_as(q_PAM))
        return q_PAM.gather(1, seen.action).squeeze(1)

    def best(
        self,
        features_NIS: Tensor,
        legal_NAS: Tensor | None,
        owners: tuple[int, ...],
        resets: Tensor | None = None,
        memory: Tensor | None = None,
    ) -> Tensor:
        """The value of the best legal action of each sample, [N, S]; row i is seen by net `owners[i]`.

        `resets` and `memory` as in `Seen`, per row.
        """
        stacked = net(self.net.layout, self.tensors["flat"][list(owners)], self.net.activation)
        rows = reading(stacked, self._reader)
        q_NAS = rows.evaluate(features_NIS) if resets is None else rows.forward(features_NIS, resets, memory)
        return best(None, q_NAS, None if legal_NAS is None else legal_NAS > 0)

    def hessian(self, batch: Mapping[str, Tensor]) -> Product:
        """See `QNets`."""
        features = batch["features"] if self._reader is None else self._reader.read(batch["features"], self.net.layout)
        return super().hessian({**batch, "features": features})
