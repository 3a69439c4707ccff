"""Metrics of the gradient steps of an update, as means over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

PRESENT = "present"
"""Name of a number beside a step's metrics: 1 for a net that had samples in the step, 0 for one whose agents were
absent in all of them. It is left out where all nets had samples."""


def step_means(steps: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of each metric, [P], over the steps that have it; `steps` have the same nets, [P] per metric.

    Where a step says who was `PRESENT`, it counts only for those nets: a batch without samples of an agent has the mean
    0, which is no value of it. A net that was never present has 0.
    """
    keys = dict.fromkeys(key for each in steps for key in each if key != PRESENT)
    return {key: _mean([each for each in steps if key in each], key) for key in keys}


def _mean(steps: Sequence[Mapping[str, Tensor]], key: str) -> Tensor:
    number_SP = torch.stack([each[key] for each in steps])
    if not any(PRESENT in each for each in steps):
        return number_SP.mean(dim=0)
    weight_SP = torch.stack([each.get(PRESENT, torch.ones_like(each[key])) for each in steps])
    return (number_SP * weight_SP).sum(dim=0) / weight_SP.sum(dim=0).clamp_min(1.0)
