"""Tiny games that each algorithm must solve in seconds, and that chance or a frozen policy cannot.

Sampling, inference and learning are the real ones: rollouts in NumPy, weights carried over as policy states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from marless.core.group import Group
from marless.learning.algos.learner import Learner, RoundInput
from marless.learning.data.rollout import play, rollout
from marless.learning.envs.base import ActionArray, AgentClass, BatchedEnv, Box, Discrete, EnvSpaces, Frame, Transition
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds

AGENTS = ("a", "b")
MODEL = ModelSpec.model_validate({"hidden": (32,)})


class _OneStep:
    """Both agents see a number of their own, answer once, and share the mean of how well they did."""

    def __init__(self, batch: int, action: Discrete | Box) -> None:
        self.batch, self._action = batch, action
        agents = AgentClass("player", AGENTS, 4, action)
        self.spaces = EnvSpaces((agents,), state_size=8, max_steps=1)

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        return self._deal()

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        team_B = self._score(actions[0]).mean(axis=0)
        final, frame = self._frame(), self._deal()
        ended_NB = np.ones((2, self.batch), np.bool_)
        reward_NB = np.broadcast_to(team_B, (2, self.batch)).astype(np.float32)
        return Transition(frame, final, (reward_NB,), (ended_NB,), np.zeros(self.batch, np.bool_), ended_NB[0])

    def close(self) -> None: ...

    def _deal(self) -> Frame:
        self._cue_NB = self._rng.integers(4, size=(2, self.batch))
        return self._frame()

    def _frame(self) -> Frame:
        obs_NBO = np.eye(4, dtype=np.float32)[self._cue_NB]
        return Frame((obs_NBO,), state=np.concatenate(obs_NBO, axis=1))

    def _score(self, action: ActionArray) -> np.ndarray:
        if isinstance(self._action, Discrete):
            return (action == self._cue_NB).astype(np.float64)
        return -np.abs(action[..., 0] - 0.5 * self._cue_NB)  # the box is [−1, 2]: targets 0, 0.5, 1, 1.5


class _Corridor:
    """Walk four steps right to be paid 1 and be done; agents walk apart. Wrong steps lead back, time ends after 12."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.spaces = EnvSpaces(
            (AgentClass("player", AGENTS, 5, Discrete(2)),), state_size=10, max_steps=12, deaths=True
        )

    def reset(self, seed: int) -> Frame:
        self._position_NB = np.zeros((2, self.batch), np.int64)
        self._time_B = np.zeros(self.batch, np.int64)
        return self._frame()

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        alive_NB = self._position_NB < 4
        moved_NB = np.maximum(self._position_NB + np.where(actions[0] == 1, 1, -1), 0)
        self._position_NB = np.where(alive_NB, moved_NB, self._position_NB)
        self._time_B += 1
        arrived_NB = alive_NB & (self._position_NB == 4)
        done_B = (self._position_NB == 4).all(axis=0)
        truncated_B = (self._time_B == 12) & ~done_B
        final, ended_B = self._frame(), done_B | truncated_B
        self._position_NB[:, ended_B] = 0
        self._time_B[ended_B] = 0
        return Transition(self._frame(), final, (arrived_NB.astype(np.float32),), (arrived_NB,), truncated_B, ended_B)

    def close(self) -> None: ...

    def _frame(self) -> Frame:
        obs_NBO = np.eye(5, dtype=np.float32)[self._position_NB]
        return Frame((obs_NBO,), np.concatenate(obs_NBO, axis=1), alive=(self._position_NB < 4,))


def _policies(learner: Learner, groups: Sequence[Group], agents: AgentClass) -> list[ActingPolicies]:
    states = {agent: state for g in groups for state in [learner.state(g.policy)] for agent in g.agents}
    return [ActingPolicies.from_states(agents, [states[agent] for agent in agents.agents])]


def _trained_return(
    env: BatchedEnv, name: str, groups: Sequence[Group], *, number: int, steps: int, **settings: object
) -> float:
    """Greedy return per agent and episode after `number` rounds."""
    agents = env.spaces.classes[0]
    learner = rounds.learner(name, env.spaces, groups, model=MODEL, seed=1, **{"gamma": 0.95, **settings})
    for i in range(number):
        sampled, _ = rollout(env, _policies(learner, groups, agents), steps=steps, seed=i, with_state=name == "mappo")
        learner.update(RoundInput(i, 0, 1, tuple(groups), [sampled]))
    stats = play(env, _policies(learner, groups, agents), episodes=200, seed=999)
    return sum(stats.return_sum.values()) / len(AGENTS) / stats.episodes


