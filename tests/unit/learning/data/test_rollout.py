"""Rollouts of the scripted environment against numbers worked out by hand."""

import time
from dataclasses import replace

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless.learning.data.rollout import play, rollout
from marless.learning.data.trajectory import TrajectorySchema
from marless.learning.envs.mpe.moving import SimpleSpread, SpreadOptions
from tests.memoryless import Memoryless
from tests.scripted_env import ScriptedEnv

STEPS = 5


class Highest(Memoryless):
    """Takes the highest legal action; tells the environment something else, to see which is stored."""

    def sample(self, obs_NBO, mask_NBA, rng):
        return self.greedy(obs_NBO, mask_NBA), obs_NBO.sum(axis=-1) - 7

    def greedy(self, obs_NBO, mask_NBA):
        return 2 - mask_NBA[..., ::-1].argmax(axis=-1).astype(np.int32)

    def to_env(self, action):
        return action + 10


@pytest.fixture
def rolled():
    env = ScriptedEnv()
    trajectory, stats = rollout(env, [Highest()], steps=STEPS, seed=3, with_state=True)
    return env, trajectory, stats


def test_arrays_fit_the_schema(rolled):
    env, trajectory, _ = rolled
    TrajectorySchema(env.spaces, STEPS, 2, with_state=True).check(trajectory)


def test_segments_are_cut_where_episodes_or_the_rollout_end(rolled):
    _, trajectory, _ = rolled
    cut_copy_0, cut_copy_1 = trajectory["cut"].T.tolist()
    assert cut_copy_0 == [False, False, True, False, True]
    assert cut_copy_1 == [False, True, False, True, True]


def test_bootstrap_rows_hold_what_was_seen_before_the_reset(rolled):
    _, trajectory, _ = rolled
    # Copy 0 is truncated at t=2 (flat 4); the rollout cuts both copies at t=4 (flat 8, 9). Copy 1 ended at t=1 and
    # t=3 because all had terminated: no rows.
    assert trajectory["boot_index"].tolist() == [4, 8, 9]
    assert trajectory["boot_obs/0"].tolist() == [
        [[0, 3, 1], [1, 2, 1], [2, 1, 1]],
        [[0, 3, 2], [1, 2, 2], [0, 0, 0]],
    ]
    assert trajectory["boot_state"].tolist() == [[1, 0, 3], [1, 1, 2], [2, 2, 1]]
    third_NK = trajectory["boot_mask/0"][..., 2]  # legal at even steps: these are 3, 2 and 1
    assert third_NK.tolist() == [[False, True, False]] * 2
    assert trajectory["boot_mask/0"][..., :2].all()


def test_views_are_those_before_acting_also_after_a_reset(rolled):
    _, trajectory, _ = rolled
    obs = trajectory["obs/0"]
    assert obs[:, 0, 0].tolist() == [[0, 0, 1], [0, 1, 1], [0, 2, 1], [1, 0, 1], [1, 1, 1]]
    assert obs[:, 1, 1].tolist() == [[0, 0, 2], [0, 0, 0], [1, 0, 2], [0, 0, 0], [2, 0, 2]]
    assert trajectory["state"][:, 1].tolist() == [[2, 0, 0], [2, 0, 1], [2, 1, 0], [2, 1, 1], [2, 2, 0]]
    assert trajectory["mask/0"][:, 0, 0, 2].tolist() == [True, False, True, True, False]


def test_deaths_rewards_and_actions_are_recorded(rolled):
    env, trajectory, _ = rolled
    assert trajectory["alive/0"][:, 1, 1].tolist() == [True, False, True, False, True]
    assert trajectory["terminated/0"][:, 1, 1].tolist() == [True, False, True, False, True]
    assert trajectory["terminated/0"][:, 0, 1].tolist() == [False, True, False, True, False]
    assert trajectory["reward/0"][:, 0, 1].tolist() == [10, 11, 10, 11, 10]
    assert trajectory["reward/0"][:, 1, 1].tolist() == [20, 0, 20, 0, 20]
    assert trajectory["action/0"][:, 0, 0].tolist() == [2, 1, 2, 2, 1]
    assert trajectory["log_prob/0"][:, 0, 0].tolist() == [-6, -5, -4, -5, -4]
    assert np.array_equal(np.stack(env.received), trajectory["action/0"] + 10)


