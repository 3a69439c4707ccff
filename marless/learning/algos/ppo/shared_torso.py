"""The training function of nets that are policy and critic at once (`torso: shared`).

The value is one more output of the policy's net, behind those of the actions, so that both read the same hidden layers:
half the work, which matters where these are convolutions. The loss is that of the policy plus `value_weight` times that
of the critic (Schulman et al. 2017, eq. 9), and its gradient's norm is limited as a whole.
Shapes: P nets, A outputs of actions, M samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from marless.learning.algos.ppo import losses
from marless.learning.algos.ppo.functions import Metrics, PolicyFunction, RoundSettings, ValueFunction
from marless.learning.algos.training.policy_batching import weights

JUDGED = "judged"
"""1 for samples that count for values, 0 for others; absent if all count that count for policies."""


class SharedTorsoFunction(PolicyFunction, ValueFunction):
    """Trains nets whose last output is the value.

    Samples: those of `PolicyFunction`, and target, old (both normalised), [judged].
    """

    values: ClassVar[int] = 1
    valued: ClassVar[slice] = slice(-1, None)

    def _gradient(self, batch: Mapping[str, Tensor], settings: RoundSettings, *, measure: bool) -> Metrics:
        output_PKM = self._forward(batch)
        value_P1M, target_P1M, old_P1M = output_PKM[:, self.valued], batch["target"], batch["old"]
        d_output_PAM, metrics = self._ascent(batch, output_PKM[:, self._of_actions], settings, measure=measure)
        counted = {"alive": batch[JUDGED]} if JUDGED in batch else batch
        tensors = value_P1M, target_P1M, weights(counted, target_P1M), old_P1M
        clip, huber = settings.value_clip, settings.huber
        if measure:
            metrics["value_loss"] = losses.value_loss(*tensors, clip=clip, huber=huber)
        d_value_P1M = losses.value_gradient(*tensors, clip=clip, huber=huber)
        self.net.backward(torch.cat([d_output_PAM, settings.value_weight * d_value_P1M], dim=1))
        return metrics
