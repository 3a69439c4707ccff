"""Trials: what a moment of random play shows of an environment whose every number is known."""

from dataclasses import replace

import numpy as np
import pytest

from marless.learning.data.trial import trial
from marless.learning.envs import registry
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces, Frame, Transition
from tests.scripted_env import LIMIT, ScriptedEnv


def test_what_a_trial_shows_of_copy_0():
    seen = trial(ScriptedEnv(1), steps=4 * LIMIT)  # one copy: four episodes of three steps, all truncated
    assert (seen.env_steps, seen.episodes, seen.truncated) == (12, 4, 4)
    assert (seen.shortest, seen.longest) == (LIMIT, LIMIT)
    assert [(each.reward_low, each.reward_high) for each in seen.agents] == [(10, 12), (20, 22)]  # 10·(i + 1) + step
    assert [each.steps for each in seen.agents] == [12, 12]
    assert not seen.common_reward
    assert seen.classes[0].legal == pytest.approx(
        1 - 1 / 3 * 4 / 13
    )  # of 13 frames, the 4 at step 1 forbid one of three
    assert seen.classes[0].obs_high == 4  # the number of the fifth episode, which has just begun
    assert seen.classes[0].constant == 0
    assert not seen.classes[0].still
    assert not seen.paid_after_death


class Mortal:
    """Agent b terminates in the first of three steps; a is paid 1 in the last step, or `salt` where it differs."""

    def __init__(self, *, frozen: bool = True) -> None:
        self.spaces = EnvSpaces(
            classes=(AgentClass("x", ("a", "b"), 1, Discrete(2)),), state_size=0, max_steps=None, deaths=True
        )
        self.batch, self._frozen, self._resets = 1, frozen, 0

    def reset(self, seed):
        self._t, self._resets = 0, self._resets + 1
        return self._frame()

    def step(self, actions):
        self._t += 1
        over = self._t == 3
        rewards = np.array([[1.0 if over else 0.0], [0.0]])
        terminated = np.array([[over], [self._t == 1]])
        if over:
            self._t = 0
        each = np.array([over])
        return Transition(self._frame(), self._frame(), (rewards,), (terminated,), ~each & False, each)

    def close(self): ...

    def _frame(self):
        shown = 0.0 if self._frozen else float(self._resets)
        alive = np.array([[True], [self._t == 0]])
        return Frame(obs=(np.where(alive[..., None], shown, 0.0).astype(np.float32),), alive=(alive,))


class Blind(Mortal):
    """Shows a how many episodes have begun, and nothing else: it changes between episodes only."""

    begun = 0

    def step(self, actions):
        self.begun += self._t == 2
        return super().step(actions)

    def _frame(self):
        frame = super()._frame()
        frame.obs[0][0] = self.begun
        return frame


def test_what_changes_between_episodes_only_is_still():
    """b is zeros, which change when it leaves; but then it observes nothing."""
    (seen,) = trial(Blind(), steps=9).classes
    assert (seen.still, seen.constant) == (True, 0)


def test_episodes_of_one_step_show_nothing_twice():
    assert not trial(registry.make("game/matrix", {}, 1), steps=9).classes[0].still


class Stuck(Mortal):
    """As `Mortal`, with masks: a has no legal action in the last of three steps; b, which is dead then, has none."""

    def __init__(self) -> None:
        super().__init__()
        self.spaces = replace(self.spaces, masks=True)

    def _frame(self):
        legal = np.full((2, 1, 2), self._t < 2)
        return replace(super()._frame(), masks=(legal,))


def test_agents_alive_without_a_legal_action_are_named():
    assert [each.without_choice for each in trial(Stuck(), steps=9).agents] == [True, False]
    assert [each.without_choice for each in trial(ScriptedEnv(1), steps=9).agents] == [False, False]


def test_agents_that_leave_and_what_their_team_is_paid_later():
    seen = trial(Mortal(), steps=9)
    assert [each.left_early for each in seen.agents] == [0, 3]
    assert [each.steps for each in seen.agents] == [9, 3]
    assert seen.paid_after_death
    assert (seen.episodes, seen.truncated) == (3, 0)
    assert seen.classes[0].constant == 1
    assert seen.repeats


def test_an_environment_that_ignores_its_seed_is_noticed():
    assert not trial(Mortal(frozen=False), steps=9).repeats


def test_a_trial_ends_by_its_seconds():
    seen = trial(ScriptedEnv(1), steps=10**9, seconds=0.05)
    assert 0 < seen.env_steps < 10**9


def test_a_trial_of_an_environment_that_waits_ends_too(monkeypatch):
    """Its CPU time stands still."""
    monkeypatch.setattr("marless.learning.data.trial.time.process_time", lambda: 0.0)
    seen = trial(ScriptedEnv(1), steps=10**9, seconds=0.02)
    assert 0 < seen.env_steps < 10**9
