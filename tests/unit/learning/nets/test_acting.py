"""NumPy inference against torch's modules and distributions, from the same weights; sampling against probabilities."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from marless.core.errors import CorruptError
from marless.core.state import PolicyState
from marless.learning.algos import registry
from marless.learning.algos.learner import LearnerContext, Scope
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces, chance_acts
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.acting_heads import to_env
from marless.learning.nets.model import ModelSpec

DISCRETE = AgentClass("walker", ("a", "b", "c"), 6, Discrete(4))
CONTINUOUS = AgentClass("arm", ("a", "b"), 5, Box((-2.0, 0.0, 5.0), (2.0, 1.0, 9.0)))


def _states(agent_class: AgentClass, activation: str = "tanh") -> list[PolicyState]:
    ippo = registry.algorithm("ippo")
    model = ModelSpec.model_validate({"hidden": (32, 16), "activation": activation})
    spaces = EnvSpaces((agent_class,), state_size=0, max_steps=None)
    context = LearnerContext(model, spaces, Scope(0, (0,), agent_class.name), "cpu")
    learner = ippo.learner(ippo.config_type.model_validate({"name": "ippo"}), context)
    states = [learner.initial(agent, 3) for agent in agent_class.agents]
    return [dataclasses.replace(s, acting={k: _scaled(k, v) for k, v in s.acting.items()}) for s in states]


def _scaled(name: str, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Make policies far from uniform, and biases and deviations far from 0."""
    noise = np.random.default_rng([len(name), *array.shape]).normal(size=array.shape)
    scale = 30.0 if name == "policy.2.weight" else 1.0
    return (array.astype(np.float32) * np.float32(scale) + 0.3 * noise).astype(np.float32)


def _torch_outputs(state: PolicyState, obs_BO: NDArray[np.float32], activation: str) -> torch.Tensor:
    hidden = torch.from_numpy(obs_BO)
    for i in range(3):
        weight, bias = (torch.tensor(state.acting[f"policy.{i}.{part}"]) for part in ("weight", "bias"))
        hidden = torch.nn.functional.linear(hidden, weight, bias)
        if i < 2:
            hidden = torch.tanh(hidden) if activation == "tanh" else torch.relu(hidden)
    return hidden