class Told(Highest):
    """Notes what it is told of episodes, and between which steps."""

    def __init__(self):
        self.notes = []

    def begin(self, batch):
        self.notes.append(("begin", batch))

    def reset_memory(self, anew_NB):
        self.notes.append(("forget", anew_NB.tolist()))

    def greedy(self, obs_NBO, mask_NBA):
        self.notes.append("step")
        return super().greedy(obs_NBO, mask_NBA)


@pytest.mark.parametrize("run", ["rollout", "play"])
def test_policies_are_told_where_episodes_begin_and_end(run):
    told = Told()
    if run == "rollout":
        rollout(ScriptedEnv(), [told], steps=STEPS, seed=3, with_state=False)
    else:
        play(ScriptedEnv(), [told], episodes=3, seed=3)  # two of copy 0, which needs six steps for them
    one, other = ("forget", [[True, False]] * 2), ("forget", [[False, True]] * 2)
    until_5 = [("begin", 2), "step", "step", other, "step", one, "step", other, "step"]
    assert told.notes == (until_5 if run == "rollout" else [*until_5, "step", ("forget", [[True, True]] * 2)])


class Leaving(ScriptedEnv):
    """Agent a is absent in copy 0 before its second step; the arrays of frames are used again, as PettingZoo's are."""

    def __init__(self):
        super().__init__()
        self.spaces = replace(self.spaces, deaths=True)
        self._alive_NB = np.ones((2, 2), np.bool_)

    def reset(self, seed):
        self.steps = 0
        return replace(super().reset(seed), alive=(self._alive_NB,))

    def step(self, actions):
        found = super().step(actions)
        self.steps += 1
        self._alive_NB[0, 0] = self.steps != 1
        return replace(found, frame=replace(found.frame, alive=(self._alive_NB,)))


def test_policies_are_told_which_agents_come_back():
    told = Told()
    rollout(Leaving(), [told], steps=3, seed=3, with_state=False)
    back, ended = ("forget", [[True, True], [False, True]]), ("forget", [[True, False]] * 2)
    assert told.notes == [("begin", 2), "step", "step", back, "step", ended]


def test_stats_sum_over_ended_episodes_only(rolled):
    *_, stats = rolled
    # Copy 0: one episode, a earns 10+11+12, b 20+21+22. Copy 1: two episodes, a earns 10+11 in each, b 20.
    assert (stats.env_steps, stats.episodes, stats.episode_steps) == (10, 3, 3 + 2 + 2)
    assert stats.return_sum == {"a": 33 + 2 * 21, "b": 63 + 2 * 20}
    assert stats.return_scatter == {"a": 2 / 3 * (33 - 21) ** 2, "b": pytest.approx(2 / 3 * (63 - 20) ** 2)}
    assert stats.mean_scatter == pytest.approx(2 / 3 * (48 - 20.5) ** 2)


class Scripted:
    """Copy 0 wins from its second episode on, copy 1 every one; episodes of copy 0 take longer."""

    def __init__(self):
        self.inner = ScriptedEnv()
        self.batch, self.spaces = self.inner.batch, self.inner.spaces

    def reset(self, seed):
        self.ended_B = np.zeros(2, np.int64)
        return self.inner.reset(seed)

    def step(self, actions):
        step = self.inner.step(actions)
        self.ended_B += step.ended
        return replace(step, won=step.ended & (self.ended_B >= [2, 1]))


def test_wins_are_counted_of_the_episodes_that_count():
    # Of 3 episodes copy 0 plays two and wins its second, copy 1 plays one and wins it; what it wins later is not asked.
    three, two = (play(Scripted(), None, episodes=n, seed=0) for n in (3, 2))
    assert (three.judged, three.wins) == (3, 2)
    assert (two.judged, two.wins) == (2, 1)  # copy 0 plays one, and does not win it


class Faulty(Scripted):
    """A fault ends the first episode of copy 1."""

    def step(self, actions):
        step = super().step(actions)
        broken_B = step.ended & (self.ended_B == 1) & [False, True]
        return replace(step, truncated=step.truncated | broken_B, broken=broken_B)


