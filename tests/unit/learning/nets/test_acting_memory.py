"""Policies that remember: actors and learners compute the same from the same rollout, episode ends included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marless.core.errors import CorruptError, SpecError
from marless.learning.data.rollout import rollout
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import AgentClass, Box, Discrete
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.model import ModelSpec
from marless.learning.nets.stacked import net
from tests.scripted_env import ScriptedEnv
from tests.unit.learning.nets.acting_states import shape, state

STEPS, COPIES = 11, 4
(WALKER,) = ScriptedEnv().spaces.classes
ARM = AgentClass("arm", ("l", "r"), 3, Box((-1.0, 0.0), (1.0, 2.0)))
BOTH = Inputs(last_action=True, known=WALKER.agents)


def _learners_log_prob(trajectory: Trajectory, states: list, recurrent: str, inputs: Inputs) -> np.ndarray:
    """Of what was done, [T, N, B], the way a learner sees a round: all steps at once."""
    obs, action = trajectory["obs/0"], trajectory["action/0"]
    cut = trajectory["cut"].astype(np.bool_)
    first = np.concatenate([np.ones_like(cut[:1]), cut[:-1]])
    last = np.concatenate([action[:1], action[:-1]])  # before the first step anything: it must not matter
    obs_NMO = obs.transpose(1, 0, 2, 3).reshape(2, -1, 3)
    features = inputs.build(WALKER, obs_NMO, last.transpose(1, 0, 2).reshape(2, -1), first.reshape(-1))
    model = ModelSpec.model_validate({"hidden": (7, 6), "recurrent": recurrent})
    layout = shape(WALKER, model, "stochastic", inputs)
    flat = torch.from_numpy(np.stack([layout.from_arrays("policy", each.acting) for each in states]))
    outputs = net(layout, flat, "tanh").forward(torch.from_numpy(features), torch.from_numpy(first))
    legal = torch.from_numpy(trajectory["mask/0"].transpose(1, 3, 0, 2).reshape(2, 3, -1).copy())
    log = torch.log_softmax(outputs.masked_fill(~legal, -1e9), dim=1)
    chosen = torch.from_numpy(action.transpose(1, 0, 2).reshape(2, 1, -1).astype(np.int64))
    return log.gather(1, chosen)[:, 0].view(2, STEPS, -1).transpose(0, 1).numpy()


@pytest.mark.parametrize("inputs", [Inputs(), Inputs(last_action=True), Inputs(known=WALKER.agents), BOTH])
@pytest.mark.parametrize("recurrent", ["none", "gru"])
@pytest.mark.parametrize("shared", [False, True])
def test_learners_see_what_actors_did_over_a_whole_rollout(recurrent: str, inputs: Inputs, shared: bool) -> None:
    states = [state(WALKER, seed, recurrent=recurrent, inputs=inputs) for seed in (1, 2)]
    states = [states[0]] * 2 if shared else states
    policies = ActingPolicies.from_states(WALKER, states)
    for seed in (5, 6):  # the second rollout must know nothing of the first
        trajectory, _ = rollout(ScriptedEnv(COPIES), [policies], steps=STEPS, seed=seed, with_state=False)
        assert 4 <= trajectory["cut"][:-1].sum() <= 20
        expected = _learners_log_prob(trajectory, states, recurrent, inputs)
        np.testing.assert_allclose(trajectory["log_prob/0"], expected, rtol=1e-4, atol=2e-5)


def test_remembering_changes_what_is_done() -> None:
    policies = ActingPolicies.from_states(WALKER, [state(WALKER, 1, recurrent="gru")] * 2)
    obs_NBO = np.ones((2, 3, 3), np.float32)
    first, _ = policies.outputs(obs_NBO, None)
    second, _ = policies.outputs(obs_NBO, None)
    assert not np.allclose(first, second)
    policies.reset_memory(np.array([[True, False, True], [True, False, False]]))
    third, _ = policies.outputs(obs_NBO, None)
    np.testing.assert_array_equal(third[:, 0], first[:, 0])
    np.testing.assert_array_equal(third[0, 2], first[0, 2])
    assert not np.allclose(third[:, 1], first[:, 1])
    assert not np.allclose(third[1, 2], first[1, 2])
    policies.begin(3)
    np.testing.assert_array_equal(policies.outputs(obs_NBO, None)[0], first)


def test_a_last_action_is_seen_in_the_next_step_and_forgotten_by_who_begins_anew() -> None:
    inputs = Inputs(last_action=True)
    states = [state(ARM, seed, inputs=inputs) for seed in (1, 2)]
    policies, obs_NBO = ActingPolicies.from_states(ARM, states), np.ones((2, 2, 3), np.float32)
    did_NBA, _ = policies.sample(obs_NBO, None, np.random.default_rng(0))
    policies.reset_memory(np.array([[True, False], [False, False]]))
    found, _ = policies.outputs(obs_NBO, None)
    for b in range(2):
        for i, each in enumerate(states):
            last_A = np.zeros(2, np.float32) if (i, b) == (0, 0) else did_NBA[i, b]
            hidden = np.concatenate([obs_NBO[i, b], last_A])
            for layer in range(3):
                hidden = each.acting[f"policy.{layer}.weight"] @ hidden + each.acting[f"policy.{layer}.bias"]
                hidden = np.tanh(hidden) if layer < 2 else hidden
            np.testing.assert_allclose(found[i, b], hidden, rtol=1e-5, atol=1e-5)
    greedy_NBA = policies.greedy(obs_NBO, None)  # it counts as done, unlike what `outputs` says
    np.testing.assert_allclose(greedy_NBA, found, rtol=1e-6)
    assert not np.allclose(policies.outputs(obs_NBO, None)[0], found)


def test_the_number_of_copies_stays_until_episodes_begin() -> None:
    policies = ActingPolicies.from_states(WALKER, [state(WALKER, 1, recurrent="gru")] * 2)
    policies.greedy(np.ones((2, 3, 3), np.float32), None)
    with pytest.raises(SpecError, match="walker remembers 3 episodes and got observations of 2; begin new ones"):
        policies.greedy(np.ones((2, 2, 3), np.float32), None)
    policies.begin(2)
    policies.greedy(np.ones((2, 2, 3), np.float32), None)
    forgetful = ActingPolicies.from_states(WALKER, [state(WALKER, 1, inputs=Inputs(known=WALKER.agents))] * 2)
    for batch in (3, 2, 0, 3):
        assert forgetful.greedy(np.ones((2, batch, 3), np.float32), None).shape == (2, batch)
    assert not forgetful.remembers


def test_states_that_do_not_fit_are_refused() -> None:
    gru, plain = state(WALKER, 1, recurrent="gru"), state(WALKER, 1)
    with pytest.raises(CorruptError, match="class walker: policies do not act in one way"):
        ActingPolicies.from_states(WALKER, [gru, plain])
    torn = {name: array for name, array in gru.acting.items() if name != "policy.1.memory.bias"}
    with pytest.raises(CorruptError, match=r"class walker: policy state: policy\.1\.memory\.bias is missing"):
        ActingPolicies.from_states(WALKER, [type(gru)(torn, gru.metadata)] * 2)
    with pytest.raises(CorruptError, match="holds no weights"):
        ActingPolicies.from_states(WALKER, [type(gru)({}, gru.metadata)] * 2)
    others = AgentClass("walker", ("a", "z"), 3, Discrete(3))
    with pytest.raises(CorruptError, match="tells a, b apart by their ids; it knows no z"):
        ActingPolicies.from_states(others, [state(WALKER, 1, inputs=BOTH)] * 2)
