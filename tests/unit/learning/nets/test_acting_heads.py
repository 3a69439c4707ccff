"""Ways to act that are not stochastic: ε-greedy and deterministic, from weights worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from marless.core.errors import CorruptError
from marless.learning.envs.base import AgentClass, Box, Discrete
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.acting_heads import DETERMINISTIC, DETERMINISTIC_OR_RANDOM, EPSILON_GREEDY, SQUASHED
from tests.unit.learning.nets.acting_states import state

CHOOSER = AgentClass("chooser", ("a", "b"), 2, Discrete(4))
ARM = AgentClass("arm", ("l", "r"), 2, Box((-2.0, 0.0), (2.0, 1.0)))
DRAWS = 20_000


def _policies(
    agent_class: AgentClass, acts: str, *explorations: float | tuple[float, ...], scale: float = 1.0
) -> ActingPolicies:
    states = [state(agent_class, i, acts=acts, exploration=each, scale=scale) for i, each in enumerate(explorations)]
    return ActingPolicies.from_states(agent_class, states)


def _obs(batch: int) -> np.ndarray:
    return np.repeat(np.array([[[0.5, -1.0]], [[1.0, 0.25]]], np.float32), batch, axis=1)


@pytest.mark.parametrize("masked", [False, True])
def test_epsilon_greedy_takes_the_best_legal_action_but_for_its_chance(masked: bool) -> None:
    policies = _policies(CHOOSER, EPSILON_GREEDY, 0.0, 0.4)
    q_NBA, log_std = policies.outputs(_obs(1), None)
    assert log_std is None
    legal = np.ones((2, 4), np.bool_)
    if masked:
        legal[np.arange(2), q_NBA[:, 0].argmax(axis=1)] = False  # the best one may not be taken
    mask_NBA = np.broadcast_to(legal[:, None], (2, DRAWS, 4)) if masked else None
    best_N = np.where(legal, q_NBA[:, 0], -np.inf).argmax(axis=1)
    greedy_NB = policies.greedy(_obs(DRAWS), mask_NBA)
    assert greedy_NB.dtype == np.int32
    assert (greedy_NB == best_N[:, None]).all()
    did_NB, log_prob_NB = policies.sample(_obs(DRAWS), mask_NBA, np.random.default_rng(1))
    assert (did_NB.dtype, log_prob_NB.dtype) == (np.int32, np.float32)
    assert not log_prob_NB.any()
    for i, epsilon in enumerate((0.0, 0.4)):
        expected = epsilon * legal[i] / legal[i].sum()
        expected[best_N[i]] += 1 - epsilon
        frequency = np.bincount(did_NB[i], minlength=4) / DRAWS
        np.testing.assert_allclose(frequency, expected, atol=0.015 if epsilon else 0)


def test_where_nothing_is_legal_exploring_still_chooses_an_action() -> None:
    policies = _policies(CHOOSER, EPSILON_GREEDY, 1.0, 1.0)
    did_NB, _ = policies.sample(_obs(9), np.zeros((2, 9, 4), np.bool_), np.random.default_rng(1))
    assert set(did_NB.ravel().tolist()) <= {0, 1, 2, 3}


def test_deterministic_policies_squash_and_add_noise() -> None:
    policies = _policies(ARM, DETERMINISTIC, 0.0, 0.25)
    greedy_NBA = policies.greedy(_obs(DRAWS), None)
    assert (greedy_NBA.dtype, greedy_NBA.shape) == (np.float32, (2, DRAWS, 2))
    for i in range(2):
        weights, hidden = state(ARM, i, acts=DETERMINISTIC, exploration=0.0).acting, _obs(1)[i, 0]
        for layer in range(3):
            hidden = np.tanh(weights[f"policy.{layer}.weight"] @ hidden + weights[f"policy.{layer}.bias"])
        np.testing.assert_allclose(greedy_NBA[i, 0], hidden, rtol=1e-5, atol=1e-6)
    did_NBA, log_prob_NB = policies.sample(_obs(DRAWS), None, np.random.default_rng(1))
    assert (did_NBA.dtype, log_prob_NB.shape, log_prob_NB.any()) == (np.float32, (2, DRAWS), False)
    np.testing.assert_array_equal(did_NBA[0], greedy_NBA[0])
    assert policies.outputs(_obs(1), None)[1] is None


def test_the_noise_of_deterministic_policies_has_their_deviation_and_stays_in_the_box() -> None:
    policies = _policies(ARM, DETERMINISTIC, 0.05, 2.0, scale=0.3)
    greedy_NBA = policies.greedy(_obs(DRAWS), None)
    assert np.abs(greedy_NBA[0]).max() < 0.75  # five deviations from being clipped
    did_NBA, _ = policies.sample(_obs(DRAWS), None, np.random.default_rng(1))
    noise = (did_NBA - greedy_NBA)[0]
    np.testing.assert_allclose(noise.std(axis=0), 0.05, rtol=0.03)
    np.testing.assert_allclose(noise.mean(axis=0), 0.0, atol=0.002)
    assert (did_NBA[1].min(), did_NBA[1].max()) == (-1.0, 1.0)


def test_a_deterministic_action_is_scaled_to_its_box() -> None:
    policies = _policies(ARM, DETERMINISTIC, 0.0, 0.0)
    at_env = policies.to_env(np.array([[[-1.0, 0.0]], [[0.5, 1.0]]], np.float32))
    assert at_env.tolist() == [[[-2.0, 0.5]], [[1.0, 1.0]]]


def test_some_actions_are_uniformly_random_with_their_probability() -> None:
    policies = _policies(ARM, DETERMINISTIC_OR_RANDOM, (0.0, 0.25), (0.1, 1.0))
    greedy_NBA = policies.greedy(_obs(DRAWS), None)
    did_NBA, log_prob_NB = policies.sample(_obs(DRAWS), None, np.random.default_rng(1))
    assert not log_prob_NB.any()
    differs_B = (did_NBA[0] != greedy_NBA[0]).any(axis=1)
    assert differs_B.mean() == pytest.approx(0.25, abs=0.015)
    for any_MA in (did_NBA[0][differs_B], did_NBA[1]):
        np.testing.assert_allclose(np.quantile(any_MA, [0, 0.25, 0.5, 0.75, 1]), [-1, -0.5, 0, 0.5, 1], atol=0.05)


def test_squashed_actions_are_tanh_of_a_gaussian_whose_deviation_is_an_output() -> None:
    policies = _policies(ARM, SQUASHED, 0.0, 1.0, scale=0.3)
    did_NBA, log_prob_NB = policies.sample(_obs(DRAWS), None, np.random.default_rng(1))
    assert (did_NBA.dtype, did_NBA.shape, log_prob_NB.any()) == (np.float32, (2, DRAWS, 2), False)
    weights, hidden = state(ARM, 0, acts=SQUASHED, exploration=0.0, scale=0.3).acting, _obs(1)[0, 0]
    for layer in range(3):
        hidden = weights[f"policy.{layer}.weight"] @ hidden + weights[f"policy.{layer}.bias"]
        hidden = np.tanh(hidden) if layer < 2 else hidden
    mean_A, log_std_A = hidden[:2], hidden[2:]
    np.testing.assert_allclose(policies.greedy(_obs(1), None)[0, 0], np.tanh(mean_A), rtol=1e-5)
    np.testing.assert_allclose(policies.outputs(_obs(1), None)[0][0, 0], np.tanh(mean_A), rtol=1e-5)
    sample_BA = np.arctanh(did_NBA[0].astype(np.float64).clip(-1 + 1e-7, 1 - 1e-7))
    np.testing.assert_allclose(sample_BA.mean(axis=0), mean_A, atol=0.04)
    np.testing.assert_allclose(sample_BA.std(axis=0), np.exp(log_std_A), rtol=0.03)
    np.testing.assert_allclose(np.quantile(did_NBA[1], [0.25, 0.5, 0.75]), [-0.5, 0, 0.5], atol=0.05)  # all random


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(CorruptError, match="class chooser: policy state: exploration is missing"):
        ActingPolicies.from_states(CHOOSER, [state(CHOOSER, 1, acts=EPSILON_GREEDY)] * 2)
    with pytest.raises(CorruptError, match="acts 'deterministic', which is no way to choose Discrete actions"):
        ActingPolicies.from_states(CHOOSER, [state(CHOOSER, 1, acts=DETERMINISTIC, exploration=0.1)] * 2)
    with pytest.raises(CorruptError, match="acts 'epsilon_greedy', which is no way to choose Box actions"):
        ActingPolicies.from_states(ARM, [state(ARM, 1, acts=EPSILON_GREEDY, exploration=0.1)] * 2)
    with pytest.raises(CorruptError, match=r"exploration is float32\[1\], expected float32\[2\]"):
        ActingPolicies.from_states(ARM, [state(ARM, 1, acts=DETERMINISTIC_OR_RANDOM, exploration=0.1)] * 2)
    mixed = [state(CHOOSER, 1, acts=EPSILON_GREEDY, exploration=0.1), state(CHOOSER, 1)]
    with pytest.raises(CorruptError, match="do not act in one way"):
        ActingPolicies.from_states(CHOOSER, mixed)
