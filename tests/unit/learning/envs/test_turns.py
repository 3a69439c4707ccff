"""Environments whose agents wait for their turn."""

from dataclasses import replace

import numpy as np
import pytest

from marless.learning.algos.synthetic_job import CASES
from marless.learning.envs.contract import check_env
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
