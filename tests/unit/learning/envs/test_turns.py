"""Environments whose agents wait for their turn."""

from dataclasses import replace

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless.learning.algos.synthetic_job import CASES
from marless.learning.envs import registry
from marless.learning.envs.contract import check_env
from marless.learning.envs.pettingzoo.adapter import PettingZooEnv
from marless.learning.envs.synthetic import SyntheticEnv
from tests.unit.learning.envs.turns import Alternating, Blinking, Late, copies


@pytest.mark.parametrize("make", [Alternating, Blinking, Late])
def test_environments_with_turns_keep_the_contract(make):
    check_env(lambda batch: copies(make, batch), steps=85)


@pytest.mark.parametrize("deaths", [True, False])
@pytest.mark.parametrize("case", ["discrete", "continuous"])
def test_made_up_agents_that_wait_keep_the_contract(case, deaths):
    check_env(lambda batch: SyntheticEnv(replace(CASES[case].spaces, turns=True, deaths=deaths), batch), steps=30)


def test_an_agent_that_waits_does_action_0_whatever_its_policy_draws():
    env = copies(Alternating, 1)
    env.reset(1)
    env.step((np.full((2, 1), 3, np.int32),))
    env.step((np.full((2, 1), 2, np.int32),))
    assert env._envs[0].given == [{"a": 3, "b": 0}, {"a": 0, "b": 2}]


def test_where_none_is_said_to_wait_one_that_does_is_refused():
    env = PettingZooEnv([Alternating()], turns=False)
    with pytest.raises(
        SpecError, match=r"'b' of copy 0 after a reset observes nothing, .* set env.options: {turns: true}"
    ):
        env.reset(1)


@pytest.mark.parametrize("name", ["mpe2.simple_v3", "classic.tictactoe_v3"])
def test_agents_that_pettingzoo_has_converted_never_wait(name):
    assert not registry.make(f"pettingzoo/{name}", {}, 1).spaces.turns
    assert registry.make(f"pettingzoo/{name}", {"turns": True}, 1).spaces.turns
    with pytest.raises(SpecError, match="turns must be true or false, got 'no'"):
        registry.make(f"pettingzoo/{name}", {"turns": "no"}, 1)
