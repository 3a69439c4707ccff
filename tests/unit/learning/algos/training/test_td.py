"""Targets and losses of temporal differences, by numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from marless.learning.algos.training import td
from marless.learning.algos.training.td import sample_weights, td_gradient, td_loss

REWARD = torch.tensor([[[1.0], [2.0], [3.0]]])  # one agent, three steps, one episode
AFTER = torch.tensor([[[10.0], [20.0], [40.0]]])
HALF = torch.full((1, 3, 1), 0.5)
ON = torch.tensor([[True], [True], [False]])


def test_lambda_returns_blend_what_is_valued_with_what_was_got():
    """G₂ = 3 + 20 = 23; G₁ = 2 + ½(½·20 + ½·23) = 12.75; G₀ = 1 + ½(½·10 + ½·12.75) = 6.6875."""
    found = td.lambda_returns(REWARD, HALF, AFTER, ON, 0.5)
    assert found.flatten().tolist() == [6.6875, 12.75, 23.0]


def test_lambda_0_is_one_step_and_lambda_1_is_all_that_was_got():
    assert td.lambda_returns(REWARD, HALF, AFTER, ON, 0.0).flatten().tolist() == [6.0, 12.0, 23.0]
    assert td.lambda_returns(REWARD, HALF, AFTER, ON, 1.0).flatten().tolist() == [7.75, 13.5, 23.0]


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, [6.0, 12.0, 23.0]), (2, [1 + 0.5 * 12, 2 + 0.5 * 23, 23.0]), (3, [7.75, 13.5, 23.0]), (9, [7.75, 13.5, 23.0])],
)
def test_returns_of_n_steps_stop_where_an_episode_does(n, expected):
    assert td.n_step_returns(REWARD, HALF, AFTER, ON, n).flatten().tolist() == expected


@pytest.mark.parametrize("over", [lambda *x: td.n_step_returns(*x, 3), lambda *x: td.lambda_returns(*x, 1.0)])
def test_nothing_comes_after_a_termination_and_cut_episodes_are_worth_what_follows(over):
    """Two agents of one episode: the first terminates in step 1 (2 is all it gets), the second is cut at the end."""
    reward, after = REWARD.repeat(2, 1, 1), AFTER.repeat(2, 1, 1)
    discount = torch.full((2, 3, 1), 0.5)
    discount[0, 1] = 0.0
    found = over(reward, discount, after, ON)
    assert found[0].flatten().tolist() == [2.0, 2.0, 23.0]
    assert found[1].flatten().tolist() == [7.75, 13.5, 23.0]


@pytest.mark.parametrize("over", [lambda *x: td.n_step_returns(*x, 3), lambda *x: td.lambda_returns(*x, 1.0)])
def test_an_agent_that_is_truncated_is_worth_what_it_saw_last_and_gets_nothing_of_what_others_get_later(over):
    """Truncated in step 1: G₁ = 2 + ½·20 = 12, not 2 + ½·(3 + ½·40); G₀ = 1 + ½·12 = 7."""
    pair = [x.repeat(2, 1, 1) for x in (REWARD, HALF, AFTER)]
    follows = torch.stack([ON, torch.tensor([[True], [False], [False]])])
    found = over(*pair, follows)
    assert found[0].flatten().tolist() == [7.75, 13.5, 23.0]
    assert found[1].flatten().tolist() == [7.0, 12.0, 23.0]


def test_episodes_beside_one_another_do_not_touch():
    follows = torch.tensor([[True, False], [True, False], [False, False]])
    pair = [x.repeat(1, 1, 2) for x in (REWARD, HALF, AFTER)]
    for found in (td.n_step_returns(*pair, follows, 3), td.lambda_returns(*pair, follows, 1.0)):
        assert found[0, :, 0].tolist() == [7.75, 13.5, 23.0]
        assert found[0, :, 1].tolist() == [6.0, 12.0, 23.0]


def test_loss_and_its_gradient():
    """Errors 1 and −3 of weight ¼ and ½: squared ½·¼ + 4.5·½; beyond 2 linear: 2·(3 − 1) = 4, so ½·¼ + 4·½."""
    error, weight = torch.tensor([[1.0, -3.0]]), torch.tensor([[0.25, 0.5]])
    assert td_loss(error, weight, None).tolist() == [2.375]
    assert td_loss(error, weight, 2.0).tolist() == [2.125]
    assert td_gradient(error, weight, None).tolist() == [[0.25, -1.5]]
    assert td_gradient(error, weight, 2.0).tolist() == [[0.25, -1.0]]


@pytest.mark.parametrize("huber", [None, 0.7])
def test_the_gradient_is_that_of_the_loss(huber):
    error = torch.randn(3, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight = torch.rand(3, 9, generator=torch.Generator().manual_seed(1))
    td_loss(error, weight, huber).sum().backward()
    torch.testing.assert_close(error.grad, td_gradient(error.detach(), weight, huber))


def test_weights_leave_out_the_dead_and_the_padded_and_scale_down_what_was_preferred():
    counts = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert sample_weights(counts, None).tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0, 0]]
    importance = torch.tensor([1.0, 0.5, 1.0, 1.0])
    assert sample_weights(counts, importance).tolist() == [[0.5, 0.25, 0, 0], [0, 0, 0, 0]]


def test_shapes_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match=r"follows \(2, 1\) must be \[T, E\] or \[N, T, E\]"):
        td.lambda_returns(REWARD, HALF, AFTER, ON[:2], 0.5)
    with pytest.raises(ValueError, match="must have one shape"):
        td.n_step_returns(REWARD, HALF[:, :2], AFTER, ON, 2)
    with pytest.raises(ValueError, match=r"must all be \[P, M\]"):
        td_loss(torch.zeros(2, 3), torch.zeros(2, 4), None)