def _obs(agent_class: AgentClass, batch: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=(len(agent_class.agents), batch, agent_class.obs_size)).astype("f4")


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_discrete_policies_are_torchs(activation: str) -> None:
    states, obs_NBO = _states(DISCRETE, activation), _obs(DISCRETE, 50)
    mask_NBA = np.random.default_rng(2).random((3, 50, 4)) < 0.6
    mask_NBA[..., 1] |= ~mask_NBA.any(axis=-1)
    policies = ActingPolicies.from_states(DISCRETE, states)
    action_NB, log_prob_NB = policies.sample(obs_NBO, mask_NBA, np.random.default_rng(3))
    greedy_NB = policies.greedy(obs_NBO, mask_NBA)
    assert (action_NB.dtype, log_prob_NB.dtype, greedy_NB.dtype) == (np.int32, np.float32, np.int32)
    for i, state in enumerate(states):
        logits = _torch_outputs(state, obs_NBO[i], activation).masked_fill(~torch.tensor(mask_NBA[i]), -torch.inf)
        expected = torch.distributions.Categorical(logits=logits).log_prob(torch.tensor(action_NB[i]))
        np.testing.assert_allclose(log_prob_NB[i], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(greedy_NB[i], logits.argmax(dim=1))


def test_continuous_policies_are_torchs() -> None:
    states, obs_NBO = _states(CONTINUOUS), _obs(CONTINUOUS, 20)
    policies = ActingPolicies.from_states(CONTINUOUS, states)
    action_NBA, log_prob_NB = policies.sample(obs_NBO, None, np.random.default_rng(3))
    assert (action_NBA.dtype, action_NBA.shape, log_prob_NB.dtype) == (np.float32, (2, 20, 3), np.float32)
    for i, state in enumerate(states):
        mean = _torch_outputs(state, obs_NBO[i], "tanh")
        std = torch.tensor(state.acting["policy.free"]).exp()
        expected = torch.distributions.Normal(mean, std).log_prob(torch.tensor(action_NBA[i])).sum(dim=1)
        np.testing.assert_allclose(log_prob_NB[i], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(policies.greedy(obs_NBO, None)[i], mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_actions_are_drawn_with_their_probabilities(masked: bool) -> None:
    states, draws = _states(DISCRETE), 20_000
    obs_NBO = np.repeat(_obs(DISCRETE, 1) * np.float32(0.3), draws, axis=1)
    mask_NBA = np.broadcast_to(np.array([False, True, True, False]), (3, draws, 4)) if masked else None
    action_NB, _ = ActingPolicies.from_states(DISCRETE, states).sample(obs_NBO, mask_NBA, np.random.default_rng(5))
    for i, state in enumerate(states):
        logits = _torch_outputs(state, obs_NBO[i, :1], "tanh")[0]
        if masked:
            logits[[0, 3]] = -torch.inf
        frequency = np.bincount(action_NB[i], minlength=4) / draws
        np.testing.assert_allclose(frequency, torch.softmax(logits, dim=0), atol=0.015)
        if masked:
            assert frequency[[0, 3]].tolist() == [0.0, 0.0]


def test_extreme_draws_never_choose_an_illegal_action() -> None:
    class Extreme(np.random.Generator):
        def random(self, size: tuple[int, ...], dtype: type) -> NDArray[np.float32]:  # type: ignore[override]
            return np.resize(np.array([0.0, 1 - 2.0**-24], dtype), size)

    mask_NBA = np.zeros((3, 2, 4), np.bool_)
    mask_NBA[..., 1:3] = True
    policies = ActingPolicies.from_states(DISCRETE, _states(DISCRETE))
    action_NB, log_prob_NB = policies.sample(_obs(DISCRETE, 2), mask_NBA, Extreme(np.random.PCG64(0)))
    assert set(action_NB.flatten().tolist()) <= {1, 2}
    assert np.isfinite(log_prob_NB).all()


def test_agents_that_share_a_policy_act_alike_and_results_are_the_callers_own() -> None:
    state = _states(DISCRETE)[0]
    obs_NBO = np.repeat(_obs(DISCRETE, 8)[:1], 3, axis=0)
    shared = ActingPolicies.from_states(DISCRETE, [state] * 3)
    apart = ActingPolicies.from_states(DISCRETE, [dataclasses.replace(state) for _ in range(3)])
    action_NB, log_prob_NB = shared.sample(obs_NBO, None, np.random.default_rng(1))
    kept = action_NB.copy(), log_prob_NB.copy()
    for found, expected in zip(apart.sample(obs_NBO, None, np.random.default_rng(1)), kept, strict=True):
        np.testing.assert_array_equal(found, expected)
    shared.sample(-obs_NBO, None, np.random.default_rng(2))
    np.testing.assert_array_equal(action_NB, kept[0])
    np.testing.assert_array_equal(log_prob_NB, kept[1])


def test_continuous_actions_are_scaled_to_the_box_and_clipped() -> None:
    chosen = np.array([[[-1.0, 0.0, 1.0], [3.0, -2.0, 0.5]]], np.float32)
    assert to_env(CONTINUOUS.action, chosen).tolist() == [[[-2.0, 0.5, 9.0], [2.0, 0.0, 8.0]]]


def test_continuous_actions_without_bounds_are_the_numbers_themselves() -> None:
    """Those with one bound are its distance ln(1 + e²) and its like, see tests/unit/learning/envs/test_boxes.py."""
    box = Box((-1.0, -np.inf, 0.0, -np.inf), (3.0, np.inf, np.inf, 1.0))
    chosen = np.array([[0.5, -7.0, -2.0, 5.0], [-9.0, 1e9, 2.0, -5.0]], np.float32)
    found = to_env(box, chosen)
    assert found[:, :2].tolist() == [[2.0, -7.0], [-1.0, 1e9]]
    assert found[:, 2].tolist() == pytest.approx([np.log1p(np.exp(-2)), np.log1p(np.exp(2))])
    assert found[:, 3].tolist() == pytest.approx([1 - np.log1p(np.exp(-5)), 1 - np.log1p(np.exp(5))])
    assert to_env(box, chosen).dtype == np.float32


def test_random_actions_without_bounds_are_finite() -> None:
    agents = AgentClass("a", ("a",), 1, Box((-1.0, -np.inf, 0.0), (3.0, np.inf, np.inf)))
    drawn = chance_acts(agents, np.zeros((1, 4000, 1), np.float32), None, np.random.default_rng(0))[0]
    np.testing.assert_allclose(drawn.mean(axis=0), [1, 0, 0.8061], atol=0.08)  # ∫ φ(u) ln(1 + eᵘ) du
    np.testing.assert_allclose(drawn[:, :2].std(axis=0), [4 / 12**0.5, 1], atol=0.05)
    assert drawn[:, 2].min() > 0


def test_weights_that_do_not_fit_are_refused() -> None:
    states = _states(DISCRETE)
    with pytest.raises(CorruptError, match="2 policies for 3 agents"):
        ActingPolicies.from_states(DISCRETE, states[:2])
    other = dataclasses.replace(DISCRETE, obs_size=7)
    with pytest.raises(CorruptError, match=r"policy\.0\.weight is float32\[32, 6\], expected float32\[32, 7\]"):
        ActingPolicies.from_states(other, states)
    with pytest.raises(CorruptError, match="do not act in one way"):
        ActingPolicies.from_states(DISCRETE, [*states[:2], dataclasses.replace(states[2], metadata={})])
    with pytest.raises(CorruptError, match="holds no weights"):
        ActingPolicies.from_states(DISCRETE, [dataclasses.replace(states[0], acting={})] * 3)


def test_epsilon_mixes_random_legal_actions_into_those_of_a_sure_policy():
    """Of three actions, the policy is sure of 0, and 2 is illegal; with ε = 0.5, a quarter of draws are 1."""
    from marless.learning.nets.acting_heads import EPSILON_STOCHASTIC, head

    copies = 4000
    outputs_NAB = np.tile(np.array([50.0, 0.0, 60.0], np.float32)[None, :, None], (2, 1, copies))
    mask_NBA = np.tile(np.array([True, True, False]), (2, copies, 1))
    owners = [{"exploration": np.array([each], np.float32)} for each in (0.0, 0.5)]
    made = head(EPSILON_STOCHASTIC, Discrete(3), np.empty((2, 0), np.float32), owners)
    action_NB, log_prob_NB = made.sample(outputs_NAB.copy(), mask_NBA, np.random.default_rng(0))
    shares = [np.bincount(each, minlength=3) / copies for each in action_NB]
    assert shares[0].tolist() == [1.0, 0.0, 0.0]
    np.testing.assert_allclose(shares[1], [0.75, 0.25, 0.0], atol=0.02)
    assert not log_prob_NB.any()
    assert made.greedy(outputs_NAB, mask_NBA).tolist() == [[0] * copies] * 2
