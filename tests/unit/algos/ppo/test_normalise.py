"""Normalisation against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from marless.algos.ppo import normalise


def test_standardise_counts_living_samples_only_and_each_policy_apart() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 100.0], [0.0, 0.0, 4.0, 4.0]])
    weight = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.0], [0.25] * 4])
    found = normalise.standardise(x, weight)
    assert found[0, :3].tolist() == pytest.approx([-math.sqrt(1.5), 0.0, math.sqrt(1.5)])
    assert found[1].tolist() == pytest.approx([-1.0, -1.0, 1.0, 1.0])


def test_moments_of_two_batches() -> None:
    halves = torch.full((1, 1, 2), 0.5)
    moments = normalise.update_moments(
        torch.zeros(1, 1, 3, dtype=torch.float64), normalise.batch_moments(torch.tensor([[[1.0, 3.0]]]), halves), 0.9
    )
    mean, std = normalise.mean_and_std(moments)
    assert (mean.item(), std.item()) == pytest.approx((2.0, 1.0))
    moments = normalise.update_moments(moments, normalise.batch_moments(torch.tensor([[[5.0, 5.0]]]), halves), 0.9)
    # weights 0.9 and 1: mean (0.9·2 + 5) / 1.9, mean square (0.9·5 + 25) / 1.9
    mean, std = normalise.mean_and_std(moments)
    assert mean.item() == pytest.approx(6.8 / 1.9)
    assert std.item() == pytest.approx(math.sqrt(29.5 / 1.9 - (6.8 / 1.9) ** 2))


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_a_batch_of_the_dead_changes_nothing(decay) -> None:
    halves = torch.full((1, 1, 2), 0.5)
    before = normalise.batch_moments(torch.tensor([[[1.0, 3.0]]]), halves)
    dead = normalise.batch_moments(torch.tensor([[[7.0, 9.0]]]), torch.zeros(1, 1, 2))
    mean, std = normalise.mean_and_std(normalise.update_moments(before, dead, decay))
    assert (mean.item(), std.item()) == pytest.approx((2.0, 1.0))


def test_before_the_first_batch_nothing_is_scaled() -> None:
    mean, std = normalise.mean_and_std(torch.zeros(2, 1, 3, dtype=torch.float64))
    assert (mean.flatten().tolist(), std.flatten().tolist()) == ([0.0, 0.0], [1.0, 1.0])
