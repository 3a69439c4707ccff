"""Logs of episodes by hand, and environments that are saved by them: PettingZoo's, and such as are broken."""

import numpy as np
import pytest
from gymnasium.spaces import Box as Observed
from gymnasium.spaces import Discrete as Chosen
from pettingzoo import ParallelEnv

from marless.core.errors import CorruptError, SpecError
from marless.learning.data.carry import decode, encode
from marless.learning.data.rollout import Lane
from marless.learning.envs import replayed
from marless.learning.envs.base import AgentClass, Box, Discrete
from marless.learning.envs.contract import check_env
from marless.learning.envs.pettingzoo.adapter import PettingZooEnv
from marless.learning.envs.replayed import EpisodeLog

CLASSES = (AgentClass("a", ("a_0", "a_1"), 1, Discrete(300)), AgentClass("b", ("b_0",), 1, Box((0.0,), (1.0,))))
NOBODY = np.array([False, False])


def log(*steps, seed=7):
    """A log of two copies; each step has the action of the first agent in copy 0, and the copies that ended."""
    made = EpisodeLog(CLASSES, 2)
    made.begin(seed)
    for action, ended in steps:
        discrete = np.array([[action, action + 1], [action + 2, action + 3]], np.int32)
        made.add((discrete, np.array([[[action / 8], [0.5]]], np.float32)), np.array(ended))
    return made


def test_a_save_holds_the_actions_of_the_present_episodes_only():
    # copy 0 ended after its second step, so it has only the third; copy 1 has all three
    arrays = log((10, NOBODY), (20, [True, False]), (30, NOBODY)).save()
    assert arrays["seed"].tolist() == [7]
    assert arrays["episode"].tolist() == [1, 0]
    assert arrays["steps"].tolist() == [1, 3]
    assert arrays["action/0"].dtype == np.uint16
    assert arrays["action/0"].tolist() == [[30, 32], [11, 13], [21, 23], [31, 33]]
    assert arrays["action/1"].dtype == np.float32
    assert arrays["action/1"].tolist() == [[[3.75]], [[0.5]], [[0.5]], [[0.5]]]


def test_few_choices_take_one_byte():
    made = EpisodeLog((AgentClass("a", ("a_0",), 1, Discrete(256)),), 1)
    made.add((np.array([[255]], np.int32),), np.array([False]))
    assert made.save()["action/0"].nbytes == 1
    assert made.actions(0)[0].dtype == np.int32
    assert made.actions(0)[0].tolist() == [[255]]


def test_a_loaded_log_goes_on_as_the_saved_one():
    made, other = log(*[(n, [n == 70, False]) for n in range(150)]), log((5, [True, True]), seed=1)
    other.load(made.save())
    assert [other.seed(b) for b in (0, 1)] == [made.seed(b) for b in (0, 1)]
    for each in (made, other):
        each.add((np.full((2, 2), 299, np.int32), np.zeros((1, 2, 1), np.float32)), np.array([False, True]))
    assert made.steps.tolist() == other.steps.tolist() == [80, 0]
    for name, array in made.save().items():
        assert np.array_equal(array, other.save()[name])
    assert [each[0, 0].item() for each in (made.actions(0)[0], made.actions(79)[0])] == [71, 299]


def test_seeds_depend_on_first_seed_copy_and_number_of_the_episode():
    before = log()
    after = log((1, [True, True]))
    seeds = [each.seed(b) for each in (before, after, log(seed=8)) for b in (0, 1)]
    assert len(set(seeds)) == 6
    assert seeds[:2] == [log().seed(b) for b in (0, 1)]
    assert all(0 <= seed < 2**31 for seed in seeds)


def changed(name, value):
    arrays = dict(log((10, NOBODY), (20, [True, False])).save())
    if value is None:
        del arrays[name]
    else:
        arrays[name] = value
    return arrays


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", None, "seed is missing"),
        ("steps", np.array([0, 3]), r"action/0 is uint16\[2, 2\], must be uint16\[3, 2\]"),
        ("steps", np.array([-1, 3]), "negative"),
        ("episode", np.array([-1, 0]), "negative"),
        ("action/1", None, "action/1 is missing"),
        ("action/0", np.zeros((2, 3), np.uint16), "action/0 is uint16"),
        ("action/0", np.full((2, 2), 300, np.uint16), "leaves the range 0…299"),
        ("action/1", np.full((2, 1, 1), np.nan, np.float32), "NaN"),
    ],
)
def test_saves_of_other_logs_are_refused(name, value, message):
    with pytest.raises(CorruptError, match=message):
        log().load(changed(name, value))


def test_an_episode_that_is_too_long_is_counted_but_not_saved(monkeypatch):
    step_bytes = 2 * 2 * 2 + 2 * 4
    monkeypatch.setattr(replayed, "MAX_CARRY_BYTES", 65 * step_bytes)
    most = log(*[(1, NOBODY)] * 65)
    long = log(*[(1, NOBODY)] * 66)
    assert len(most.save()["action/0"]) == 130
    with pytest.raises(SpecError, match=r"66 steps is too long .* set actors.episodes: fresh"):
        long.save()
    long.add((np.zeros((2, 2), np.int32), np.zeros((1, 2, 1), np.float32)), np.array([True, True]))
    assert not long.save()["steps"].any()
    arrays = most.save()
    monkeypatch.setattr(replayed, "MAX_CARRY_BYTES", 64 * step_bytes)
    with pytest.raises(CorruptError, match="longer than those that can be saved"):
        log().load(arrays)


