"""Transitions of agents that act in turns, with numbers worked out by hand."""

import numpy as np
import torch

from marless.learning.algos.training import advantages
from marless.learning.algos.training.advantages import gae, successor_values
from marless.learning.algos.training.table import tabulate
from marless.learning.algos.training.turns import Turns, open_turns
from marless.learning.data.rollout import rollout
from marless.learning.nets.acting import ActingPolicies
from tests.unit.learning.envs.turns import Alternating, Blinking, Late, copies
from tests.unit.learning.policies.saved import state

GAMMA, LAMBDA = 0.5, 0.25
WAITS = torch.tensor([[[0], [1], [1], [0], [1], [0]]], dtype=torch.bool)
"""One agent, one copy: turns at steps 0, 3 and 5."""
REWARD = torch.tensor([[[1.0], [2.0], [4.0], [8.0], [16.0], [32.0]]])
VALUE = torch.tensor([[[10.0], [-99.0], [-99.0], [20.0], [-99.0], [30.0]]])
"""-99: what an untrained critic might say of steps in which the agent waits."""
CUT = torch.tensor([[False]] * 5 + [[True]])


def estimated(*, boot_waits: bool, terminated: bool = False):
    """Advantages by GAE and by V-trace with π = μ, and which turns are open."""
    over = torch.zeros_like(WAITS)
    over[0, -1] = terminated
    index = torch.tensor([] if terminated else [5], dtype=torch.int64)
    boot = torch.full((1, len(index)), 40.0)
    after = successor_values(VALUE, boot, index, CUT, over)
    waits = np.full((1, len(index)), boot_waits)
    opened = torch.from_numpy(open_turns(WAITS.numpy(), waits, CUT.numpy(), index.numpy()))
    turns = Turns.of(WAITS, opened, ~CUT)
    after = turns.through(REWARD, torch.full_like(REWARD, GAMMA), after)
    ends, decays = over | CUT, {"gamma": GAMMA, "gae_lambda": LAMBDA}
    by_gae = gae(REWARD, VALUE, after, ends, **decays, turns=turns)
    delta, ones = turns.errors(REWARD + GAMMA * after - VALUE), torch.ones_like(REWARD)
    corrected = advantages.vtrace_corrections(delta, ends, ones, **decays, rho=1.0, c=1.0, turns=turns)
    by_vtrace = advantages.vtrace_advantages(delta, ends, corrected, **decays)
    return by_gae.flatten().tolist(), by_vtrace.flatten().tolist(), opened.flatten().tolist()


def test_an_advantage_goes_from_turn_to_turn_with_the_rewards_and_discounts_between():
    last = 32 + 0.5 * 40 - 30
    middle = 8 + 0.5 * 16 + 0.25 * 30 - 20 + 0.25 * 0.25 * last  # γ² λ
    first = 1 + 0.5 * 2 + 0.25 * 4 + 0.125 * 20 - 10 + 0.125 * 0.25 * middle
    by_gae, by_vtrace, opened = estimated(boot_waits=False)
    assert [by_gae[t] for t in (0, 3, 5)] == [first, middle, last]
    assert [by_vtrace[t] for t in (0, 3, 5)] == [first, middle, last]
    assert not any(opened)


def test_a_turn_whose_next_one_lies_beyond_the_cut_is_open_and_earlier_ones_end_with_its_value():
    middle = 8 + 0.5 * 16 + 0.25 * 30 - 20
    first = 1 + 0.5 * 2 + 0.25 * 4 + 0.125 * 20 - 10 + 0.125 * 0.25 * middle
    by_gae, by_vtrace, opened = estimated(boot_waits=True)
    assert [by_gae[t] for t in (0, 3, 5)] == [first, middle, 0.0]
    assert [by_vtrace[t] for t in (0, 3, 5)] == [first, middle, 0.0]
    assert opened == [False] * 5 + [True]


def test_after_a_termination_nothing_follows():
    assert estimated(boot_waits=False, terminated=True)[0][5] == 32 - 30


def test_ratios_count_at_turns_only():
    nothing = torch.zeros_like(WAITS)
    turns = Turns.of(WAITS, nothing, ~CUT)
    delta = torch.tensor([[[1.0], [0.0], [0.0], [2.0], [0.0], [4.0]]])
    ratio = torch.where(WAITS, 1.0, 0.5)
    found = advantages.vtrace_corrections(
        delta, CUT.expand(1, -1, -1), ratio, gamma=0.5, gae_lambda=0.25, rho=1.0, c=0.25, turns=turns
    )
    last, step = 0.5 * 4, 0.25 * 0.25  # min(c̄, π/μ) · λ
    middle = 0.5 * 2 + 0.25 * step * last
    assert found[0, 3] == middle
    assert found[0, 0] == 0.5 * 1 + 0.125 * step * middle


def test_an_open_turn_may_lie_several_steps_before_the_cut():
    waits = np.array([[[0, 0], [1, 1], [1, 0], [1, 1]]], np.bool_)
    cut = np.array([[0, 0], [0, 0], [0, 0], [1, 1]], np.bool_)
    found = open_turns(waits, np.array([[True, False]]), cut, np.array([6, 7]))
    assert found[0].tolist() == [[True, False]] * 4
    parted = np.array([[0, 0], [1, 0], [0, 0], [1, 1]], np.bool_)  # the episode of copy 0 ends after step 1
    found = open_turns(waits, np.array([[True, True]]), parted, np.array([6, 7]))
    assert found[0].tolist() == [[False, False], [False, False], [True, True], [True, True]]


def recorded(make, steps):
    env = copies(make, 1)
    policies = [
        ActingPolicies.from_states(c, [state(c.obs_size, c.action, seed=i) for i in range(len(c.agents))])
        for c in env.spaces.classes
    ]
    trajectory, _ = rollout(env, policies, steps=steps, seed=1, with_state=True)
    return trajectory, tabulate([trajectory], 0, True)


def test_rollouts_record_who_waits_and_rewards_while_waiting():
    trajectory, table = recorded(Alternating, 4)
    assert trajectory["alive/0"][:, :, 0].tolist() == [[True, False], [False, True]] * 2
    assert trajectory["waits/0"][:, :, 0].tolist() == [[False, True], [True, False]] * 2
    assert trajectory["terminated/0"][:, :, 0].tolist() == [[False, False], [True, True]] * 2
    assert trajectory["boot_waits/0"].shape == (2, 0)
    assert not table.open.any()
    trajectory, table = recorded(Late, 39)
    assert trajectory["reward/0"][:4, 1, 0].tolist() == [0, 1, 0, 1]
    assert trajectory["boot_waits/0"].tolist() == [[False], [True]]
    assert np.flatnonzero(table.open[1, :, 0]).tolist() == [38]
    assert table.alive[1, 0, 36:].tolist() == [1, 0, 0]


def test_who_waits_does_not_come_back_as_a_stranger():
    trajectory, table = recorded(Blinking, 12)
    assert trajectory["waits/0"][:, 1, 0].any()
    assert not table.returned.any()
