"""Similarity beside an update: what it is given, when, and that training does not notice."""

import dataclasses

import numpy as np
import pytest

from marless.core.group import Group
from marless.core.settings import Measure
from marless.learning.algos.training.similarity import begin, behaviour
from marless.learning.algos.training.table import tabulate
from marless.learning.nets.acting import ActingPolicies, ActingState, description
from marless.learning.nets.acting_heads import DETERMINISTIC, EPSILON_GREEDY
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import generator, layout
from marless.learning.nets.model import ModelSpec
from marless.learning.similarity.contract import check_similarity  # noqa: F401  # imports what a measurement needs, once
from marless.learning.similarity.measures import Choices, Normals, similarity
from tests.unit.learning.algos import rounds

KDE, POLICIES = (similarity(name).config_type(samples=16) for name in ("kde", "policy_distance"))
MLP, GRU = (ModelSpec(hidden=(6,), recurrent=kind) for kind in ("none", "gru"))
OBS = Inputs()
PAIRS = (Group("a", ("a", "b")), Group("c", ("c", "d")))


def table(spaces=rounds.DISCRETE, steps=6):
    trajectories = [rounds.trajectory(spaces, seed, steps=steps) for seed in (1, 2)]
    return tabulate(trajectories, spaces.classes.index(spaces.class_of("a")), False)


def states(learner, groups=rounds.INDEPENDENT):
    return {agent: learner.state(group.policy) for group in groups for agent in group.agents}


def seen(spaces=rounds.DISCRETE, samples=16, groups=rounds.INDEPENDENT, seed=0):
    learner = rounds.learner("ippo", spaces, groups)
    agents = spaces.class_of("a")
    return behaviour(table(spaces), agents, states(learner, groups), samples, np.random.default_rng(seed))


def test_samples_are_draws_of_living_agents_with_what_they_did_and_could_have_done():
    drawn, whole = seen(), table()
    assert drawn.obs.shape == (4, 16, 5)
    assert drawn.action.shape == drawn.legal.shape == (4, 16, 4)
    for agent in range(4):
        at = [np.flatnonzero((row == whole.obs[agent, :-1].T).all(axis=1)).item() for row in drawn.obs[agent]]
        assert len(set(at)) == 16, "without replacement"
        assert whole.alive[agent, 0, at].all()
        np.testing.assert_array_equal(drawn.action[agent].argmax(axis=1), whole.action[agent, 0, at])
        np.testing.assert_array_equal(drawn.legal[agent], whole.legal[agent][:, at].T > 0)
    assert (drawn.action.sum(axis=2) == 1).all()


def test_continuous_actions_are_taken_as_they_are():
    drawn, whole = seen(rounds.CONTINUOUS), table(rounds.CONTINUOUS)
    assert drawn.legal is None
    at = np.flatnonzero((drawn.obs[2, 0] == whole.obs[2, :-1].T).all(axis=1)).item()
    np.testing.assert_array_equal(drawn.action[2, 0], whole.action[2, :, at])


def test_draws_follow_from_the_generator():
    assert seen(seed=1).obs.tobytes() == seen(seed=1).obs.tobytes() != seen(seed=2).obs.tobytes()


def test_all_agents_give_as_many_samples_as_the_one_that_lived_least():
    living = table().alive[:, 0].sum(axis=1)
    assert seen(samples=500).obs.shape[1] == living.min() < living.max()


def test_too_few_samples_say_nothing():
    few = table(steps=1)
    learner = rounds.learner("ippo", rounds.DISCRETE, rounds.INDEPENDENT)
    agents = rounds.DISCRETE.class_of("a")
    assert behaviour(few, agents, states(learner), 16, np.random.default_rng(0)) is None