class Walk(ParallelEnv):
    """Two agents on a random walk that they push; the second leaves early, and episodes have random lengths."""

    possible_agents = ["a_0", "a_1"]

    def observation_space(self, agent):
        return Observed(-np.inf, np.inf, (3,))

    def action_space(self, agent):
        return Chosen(3)

    def reset(self, seed=None, options=None):
        self.rng, self.at, self.steps = np.random.default_rng(seed), 0.0, 0
        self.agents = list(self.possible_agents)
        return self.seen(), {}

    def step(self, actions):
        self.at += sum(actions.values()) * self.rng.random()
        self.steps += 1
        acted, over = self.agents, self.rng.random() < 0.1
        ends = {a: over or (a == "a_1" and self.steps == 4) for a in acted}
        self.agents = [a for a in acted if not ends[a]]
        return self.seen(), dict.fromkeys(acted, self.at), ends, dict.fromkeys(acted, False), {}

    def seen(self):
        return {a: np.array([self.at, self.steps, self.rng.random()], np.float32) for a in self.possible_agents}

    def state(self):
        return np.array([self.at])


def walks(batch, kind=Walk):
    return PettingZooEnv([kind() for _ in range(batch)])


def test_environments_of_pettingzoo_are_saved_by_seed_and_actions():
    check_env(walks)


class Chance:
    """A policy that draws each action with equal probability."""

    def begin(self, batch):
        pass

    reset_memory = begin

    def sample(self, obs_NBO, mask_NBA, rng):
        return rng.integers(3, size=obs_NBO.shape[:2], dtype=np.int32), np.zeros(obs_NBO.shape[:2], np.float32)

    def to_env(self, action):
        return action


def rolled(lane, seed, steps=7):
    trajectory, stats = lane.roll([Chance()], steps=steps, seed=seed, with_state=True, index=0)
    return {name: array.copy() for name, array in trajectory.arrays.items()}, stats


def test_a_lane_of_a_pettingzoo_environment_goes_on_elsewhere():
    lane, moved = Lane(walks(3)), Lane(walks(3))
    lane.begin(4)
    rolled(lane, 0)
    data = encode(lane.save())
    moved.load(decode(data))
    assert encode(moved.save()) == data
    for seed in (1, 2, 3):
        (here, stats), (there, other) = rolled(lane, seed), rolled(moved, seed)
        assert stats == other
        assert here.keys() == there.keys()
        assert all(np.array_equal(here[name], there[name]) for name in here)
    assert encode(moved.save()) == encode(lane.save())


class Unseeded(Walk):
    """Takes its random numbers from a generator of its own that no seed reaches."""

    def reset(self, seed=None, options=None):
        return super().reset(np.random.SeedSequence().entropy)


class Remembering(Walk):
    """Begins each episode where its last one ended."""

    def reset(self, seed=None, options=None):
        before = getattr(self, "at", 0.0)
        super().reset(seed)
        self.at = before
        return self.seen(), {}


class Counted(Walk):
    """Ends earlier in each further episode of the process."""

    begun = 0

    def reset(self, seed=None, options=None):
        Counted.begun += 1
        return super().reset(seed)

    def step(self, actions):
        seen, rewards, ends, *rest = super().step(actions)
        if self.steps >= 30 - Counted.begun:
            self.agents, ends = [], dict.fromkeys(ends, True)
        return seen, rewards, ends, *rest


@pytest.mark.parametrize("kind", [Unseeded, Remembering])
def test_an_environment_that_is_not_deterministic_under_its_seed_is_found(kind):
    with pytest.raises(AssertionError, match="not deterministic under its seed"):
        check_env(lambda batch: walks(batch, kind))
    lane = Lane(walks(2, kind))
    lane.begin(1)
    rolled(lane, 1)
    with pytest.raises(SpecError, match=r"not deterministic .* set actors.episodes: fresh"):
        Lane(walks(2, kind)).load(lane.save())


def test_an_episode_that_ends_early_when_it_is_played_again_is_found():
    lane = Lane(walks(1, Counted))
    lane.begin(3)
    saved = lane.save()
    while saved.arrays["env/steps"][0] < 8:
        rolled(lane, 1, steps=1)
        saved = lane.save()
    Counted.begun = 27
    with pytest.raises(
        SpecError, match=r"copy 0 does not play .* it ended after \d steps.* set actors.episodes: fresh"
    ):
        Lane(walks(1, Counted)).load(saved)


def test_a_save_that_does_not_load_is_found():
    class Unloadable(PettingZooEnv):
        def load(self, arrays):
            raise KeyError("steps")

    with pytest.raises(AssertionError, match=r"loaded: load\(\) failed with KeyError.*actors.episodes: fresh"):
        check_env(lambda batch: Unloadable([Walk() for _ in range(batch)]))
