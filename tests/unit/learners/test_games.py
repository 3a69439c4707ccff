"""Every algorithm in small games whose optimum is known: what it must solve, and what theory says it cannot."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from marless.data.rollout import play
from marless.envs import registry
from marless.envs.games import PAYOFFS, TWO_STEP, MatrixOptions
from tests.unit.learners.solving import Trained, episode_return, trained
from tests.unit.policies.saved import outputs

DOMINANCE = ("game/matrix", {"payoff": "dominance"})
SIDES = ("game/matrix", {"payoff": [[4, 0], [0, 8]]})  # two equilibria; the better one is also the safer one
TARGET = ("game/target", {"targets": [0.6, -0.3]})
TWO_STEPS = ("game/two_step", {})
CLIMBING = ("game/matrix", {"payoff": "climbing"})
PENALTY = ("game/matrix", {"payoff": "penalty"})

PPO = {"lr": 0.03, "minibatches": 2}
Q = {"lr": 0.01, "batch": 64, "warmup": 64, "updates": 20, "target_tau": 0.1}
DDPG = {"lr": 0.01, "critic_lr": 0.01, "batch": 64, "warmup": 64, "updates": 20}
EXPLORING = Q | {"epsilon": 1.0, "reward_normalisation": False, "max_grad_norm": 1000.0}
SETTINGS = {
    "ippo": PPO, "mappo": PPO,
    "iql": Q | {"epsilon": 0.5}, "vdn": Q | {"epsilon": 0.5}, "qmix": Q | {"epsilon": 0.5},
    "maddpg": DDPG, "iddpg": DDPG,
}  # fmt: skip


def team(game, name: str, *, rounds: int, seed: int = 0, **settings: object) -> Trained:
    return trained(game, {"name": name} | SETTINGS[name] | settings, rounds=rounds, seed=seed)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("game", "best"), [(DOMINANCE, 6.0), (SIDES, 8.0)], ids=["dominance", "sides"])
def test_every_algorithm_solves_a_game_that_it_can_represent(name, game, best):
    stats = team(game, name, rounds=20).greedy()
    assert episode_return(stats) == best
    assert (stats.judged, stats.wins) == (1, 1)


@pytest.mark.parametrize("name", ["ippo", "mappo", "maddpg", "iddpg"])
def test_every_algorithm_for_continuous_actions_hits_its_targets(name):
    stats = team(TARGET, name, rounds=30).greedy()
    assert episode_return(stats) > 0.99
    assert stats.wins == 1


@pytest.mark.parametrize(("game", "mean"), [(DOMINANCE, 3.0), (SIDES, 3.0)], ids=["dominance", "sides"])
def test_chance_earns_the_mean_of_the_table(game, mean):
    stats = play(registry.make(*game, 64), None, episodes=4000, seed=0)
    assert episode_return(stats) == pytest.approx(mean, abs=0.2)
    assert stats.wins / stats.judged < 0.3


@pytest.mark.parametrize(
    ("game", "table"),
    [(CLIMBING, PAYOFFS["climbing"]), (PENALTY, MatrixOptions(payoff="penalty").table())],
    ids=["climbing", "penalty"],
)
def test_what_a_sum_and_a_monotone_function_make_of_a_table(game, table):
    """Trained on every joint action equally often, they choose the greatest entry of their best fit, not of the table.

    Climbing: VDN's fit is 8.78 at (2, 2), where 5 is paid, and −9.22 at (0, 0), where 11 is. Penalty: its fit is 21.11
    at (1, 1), where 2 is paid. The best monotone fits are greatest at the same places.
    """
    table = np.array(table)
    summed, monotone = additive_fit(table), monotone_fit(table)
    chosen = np.unravel_index(summed.argmax(), table.shape)
    assert np.argwhere(monotone == monotone.max()).tolist() == [list(chosen)]
    assert table[chosen] < table.max()
    assert (round(summed.max(), 2), table[chosen]) == {11: (8.78, 5), 10: (21.11, 2)}[int(table.max())]
    for name in ("vdn", "qmix"):
        limited = team(game, name, rounds=40, **EXPLORING)
        assert episode_return(limited.greedy()) == table[chosen]
        if name == "vdn":  # the team's reward is the sum over two agents, who are paid alike
            np.testing.assert_allclose(additive_values(limited, len(table)), 2 * summed, atol=0.05 * np.ptp(table))


@pytest.mark.parametrize(("name", "reached"), [("vdn", 7.0), ("qmix", 8.0)])
def test_two_steps_need_more_than_a_sum(name, reached):
    """Rashid et al. (2018), §5.1: VDN's best sum for state 2B is at most 6.5, so that 7 looks better; QMIX fits 8."""
    assert additive_fit(TWO_STEP[1]).tolist() == [[-1.5, 2.5], [2.5, 6.5]]
    np.testing.assert_allclose(monotone_fit(TWO_STEP[1]), TWO_STEP[1])
    assert episode_return(team(TWO_STEPS, name, rounds=60, **EXPLORING, gamma=0.99).greedy()) == reached


def additive_values(found: Trained, actions: int) -> np.ndarray:
    """Q_tot of every joint action, as VDN adds it up from what each agent acts with."""
    views = np.eye(2)
    each = [outputs(found.state(f"agent_{i}"), np.concatenate(([1.0], views[i]))) for i in range(2)]
    assert len(each[0]) == actions
    return np.add.outer(*each)


def additive_fit(table: np.ndarray) -> np.ndarray:
    """The least-squares sum of a function of the row and one of the column: row mean + column mean − mean."""
    return table.mean(axis=1)[:, None] + table.mean(axis=0) - table.mean()


def monotone_fit(table: np.ndarray) -> np.ndarray:
    """The least-squares table that grows with some order of the rows and some order of the columns.

    That is all a mixer can do that is monotone in every agent's value. For each order: isotonic regression on a grid
    (Robertson, Wright & Dykstra 1988, theorem 1.4.4), each entry the highest, over upper sets that hold it, of the
    lowest mean, over lower sets that hold it, of what the two have in common.
    """
    orders = list(itertools.permutations(range(len(table))))
    fits = []
    for rows, columns in itertools.product(orders, orders):
        fit = np.empty(table.shape)
        fit[np.ix_(rows, columns)] = isotonic(table[np.ix_(rows, columns)])
        fits.append((np.square(fit - table).sum(), fit.tolist()))
    return np.array(min(fits)[1])


def isotonic(table: np.ndarray) -> np.ndarray:
    n = len(table)
    heights = [h for h in itertools.product(range(n + 1), repeat=n) if list(h) == sorted(h, reverse=True)]
    lower = [np.arange(n) < np.array(h)[:, None] for h in heights]
    fit = np.empty(table.shape)
    for at in np.ndindex(*table.shape):
        fit[at] = max(min(table[down & ~rest].mean() for down in lower if down[at]) for rest in lower if not rest[at])
    return fit
