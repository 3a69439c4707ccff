"""What only those learn who see where something is in an image: environment, actors, learners and policies are real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from marless.core.group import Group
from marless.learning.algos.learner import Learner, RoundInput
from marless.learning.data.episodes import EpisodeStats
from marless.learning.data.rollout import play, rollout
from marless.learning.envs import registry
from marless.learning.envs.base import ActionArray, AgentClass, BatchedEnv, Discrete, EnvSpaces, Frame, Transition
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds
from tests.unit.learning.algos.solving import Trained

PISTONBALL = yaml.safe_load((Path(__file__).parents[4] / "examples/pistonball.yaml").read_text())
SIDE, SQUARE = 36, 8
TEAM = (Group("both", ("a", "b")),)


class _Corners:
    """Each agent sees a bright square somewhere in a quarter of a dim image; its reward is 1 if it names the quarter.

    An episode is one step. Whoever does not look gets 0.25.
    """

    def __init__(self, batch: int) -> None:
        self.batch = batch
        seer = AgentClass("seer", ("a", "b"), SIDE * SIDE, Discrete(4), image=(1, SIDE, SIDE))
        self.spaces = EnvSpaces((seer,), state_size=0, max_steps=1)

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        return self._frame()

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        reward_NB, shown = (actions[0] == self._quarter_NB).astype(np.float32), self._shown
        over_NB, none_B = np.ones((2, self.batch), np.bool_), np.zeros(self.batch, np.bool_)
        return Transition(self._frame(), shown, (reward_NB,), (over_NB,), none_B, ~none_B)

    def close(self) -> None: ...

    def _frame(self) -> Frame:
        self._quarter_NB = self._rng.integers(4, size=(2, self.batch))
        image_NBYX = self._rng.integers(60, size=(2, self.batch, SIDE, SIDE), dtype=np.uint8)
        for n, b in np.ndindex(2, self.batch):
            down, across = divmod(int(self._quarter_NB[n, b]), 2)
            y, x = self._rng.integers(SIDE // 2 - SQUARE, size=2) + np.array((down, across)) * (SIDE // 2)
            image_NBYX[n, b, y : y + SQUARE, x : x + SQUARE] = 220
        self._shown = Frame(obs=(image_NBYX.reshape(2, self.batch, -1),))
        return self._shown


def _policies(learner: Learner, agents: AgentClass) -> list[ActingPolicies]:
    state = learner.state("both")
    return [ActingPolicies.from_states(agents, [state] * len(agents.agents))]


@pytest.mark.parametrize("net", ["nature", pytest.param("impala", marks=pytest.mark.slow)])
def test_squares_are_found(net):
    env = _Corners(48)
    (agents,) = env.spaces.classes
    spec = ModelSpec(net=net, hidden=(32,), activation="relu")
    learner = rounds.learner("ippo", env.spaces, TEAM, model=spec, seed=1, lr=1e-3, minibatches=4, epochs=2)
    for i in range(8):
        sampled, _ = rollout(env, _policies(learner, agents), steps=6, seed=i, with_state=False)
        learner.update(RoundInput(i, 0, 1, TEAM, [sampled]))
    stats = play(env, _policies(learner, agents), episodes=200, seed=999)
    assert sum(stats.return_sum.values()) / 2 / stats.episodes > 0.9


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pistons_learn_to_roll_the_ball_when_they_see_it():
    """Random pistons earn -10 in 125 steps; the best earn 98 in 17. Blind, the same policies earn much less."""
    options = PISTONBALL["env"]["options"]
    env = registry.make(PISTONBALL["env"]["name"], options, 4, with_state=False)
    team = (Group("all", env.spaces.agents),)
    model = ModelSpec.model_validate(PISTONBALL["model"])
    trained = Trained(env, PISTONBALL["algorithm"], seed=0, model=model, groups=team)
    trained.train(22, steps=128)
    stats, blind = trained.greedy(episodes=8), trained.greedy(episodes=8, env=_Gray(env))
    assert _mean_return(stats) > 80
    assert stats.episode_steps / stats.episodes < 60
    assert _mean_return(blind) < _mean_return(stats) - 30


def _mean_return(stats: EpisodeStats) -> float:
    return sum(stats.return_sum.values()) / len(stats.return_sum) / stats.episodes


class _Gray:
    """An environment whose images are all of one gray."""

    def __init__(self, env: BatchedEnv) -> None:
        self._env, self.spaces, self.batch = env, env.spaces, env.batch

    def reset(self, seed: int) -> Frame:
        return self._gray(self._env.reset(seed))

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        moved = self._env.step(actions)
        return replace(moved, frame=self._gray(moved.frame), final=self._gray(moved.final))

    def close(self) -> None: ...

    def _gray(self, frame: Frame) -> Frame:
        return replace(frame, obs=tuple(np.full_like(each, 77) for each in frame.obs))
