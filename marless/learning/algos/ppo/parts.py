"""A minibatch in parts, for a GPU without memory for all of it: the sum of the parts' gradients is the whole one's.

Shapes: P nets, K outputs, M samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor

from marless.learning.algos.learner import MINIBATCH_PARTS
from marless.learning.algos.training import advantages
from marless.learning.algos.training.policy_batching import WEIGHT, weights

PARTS = 4
"""Parts in which a minibatch is computed once it has not fitted into the memory as a whole."""
Batch = Mapping[str, Tensor]
Metrics = dict[str, Tensor]


def splits(batch: Batch) -> bool:
    """True if a minibatch can be cut: segments of nets with memory stay whole."""
    return "resets" not in batch and "memory" not in batch


def parts_of(batch: Batch) -> list[dict[str, Tensor]]:
    """The minibatch in `PARTS` parts. What depends on all samples is in them: weights, and normalised advantages."""
    like = batch["target"] if "target" in batch else batch["log_prob"].squeeze(1)
    weight = weights(batch, like)
    whole = {**batch, WEIGHT: weight}
    value_P1M = whole.pop("value", None)
    if value_P1M is not None:
        normal_PM = advantages.standardise(batch["advantage"].squeeze(1), weight, value_P1M.squeeze(1))
        whole["advantage"] = normal_PM.unsqueeze(1)
    samples = like.shape[-1]
    bounds = [samples * i // PARTS for i in range(PARTS + 1)]
    return [{name: rows[..., a:b] for name, rows in whole.items()} for a, b in pairwise(bounds) if a < b]


def summed(batch: Batch, gradient_PD: Tensor, compute: Callable[[Batch], Metrics]) -> Metrics:
    """Write the gradient of the whole minibatch to `gradient_PD`, to which `compute` writes that of a part; returns the
    metrics, which are weighted sums over samples, too.
    """
    total_PD, found = torch.zeros_like(gradient_PD), Metrics()
    for part in parts_of(batch):
        for name, numbers_P in compute(part).items():
            found[name] = found[name] + numbers_P if name in found else numbers_P
        total_PD += gradient_PD
    gradient_PD.copy_(total_PD)
    found[MINIBATCH_PARTS] = torch.full_like(gradient_PD[:, 0], PARTS)
    return found
