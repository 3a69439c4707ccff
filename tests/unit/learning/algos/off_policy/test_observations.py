"""Normalised observations in learners with a replay: whose statistics, when they change, and what they do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marless.core.errors import CorruptError
from marless.core.group import Group
from marless.learning.envs.base import Discrete
from marless.learning.nets.model import ModelSpec
from marless.learning.nets.normalising import added, centre_and_scale
from tests.unit.learning.algos import rounds
from tests.unit.learning.algos.ppo.test_observations import MODEL, PAIRS, shifted, walkers
from tests.unit.learning.algos.solving import Trained
from tests.unit.learning.algos.test_learning import _OneStep

FAST = {"batch": 16, "updates": 3, "warmup": 50, "replay": {"capacity": 400}}
"""One round, of 30 env steps, is too little to begin."""
TEAM = (Group("s", ("s",)), *PAIRS)
KINDS = pytest.mark.parametrize(
    ("name", "spaces"),
    [
        ("iql", rounds.DISCRETE),
        ("qmix", rounds.DISCRETE),
        ("iddpg", rounds.DISCRETE),
        ("maddpg", rounds.CONTINUOUS),
        ("sac", rounds.CONTINUOUS),
    ],
)


def groups_of(name):
    return TEAM if name == "qmix" else PAIRS


def ended(spaces, seed):
    """The same, and all agents terminate where an episode has no last view, which is zeros, normalised or not."""
    found = shifted(spaces, seed)
    arrays = dict(found.arrays)
    last_TB = arrays["cut"].copy()
    last_TB.ravel()[arrays["boot_index"]] = False
    for k in range(len(spaces.classes)):
        arrays[f"terminated/{k}"] = arrays[f"terminated/{k}"] | last_TB[:, None]
    return replace(found, arrays=arrays)


@KINDS
def test_every_policy_has_the_sums_of_all_samples_of_its_class(name, spaces):
    groups, k = groups_of(name), walkers(spaces)
    learner = rounds.learner(name, spaces, groups, model=MODEL, **FAST)
    given = [shifted(spaces, seed) for seed in range(3)]
    for number, trajectory in enumerate(given):
        learner.update(rounds.inputs(groups, [trajectory], number))
    learner.update(rounds.inputs(groups, [given[-1]], 2))  # a round that is repeated after a crash counts once
    seen = added((each[f"obs/{k}"], each.alive(k)) for each in given)
    for group in PAIRS:
        np.testing.assert_allclose(learner.state(group.policy).acting["policy.seen"], seen, rtol=1e-12)
    replay = next(name for name in learner.names(groups) if name.startswith("replay."))
    np.testing.assert_allclose(learner.state(replay).learning[f"seen.{k}"], seen, rtol=1e-12)
    if name == "qmix":
        states = added((each["state"], None) for each in given)
        np.testing.assert_allclose(learner.state(replay).learning["seen.state"], states, rtol=1e-12)


@KINDS
def test_an_update_is_that_of_a_replay_which_was_normalised_before(name, spaces):
    """A learner that takes observations as they are, on observations normalised by hand, comes to the same bits."""
    groups = groups_of(name)
    learner, plain = (rounds.learner(name, spaces, groups, model=model, **FAST) for model in (MODEL, rounds.MODEL))
    given, clip = [ended(spaces, seed) for seed in (0, 5)], MODEL.observation_clip
    sums = {f"obs/{k}": added((each[f"obs/{k}"], each.alive(k)) for each in given) for k in range(len(spaces.classes))}
    sums |= {"state": added((each["state"], None) for each in given)}
    for number, trajectory in enumerate(given):
        by_hand = dict(trajectory.arrays)
        for key, found in sums.items():
            centre, scale = centre_and_scale(found)
            for each in (key, f"boot_{key}"):
                by_hand[each] = np.clip((by_hand[each] - centre) * scale, -clip, clip)
        learner.update(rounds.inputs(groups, [trajectory], number))
        plain.update(rounds.inputs(groups, [replace(trajectory, arrays=by_hand)], number))
    trained = 0
    for each in plain.names(groups):
        if not each.startswith("replay."):
            ours, theirs = learner.state(each), plain.state(each)
            for what in ("acting", "learning"):
                for key, array in getattr(theirs, what).items():
                    np.testing.assert_array_equal(getattr(ours, what)[key], array, err_msg=f"{each} {key}")
                    trained += key.endswith(".count") and array > 0
    assert trained


@KINDS
def test_a_learner_goes_on_from_states_with_the_same_bits(name, spaces):
    groups = groups_of(name)
    first, second = (rounds.learner(name, spaces, groups, model=MODEL, **FAST) for _ in range(2))
    given = [rounds.inputs(groups, [shifted(spaces, seed)], seed) for seed in range(3)]
    first.update(given[0])
    first.update(given[1])
    second.update(given[0])
    for each in first.names(groups):
        state = first.state(each)
        if not each.startswith("replay."):
            second.load(each, state)
    second.update(given[1])  # its replay has the samples; states of policies come from elsewhere
    for each in first.names(groups):
        if each.startswith("replay."):
            assert rounds.flat(second.state(each)) == rounds.flat(first.state(each))


def test_a_job_that_begins_from_policies_of_another_one_goes_on_with_their_statistics():
    spaces = rounds.CONTINUOUS
    old, new = (rounds.learner("iddpg", spaces, PAIRS, model=MODEL, **FAST) for _ in range(2))
    old.update(rounds.inputs(PAIRS, [shifted(spaces, 0)]))
    for group in PAIRS:
        new.load(group.policy, old.state(group.policy))
    new.update(rounds.inputs(PAIRS, [shifted(spaces, 1)]))
    both = added((shifted(spaces, seed)["obs/0"], None) for seed in (0, 1))
    np.testing.assert_allclose(new.state("x").acting["policy.seen"], both, rtol=1e-12)


def test_states_without_statistics_are_refused():
    learner = rounds.learner("iddpg", rounds.CONTINUOUS, PAIRS, model=MODEL, **FAST)
    state = learner.state("x")
    with pytest.raises(CorruptError, match=r"x: policy\.seen is missing or not float64\[5, 3\]"):
        learner.load("x", replace(state, acting={k: v for k, v in state.acting.items() if k != "policy.seen"}))
    replay = next(name for name in learner.names(PAIRS) if name.startswith("replay."))
    with pytest.raises(CorruptError, match=r"no sums seen\.0"):
        state = learner.state(replay)
        learner.load(replay, replace(state, learning={k: v for k, v in state.learning.items() if k != "seen.0"}))


class Faint(_OneStep):
    """What is to be told apart differs by a hundredth, far from 0."""

    def _frame(self):
        frame = super()._frame()
        return replace(frame, obs=(100 + frame.obs[0] / 100,), state=100 + frame.state / 100)


@pytest.mark.parametrize(("name", "rates"), [("iql", {"lr": 5e-3}), ("iddpg", {"lr": 2e-3, "critic_lr": 2e-2})])
def test_what_is_faint_and_far_from_zero_is_learned(name, rates):
    """A policy that does not see it, and chance, answer one of four right."""

    def earned(**model):
        settings = {"name": name, "updates": 20, "batch": 64, "warmup": 100, "target_tau": 0.1, **rates}
        team = Trained(Faint(64, Discrete(4)), settings, seed=0, model=ModelSpec(hidden=(32,), **model))
        team.train(rounds=45, steps=4)
        found = team.greedy(episodes=200)
        return found.return_sum["a"] / found.episodes

    assert earned(normalise_observations=True) > 0.9
    assert earned() < 0.6
