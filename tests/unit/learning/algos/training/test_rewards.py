"""The rewards of teams and their scale, by hand; and that a task whose reward is always 1 is learned with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marless.learning.algos.ppo.algorithms import IPPOConfig
from marless.learning.algos.registry import ALGORITHMS, algorithm
from marless.learning.algos.settings import RewardRule
from marless.learning.algos.training.rewards import RewardMoments, rewarded, team_rewards, with_dead_agents_rewarded
from marless.learning.data.rollout import rollout
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs import registry
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces, Frame, Transition
from marless.learning.policies.evaluation import Chance
from tests.unit.learning.algos.solving import Trained, episode_return


def round_of(reward, **more: np.ndarray) -> Trajectory:
    over = np.zeros(np.shape(reward), bool)
    return Trajectory({"reward/0": np.array(reward, np.float32), "terminated/0": over, "cut": over[:, 0], **more})


@pytest.mark.parametrize("team", [False, True])
def test_what_nets_learn_from_has_mean_0_and_deviation_1(team):
    """γ = 0.5: rewards 4, 2 and the end, 6. Σ r = 12, Σ (1 − discount) = 2, so the centre is 6: 4 − 3, 2 − 6, 6 − 3."""
    over = np.array([[[False]], [[True]], [[False]]])
    moments = RewardMoments((0,), 0.5, team=team)
    assert (moments.centre(0), moments.scale(0)) == (0, 1)
    moments.add([round_of([[[4]], [[2]], [[6]]], **{"terminated/0": over})])
    assert moments.centre(0) == 6
    assert 1 / moments.scale(0) == pytest.approx(np.std([1, -4, 3]))


def test_rewards_of_the_living_count():
    """γ = 0.5. Copy 0: rewards 1, 3; copy 1: −1, then dead. Their mean is 1, which is lost at each step of centre 2."""
    alive = np.array([[[True, True]], [[True, False]]])
    moments = RewardMoments((0,), 0.5)
    moments.add([round_of([[[1, -1]], [[3, 5]]], **{"alive/0": alive})])
    assert moments.centre(0) == 2
    assert 1 / moments.scale(0) == pytest.approx(np.std([1, -1, 3]))


def test_a_teams_rewards_count_once_while_anyone_lives():
    """γ = 0.5: rewards 3, 0 of the whole team; then nobody is left."""
    moments = RewardMoments((0,), 0.5, team=True)
    alive = np.array([[[True], [True]], [[False], [True]], [[False], [False]]])
    moments.add([round_of([[[3], [3]], [[0], [0]], [[9], [9]]], **{"alive/0": alive})])
    assert moments.sums.tolist() == [[2, 3, 9, 0, 0]]


@pytest.mark.parametrize("reward", [0.0, 0.1, 7.0])
def test_rewards_that_are_all_equal_in_episodes_without_end_are_not_scaled(reward):
    moments = RewardMoments((0,), 0.99)
    moments.add([round_of([[[reward, reward, reward]]])])
    assert moments.scale(0) == 1
    assert moments.centre(0) == pytest.approx(100 * reward)


def test_nothing_has_a_centre_that_is_never_discounted():
    moments = RewardMoments((0,), 1.0)
    moments.add([round_of([[[4]], [[2]]])])
    assert moments.centre(0) == 0


ONE = AgentClass("one", ("a", "b"), 1, Discrete(2))
OTHER = AgentClass("other", ("c",), 1, Discrete(2))
TEAM = EnvSpaces((ONE, OTHER), 0, None, deaths=True)


def deadly() -> Trajectory:
    """Three agents, each paid 1 while alive: b dies in step 0, c in step 1, a in step 2; then the episode is over."""
    alive = [np.array([[1, 1], [1, 0], [1, 0]], bool)[..., None], np.array([[1], [1], [0]], bool)[..., None]]
    over = [np.array([[0, 1], [0, 0], [1, 0]], bool)[..., None], np.array([[0], [1], [0]], bool)[..., None]]
    arrays: dict[str, np.ndarray] = {"cut": np.array([[False], [False], [True]])}
    for k in (0, 1):
        arrays |= {f"reward/{k}": alive[k].astype(np.float32), f"alive/{k}": alive[k], f"terminated/{k}": over[k]}
    return Trajectory(arrays)


@pytest.mark.parametrize(("how", "expected"), [("sum", [3, 2, 1]), ("auto", [3, 2, 1]), ("mean", [1, 1, 1])])
def test_a_reward_that_all_living_agents_get_is_the_teams_by_their_mean(how, expected):
    assert team_rewards(deadly(), TEAM, how)[:, 0].tolist() == expected


def _played(name: str, options: dict[str, object], steps: int) -> tuple[Trajectory, EnvSpaces]:
    """One copy of an environment of PettingZoo, in which agents act at random."""
    env = registry.make(f"pettingzoo/{name}", options, 1, with_state=False)
    try:
        policies = [Chance(agents, 0) for agents in env.spaces.classes]
        return rollout(env, policies, steps=steps, seed=0, with_state=False)[0], env.spaces
    finally:
        env.close()


def test_walkers_that_fall_one_by_one_have_their_packages_reward_by_the_mean_and_not_by_the_sum():
    """In multiwalker all walkers get the same reward, by default; here the others go on after one has fallen."""
    options = {"terminate_on_fall": False, "remove_on_fall": True}
    played, spaces = _played("multiwalker_v9", options, 120)
    alive_TN, paid_TN = played["alive/0"][..., 0], played["reward/0"][..., 0]
    living_T = alive_TN.sum(axis=1)
    assert set(living_T) == {1, 2, 3} or set(living_T) == {1, 3}
    shared_T = np.where(alive_TN, paid_TN, -np.inf).max(axis=1)
    assert (shared_T < 0).any()
    np.testing.assert_allclose(team_rewards(played, spaces, "mean")[:, 0], shared_T, rtol=1e-6)
    np.testing.assert_allclose(team_rewards(played, spaces, "sum")[:, 0], shared_T * living_T, rtol=1e-6)


def test_knights_and_archers_who_earn_for_themselves_add_up_whoever_has_died():
    options = {"max_zombies": 30, "spawn_delay": 3}
    played, spaces = _played("knights_archers_zombies_v11", options, 160)
    assert not played["alive/0"].all()
    total_T = team_rewards(played, spaces, "sum")[:, 0]
    assert set(total_T) == {0, 1}
    assert total_T.sum() == played["reward/0"].sum() > 2


def test_the_environments_own_team_reward_comes_first():
    given = Trajectory({**deadly().arrays, "team_reward": np.array([[7], [8], [9]], np.float32)})
    spaces = replace(TEAM, team_reward=True)
    assert team_rewards(given, spaces, "auto")[:, 0].tolist() == [7, 8, 9]
    assert team_rewards(given, spaces, "sum")[:, 0].tolist() == [3, 2, 1]


def test_agents_have_the_teams_reward_while_they_live():
    found = rewarded(deadly(), TEAM, RewardRule("mean"))
    assert found["reward/0"][..., 0].tolist() == [[1, 1], [1, 0], [1, 0]]
    assert found["reward/1"][..., 0].tolist() == [[1], [1], [0]]
    assert found["terminated/0"][..., 0].tolist() == [[False, True], [False, False], [True, False]]
    assert rewarded(deadly(), TEAM, RewardRule())["reward/0"] is not found["reward/0"]


def test_rewards_are_clipped_in_training_only():
    """Those of the team as one, which is not the sum of clipped ones."""
    given = round_of([[[4.0, -0.5]], [[-3.0, 2.0]]])
    one = EnvSpaces((AgentClass("one", ("a",), 1, Discrete(2)),), 0, None)
    assert rewarded(given, one, RewardRule(clip=1.0))["reward/0"].tolist() == [[[1, -0.5]], [[-1, 1]]]
    assert rewarded(given, one, RewardRule(clip=1.0))["reward/0"].dtype == np.float32
    assert given["reward/0"].tolist() == [[[4, -0.5]], [[-3, 2]]]
    team = rewarded(deadly(), TEAM, RewardRule("sum", joint=True, clip=2.5))
    assert team["reward/0"][..., 0].tolist() == [[2.5, 2.5], [2, 2], [1, 1]]


@pytest.mark.parametrize("name", sorted(ALGORITHMS.modules))
def test_all_algorithms_can_clip_rewards(name):
    config = algorithm(name).config_type.model_validate({"name": name, "reward_clip": 1.0})
    assert config.reward_rule.clip == 1.0
    assert algorithm(name).config_type.model_validate({"name": name}).reward_rule.clip is None


def test_a_team_with_one_value_is_paid_whoever_lives():
    found = rewarded(deadly(), TEAM, RewardRule("sum", joint=True))
    assert found["reward/0"][..., 0].tolist() == [[3, 3], [2, 2], [1, 1]]


def test_the_dead_earn_what_their_team_earns_until_it_has_gone():
    rule = RewardRule("sum", after_death=True)
    found = rewarded(deadly(), TEAM, rule)
    assert found["reward/0"][..., 0].tolist() == [[3, 3], [2, 2], [1, 1]]
    assert found["terminated/0"][..., 0].tolist() == [[False, False], [False, False], [True, True]]
    assert found["terminated/1"][..., 0].tolist() == [[False], [False], [True]]
    assert found["alive/0"][..., 0].tolist() == [[True, True], [True, False], [True, False]]
    assert with_dead_agents_rewarded(found, rule)["alive/0"].all()


class Balancing:
    """CartPole in one dimension: 1 a step until |x| > 2, at most 40 steps; x moves by the action and by chance."""

    spaces = EnvSpaces((AgentClass("agent", ("agent_0",), 5, Discrete(3)),), 0, 40)

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        self._x, self._steps = np.zeros(self.batch, int), np.zeros(self.batch, int)
        return self._frame()

    def step(self, actions) -> Transition:
        self._x = self._x + actions[0][0] - 1 + self._rng.integers(-1, 2, self.batch)
        self._steps += 1
        fallen = abs(self._x) > 2
        truncated = (self._steps == 40) & ~fallen
        ended, final = fallen | truncated, self._frame()
        self._x, self._steps = np.where(ended, 0, self._x), np.where(ended, 0, self._steps)
        rewards = np.ones((1, self.batch), np.float32)
        return Transition(self._frame(), final, (rewards,), (fallen[None],), truncated, ended)

    def close(self) -> None: ...

    def _frame(self) -> Frame:
        x = np.clip(self._x, -2, 2)
        return Frame((np.eye(5, dtype=np.float32)[x + 2][None],))


def test_a_task_whose_reward_is_always_one_is_learned():
    """Left alone it lasts some 13 steps. The mean of all rewards is 1, so nothing would be left without it."""
    settings = {"lr": 0.01, "batch": 64, "warmup": 64, "updates": 20, "target_tau": 0.1, "epsilon": 0.5}
    team = Trained(Balancing(16), {"name": "iql", "gamma": 0.95} | settings, seed=0)
    team.train(rounds=8, steps=40)
    assert episode_return(team.greedy(episodes=16)) == 40


class Sacrifice:
    """Agent b may leave in the first of two steps (action 1). Then a is paid 5 in the second, else both are paid 1."""

    spaces = EnvSpaces((AgentClass("agent", ("a", "b"), 1, Discrete(2)),), 0, 2, deaths=True)

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def reset(self, seed: int) -> Frame:
        self._second, self._left = False, np.zeros(self.batch, bool)
        return self._frame()

    def step(self, actions) -> Transition:
        ended = np.full(self.batch, self._second)
        rewards, terminated = np.zeros((2, self.batch), np.float32), np.zeros((2, self.batch), bool)
        if self._second:
            rewards[:] = np.where(self._left, [[5.0], [0.0]], 1.0)
        else:
            self._left = terminated[1] = actions[0][1] == 1
        final = self._frame()
        self._second = not self._second
        frame = self._frame() if self._second else self.reset(0)
        return Transition(frame, final, (rewards,), (terminated,), ended, ended)

    def close(self) -> None: ...

    def _frame(self) -> Frame:
        alive = np.stack([np.ones(self.batch, bool), ~self._left])
        return Frame(((1.0 + self._second) * alive[..., None].astype(np.float32),), alive=(alive,))


@pytest.mark.parametrize("name", ["ippo", "iql"])
@pytest.mark.parametrize(("credit", "leaves"), [(False, False), (True, True)])
def test_an_agent_leaves_for_its_team_if_it_earns_the_teams_reward_afterwards(name, credit, leaves):
    settings = {
        "ippo": {"lr": 0.03, "gamma": 0.95, "minibatches": 2},
        "iql": {"lr": 0.01, "gamma": 0.95, "batch": 64, "warmup": 64, "updates": 20, "target_tau": 0.1, "epsilon": 0.5},
    }
    algorithm = {"name": name, "team_reward": "sum", "credit_after_death": credit} | settings[name]
    team = Trained(Sacrifice(64), algorithm, seed=0)
    team.train(rounds=15, steps=2)
    assert team.greedy().return_sum == ({"a": 5.0, "b": 0.0} if leaves else {"a": 1.0, "b": 1.0})


def test_credit_after_death_is_the_teams():
    with pytest.raises(ValueError, match="set team_reward: auto too"):
        IPPOConfig(name="ippo", credit_after_death=True)