@pytest.mark.parametrize("groups", [rounds.INDEPENDENT, PAIRS, (Group("a", rounds.AGENTS),)])
def test_policies_are_evaluated_on_anything(groups):
    drawn = seen(groups=groups)
    obs, legal = drawn.obs[0], drawn.legal[0]
    found = drawn.policies(obs, legal)
    assert isinstance(found, Choices)
    np.testing.assert_allclose(found.probability.sum(axis=2), 1, rtol=1e-5)
    assert (found.probability[:, ~legal] < 1e-6).all()
    state = rounds.learner("ippo", rounds.DISCRETE, groups).state("c" if len(groups) > 1 else "a")
    alone = ActingPolicies.from_states(rounds.DISCRETE.class_of("a"), [ActingState(state.acting, state.metadata)] * 4)
    logits, _ = alone.outputs(*(np.broadcast_to(each, (4, *each.shape)) for each in (obs, legal)))
    np.testing.assert_allclose(
        found.probability[2], np.exp(logits[0]) / np.exp(logits[0]).sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-7
    )


def test_normal_policies_give_means_and_spreads():
    drawn = seen(rounds.CONTINUOUS, groups=PAIRS)
    found = drawn.policies(drawn.obs[0], None)
    assert isinstance(found, Normals)
    assert found.mean.shape == found.std.shape == (4, 16, 2)
    np.testing.assert_array_equal(found.mean[0], found.mean[1])
    assert (found.std > 0).all()


# Policies of other families


def made(agent_class, model=MLP, seen=OBS, **acts):
    """A policy state per agent, with weights of its own."""
    layout_ = layout(seen.size(agent_class), model, agent_class.action.n)
    metadata = description(agent_class, model, inputs=seen, **acts)
    explores = {"exploration": np.array([0.5], np.float32)} if acts else {}
    return {
        agent: ActingState(layout_.to_arrays("policy", layout_.initial(generator(3, agent), 1.0)) | explores, metadata)
        for agent in agent_class.agents
    }


def shown(spaces, states, samples=16):
    return behaviour(table(spaces), spaces.class_of("a"), states, samples, np.random.default_rng(0))


def test_epsilon_greedy_policies_are_shown_by_their_greedy_actions():
    agents = rounds.DISCRETE.class_of("a")
    states = made(agents, acts=EPSILON_GREEDY)
    drawn = shown(rounds.DISCRETE, states)
    found = drawn.policies(drawn.obs[1], drawn.legal[1])
    assert isinstance(found, Choices)
    assert set(np.unique(found.probability)) == {0.0, 1.0}
    alone = ActingPolicies.from_states(agents, list(states.values()))
    best = alone.greedy(*(np.broadcast_to(each, (4, *each.shape)) for each in (drawn.obs[1], drawn.legal[1])))
    np.testing.assert_array_equal(found.probability.argmax(axis=2), best)


def test_deterministic_policies_are_shown_by_their_actions_without_noise():
    agents = rounds.CONTINUOUS.class_of("a")
    states = made(agents, acts=DETERMINISTIC)
    drawn = shown(rounds.CONTINUOUS, states)
    found = drawn.policies(drawn.obs[1], None)
    assert isinstance(found, Normals)
    assert (found.std == 0).all()
    alone = ActingPolicies.from_states(agents, list(states.values()))
    np.testing.assert_allclose(found.mean, alone.greedy(np.broadcast_to(drawn.obs[1], (4, 16, 5)), None), rtol=1e-6)
    distances = similarity("policy_distance").make(POLICIES).distances(drawn, np.random.default_rng(0))
    assert (distances[~np.eye(4, dtype=bool)] > 0).all()


def test_what_an_agent_did_last_is_seen_and_nothing_where_it_begins_anew():
    agents, whole = rounds.DISCRETE.class_of("a"), table()
    drawn = shown(rounds.DISCRETE, made(agents, seen=Inputs(last_action=True)))
    assert drawn.obs.shape == (4, 16, 5 + 4)
    batch = whole.cut.shape[1]
    starts = 0
    for agent in range(4):
        for obs in drawn.obs[agent]:
            at = np.flatnonzero((obs[:5] == whole.obs[agent, :-1].T).all(axis=1)).item()
            start = at < batch or whole.cut.ravel()[at - batch] or not whole.alive[agent, 0, at - batch]
            expected = np.zeros(4) if start else np.eye(4)[int(whole.action[agent, 0, at - batch])]
            np.testing.assert_array_equal(obs[5:], expected)
            starts += start
    assert 0 < starts < 64