INDEPENDENT = tuple(Group(agent, (agent,)) for agent in AGENTS)
SHARED = (Group("both", AGENTS),)
TEAMS = {
    "ippo": ("ippo", INDEPENDENT, {}),
    "ippo-shared": ("ippo", SHARED, {}),
    "impact": ("impact", INDEPENDENT, {"epochs": 4, "batches": 2, "target_frequency": 0.5}),
    "impact-shared": ("impact", SHARED, {"epochs": 4, "batches": 2, "target_frequency": 0.5}),
    "mappo": ("mappo", INDEPENDENT, {}),
    "mappo-per-agent-shared": ("mappo", SHARED, {"critic": "per_agent"}),
}


def algorithms(*quick: str) -> pytest.MarkDecorator:
    """Every kind of team: the `quick` ones, and the others as slow ones."""
    slow = {name: () if name in quick else pytest.mark.slow for name in TEAMS}
    cases = [pytest.param(*team, id=name, marks=slow[name]) for name, team in TEAMS.items()]
    return pytest.mark.parametrize(("name", "groups", "settings"), cases)


@algorithms("ippo", "mappo-per-agent-shared", "impact")
def test_answers_are_matched_to_cues(name: str, groups: tuple[Group, ...], settings: dict[str, object]) -> None:
    env = _OneStep(100, Discrete(4))  # chance scores 0.25; a policy that ignores its cue does no better
    assert _trained_return(env, name, groups, number=16, steps=4, lr=2e-2, **settings) > 0.95


@algorithms("ippo-shared", "mappo")
def test_continuous_answers_are_matched_to_cues(
    name: str, groups: tuple[Group, ...], settings: dict[str, object]
) -> None:
    env = _OneStep(100, Box((-1.0,), (2.0,)))  # the best answer that ignores the cue costs 0.5
    assert _trained_return(env, name, groups, number=25, steps=4, lr=2e-2, **settings) > -0.12


@pytest.mark.parametrize(
    ("bounds", "name"),
    [
        pytest.param((-np.inf, np.inf), "ippo", id="none-ippo"),
        pytest.param((-np.inf, np.inf), "mappo", id="none-mappo", marks=pytest.mark.slow),
        pytest.param((-1.0, np.inf), "ippo", id="one-ippo", marks=pytest.mark.slow),
        pytest.param((-1.0, np.inf), "mappo", id="one-mappo"),
    ],
)
def test_answers_without_bounds_are_matched_to_cues(bounds: tuple[float, float], name: str) -> None:
    env = _OneStep(100, Box(bounds[:1], bounds[1:]))  # q-learning and deterministic policies refuse it
    assert _trained_return(env, name, INDEPENDENT, number=60, steps=4, lr=1e-2) > -0.15


@algorithms("ippo-shared", "mappo", "impact-shared")
def test_a_corridor_is_walked_to_its_end(name: str, groups: tuple[Group, ...], settings: dict[str, object]) -> None:
    env = _Corridor(40)  # chance arrives in about half of its episodes
    assert _trained_return(env, name, groups, number=10, steps=24, lr=2e-2, **settings) == 1.0


@pytest.mark.parametrize(
    ("name", "groups", "lr", "numbers"),
    [
        pytest.param("maddpg", SHARED, 5e-3, (20, 20, 10), id="maddpg-shared"),
        pytest.param("iddpg", INDEPENDENT, 2e-3, (45, 40, 20), id="iddpg", marks=pytest.mark.slow),
    ],
)
def test_deterministic_policies_learn_from_gradients_at_their_actions(
    name: str, groups: tuple[Group, ...], lr: float, numbers: tuple[int, int, int]
) -> None:
    settings = {"lr": lr, "critic_lr": 2e-2, "batch": 64, "warmup": 100, "updates": 10, "target_tau": 0.1}
    cues, number_line = _OneStep(100, Discrete(4)), _OneStep(100, Box((-1.0,), (2.0,)))
    assert _trained_return(cues, name, groups, number=numbers[0], steps=4, **settings) > 0.95
    assert _trained_return(number_line, name, groups, number=numbers[1], steps=4, **settings) > -0.12
    assert _trained_return(_Corridor(40), name, groups, number=numbers[2], steps=24, **settings) == 1.0


def test_neither_chance_nor_a_frozen_policy_can_do_it() -> None:
    for env, least in (
        (_OneStep(100, Discrete(4)), 0.4),
        (_OneStep(100, Box((-1.0,), (2.0,))), -0.5),
        (_Corridor(40), 0.9),
    ):
        random = play(env, None, episodes=400, seed=5)
        assert sum(random.return_sum.values()) / len(AGENTS) / random.episodes < least
        assert _trained_return(env, "ippo", INDEPENDENT, number=0, steps=1) < least
