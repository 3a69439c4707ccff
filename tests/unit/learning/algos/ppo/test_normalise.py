"""Normalisation against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from marless.learning.algos.training import advantages


def test_standardise_counts_living_samples_only_and_each_policy_apart() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 100.0], [0.0, 0.0, 4.0, 4.0]])
    weight = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.0], [0.25] * 4])
    found = advantages.standardise(x, weight)
    assert found[0, :3].tolist() == pytest.approx([-math.sqrt(1.5), 0.0, math.sqrt(1.5)])
    assert found[1].tolist() == pytest.approx([-1.0, -1.0, 1.0, 1.0])


@pytest.mark.parametrize("count", [63, 64])
@pytest.mark.parametrize("number", [5.3, -100.1, 1e-7, 3e7])
def test_equal_numbers_are_nothing(number, count) -> None:
    weight = torch.full((1, count), 1 / count)
    assert not advantages.standardise(torch.full((1, count), number), weight).any()
    last = torch.nextafter(torch.tensor(number), torch.tensor(0.0))
    almost = torch.full((1, count), number).index_fill(1, torch.tensor([0, 7]), last.item())
    assert not advantages.standardise(almost, weight).any()


def test_differences_are_as_exact_as_what_they_are_differences_of() -> None:
    """Values of 10,000 are multiples of 0.00098, so advantages ±0.001 of them are rounding, and ±0.01 are not."""
    sign, weight = torch.tensor([[1.0, -1.0] * 32]), torch.full((1, 64), 1 / 64)
    values = torch.full((1, 64), 10_000.0)
    assert not advantages.standardise(0.001 * sign, weight, values).any()
    assert advantages.standardise(0.01 * sign, weight, values).equal(sign)
    assert advantages.standardise(0.001 * sign, weight).equal(sign)
    dead = weight.clone()
    dead[:, 32:] = 0.0  # whatever the dead are worth, the others differ
    values[:, :32] = 0.0
    assert advantages.standardise(0.001 * sign, dead, values)[:, :32].equal(sign[:, :32])


def test_the_mean_is_exact_where_numbers_differ_little() -> None:
    """1000 + {0, 1, 2, 3}/1000, at the precision of float32: 0, 16, 33 and 49 of its 2⁻¹⁴."""
    x = torch.tensor([[1000.0, 1000.001, 1000.002, 1000.003]]).repeat(1, 25)
    exact = [0.0, 16.0, 33.0, 49.0]
    deviation = math.sqrt(sum((each - 24.5) ** 2 for each in exact) / 4)
    found = advantages.standardise(x, torch.full((1, 100), 0.01))
    assert found[0, :4].tolist() == pytest.approx([(each - 24.5) / deviation for each in exact], rel=1e-6)


def test_what_is_no_number_stays_none() -> None:
    assert advantages.standardise(torch.tensor([[1.0, torch.nan]]), torch.full((1, 2), 0.5)).isnan().all()


def test_equal_returns_have_no_deviation_that_rounding_makes() -> None:
    """100,000.1 is 100,000.1015625 in float32, whose next number is 0.0078 greater."""
    equal = torch.full((1, 1, 3), 100_000.1)
    _, std = advantages.mean_and_std(advantages.batch_moments(equal, torch.full((1, 1, 3), 1 / 3)))
    assert std.item() == pytest.approx(100_000.1 * 2**-22)


def test_moments_of_two_batches() -> None:
    halves = torch.full((1, 1, 2), 0.5)
    moments = advantages.update_moments(
        torch.zeros(1, 1, 3, dtype=torch.float64), advantages.batch_moments(torch.tensor([[[1.0, 3.0]]]), halves), 0.9
    )
    mean, std = advantages.mean_and_std(moments)
    assert (mean.item(), std.item()) == pytest.approx((2.0, 1.0))
    moments = advantages.update_moments(moments, advantages.batch_moments(torch.tensor([[[5.0, 5.0]]]), halves), 0.9)
    # weights 0.9 and 1: mean (0.9·2 + 5) / 1.9, mean square (0.9·5 + 25) / 1.9
    mean, std = advantages.mean_and_std(moments)
    assert mean.item() == pytest.approx(6.8 / 1.9)
    assert std.item() == pytest.approx(math.sqrt(29.5 / 1.9 - (6.8 / 1.9) ** 2))


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_a_batch_of_the_dead_changes_nothing(decay) -> None:
    halves = torch.full((1, 1, 2), 0.5)
    before = advantages.batch_moments(torch.tensor([[[1.0, 3.0]]]), halves)
    dead = advantages.batch_moments(torch.tensor([[[7.0, 9.0]]]), torch.zeros(1, 1, 2))
    mean, std = advantages.mean_and_std(advantages.update_moments(before, dead, decay))
    assert (mean.item(), std.item()) == pytest.approx((2.0, 1.0))


def test_before_the_first_batch_nothing_is_scaled() -> None:
    mean, std = advantages.mean_and_std(torch.zeros(2, 1, 3, dtype=torch.float64))
    assert (mean.flatten().tolist(), std.flatten().tolist()) == ([0.0, 0.0], [1.0, 1.0])
