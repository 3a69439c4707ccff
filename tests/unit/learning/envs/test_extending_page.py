"""The page that teaches how to add an environment does what it says."""

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless.learning.data.rollout import play
from tests.docs import programs


@pytest.fixture(scope="module")
def page():
    return programs.run("docs/extending/environment.md")  # its second block runs the contract check


def test_its_environment_keeps_the_contract_and_its_rules(page):
    env = page["make"]({"cells": 3}, 64)
    frame = env.reset(0)
    towards = np.sign(frame.obs[0][..., 1] - frame.obs[0][..., 0]).astype(np.int32) + 1
    next_to_each_other = np.abs(frame.obs[0][0] @ [1, -1]) < 0.4
    apart = np.abs(frame.obs[0][0] @ [1, -1]) > 0.4
    step = env.step((towards,))
    assert apart.any()
    assert step.ended[apart].all()  # from the two ends they meet in the middle
    assert not step.ended[next_to_each_other & (towards[0] != 1)].any()  # neighbours swap places
    assert play(env, None, episodes=100, seed=0).return_sum["walker_1"] < -100


def test_its_options_are_checked(page):
    with pytest.raises(SpecError, match="known: cells"):
        page["make"]({"cell": 3}, 1)
