"""Copies whose episodes last equally long fall out of step, and nothing that counts is changed by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marless.core.errors import CorruptError
from marless.learning.data.carry import Stagger, decode, encode, lengths
from marless.learning.data.rollout import Lane
from marless.learning.envs.base import EnvSpaces
from marless.learning.envs.contract import check_env
from marless.learning.envs.mpe.moving import SimpleSpread, SpreadOptions
from marless.learning.envs.synthetic import SyntheticEnv
from tests.memoryless import Memoryless
from tests.scripted_env import ScriptedEnv

LONGEST, COPIES = 12, 6


def spread(longest: int = LONGEST, copies: int = COPIES) -> SimpleSpread:
    return SimpleSpread(SpreadOptions(agents=2, max_cycles=longest), copies)


class Still(Memoryless):
    """Agents never move."""

    def sample(self, obs_NBO, mask_NBA, rng):
        return np.zeros(obs_NBO.shape[:2], np.int32), np.zeros(obs_NBO.shape[:2], np.float32)

    def to_env(self, action):
        return action


class Unknown(SimpleSpread):
    """Does not say how long its episodes last."""

    def __init__(self, longest: int = LONGEST) -> None:
        super().__init__(SpreadOptions(agents=2, max_cycles=longest), COPIES)
        self.spaces = replace(self.spaces, max_steps=None)


def ends(env, rounds: int, steps: int, *, index: int | None = 1, through_bytes: bool = False):
    """The steps [time] at which each copy's segments were cut by an end; and the statistics of each round."""
    lane, found, stats = Lane(env), [], []
    lane.begin(3)
    for number in range(rounds):
        before = lane._meter.steps_B.copy()
        trajectory, some = lane.roll([Still()], steps=steps, seed=number, with_state=False, index=index)
        stats.append(some)
        over = trajectory["cut"].copy()
        over[-1] &= lane._meter.steps_B == 0
        found.append(over)
        assert np.array_equal(trajectory.arrays.get("resumed", before > 0), before > 0)
        if through_bytes:
            carried = decode(encode(lane.save()))
            lane = Lane(type(env)()) if isinstance(env, Unknown) else Lane(spread())
            lane.load(carried)
    return np.concatenate(found), stats


def test_lengths_are_spread_evenly_over_any_consecutive_copies():
    for first in (0, 7, 160):
        for count in (10, 100):
            found = np.sort(lengths(first, count, 1000)) / 1000
            assert found.min() > 0
            assert found.max() <= 1
            gaps = np.diff([0, *found, 1])
            assert gaps.max() < 2.7 / count  # equally spread points have gaps of 1 / count
    by_hand = [0.618034, 0.236068, 0.854102, 0.472136]  # the fractional parts of k · 0.6180339887
    assert lengths(0, 4, 1000).tolist() == [int(1000 * each) + 1 for each in by_hand]
    assert lengths(2, 2, 1000).tolist() == lengths(0, 4, 1000)[2:].tolist()
    assert lengths(0, 5, 1).tolist() == [1] * 5
    assert lengths(0, 100, 2**31).max() <= 2**31


def test_first_episodes_are_cut_at_lengths_of_their_own_and_all_later_ones_are_whole():
    over_TB, stats = ends(spread(), rounds=10, steps=5)
    wanted = lengths(COPIES, COPIES, LONGEST)
    assert len(set(wanted.tolist())) >= COPIES - 1
    for b in range(COPIES):
        assert np.flatnonzero(over_TB[:, b]).tolist() == list(range(int(wanted[b]) - 1, 50, LONGEST))
    whole = int((over_TB.sum(axis=0) - (wanted < LONGEST)).sum())
    assert sum(each.episodes for each in stats) == whole
    assert sum(each.episode_steps for each in stats) == whole * LONGEST


def test_every_round_then_shows_ends():
    over_TB, _ = ends(spread(copies=24), rounds=12, steps=3)
    per_round = over_TB.reshape(12, 3, 24).sum(axis=(1, 2))
    assert per_round[4:].min() >= 5  # 6 on average
    in_step, _ = ends(ScriptedEnv(8), rounds=1, steps=6)  # it cannot be truncated
    assert in_step[2, ::2].all()