def test_episodes_that_a_fault_has_ended_do_not_count_and_are_made_up_for():
    stats = play(Faulty(), None, episodes=2, seed=0)
    assert (stats.episodes, stats.judged, stats.episode_steps) == (2, 2, 3 + 2)
    assert stats.env_steps == 2 * 4, "copy 1 plays two episodes of 2 steps, of which one counts"
    assert stats.broken == 1


class Lives(Scripted):
    """The first episode of each copy, and its second, are parts of one game."""

    def step(self, actions):
        step = super().step(actions)
        return replace(step, unfinished=step.ended & (self.ended_B == 1))


def test_episodes_that_are_parts_of_a_whole_count_as_one():
    stats = play(Lives(), None, episodes=2, seed=0)
    assert (stats.episodes, stats.episode_steps) == (2, 2 * 3 + 2 * 2)
    assert stats.return_sum == {"a": 2 * 33 + 2 * 21, "b": 2 * 63 + 2 * 20}


def test_episodes_of_an_environment_without_wins_are_not_judged(rolled):
    *_, stats = rolled
    assert (stats.judged, stats.wins) == (0, 0)


@pytest.mark.parametrize("policies", [[Highest()], None])
def test_play_counts_exactly_so_many_episodes_and_no_more_short_ones(policies):
    # 5 episodes over 2 copies: 3 of copy 0 (3 steps), 2 of copy 1 (2 steps). The first five to end would be
    # 2 of copy 0 and 3 of copy 1.
    stats = play(ScriptedEnv(), policies, episodes=5, seed=0)
    assert (stats.episodes, stats.episode_steps) == (5, 3 * 3 + 2 * 2)
    assert stats.return_sum == {"a": 3 * 33 + 2 * 21, "b": 3 * 63 + 2 * 20}


def test_fewer_episodes_than_copies():
    assert play(ScriptedEnv(), None, episodes=1, seed=0).return_sum == {"a": 33, "b": 63}


def test_random_play_takes_every_legal_action_and_no_other():
    env = ScriptedEnv()
    play(env, None, episodes=200, seed=0)
    first, second = np.stack(env.received[0::3])[:, :, 0], np.stack(env.received[1::3])[:, :, 0]
    assert np.bincount(first.ravel()).min() > 50  # step 0: all three
    assert np.bincount(second.ravel(), minlength=3)[2] == 0  # step 1: 2 is illegal


class Uniform(Memoryless):
    def sample(self, obs_NBO, mask_NBA, rng):
        shape = obs_NBO.shape[:2]
        return rng.integers(5, size=shape, dtype=np.int32), np.full(shape, -np.log(5), np.float32)

    def to_env(self, action):
        return action


def test_a_seed_fixes_everything_and_another_seed_changes_it():
    def roll(seed):
        env = SimpleSpread(SpreadOptions(), 4)
        return rollout(env, [Uniform()], steps=7, seed=seed, with_state=False)[0].arrays

    one, again, other = roll(1), roll(1), roll(2)
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["obs/0"][0], other["obs/0"][0])
    assert not np.array_equal(one["action/0"], other["action/0"])


def test_a_state_that_does_not_exist_is_refused():
    class Blind(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__()
            self.spaces = type(self.spaces)(self.spaces.classes, state_size=0, max_steps=3, masks=True, deaths=True)

    with pytest.raises(SpecError, match="global state"):
        rollout(Blind(), [Highest()], steps=2, seed=0, with_state=True)


class Endless(ScriptedEnv):
    """Copy 1 ends as scripted, once; copy 0 never ends."""

    def step(self, actions):
        transition = super().step(actions)
        if self.batch == 1:
            return replace(transition, ended=np.zeros(1, np.bool_), truncated=np.zeros(1, np.bool_))
        return transition


def test_play_is_given_up_when_no_episode_ends_for_too_long():
    stats = play(Endless(1), None, episodes=2, seed=0, limit_s=0.05)
    assert stats.episodes == 0
    assert stats.env_steps > 0
    assert set(stats.return_sum.values()) == {0.0}


def test_play_whose_episodes_end_is_not_given_up_however_long_it_takes(monkeypatch):
    class Slow(ScriptedEnv):
        def step(self, actions):
            until_s = time.monotonic() + 0.02
            while time.monotonic() < until_s:
                pass
            return super().step(actions)

    stats = play(Slow(1), None, episodes=4, seed=0, limit_s=0.2)  # 0.06 s an episode, 0.24 s in all
    assert stats.episodes == 4
