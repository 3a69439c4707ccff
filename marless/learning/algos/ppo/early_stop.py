"""Policies of a stack that end their gradient steps early, each by itself, where they have moved far enough.

A policy stops at the first minibatch whose estimate of KL(π_old ‖ π) exceeds LIMIT times the target; that minibatch
takes no step. Source: Stable-Baselines3 (Raffin et al. 2021), whose factor LIMIT is; critics go on here.
Shapes: P policies of the stack.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marless.learning.algos.training.passes import PRESENT, step_means
from marless.learning.nets.learner_states import Row

LIMIT = 1.5
_TRAINED = ("flat", "first", "second", "count")
"""What a gradient step changes of a policy's row."""


class EarlyStop:
    """Which policies still take steps in an update, and the metrics of each until it stops."""

    def __init__(self, tensors: Row, target_kl: float) -> None:
        """Begin an update of these rows, which are trained in place."""
        self._tensors, self._limit = tensors, LIMIT * target_kl
        self._going_P = torch.ones_like(tensors["count"], dtype=torch.bool)
        self._entered_P = self._going_P
        self._steps_P = torch.zeros_like(tensors["count"])
        self._kept = {key: tensors[key].clone() for key in _TRAINED}
        self._epoch: list[dict[str, Tensor]] = []
        self._found: dict[str, Tensor] = {}

    @property
    def over(self) -> bool:
        """True once every policy has stopped."""
        return not bool(self._going_P.any())

    def look(self, metrics: Mapping[str, Tensor]) -> None:
        """Count a minibatch, before its step, for the policies that still take steps; some of them stop here."""
        present_P = metrics.get(PRESENT, torch.ones_like(metrics["approx_kl"]))
        self._epoch.append({**metrics, PRESENT: present_P * self._going_P})
        stops_P = self._going_P & (metrics["approx_kl"] > self._limit)
        if stops_P.any():
            # The others need the stack to go on, and with it these rows: what they are now is put back at the end.
            for key, kept in self._kept.items():
                kept[stops_P] = self._tensors[key][stops_P]
        self._going_P = self._going_P & ~stops_P
        self._steps_P = self._steps_P + self._going_P

    def end_epoch(self) -> None:
        """Take the metrics of the epoch for the policies that have begun it."""
        for name, mean_P in step_means(self._epoch).items():
            self._found[name] = torch.where(self._entered_P, mean_P, self._found.get(name, mean_P))
        self._epoch, self._entered_P = [], self._going_P

    def end(self) -> dict[str, Tensor]:
        """Put back the policies that stopped; returns each policy's metrics, means over the last epoch that it began.

        `gradient_steps` is how many it took.
        """
        stopped_P = ~self._going_P
        for key, kept in self._kept.items():
            self._tensors[key][stopped_P] = kept[stopped_P]
        return {**self._found, "gradient_steps": self._steps_P.float()}
