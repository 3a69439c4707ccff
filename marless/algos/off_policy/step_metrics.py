"""Metrics of the gradient steps of an update, as means over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

PRESENT = "present"
"""Name of a number beside a step's metrics: 1 for a net that had samples in the step, 0 for one whose agents were
absent in all of them."""


def step_means(steps: Sequence[Mapping[str, Tensor]]) -> dict[str, list[float]]:
    """Mean of each metric, for each net, over the steps that have it; `steps` have the same nets, [P] per metric.

    Where a step says who was `PRESENT`, it counts only for those nets: a batch without samples of an agent has the mean
    0, which is no value of it. A net that was never present has 0.
    """
    keys = dict.fromkeys(key for each in steps for key in each if key != PRESENT)
    found = {}
    for key in keys:
        having = [each for each in steps if key in each]
        weight_SP = torch.stack([each.get(PRESENT, torch.ones_like(each[key])) for each in having])
        total_P = (torch.stack([each[key] for each in having]) * weight_SP).sum(dim=0)
        found[key] = (total_P / weight_SP.sum(dim=0).clamp_min(1.0)).tolist()
    return found
