"""What a team earns after an agent's death: how far it reaches, and whether a job says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marless.learning.algos import registry
from marless.learning.algos.algorithm import Setting
from marless.learning.envs.base import ActionArray, AgentClass, Discrete, EnvSpaces, Frame, Transition
from tests.unit.learning.algos import rounds
from tests.unit.learning.algos.solving import Trained

EPISODES = {"replay": {"unit": "episodes"}}


def advice(name: str, spaces: EnvSpaces, **settings: object) -> str:
    config = registry.algorithm(name).config_type.model_validate({"name": name, **settings})
    return config.advice(Setting(spaces=spaces, model=rounds.MODEL, samples=1000, steps=10, memory_bytes=2**30))


CREDIT = {"team_reward": "mean", "credit_after_death": True}
DEATHS = EnvSpaces((AgentClass("a", ("a", "b"), 1, Discrete(4)),), 0, 10, deaths=True, rewards="cooperative")


@pytest.mark.parametrize("name", ["iql", "iddpg", "maddpg"])
def test_targets_that_are_too_short_are_warned_of(name):
    assert "algorithm.n_step: 1: what its team earns more steps after" in advice(name, DEATHS, **CREDIT)
    assert "algorithm.n_step: 9" in advice(name, DEATHS, n_step=9, **CREDIT)
    assert not advice(name, DEATHS, n_step=10, **CREDIT)
    assert "n_step: 10" in advice(name, replace(DEATHS, max_steps=None), n_step=10, **CREDIT)
    assert not advice(name, replace(DEATHS, deaths=False), **CREDIT)
    assert not advice(name, DEATHS, team_reward="mean")


def test_what_reaches_all_of_an_episode_is_not_warned_of():
    assert not advice("iql", DEATHS, td_lambda=0.9, **EPISODES, **CREDIT)
    assert "n_step: 1" in advice("iql", DEATHS, td_lambda=0.0, **EPISODES, **CREDIT)
    assert not advice("ippo", DEATHS, **CREDIT)


class Gift:
    """Three steps. Agent b leaves in the first; in the last, both earn 1 if it chose action 2 then."""

    def __init__(self, batch: int = 16) -> None:
        self.batch, self.spaces = batch, replace(DEATHS, max_steps=3)

    def reset(self, seed: int) -> Frame:
        self._step = 0
        return self._frame()

    def _frame(self) -> Frame:
        alive = np.array([[True], [self._step == 0]]).repeat(self.batch, axis=1)
        return Frame((alive[:, :, None].astype(np.float32),), alive=(alive,))

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        if self._step == 0:
            self._given = actions[0][1] == 2
        first, last = self._step == 0, self._step == 2
        ends = np.full(self.batch, last)
        rewards = np.stack([self._given * float(last), np.zeros(self.batch)]).astype(np.float32)
        over = np.array([[last], [first]]).repeat(self.batch, axis=1)
        self._step += 1
        final = self._frame()
        frame = self.reset(0) if last else final
        return Transition(frame, final, (rewards,), (over,), ~ends & ends, ends)

    def close(self) -> None: ...


@pytest.mark.parametrize("settings", [{"n_step": 3}, {"td_lambda": 1.0, "batch": 32, **EPISODES}], ids=["n", "λ"])
def test_an_agent_dies_for_its_teams_later_reward_if_targets_reach_it(settings):
    sharing = {"name": "iql", "warmup": 50, "epsilon": 0.3, **CREDIT, "team_reward": "sum"}
    team = Trained(Gift(), sharing | settings, seed=0)
    team.train(40, 12)
    assert team.greedy().return_sum["a"] == 1.0
