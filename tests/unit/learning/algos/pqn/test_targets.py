"""λ-returns and the members of a team, with numbers worked out by hand: γ = λ = 1/2."""

import numpy as np
import pytest
import torch

from marless.learning.algos.pqn.algorithms import IndependentPQNConfig
from marless.learning.algos.pqn.post_process import Members, ValueUnits, lambda_returns
from marless.learning.algos.training.turns import held_turns

CONFIG = IndependentPQNConfig(gamma=0.5, td_lambda=0.5)
VALUE = torch.tensor([[10.0, 20.0, 30.0]])


def returns(cut, boots, terminated=(False, False, False), units=None, value=VALUE):
    """Those of one agent in one copy, whose rewards are 1, 2 and 4."""
    tensors = {
        "reward": torch.tensor([[[1.0], [2.0], [4.0]]]),
        "terminated": torch.tensor(terminated).view(1, 3, 1),
        "cut": torch.tensor(cut).view(3, 1),
        "boot_index": torch.tensor(list(boots), dtype=torch.int64),
    }
    boot = torch.tensor([list(boots.values())], dtype=torch.float32).view(1, -1)
    return lambda_returns(tensors, value, boot, units, CONFIG).flatten().tolist()


def test_a_rollout_that_is_cut_goes_on_with_the_value_of_its_last_observation():
    # 4 + 40/2; 2 + (30/2 + 24/2)/2; 1 + (20/2 + 15.5/2)/2
    assert returns([False, False, True], {2: 40.0}) == [9.875, 15.5, 24.0]


def test_nothing_follows_a_termination():
    # 4; 2 + (30/2 + 4/2)/2; 1 + (20/2 + 10.5/2)/2
    assert returns([False, False, True], {}, (False, False, True)) == [8.625, 10.5, 4.0]


def test_an_episode_has_nothing_of_the_next_one():
    assert returns([True, False, True], {0: 6.0, 2: 40.0}) == [4.0, 15.5, 24.0]
    assert returns([True, False, True], {2: 40.0}, (True, False, False)) == [1.0, 15.5, 24.0]


def test_in_other_units_returns_are_the_same_values():
    units = ValueUnits(torch.full((1, 1, 1), 2.0), torch.full((1, 1, 1), 3.0))
    assert units.reward(torch.tensor([[[4.0]]]), torch.tensor([[[0.0]]])).item() == 6.0
    assert units.reward(torch.tensor([[[1.0]]]), torch.tensor([[[0.5]]])).item() == 0.0
    found = returns([False, False, True], {2: (40.0 - 2) * 3}, units=units, value=(VALUE - 2) * 3)
    assert found == pytest.approx([(each - 2) * 3 for each in (9.875, 15.5, 24.0)])
    found = returns([False, False, True], {}, (False, False, True), units=units, value=(VALUE - 2) * 3)
    assert found == pytest.approx([(each - 2) * 3 for each in (8.625, 10.5, 4.0)])


THERE = np.array([[1, 1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]], np.bool_)[:, :, None]
WAITS = np.array([[0, 1, 1, 0, 1, 0, 1], [1, 1, 0, 1, 0, 1, 1]], np.bool_)[:, :, None]
CUT = np.array([0, 1, 0, 0, 0, 0, 1], np.bool_)[:, None]


def test_the_last_turn_is_one_of_the_segment_since_the_agent_was_last_away():
    turn_NTB, had_NTB = held_turns(THERE, WAITS, CUT)
    assert had_NTB[:, :, 0].astype(int).tolist() == [[1, 1, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1, 1]]
    assert turn_NTB[:, :, 0].tolist() == [[0, 0, 2, 3, 4, 5, 5], [0, 1, 2, 2, 4, 4, 4]]


def test_the_value_of_a_member_that_waits_is_that_of_its_last_turn():
    turn_NTB, had_NTB = (torch.from_numpy(each[:, :, 0]) for each in held_turns(THERE, WAITS, CUT))
    there = torch.from_numpy(THERE[:, :, 0]).float()
    members = Members(there, had_NTB.float(), turn_NTB, torch.tensor([[False, True], [True, False]]))
    tensors = {"boot_index": torch.tensor([1, 6]), "terminated": torch.zeros(2, 7, 1, dtype=torch.bool)}
    value_NS = torch.tensor([[1.0, 2, 3, 4, 5, 6, 7], [10.0, 20, 30, 40, 50, 60, 70]])
    team_1S, boot_1K = members.value(value_NS, torch.tensor([[100.0, 200.0], [1000.0, 2000.0]]), tensors)
    assert team_1S.tolist() == [[1, 1, 30, 30, 50, 56, 56]]
    # The first agent acts in the first of these observations; the second waits without a turn so far, then it acts.
    assert boot_1K.tolist() == [[100, 2006]]
    tensors["terminated"][0, 1] = True
    assert members.value(value_NS, torch.tensor([[100.0, 200.0], [1000.0, 2000.0]]), tensors)[1].tolist() == [[0, 2006]]
