"""The small games against their tables, and against what is said of them."""

import itertools

import numpy as np
import pytest

from marless.core.errors import CorruptError, SpecError
from marless.learning.envs import registry
from marless.learning.envs.base import Box


def outcomes(name, options, *, steps, actions):
    """Play one copy for every sequence of joint actions; what each was paid in all, and whether it was won."""
    joint = np.array(list(itertools.product(range(actions), repeat=2 * steps))).reshape(-1, steps, 2)
    env = registry.make(name, options, len(joint))
    env.reset(0)
    total = np.zeros(len(joint))
    for t in range(steps):
        step = env.step((joint[:, t].T.astype(np.int32),))
        assert np.array_equal(*step.rewards[0])  # shared
        total += step.rewards[0][0]
    assert step.ended.all()
    return dict(zip(map(str, joint.tolist()), zip(total.tolist(), step.won.tolist(), strict=True), strict=True))


@pytest.mark.parametrize(
    ("options", "table"),
    [
        ({}, [[11, -30, 0], [-30, 7, 6], [0, 0, 5]]),
        ({"payoff": "penalty", "penalty": -50}, [[10, 0, -50], [0, 2, 0], [-50, 0, 10]]),
        ({"payoff": "coordination"}, [[10, 0], [0, 10]]),
        ({"payoff": "hidden"}, [[8, -30, -30], [-30, 4, 4], [-30, 4, 4]]),
        ({"payoff": "dominance"}, [[0, 2, 4], [1, 3, 5], [2, 4, 6]]),
        ({"payoff": [[8, -12], [-12, 0]]}, [[8, -12], [-12, 0]]),
    ],
)
def test_a_matrix_pays_by_its_table(options, table):
    best = max(map(max, table))
    paid = outcomes("game/matrix", options, steps=1, actions=len(table))
    expected = {
        f"[[{i}, {j}]]": (float(value), value == best) for i, row in enumerate(table) for j, value in enumerate(row)
    }
    assert paid == expected


def test_dominance_is_a_sum_of_what_each_agent_earns():
    table = registry.make("game/matrix", {"payoff": "dominance"}, 1)._table
    assert np.array_equal(table, np.arange(3)[:, None] + 2 * np.arange(3))


def test_two_steps_pay_seven_or_up_to_eight():
    paid = outcomes("game/two_step", {}, steps=2, actions=2)
    for a0, a1, b0, b1 in itertools.product(range(2), repeat=4):
        expected = 7.0 if a0 == 0 else {0: 0.0, 1: 1.0, 2: 8.0}[b0 + b1]
        assert paid[str([[a0, a1], [b0, b1]])] == (expected, expected == 8.0)


def test_agents_see_the_state_and_who_they_are():
    env = registry.make("game/two_step", {}, 2)
    frame = env.reset(0)
    assert frame.state.tolist() == [[1, 0, 0]] * 2
    assert frame.obs[0].tolist() == [[[1, 0, 0, 1, 0]] * 2, [[1, 0, 0, 0, 1]] * 2]
    step = env.step((np.array([[0, 1], [1, 0]], np.int32),))  # agent_1's first action does not count
    assert step.frame.state.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert not (step.ended.any() or step.won.any() or step.rewards[0].any())
    step = env.step((np.array([[0, 1], [0, 1]], np.int32),))
    assert step.final.state.tolist() == [[0, 0, 0]] * 2  # nothing comes after the end
    assert step.frame.state.tolist() == [[1, 0, 0]] * 2
    assert (step.ended.all(), step.terminated[0].all(), step.truncated.any()) == (True, True, False)
    assert step.won.tolist() == [False, True]


def test_a_step_of_one_copy_may_lead_elsewhere_than_another_s():
    env = registry.make("game/two_step", {}, 2)
    env.reset(0)
    actions = np.array([[1, 0], [0, 0]], np.int32)
    env.step((actions,))
    actions[...] = 1  # what was decided in the first step does not follow the caller's array
    assert env.step((actions,)).rewards[0][0].tolist() == [8.0, 7.0]


def test_copies_that_are_cut_after_their_first_step_fall_out_of_step():
    env = registry.make("game/two_step", {}, 2)
    env.reset(0)
    env.truncate(np.array([True, False]))
    ones = (np.ones((2, 2), np.int32),)
    step = env.step(ones)
    assert (step.ended.tolist(), step.truncated.tolist(), step.terminated[0].any()) == ([True, False],) * 2 + (False,)
    assert step.final.state.tolist() == [[0, 0, 1]] * 2  # what comes after the cut still counts
    assert step.frame.state.tolist() == [[1, 0, 0], [0, 0, 1]]
    step = env.step(ones)
    assert (step.ended.tolist(), step.truncated.any(), step.won.tolist()) == ([False, True], False, [False, True])
    assert step.rewards[0][0].tolist() == [0.0, 8.0]
    assert env.step(ones).won.tolist() == [True, False]


@pytest.mark.parametrize(("name", "array"), [("steps", [0, 2]), ("steps", [-1, 0]), ("state", [3, 0])])
def test_a_save_of_no_such_game_is_refused(name, array):
    env = registry.make("game/two_step", {}, 2)
    env.reset(0)
    with pytest.raises(CorruptError, match=f"{name} holds numbers outside 0 to"):
        env.load({**env.save(), name: np.array(array, np.int64)})


def test_a_target_is_worth_one_minus_the_mean_squared_miss():
    env = registry.make("game/target", {"targets": [0.5, -0.5], "tolerance": 0.25}, 3)
    assert env.spaces.classes[0].action == Box((-1.0,), (1.0,))
    env.reset(0)
    action = np.array([[[0.5], [0.25], [9.0]], [[-0.5], [-0.75], [-0.5]]], np.float32)
    step = env.step((action,))
    # misses (0, 0); (0.25, 0.25): 1 − 0.0625; 9 counts as 1, a miss of (0.5, 0): 1 − 0.125
    assert step.rewards[0][0].tolist() == [1.0, 0.9375, 0.875]
    assert step.won.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("game/matrix", {"payoff": "climbng"}, "unknown payoff 'climbng'; did you mean 'climbing'"),
        ("game/matrix", {"payoff": [[1, 2], [3]]}, "square table of at least 2 × 2"),
        ("game/matrix", {"payoff": [[1]]}, "square table"),
        ("game/matrix", {"payoff": [["a", 1], [2, 3]]}, "square table"),
        ("game/matrix", {"payoff": 3}, "square table"),
        ("game/matrix", {"payoff": [[1, float("nan")], [2, 3]]}, "square table"),
        ("game/matrix", {"penalty": 1}, "penalty must be a number of at most 0, got 1"),
        ("game/matrix", {"payof": "climbing"}, "did you mean 'payoff'"),
        ("game/two_step", {"agents": 3}, "unknown option 'agents'"),
        ("game/target", {"targets": [0.5, 2]}, "from -1 to 1"),
        ("game/target", {"targets": []}, "from -1 to 1"),
        ("game/target", {"targets": "0.5"}, "from -1 to 1"),
        ("game/target", {"tolerance": 0}, "tolerance must be a number above 0"),
    ],
)
def test_options_that_cannot_be_are_refused(name, options, message):
    with pytest.raises(SpecError, match=message):
        registry.make(name, options, 1)
