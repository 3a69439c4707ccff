"""Normalised observations in learners of the PPO family: whose statistics, when they change, and what they do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marless.core.group import Group
from marless.core.settings import Measure
from marless.learning.aggregation.applying import applied
from marless.learning.algos.registry import algorithm
from marless.learning.envs.base import Discrete
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec
from marless.learning.nets.normalising import added, centre_and_scale
from tests.unit.learning.algos import rounds
from tests.unit.learning.algos.solving import Trained
from tests.unit.learning.algos.test_learning import _OneStep

PAIRS = (Group("x", ("a", "c")), Group("y", ("b",)), Group("z", ("d",)))
ONE_STEP = {"epochs": 1, "minibatches": 1}
MODEL = ModelSpec(hidden=(16, 8), normalise_observations=True, observation_clip=2.0)
KINDS = pytest.mark.parametrize(("name", "settings"), [("ippo", {}), ("mappo", {}), ("mappo", {"critic": "per_agent"})])


def walkers(spaces):
    return len(spaces.classes) - 1


def shifted(spaces, seed):
    """A made-up trajectory whose observations and state are far from 0, each by another distance and deviation."""
    found = rounds.trajectory(spaces, seed)
    arrays = dict(found.arrays)
    for name in [each for each in arrays if each.removeprefix("boot_").startswith(("obs/", "state"))]:
        inputs = np.arange(1, arrays[name].shape[-1] + 1, dtype=np.float32)
        arrays[name] = arrays[name] * 10 ** (inputs - 3) + 100 * inputs
    return replace(found, arrays=arrays)


@KINDS
@pytest.mark.parametrize("spaces", [rounds.DISCRETE, rounds.CONTINUOUS], ids=["discrete", "continuous"])
def test_an_update_adds_the_samples_of_the_whole_class_to_every_policy(name, settings, spaces):
    learner, k = rounds.learner(name, spaces, PAIRS, model=MODEL, **ONE_STEP, **settings), walkers(spaces)
    first, second = ([shifted(spaces, seed), shifted(spaces, seed + 1)] for seed in (0, 2))
    for number, trajectories in enumerate([first, second]):
        learner.update(rounds.inputs(PAIRS, trajectories, number))
    everything = [*first, *second]
    seen = added((each[f"obs/{k}"], each.alive(k)) for each in everything)
    states = {each: learner.state(each) for each in learner.names(PAIRS)}
    for group in PAIRS:
        np.testing.assert_allclose(states[group.policy].acting["policy.seen"], seen, rtol=1e-12)
    judged = [state.learning["critic.seen"] for state in states.values() if "critic.seen" in state.learning]
    assert len(judged) == {"ippo": 0, "mappo": 1}[name] or len(judged) == len(PAIRS)
    for each in judged:
        np.testing.assert_allclose(each, added((one["state"], None) for one in everything), rtol=1e-12)


@KINDS
def test_an_update_is_that_of_trajectories_which_were_normalised_before(name, settings):
    """Bit for bit: a learner that takes observations as they are, on observations normalised by hand."""
    spaces, k = rounds.CONTINUOUS, 0
    learner = rounds.learner(name, spaces, PAIRS, model=MODEL, **settings)
    learner.update(rounds.inputs(PAIRS, [shifted(spaces, 0)]))
    plain = rounds.learner(name, spaces, PAIRS, **settings)
    clip, by_hand = MODEL.observation_clip, dict(shifted(spaces, 5).arrays)
    for each in learner.names(PAIRS):
        state = learner.state(each)
        kept = {
            what: {key: array for key, array in getattr(state, what).items() if not key.endswith(".seen")}
            for what in ("acting", "learning")
        }
        metadata = {key: value for key, value in state.metadata.items() if key != "normalise"}
        plain.load(each, replace(state, **kept, metadata=metadata))
    of_policies = learner.state("x").acting["policy.seen"]
    of_state = added([(shifted(spaces, 0)["state"], None)])
    for key, sums in {
        f"obs/{k}": of_policies,
        f"boot_obs/{k}": of_policies,
        "state": of_state,
        "boot_state": of_state,
    }.items():
        centre, scale = centre_and_scale(sums)
        by_hand[key] = np.clip((by_hand[key] - centre) * scale, -clip, clip)
    trajectory = shifted(spaces, 5)
    learner.update(rounds.inputs(PAIRS, [trajectory], 1))
    plain.update(rounds.inputs(PAIRS, [replace(trajectory, arrays=by_hand)], 1))
    for each in learner.names(PAIRS):
        ours, theirs = learner.state(each), plain.state(each)
        for what in ("acting", "learning"):
            for key, array in getattr(theirs, what).items():
                np.testing.assert_array_equal(getattr(ours, what)[key], array, err_msg=f"{each} {key}")


@KINDS
def test_an_update_of_one_step_is_gradients_applied(name, settings):
    spaces = rounds.DISCRETE
    updated, gave, stepped = (
        rounds.learner(name, spaces, PAIRS, model=MODEL, **ONE_STEP, **settings) for _ in range(3)
    )
    config = algorithm(name).config_type.model_validate({"name": name, **ONE_STEP, **settings})
    for number in range(3):
        given = rounds.inputs(PAIRS, [shifted(spaces, 7 + number)], number)
        updated.update(given)
        found = gave.gradients(given).gradients
        for each in updated.names(PAIRS):
            without = applied(stepped.state(each), [found[each]], [1.0], config.net_steps(given.env_steps))
            stepped.apply(each, found[each], given.env_steps)
            assert rounds.flat(stepped.state(each)) == rounds.flat(updated.state(each)), (number, each)
            for what in ("acting", "learning"):  # the parameter store, which has no torch, does the same
                for key, array in getattr(stepped.state(each), what).items():
                    np.testing.assert_allclose(getattr(without, what)[key], array, rtol=2e-4, atol=2e-5, err_msg=key)
            gave.load(each, stepped.state(each))


def test_gradients_change_no_statistics():
    learner = rounds.learner("ippo", rounds.DISCRETE, PAIRS, model=MODEL, **ONE_STEP)
    before = rounds.flat(learner.state("x"))
    learner.gradients(rounds.inputs(PAIRS, [shifted(rounds.DISCRETE, 0)]))
    assert rounds.flat(learner.state("x")) == before


def test_a_group_goes_on_with_the_statistics_of_the_policy_that_it_starts_from():
    spaces = rounds.CONTINUOUS
    learner = rounds.learner("ippo", spaces, rounds.INDEPENDENT, model=MODEL, **ONE_STEP)
    learner.update(rounds.inputs(rounds.INDEPENDENT, [shifted(spaces, 0)]))
    merged = (Group("a", ("a", "b"), "b"), Group("c", ("c",)), Group("d", ("d",)))
    learner.update(rounds.inputs(merged, [shifted(spaces, 1)], 1))
    seen = [learner.state(each.policy).acting["policy.seen"] for each in merged]
    np.testing.assert_allclose(seen[0], added((shifted(spaces, seed)["obs/0"], None) for seed in (0, 1)))
    np.testing.assert_array_equal(seen[0], seen[1])


def test_actors_and_learners_find_the_same_probabilities():
    """What an actor records is what the learner computes of it before its first step: the KL divergence is 0."""
    spaces = rounds.CONTINUOUS
    learner = rounds.learner("ippo", spaces, rounds.INDEPENDENT, model=MODEL, **ONE_STEP, lr=0.0)
    learner.update(rounds.inputs(rounds.INDEPENDENT, [shifted(spaces, 0)]))
    trajectory = shifted(spaces, 3)
    agents = spaces.classes[0]
    policies = ActingPolicies.from_states(agents, [learner.state(agent) for agent in agents.agents])
    obs_TNBO = trajectory["obs/0"]
    found = [policies.sample(obs_NBO, None, np.random.default_rng(t)) for t, obs_NBO in enumerate(obs_TNBO)]
    arrays = {
        "action/0": np.stack([action for action, _ in found]),
        "log_prob/0": np.stack([each for _, each in found]),
    }
    acted = replace(trajectory, arrays={**trajectory.arrays, **arrays})
    output = learner.update(rounds.inputs(rounds.INDEPENDENT, [acted], 1))
    assert all(abs(output.metrics[agent]["approx_kl"]) < 1e-9 for agent in agents.agents)


@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_impact_counts_each_round_once(recurrent):
    """It trains on the batches of several rounds, again and again."""
    spaces = rounds.CONTINUOUS
    model = ModelSpec(hidden=(8,), normalise_observations=True, recurrent=recurrent)
    learner = rounds.learner("impact", spaces, PAIRS, model=model, batches=2, **ONE_STEP)
    for number in range(3):
        learner.update(rounds.inputs(PAIRS, [shifted(spaces, number)], number))
    count = learner.state("x").acting["policy.seen"][0, 0]
    assert count == 3 * shifted(spaces, 0)["obs/0"][..., 0].size


def test_measurements_see_normalised_inputs():
    spaces = rounds.DISCRETE
    learner = rounds.learner("ippo", spaces, rounds.INDEPENDENT, model=MODEL, **ONE_STEP)
    given = replace(rounds.inputs(rounds.INDEPENDENT, [shifted(spaces, 0)]), measure=Measure(noise=True))
    assert "noise_scale" in learner.update(given).metrics["a"]


class Faint(_OneStep):
    """What is to be told apart differs by a hundredth, far from 0."""

    def _frame(self):
        frame = super()._frame()
        return replace(frame, obs=(100 + frame.obs[0] / 100,), state=100 + frame.state / 100)


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_what_is_faint_and_far_from_zero_is_learned(name):
    """A policy that does not see it, and chance, answer one of four right."""

    def earned(**model):
        settings = {"name": name, "lr": 5e-3, "entropy": 0.0}
        team = Trained(Faint(64, Discrete(4)), settings, seed=0, model=ModelSpec(hidden=(32,), **model))
        team.train(rounds=25, steps=4)
        found = team.greedy(episodes=200)
        return found.return_sum["a"] / found.episodes

    assert earned(normalise_observations=True) > 0.9
    assert earned() < 0.6
