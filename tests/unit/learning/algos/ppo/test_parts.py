"""Minibatches in parts, of a GPU without memory for whole ones: the same weights, said in the metrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marless.learning.algos.contract import trained_states
from marless.learning.algos.learner import MINIBATCH_PARTS
from marless.learning.algos.ppo.functions import CriticFunction, PolicyFunction
from marless.learning.algos.ppo.minibatch_training import MinibatchTraining
from marless.learning.algos.ppo.parts import PARTS
from tests.unit.learning.algos.simulated_device_cases import apart
from tests.unit.learning.algos.test_contract import configured, only


@pytest.fixture
def small_memory(monkeypatch):
    """Gradients of more than so many samples fail; provides the sizes that were asked for."""
    asked: list[int] = []

    def limited(kind):
        whole = kind._gradient

        def gradient(self, batch, settings, *, measure):
            asked.append(samples := batch["features"].shape[2])
            if samples > 8:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return whole(self, batch, settings, measure=measure)

        monkeypatch.setattr(kind, "_gradient", gradient)

    limited(PolicyFunction)
    limited(CriticFunction)
    return asked


@pytest.mark.parametrize(
    ("trial", "case"),
    [
        ("ippo", "discrete"),
        ("ippo, corrected", "continuous"),
        ("ippo, in the box", "continuous"),
        ("mappo", "discrete"),
    ],
)
def test_parts_come_to_the_same_weights(trial, case, small_memory, monkeypatch):
    with only(case):
        found = trained_states(*configured(trial), rounds=1)
        assert max(small_memory) > 8
        assert sum(size <= 8 for size in small_memory) / sum(size > 8 for size in small_memory) > 1
        monkeypatch.undo()
        assert apart(found, trained_states(*configured(trial), rounds=1)) < 1e-5


def test_whole_minibatch_is_tried_once_and_the_metrics_say_so(small_memory, monkeypatch):
    seen = []
    limited = MinibatchTraining._limited_gradient
    monkeypatch.setattr(
        MinibatchTraining,
        "_limited_gradient",
        lambda *given, **named: seen.append(limited(*given, **named)) or seen[-1],
    )
    with only("discrete"):
        trained_states(*configured("ippo"), rounds=1)
    assert all((metrics[MINIBATCH_PARTS] == PARTS).all() for metrics in seen)
    assert len([size for size in small_memory if size > 8]) < len(seen)  # once for each function


def test_memory_that_is_too_small_for_a_part_fails(monkeypatch):
    def gradient(self, batch, settings, *, measure):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(PolicyFunction, "_gradient", gradient)
    with only("discrete"), pytest.raises(torch.OutOfMemoryError):
        trained_states(*configured("ippo"), rounds=1)


def test_segments_of_nets_with_memory_stay_whole(small_memory):
    with only("discrete with memory"), pytest.raises(torch.OutOfMemoryError):
        trained_states(*configured("ippo"), rounds=1)
    assert np.all(np.array(small_memory) > 8)