def test_each_policy_is_asked_with_the_id_of_its_own_agent():
    agents = rounds.DISCRETE.class_of("a")
    seen = Inputs(last_action=True, known=agents.agents)
    states = made(agents, seen=seen)
    drawn = shown(rounds.DISCRETE, states)
    assert drawn.obs.shape == (4, 16, 5 + 4), "an id is no part of what was seen"
    found = drawn.policies(drawn.obs[1], drawn.legal[1])
    input_I = np.concatenate([drawn.obs[1, 0], np.eye(4, dtype=np.float32)[2]])
    weights = states["c"].acting
    hidden = np.tanh(weights["policy.0.weight"] @ input_I + weights["policy.0.bias"])
    logits = weights["policy.1.weight"] @ hidden + weights["policy.1.bias"]
    expected = np.where(drawn.legal[1, 0], np.exp(logits), 0)
    np.testing.assert_allclose(found.probability[2, 0], expected / expected.sum(), rtol=1e-4, atol=1e-7)


def test_policies_with_memory_are_asked_as_at_the_start_of_an_episode():
    drawn = shown(rounds.DISCRETE, made(rounds.DISCRETE.class_of("a"), GRU))
    once, again = (drawn.policies(drawn.obs[0], drawn.legal[0]).probability for _ in range(2))
    np.testing.assert_array_equal(once, again)
    turned = drawn.policies(drawn.obs[0][::-1], drawn.legal[0][::-1]).probability[:, ::-1]
    np.testing.assert_allclose(turned, once, rtol=1e-5)


def inputs(config, groups=rounds.INDEPENDENT, number=3):
    made = rounds.inputs(groups, [rounds.trajectory(rounds.DISCRETE, seed) for seed in (1, 2)], number)
    return dataclasses.replace(made, measure=Measure(similarity=config))


def test_nothing_is_measured_that_was_not_asked_for():
    pending = begin(inputs(None), rounds.DISCRETE.class_of("a"), table, pytest.fail)
    assert pending.result() == ({}, ())


@pytest.mark.parametrize("config", [KDE, POLICIES])
def test_a_measurement_gives_distances_and_what_it_took(config):
    learner, agents = rounds.learner("ippo", rounds.DISCRETE, rounds.INDEPENDENT), rounds.DISCRETE.class_of("a")
    results = [begin(inputs(config), agents, table, learner.state).result() for _ in range(2)]
    distances, (run,) = results[0]
    assert distances["walker"].shape == (4, 4)
    assert distances["walker"].tobytes() == results[1][0]["walker"].tobytes()
    assert (run.function, run.name) == ("similarity", "walker")
    assert run.vcpu_s >= 0
    assert run.start_s <= run.end_s
    other = begin(inputs(config, number=4), agents, table, learner.state).result()[0]
    assert other["walker"].tobytes() != distances["walker"].tobytes(), "every round draws anew"


@pytest.mark.parametrize("algorithm", ["ippo", "mappo"])
@pytest.mark.parametrize("config", [KDE, POLICIES])
def test_an_update_trains_as_it_would_have_and_measures_the_policies_that_acted(algorithm, config):
    plain, measured = (rounds.learner(algorithm, rounds.DISCRETE, rounds.INDEPENDENT) for _ in range(2))
    acted = {group.policy: measured.state(group.policy) for group in rounds.INDEPENDENT}
    with_, without = measured.update(inputs(config)), plain.update(inputs(None))
    for name in plain.names(rounds.INDEPENDENT):
        assert rounds.flat(plain.state(name)) == rounds.flat(measured.state(name))
    assert without.distances == {}
    assert not [run for run in without.runs if run.function == "similarity"]
    assert [run.name for run in with_.runs if run.function == "similarity"] == ["walker"]
    agents = rounds.DISCRETE.class_of("a")
    expected, _ = begin(inputs(config), agents, table, acted.__getitem__).result()
    np.testing.assert_array_equal(with_.distances["walker"], expected["walker"])