def test_a_cut_is_a_truncation_that_bootstraps():
    lane = Lane(spread())
    lane.begin(3)
    trajectory, _ = lane.roll([Still()], steps=LONGEST - 1, seed=1, with_state=True, index=0)
    cut_TB = trajectory["cut"]
    assert cut_TB[:-1].any()
    assert not trajectory["terminated/0"].any()
    assert trajectory["boot_index"].tolist() == np.flatnonzero(cut_TB).tolist()


@pytest.mark.parametrize(("steps", "index"), [(LONGEST, 1), (2 * LONGEST, 1), (5, None)])
def test_nothing_is_cut_in_rounds_of_whole_episodes_or_of_fresh_ones(steps, index):
    over_TB, _ = ends(spread(), rounds=2, steps=steps, index=index)
    assert np.flatnonzero(over_TB[:, 0]).tolist() == list(range(LONGEST - 1, 2 * steps, LONGEST))
    assert (over_TB == over_TB[:, :1]).all()


@pytest.mark.parametrize("env", [spread, Unknown])
def test_a_loaded_lane_cuts_where_the_saved_one_would(env):
    straight, _ = ends(env(), rounds=10, steps=5)
    again, _ = ends(env(), rounds=10, steps=5, through_bytes=True)
    assert np.array_equal(straight, again)


def test_where_no_length_is_known_copies_that_end_together_are_staggered_in_the_next_episode():
    over_TB, stats = ends(Unknown(), rounds=10, steps=5)
    wanted = LONGEST + lengths(COPIES, COPIES, LONGEST)
    for b in range(COPIES):
        first = [LONGEST - 1, *range(int(wanted[b]) - 1, 50, LONGEST)]
        assert np.flatnonzero(over_TB[:, b]).tolist() == sorted(set(first))
    assert sum(each.episodes for each in stats[:5]) == COPIES + int((wanted == 2 * LONGEST).sum())


def test_copies_whose_episodes_end_one_by_one_are_left_alone():
    stagger = Stagger(4)
    stagger.plan(0, None, 5)
    length_B = np.array([9, 9, 9, 9])
    stagger.ended(np.array([True, False, False, False]), length_B)
    assert stagger.save()["limit"].tolist() == [-1] * 4
    stagger.ended(np.array([True, False, True, False]), np.array([9, 9, 8, 9]))
    assert stagger.save()["limit"].tolist() == [-1] * 4
    stagger.ended(np.array([True, False, True, False]), length_B)
    assert stagger.save()["limit"].tolist() == [int(lengths(0, 1, 9)[0]), 0, int(lengths(2, 1, 9)[0]), 0]


def test_an_episode_that_ends_by_itself_is_not_cut_later_and_counts():
    stagger = Stagger(2)
    stagger.plan(0, 100, 7)
    first, second = stagger.save()["limit"].tolist()
    stagger.ended(np.array([False, True]), np.array([5, 5]))
    assert stagger.due(np.array([first - 2, second - 1])) is None
    assert stagger.due(np.array([first - 1, 0])).tolist() == [True, False]


@pytest.mark.parametrize("limit", [[-2, 0], [-1, 0], [0, -1]])
def test_lengths_that_no_lane_has_saved_are_refused(limit):
    with pytest.raises(CorruptError, match="stagger/limit"):
        Stagger(2).load({"limit": np.array(limit, np.int64)})


BUSY = EnvSpaces(ScriptedEnv().spaces.classes, state_size=2, max_steps=9, masks=True, deaths=True)


class Deaf(SyntheticEnv):
    def truncate(self, chosen_B):
        pass


class Rough(SyntheticEnv):
    def truncate(self, chosen_B):
        self._cut_B[...] = True


class Terminal(SyntheticEnv):
    """Its copies terminate where they should be truncated."""

    def step(self, actions):
        cut_B = self._cut_B.copy()
        found = super().step(actions)
        terminated = tuple(each | (cut_B & found.truncated) for each in found.terminated)
        return replace(found, truncated=found.truncated & ~cut_B, terminated=terminated)


@pytest.mark.parametrize("broken", [Deaf, Rough, Terminal])
def test_an_environment_that_truncates_wrongly_is_found(broken):
    with pytest.raises(AssertionError, match="truncated at step 20: step 20: "):
        check_env(lambda batch: broken(BUSY, batch))
