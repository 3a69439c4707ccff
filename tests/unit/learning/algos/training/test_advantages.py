"""Advantages against numbers worked out by hand, with γ = 0.9 and λ = 0.8, so that γλ = 0.72."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from marless.learning.algos.training import advantages

REWARD = [1.0, 2.0, 3.0]
VALUE = [0.5, 1.0, 1.5]


def _column(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers).view(1, 3, 1)


def _advantages(boots: dict[int, float], terminated: list[bool]) -> list[float]:
    cut_TB = torch.tensor([[t in boots] for t in range(3)])
    terminated_NTB = torch.tensor(terminated).view(1, 3, 1)
    value_NTB = _column(VALUE)
    index, rows = torch.tensor(list(boots)), torch.tensor([list(boots.values())])
    after_NTB = advantages.successor_values(value_NTB, rows, index, cut_TB, terminated_NTB)
    ends_NTB = cut_TB | terminated_NTB
    found = advantages.gae(_column(REWARD), value_NTB, after_NTB, ends_NTB, gamma=0.9, gae_lambda=0.8)
    return found.flatten().tolist()


def test_a_rollout_that_was_cut_bootstraps_from_the_last_observation() -> None:
    # δ = 1.4, 2.35, 3 + 0.9·2 − 1.5 = 3.3
    assert _advantages({2: 2.0}, [False] * 3) == pytest.approx([1.4 + 0.72 * 4.726, 2.35 + 0.72 * 3.3, 3.3])


def test_after_a_termination_nothing_is_worth_anything() -> None:
    # even where a bootstrap row exists, because other agents go on: δ₂ = 3 − 1.5
    assert _advantages({2: 2.0}, [False, False, True]) == pytest.approx([1.4 + 0.72 * 3.43, 2.35 + 0.72 * 1.5, 1.5])


def test_a_cut_in_mid_rollout_separates_episodes() -> None:
    # δ₀ = 1 + 0.9·5 − 0.5, although the next row's value is 1
    assert _advantages({0: 5.0, 2: 2.0}, [False] * 3) == pytest.approx([5.0, 4.726, 3.3])


def test_an_agents_own_end_in_mid_rollout_stops_its_sum() -> None:
    assert _advantages({2: 2.0}, [True, False, False]) == pytest.approx([0.5, 4.726, 3.3])


def test_bootstrap_rows_find_their_copy() -> None:
    value_NTB = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    cut_TB = torch.tensor([[False, True], [True, True]])
    never_NTB = torch.zeros(1, 2, 2, dtype=torch.bool)
    after_NTB = advantages.successor_values(
        value_NTB, torch.tensor([[10.0, 20.0, 30.0]]), torch.tensor([1, 2, 3]), cut_TB, never_NTB
    )
    assert after_NTB.tolist() == [[[3.0, 10.0], [20.0, 30.0]]]


def test_shapes_that_do_not_match_are_refused() -> None:
    three = _column(VALUE)
    with pytest.raises(ValueError, match="one shape"):
        advantages.gae(three, three, three[:, :2], three > 9, gamma=0.9, gae_lambda=0.8)
    with pytest.raises(ValueError, match="bootstrap"):
        advantages.successor_values(three, torch.zeros(1, 2), torch.tensor([2]), three[0] > 9, three > 9)
